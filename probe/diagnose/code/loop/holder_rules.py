"""Which optimizer, clip, average or file holds what is trained: parameters that none holds, gradients of another
loss, averages and values that are kept and never used. Pure."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from probe.diagnose.code.computed.computation import computation_of
from probe.diagnose.code.data.data_flow import trains
from probe.diagnose.code.flow import Flow, flow_of, may_be_run
from probe.diagnose.code.loop.best_rules import comparison_above
from probe.diagnose.code.loop.call_order_rules import bodies, is_part
from probe.diagnose.code.loop.loss_rules import backwards
from probe.diagnose.code.loop.reach_rules import modules_called
from probe.diagnose.code.loop.step_calls import Event, events_of, optimized
from probe.diagnose.code.program import Key, Program
from probe.diagnose.code.rule import Remark, Rules
from probe.diagnose.code.syntax import (
    Function,
    Loop,
    argument,
    is_attribute,
    is_binary,
    is_call,
    is_false,
    is_method,
    is_name,
    is_own,
    is_string,
    last_word,
    mentions,
    names_read,
    names_set,
    own,
    short,
    text_of,
)
from probe.diagnose.code.traits.backwards import reached_from
from probe.diagnose.code.traits.basic import losses

RULES = Rules("loop")
_KEEPS = frozenset({"train", "eval", "to", "cuda", "cpu", "zero_grad", "state_dict", "double", "float", "half"})
"""Methods of a module that leave open whether it is trained."""
_LEARNED = ("Linear", "Conv", "Embedding", "LSTM", "GRU", "RNN", "Bilinear", "Sequential", "Transformer", "MultiheadAttention")
_COUNTS = ("epoch", "step", "iteration", "iter", "global_step", "n_iter", "total_steps", "steps")


# Parameters that no optimizer holds ----------------------------------------------


def _is_cut_off(program: Program, call: ast.Call) -> bool:
    """Whether no gradient reaches what a network gives at a call."""
    computation = computation_of(program)
    given = {id(one) for one in computation.of("run") if one.node is call}
    reached = {id(one) for _, loss in losses(computation) for one in reached_from(loss)} if given else given
    return bool(given) and not given & reached


@RULES.add("in-no-optimizer", "its parameters keep their first values: what it does is random, and the rest has to learn around it", "give the optimizer its parameters too")
def _in_no_optimizer(program: Program) -> Iterator[Remark]:
    """A network or parameter of the program that a loss depends on, and that no optimizer is given."""
    flow = flow_of(program)
    makers = [call for call in program.calls() if program.family(call) == "optimizer"]
    held = _held(flow, makers)
    if not makers or held is None or not any(program.called(one).startswith("torch.optim.") for one in makers):
        return
    remarked: set[Key] = set()
    for backward, loss in backwards(program):
        called = list(modules_called(flow, loss))
        keys = {flow.origin(flow.key(one.func)) for one in called} - {None}
        if not keys & held:
            continue
        for call in called:
            key = flow.origin(flow.key(call.func))
            if key is None or key in held or key in remarked or not _left_out(flow, key) or _is_cut_off(program, call):
                continue
            remarked.add(key)
            yield Remark(call, f"{short(backward)} (line {backward.lineno}) gives {key[1]} gradients, and no optimizer holds its parameters")
        for one in flow.origins(loss):
            key = flow.key(one) if isinstance(one, (ast.Name, ast.Attribute)) else None
            if key is not None and key not in remarked and key not in held and _lone_parameter(flow, key):
                remarked.add(key)
                yield Remark(one, f"{short(backward)} (line {backward.lineno}) gives {key[1]} a gradient, and no optimizer holds it")


def _held(flow: Flow, makers: list[ast.Call]) -> set[Key] | None:
    """The variables that the parameters of optimizers may come from; None where that cannot be told."""
    found: set[Key] = set()
    followed: dict[ast.AST, int] = {}  # each read, and how far it was followed: there are many ways to one
    for call in (*makers, *(one for one in flow.program.calls() if is_method(one, "add_param_group"))):
        given = [*call.args, *(one.value for one in call.keywords if one.arg in ("params", "param_group", None))]
        if not given:
            return None
        waiting = [(one, 4) for one in given]
        while waiting:
            at, left = waiting.pop()
            for one in flow.origins(at):
                key = flow.key(one) if isinstance(one, (ast.Name, ast.Attribute)) else None
                if key is None or followed.get(one, -1) >= left:
                    continue
                followed[one] = left
                found |= {key} | ({other} if (other := flow.origin(key)) is not None else set())
                more = [*flow.possible(one), *flow.passed(one), *(value for value in flow.values(key) if value is not None)] if left else []
                waiting += [(value, left - 1) for value in more if value is not at]
                if flow.key(one) is not None and not more and any(two.how == "parameter" for two in flow.bindings(one)) and not is_name(one, "self"):
                    return None
    return found


def _left_out(flow: Flow, key: Key) -> bool:
    """Whether a network is made anew, with parameters, and is only called, moved and saved."""
    program, made = flow.program, flow.made(key)
    while is_method(made, *_KEEPS) and isinstance(made.func.value, ast.Call):
        made = made.func.value
    if made is None or program.family(made) not in ("module", "loss") or len(flow.values(key)) != 1:
        return False
    if isinstance(key[0], ast.ClassDef) and (program.is_module_class(key[0]) or key[0].bases):
        return False
    if isinstance(key[0], ast.ClassDef) and flow.attributes.get(key[1].removeprefix("self."), 0) > len(flow.reads.get(key, [])):
        return False
    name = program.called(made)
    of = program.classes.get(name, [])
    if of and (not _has_parameters(program, of[0]) or mentions(of[0], "load", "requires_grad", "requires_grad_", "from_pretrained") or "pretrain" in text_of(of[0])):
        return False
    if not of and not (name.startswith("torch.nn.") and any(word in text_of(made) for word in _LEARNED)):
        return False
    return all(_only_run(program, node) for node in _uses(flow, key))


def _uses(flow: Flow, key: Key) -> Iterator[ast.AST]:
    """The reads of a variable, and of the parameters and attributes that it is given to."""
    for other in flow.bound:
        if other == key or flow.origin(other) == key:
            yield from flow.reads.get(other, [])


def _only_run(program: Program, node: ast.AST) -> bool:
    """Whether a read of a network runs it, moves it, hands it to a function of the program, or keeps it in self."""
    around = program.parent.get(node)
    if isinstance(around, ast.keyword):
        around = program.parent.get(around)
    if isinstance(around, ast.Call):
        return around.func is node or (program.run_by(around) is not None and program.family(around) != "module")
    if is_attribute(around, "parameters"):
        return any(last_word(one.func).startswith("clip_grad") for one in program.calls_around(around))
    if isinstance(around, ast.Tuple) and isinstance(program.parent.get(around), ast.Return):
        return True  # what takes the results apart is looked at as well
    return is_attribute(around, *_KEEPS) or (isinstance(around, ast.Assign) and is_own(around.targets[0]))


def _has_parameters(program: Program, of: ast.ClassDef) -> bool:
    calls = (program.called(one) for one in ast.walk(of) if isinstance(one, ast.Call))
    return any(name == "torch.nn.Parameter" or (name.startswith("torch.nn.") and name.rpartition(".")[2].startswith(_LEARNED)) for name in calls)


def _lone_parameter(flow: Flow, key: Key) -> bool:
    """Whether a variable is an nn.Parameter that belongs to no module, and is only computed with."""
    program, made = flow.program, flow.made(key)
    if made is None or program.called(made) != "torch.nn.Parameter" or len(made.args) > 1 or any(one.arg == "requires_grad" for one in made.keywords):
        return False
    if isinstance(key[0], ast.ClassDef) and (program.is_module_class(key[0]) or key[0].bases):
        return False
    for node in _uses(flow, key):
        around = program.parent.get(node)
        if isinstance(around, (ast.BinOp, ast.UnaryOp)) or is_attribute(around, "exp", "sigmoid", "item", "detach", "tanh", "clamp", "softmax"):
            continue
        if isinstance(around, ast.Call) and program.called(around).startswith(("torch.exp", "torch.sigmoid", "torch.nn.functional.", "torch.clamp", "torch.softmax", "torch.matmul")):
            continue
        return False
    return True


@RULES.add("layer-in-no-group", "the layers of that part keep their first values: what they do is random", "add a group with the parameters that are left")
def _in_no_group(program: Program) -> Iterator[Remark]:
    """A part of a network that is in none of the groups which an optimizer is given, part by part."""
    flow = flow_of(program)
    makers = [call for call in program.calls() if program.family(call) == "optimizer"]
    if any(is_attribute(one, "requires_grad", "requires_grad_", "add_param_group") for one in program.everywhere(ast.Attribute)):
        return
    for call in makers:
        groups = [one.func.value for value in [flow.value(argument(call, "params", 0))] if value is not None for one in ast.walk(value) if is_method(one, "parameters", "named_parameters")]
        parts = [one for one in groups if isinstance(one, ast.Attribute)]
        wholes = {flow.key(one.value) for one in parts}
        whole = parts[0].value if len(parts) == len(groups) >= 2 and len(wholes) == 1 else None
        kind = program.kind(whole)
        of = program.classes.get(kind.name, []) if kind is not None and kind.family == "module" else []
        if len(of) != 1 or len(makers) > 1 or not program.called(call).startswith("torch.optim.") or whole is None or is_name(whole, "self"):
            continue
        given = {one.attr for one in parts}
        for key, values in flow.assigned():
            made, name = flow.made(key), key[1].removeprefix("self.")
            learned = made is not None and program.called(made).startswith("torch.nn.") and program.called(made).rpartition(".")[2].startswith(_LEARNED)
            if key[0] is of[0] and key[1].startswith("self.") and learned and len(values) == 1 and name not in given and any(word in text_of(made or call) for word in _LEARNED if word != "Sequential"):
                forward = program.method(of[0], "forward")
                runs = forward is not None and any(is_own(one.func) and one.func.attr == name for one in ast.walk(forward) if isinstance(one, ast.Call))
                elsewhere = flow.attributes.get(name, 0) > len(flow.reads.get(key, []))
                if runs and not elsewhere and not mentions(of[0], "load_state_dict", "detach") and program.family(made) == "module":
                    yield Remark(call, f"{short(call, 40)} is given {', '.join(sorted(given))} of {text_of(whole)}, and {name} (line {getattr(made, 'lineno', 0)}) is in no group")


@RULES.add("copied-optimizer", "its steps change parameters that no model has: the copy of the model stays as it is", "make a new optimizer with the parameters of the copy")
def _copied(program: Program) -> Iterator[Remark]:
    """An optimizer that is a deep copy of another one, and so holds copies of parameters."""
    flow = flow_of(program)
    for call in program.calls():
        parent = program.parent.get(call)
        if program.called(call) != "copy.deepcopy" or len(call.args) != 1 or program.family(call.args[0]) != "optimizer" or not isinstance(parent, ast.Assign):
            continue
        key = flow.key(parent.targets[0])
        if key is not None and "step" in flow.called_on(key):
            yield Remark(call, f"{short(call)} copies the parameters along with the optimizer: no step of {key[1]} changes a model")


@RULES.add("schedule-of-the-other-optimizer", "one rate falls twice as fast as it should, and the other never changes", "make each schedule with its own optimizer")
def _other_schedule(program: Program) -> Iterator[Remark]:
    """Two optimizers and two schedules in one place, both schedules made with one of the optimizers."""
    flow = flow_of(program)
    schedules = [call for call in program.calls() if program.family(call) == "scheduler" and program.called(call).startswith("torch.optim.lr_scheduler.")]
    makers = [call for call in program.calls() if program.family(call) == "optimizer"]
    variables = {made: key for key in list(flow.bound) if (made := flow.made(key)) is not None}
    targets = [variables.get(call) for call in makers]
    if len(schedules) != 2 or len(makers) != 2 or len({*targets} - {None}) != 2:
        return
    of = [flow.key(argument(one, "optimizer", 0)) for one in schedules]
    kept = [variables.get(call) for call in schedules]
    steps = [flow.called_on(key) for key in kept]
    if of[0] is not None and of[0] == of[1] and of[0] in targets and len(set(kept)) == 2 and None not in kept and all("step" in one for one in steps):
        other = next(key for key in targets if key != of[0])
        apart = program.called(schedules[0]) == program.called(schedules[1]) and program.frame(schedules[0]) is program.frame(schedules[1])
        if other is not None and apart:
            yield Remark(schedules[1], f"the schedules of lines {schedules[0].lineno} and {schedules[1].lineno} are both made with {of[0][1]}, and {other[1]} has none")


# Clips and gradients of another network ---------------------------------------------


@RULES.add("clipped-another", "the gradients that the step uses are not clipped", "clip the parameters that the optimizer holds")
def _clipped_another(program: Program) -> Iterator[Remark]:
    """A clip between a backward and a step, of a network that the step does not change."""
    flow = flow_of(program)
    remarked: set[ast.AST] = set()
    for _, body in bodies(program):
        events = [one for one in events_of(flow, body) if one.what in ("backward", "step", "clip", "zero")]
        for number, event in enumerate(events):
            if event.what != "clip" or event.of is None or event.node in remarked:
                continue
            before = [one.what for one in events[:number] if one.what != "clip"][-1:]
            later = events[number + 1 :]
            until = next((place for place, one in enumerate(later) if one.what in ("backward", "zero")), len(later))
            steps = [one for one in later[:until] if one.what == "step"]
            clipped = [one.of for one in events if one.what == "clip"]
            nets = [optimized(flow, one.of) for one in steps]
            if before != ["backward"] or len(steps) != 1 or nets[0] is None:
                continue
            mine, other = flow.origin(event.of), flow.origin(nets[0])
            if mine is None or other is None or nets[0] in clipped or other in clipped or _same(flow, mine, other):
                continue
            remarked.add(event.node)
            yield Remark(event.node, f"{short(event.node)} clips the gradients of {mine[1]}, and {short(steps[0].node)} changes {other[1]}")


def _same(flow: Flow, one: Key, other: Key) -> bool:
    """Whether two networks may be one, or part of each other: unless both are made by calls of their own."""
    made = [flow.made(key) for key in (one, other)]
    if one == other or is_part(one, other) or is_part(other, one) or None in made or made[0] is made[1]:
        return True
    for call, key in ((made[0], other), (made[1], one)):
        inside = [found for node in ast.walk(call) if isinstance(node, (ast.Name, ast.Attribute)) and (found := flow.key(node)) is not None] if call is not None else []
        if any(key in (found, flow.origin(found)) for found in inside) or (call is not None and _is_given(flow, call)):
            return True
    return any(flow.program.family(call) != "module" for call in made)


def _is_given(flow: Flow, call: ast.Call) -> bool:
    """Whether a call gives the network that a function is given, and may be any (`net.to(device)`, `torch.compile(net)`)."""
    taken = [call.func.value if isinstance(call.func, ast.Attribute) else None, *call.args[:1]]
    keys = [flow.origin(flow.key(one)) for one in taken if one is not None and flow.program.family(one) in (None, "module")]
    given = any(one.how == "parameter" for key in keys if key is not None for one in flow.bound.get(key, []))
    called = flow.program.called(call)
    return given and (not called.rpartition(".")[2][:1].isupper() or ".parallel." in called)


@RULES.add("gradients-of-another-loss", "each of its steps also follows the gradients that the other network's loss left in it", "call zero_grad of its optimizer right before its own backward")
def _of_another_loss(program: Program) -> Iterator[Remark]:
    """A network that the loss of another one goes through, and whose optimizer steps without clearing that."""
    flow = flow_of(program)
    if any(is_attribute(one, "requires_grad", "requires_grad_") for one in program.everywhere(ast.Attribute)):
        return
    for owner, body in bodies(program):
        if not isinstance(owner, (Loop, Function)):
            continue
        events = [one for one in events_of(flow, body) if one.what in ("backward", "step", "zero") and one.always]
        for number, event in enumerate(events):
            net = optimized(flow, event.of) if event.what == "step" else None
            if net is None or event.of is None:
                continue
            around = events[number + 1 :] + events[:number] if isinstance(owner, Loop) else events[:number]
            cleared = [place for place, one in enumerate(around) if one.what == "zero" and _is_of(flow, one, event.of, net)]
            if not cleared or _unknown_clear(flow, around[cleared[-1] + 1 :], event.of):
                continue
            since = around[cleared[-1] + 1 :]
            runs = [place for place, one in enumerate(since) if one.what == "backward"]
            for first, last in ((one, runs[-1]) for one in runs[:-1]):
                others = [one for one in since[first:last] if one.what == "step" and one.of != event.of]
                nets = [optimized(flow, one.of) for one in others]
                if len(others) == 1 and nets[0] is not None and not _same(flow, _known(flow, nets[0]), _known(flow, net)) and _through(flow, since[first], net) and (
                    _through(flow, since[first], nets[0]) and _through(flow, since[last], net)
                ):
                    yield Remark(event.node, f"{short(event.node)} also uses the gradients that {short(since[first].node)} (line {since[first].node.lineno}) left in {net[1]}: nothing clears them in between")
                    break


def _known(flow: Flow, key: Key) -> Key:
    return flow.origin(key) or key


def _is_of(flow: Flow, zero: Event, optimizer: Key, net: Key) -> bool:
    return zero.of is not None and (zero.of in (optimizer, net) or _known(flow, zero.of) in (_known(flow, optimizer), _known(flow, net)))


def _unknown_clear(flow: Flow, events: list[Event], optimizer: Key) -> bool:
    """Whether gradients are cleared of something that is not known."""
    return any(one.what == "zero" and (one.of is None or flow.made(_known(flow, one.of)) is None) for one in events)


def _through(flow: Flow, event: Event, net: Key) -> bool:
    """Whether the loss that a backward starts from is made with what a network gives."""
    func = event.node.func
    loss = next((value for call, value in backwards(flow.program) if call is event.node), func)
    return any(flow.key(one.func) == net or flow.origin(flow.key(one.func)) == _known(flow, net) for one in modules_called(flow, loss))


# What is kept and never used -----------------------------------------------------------


@RULES.add("loaded-and-not-used", "the training begins at its first epoch again, with the state of the last one", "begin the loop there: for epoch in range(start, epochs)")
def _not_used(program: Program) -> Iterator[Remark]:
    """The epoch or step of a checkpoint that is put into a variable which nothing reads."""
    flow = flow_of(program)
    for node in program.everywhere(ast.Assign):
        key = flow.key(node.targets[0]) if len(node.targets) == 1 else None
        word = _count_of(flow, node.value)
        if key is None or word is None or any(isinstance(one, ast.Global) and key[1] in one.names for one in program.everywhere(ast.Global)):
            continue
        if is_own(node.targets[0]) and (flow.attributes.get(node.targets[0].attr, 0) or (isinstance(key[0], ast.ClassDef) and key[0].bases)):
            continue
        if any(not _only_shown(program, one) for one in flow.reads.get(key, [])):
            continue
        frame = program.frame(node)
        loops = [one for one in own(frame, ast.For) if is_call(one.iter, "range", "trange", "tqdm") and one.lineno > node.lineno]
        if loops and (trains(program, loops[0]) or any(is_method(one, "step") for one in ast.walk(loops[0]))) and not _returned(frame, key[1]):
            yield Remark(node, f"{short(node.targets[0])} takes {word!r} from the checkpoint, and nothing reads it: the loop of line {loops[0].lineno} runs over {short(loops[0].iter, 40)}")


def _count_of(flow: Flow, node: ast.AST) -> str | None:
    """The key under which a checkpoint holds a count that an expression takes from it."""
    if is_binary(node, ast.Add, ast.Sub):
        node = node.left
    if is_method(node, "get") and node.args:
        held, word = node.func.value, node.args[0]
    elif isinstance(node, ast.Subscript):
        held, word = node.value, node.slice
    else:
        return None
    loaded = flow.program.called(flow.value(held)) == "torch.load"
    return word.value if loaded and is_string(word) and word.value.lower() in _COUNTS else None


def _only_shown(program: Program, node: ast.AST) -> bool:
    """Whether a read is part of a text that is printed or logged."""
    for around in program.parents(node):
        if isinstance(around, ast.stmt):
            return False
        if isinstance(around, ast.Call):
            return is_call(around, "print") or is_method(around, "info", "debug", "warning", "format", "print")
    return False


def _returned(frame: ast.AST, name: str) -> bool:
    return any(is_name(one, name) for node in own(frame, ast.Return) for one in ast.walk(node))


@RULES.add("best-overwritten", "the file holds the last state, not the best one", "save the last state under another name")
def _best_overwritten(program: Program) -> Iterator[Remark]:
    """The best state, saved to a file that a later save of whatever state goes to as well."""
    saves = [call for call in program.calls() if program.called(call) == "torch.save" and len(call.args) > 1]
    places = [(save, save) for save in saves]
    for save in saves:
        function = program.function_of(save)
        if function is not None and not any(isinstance(one, ast.If) for one in program.parents(save)):
            places += [(save, call) for call in program.calls() if program.run_by(call) is function and not call.args and not call.keywords]
    for save, place in places:
        if comparison_above(program, place) is None:
            continue
        path = text_of(save.args[1])
        for other, later in places:
            same = text_of(other.args[1]) == path and text_of(other.args[0]) == text_of(save.args[0]) and program.frame(later) is program.frame(place)
            branch = next((one for one in program.parents(place) if isinstance(one, ast.If)), None)
            steady = not any(isinstance(one, (ast.If, ast.Try, ast.ExceptHandler)) for one in program.parents(later))
            varies = any(isinstance(one, (ast.JoinedStr, ast.BinOp, ast.Call)) and names_read(one) & _set_in(program, place) for one in ast.walk(save.args[1]))
            if same and steady and branch is not None and later.lineno > place.lineno and not varies and not _read_back(program, path, place, later):
                yield Remark(later, f"{short(later)} writes to the file in which line {place.lineno} kept the best state: nothing of that is left")
                break


def _set_in(program: Program, node: ast.AST) -> set[str]:
    """The names that the loops around a node set."""
    return {name for loop in program.loops(node) for name in names_set(loop)}


def _read_back(program: Program, path: str, first: ast.Call, last: ast.Call) -> bool:
    """Whether the best state is loaded again before the file is written to."""
    return any(
        program.called(one) == "torch.load" and one.args and text_of(one.args[0]) == path and first.lineno < one.lineno < last.lineno
        for one in program.calls()
    )


@RULES.add("saved-under-other-names", "no name of the file is one of the model: nothing is loaded, and strict=False says nothing of it", "save model.module.state_dict(), or load with strict=True")
def _other_names(program: Program) -> Iterator[Remark]:
    """A state of a wrapped model, whose names begin with `module.`, that is loaded into a bare one with strict=False."""
    flow = flow_of(program)
    if any(isinstance(one, ast.Constant) and isinstance(one.value, str) and "module." in one.value for one in program.everywhere(ast.Constant)):
        return
    states = [one for one in program.calls() if is_method(one, "state_dict") and not one.args]
    saved = [one for call in program.calls() if program.called(call) == "torch.save" for part in flow.origins(call.args[0]) for one in states if part is one] if states else []
    if not saved or not all(_wrapped(flow, one.func.value) for one in saved if is_method(one)):
        return
    for call in program.calls():
        if not is_method(call, "load_state_dict") or not any(one.arg == "strict" and is_false(one.value) for one in call.keywords) or not call.args:
            continue
        if _wrapped(flow, call.func.value) is False and any(program.called(one) == "torch.load" for one in flow.origins(call.args[0]) if isinstance(one, ast.Call)):
            yield Remark(call, f"{short(call)} loads into a bare model what line {saved[0].lineno} saved of a wrapped one: each name begins with 'module.', and none fits")


def _wrapped(flow: Flow, node: ast.AST) -> bool | None:
    """Whether a model is wrapped for several devices where it stands; None where that is not known."""
    given = flow.value(node)
    if not isinstance(given, ast.Call):
        values = [one for one in flow.possible(node) if isinstance(one, ast.Call)]
        given = values[0] if len(values) == 1 else node
    if not isinstance(given, ast.Call):
        return None
    while is_method(given, *_KEEPS) and isinstance(given.func.value, ast.Call):
        given = given.func.value
    return flow.program.called(given).startswith(("torch.nn.parallel.", "torch.nn.DataParallel"))


@RULES.add("average-never-used", "the average is not one, or the training goes on from it", "call its update in each step, and put the weights back after each evaluation")
def _average_never(program: Program) -> Iterator[Remark]:
    """An average of the weights that nothing updates, or that is put into the model and never taken out."""
    flow = flow_of(program)
    if not any(True for _ in backwards(program)):
        return
    for key in list(flow.bound):
        made = flow.made(key)
        if program.called(made) == "torch.optim.swa_utils.AveragedModel" and made is not None and not flow.attributes.get("update_parameters", 0):
            yield Remark(made, f"{key[1]} is made and never updated: update_parameters is called nowhere, and it keeps the weights it began with")
    for of in program.everywhere(ast.ClassDef):
        made_of = [call for call in program.calls() if program.called(call) == of.name]
        if not made_of or len(program.classes[of.name]) != 1 or any(last_word(base) == of.name for other in program.everywhere(ast.ClassDef) for base in other.bases):
            continue
        methods = [one for one in of.body if isinstance(one, Function) and not one.name.startswith("__")]
        for method in methods:
            if _averages(flow, method) and not flow.attributes.get(method.name, 0) and not may_be_run(program, method, of):
                yield Remark(made_of[0], f"{short(made_of[0])} keeps an average that {method.name}() moves, and nothing calls {method.name}(): it stays what it was at the start")
        for puts in methods:
            for takes in methods:
                if takes is not puts and not flow.attributes.get(takes.name, 0) and not may_be_run(program, takes, of) and (store := _put_back(puts, takes)) is not None:
                    for call in program.calls():
                        loops = flow.loops(call) if is_method(call, puts.name) and program.local_function(call) is puts else []
                        if any(trains(program, one) for one in loops):
                            yield Remark(call, f"{short(call)} puts other weights into the model and keeps its own in {store}, and nothing calls {takes.name}(): the training goes on from those")
                            break


def _averages(flow: Flow, method: ast.AST) -> bool:
    """Whether a method moves a store a little towards the parameters of a model."""
    over = [one for one in ast.walk(method) if is_method(one, "parameters", "named_parameters", "state_dict", "named_buffers")]
    if not over:
        return False
    for one in ast.walk(method):
        if is_method(one, "lerp_") or (is_method(one, "mul_") and one.args and is_method(flow.program.parent.get(flow.program.parent.get(one, one)), "add_")):
            return True
        if is_binary(one, ast.Add) and all(is_binary(side, ast.Mult) for side in (one.left, one.right)):
            return any(is_binary(part, ast.Sub) and isinstance(part.left, ast.Constant) and part.left.value == 1 for part in ast.walk(one))
    return False


def _put_back(puts: Function, takes: Function) -> str | None:
    """The store in which one method keeps the parameters it replaces, and out of which another puts them back."""
    stores = {text_of(one.targets[0].value) for one in ast.walk(puts) if isinstance(one, ast.Assign) and isinstance(one.targets[0], ast.Subscript) and is_own(one.targets[0].value)}
    copied = [one for one in ast.walk(puts) if is_method(one, "copy_") or (isinstance(one, ast.Assign) and is_attribute(one.targets[0], "data"))]
    back = [one for one in ast.walk(takes) if is_method(one, "copy_") or (isinstance(one, ast.Assign) and is_attribute(one.targets[0], "data"))]
    for one in back if copied else ():
        read = {text_of(part.value) for part in ast.walk(one) if isinstance(part, ast.Subscript)}
        if read & stores:
            return min(read & stores)
    return None
