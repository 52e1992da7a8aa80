"""Optimizers and schedules: what they were made with and for, and at which level a schedule is stepped. Pure."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from probe.diagnose.code.finders.training.schedule_lengths import LEAST_RATIO, SOON, gone_after
from probe.diagnose.code.flow import Flow, flow_of
from probe.diagnose.code.loop.step_calls import (
    calls_in,
    events_of,
    first_module,
    is_torch_optimizer,
    owner_of_group,
)
from probe.diagnose.code.program import Key, Program
from probe.diagnose.code.rule import Remark, Rules
from probe.diagnose.code.syntax import (
    Loop,
    argument,
    is_binary,
    is_call,
    is_method,
    is_read,
    is_string,
    iterated,
    last_word,
    mentions,
    short,
    text_of,
)
from probe.diagnose.code.torch_losses import is_loss

RULES = Rules("loop")
_RATE = "the rate is not what the schedule was made for"

_LENGTHS: dict[str, tuple[str, int]] = {
    "CosineAnnealingLR": ("T_max", 1), "OneCycleLR": ("total_steps", 2), "LinearLR": ("total_iters", 3),
    "PolynomialLR": ("total_iters", 1),
}
"""Where a schedule of torch is told its length: name and place of the argument."""
_PERIODS: dict[str, tuple[str, int]] = {"StepLR": ("step_size", 1), "CosineAnnealingWarmRestarts": ("T_0", 1), "ConstantLR": ("total_iters", 2)}
"""Where the other schedules are told how often they change."""
_AFTER_A_BATCH = re.compile(r"^(on_)?(train_)?(after_|end_)?batch(_end)?$|^on_(train_|training_)?(batch|step)_end$|^after_(batch|step)$")
"""Methods that a trainer calls after each batch, by the names that they have in all frameworks."""
_ABSOLUTE = frozenset({"LambdaLR", "OneCycleLR", "CyclicLR", "CosineAnnealingWarmRestarts"})
"""Schedules that compute the rate from the initial one, whatever another has made of it."""
_OTHER_WEIGHTS = ("load_state_dict", "reset_parameters", "apply", "deepcopy", "requires_grad", "requires_grad_")
"""A pass of a loop in which one of these stands begins with other weights: then a new optimizer is right."""
_SHORTEST_SWING = 100
"""A T_max up to this one, stepped for each batch, was counted in epochs: restarts on purpose are hundreds of steps apart."""


def _schedules(program: Program, flow: Flow) -> Iterator[tuple[Key, ast.Call, str]]:
    """Variables that hold a schedule of torch, its call, and its class."""
    for key in flow.bound:
        made = flow.made(key)
        name = program.called(made)
        if made is not None and name.startswith("torch.optim.lr_scheduler."):
            yield key, made, name.rpartition(".")[2]


def _steps(flow: Flow, key: Key) -> list[ast.Call]:
    """The calls of an object's step, by any of its names."""
    return [
        call for other, calls in flow.calls.items() if other == key or flow.origin(other) == key
        for call in calls if is_method(call, "step")
    ]


def _passes(loop: Loop) -> ast.AST | None:
    """`n` in `for _ in range(n)` or `range(start, n)`."""
    call = loop.iter if isinstance(loop, ast.For) else None
    for _ in range(2):
        if not is_call(call) or not call.args:
            return None
        if call.func.id in ("range", "trange"):
            return call.args[0] if len(call.args) == 1 else call.args[1]
        call = call.args[0] if call.func.id in ("tqdm", "track") else None
    return None


def _walks(loop: Loop) -> str | None:
    """What a loop goes through, as text, without enumerate and progress bars."""
    at = iterated(loop) if isinstance(loop, ast.For) else None
    return None if at is None or isinstance(at, ast.Call) else text_of(at)


def _always(program: Program, call: ast.AST, loop: ast.AST) -> bool:
    """Whether a call runs in each pass of a loop."""
    for around in program.parents(call):
        if around is loop:
            return True
        if isinstance(around, (ast.If, ast.Try, ast.IfExp, ast.BoolOp)):
            return False
    return True


@RULES.add("schedule-at-the-wrong-level", _RATE, "step the schedule where its length counts: once an epoch, or after each optimizer step")
def _wrong_level(program: Program) -> Iterator[Remark]:
    flow = flow_of(program)
    for key, made, name in _schedules(program, flow):
        steps = _steps(flow, key)
        if len(steps) != 1:
            continue
        step = steps[0]
        loops = flow.loops(step)
        length = argument(made, *_LENGTHS[name]) if name in _LENGTHS else None
        said = f"{short(step)} (line {step.lineno})"
        if not step.args and _in_epochs(flow, made, name) and _in_each_batch(flow, step, loops):
            yield Remark(step, f"{name} is given a number of epochs, by the name of its setting, and {said} runs for each batch")
            continue
        if not loops:
            continue
        inner = loops[0]
        if length is not None and len(loops) > 1 and _always(program, step, inner):
            outer = next((one for one in loops[1:] if (n := _passes(one)) is not None and _same(flow, n, length)), None)
            if outer is not None and _passes(inner) is None:
                yield Remark(step, f"{name} is made for {short(length)} steps, the number of passes of the outer loop of line {outer.lineno}, and {said} runs in each pass of the inner one")
                continue
        if len(loops) > 1 and _always(program, step, inner) and _passes(inner) is None and isinstance(inner, ast.For):
            swing = flow.number(length) if name == "CosineAnnealingLR" else None
            if swing is not None and swing <= _SHORTEST_SWING and _over_a_loader(program, inner):
                yield Remark(step, f"{said} runs for each batch: with T_max={swing:g} the rate falls and rises again every {2 * swing:g} batches")
                continue
            fallen = _fallen_after(flow, made, name)
            if fallen is not None and fallen <= SOON and (_over_a_loader(program, inner) or _lasts(flow, made, step, fallen)):
                yield Remark(step, f"{said} runs for each batch: {name} has brought the rate below a thousandth after {fallen} of them")
                continue
        counted = _batches(flow, made, length)
        if counted and _passes(inner) is not None and _walks(inner) is None:
            trained = [one for one in ast.walk(inner) if isinstance(one, ast.For) and one is not inner and (_walks(one) in counted or _count(one) in counted)]
            if trained and not any(step in ast.walk(one) for one in trained) and _always(program, step, inner):
                yield Remark(step, f"{name} is made for as many steps as there are batches in all epochs, and {said} runs once for the whole loop of line {trained[0].lineno}: the schedule hardly begins")


def _in_epochs(flow: Flow, made: ast.Call, name: str) -> bool:
    """Whether a schedule's length is a number of epochs, by its name."""
    place = _PERIODS.get(name) or _LENGTHS.get(name)
    at = argument(made, *place) if place is not None else None
    for _ in range(4):
        if not isinstance(at, (ast.Name, ast.Attribute, ast.Subscript)):
            return False
        said = at.slice.value if isinstance(at, ast.Subscript) and is_string(at.slice) else last_word(at)
        if "epoch" in said.lower():
            return not any(word in said.lower() for word in ("per_epoch", "step", "iter", "batch"))
        given = flow.passed(at)
        at = given[0] if len(given) == 1 else flow.held(at)
    return False


def _in_each_batch(flow: Flow, step: ast.Call, loops: list[Loop]) -> bool:
    """Whether a call runs after each batch: in a method that a trainer calls then, or in a loop that trains on the
    batches, inside one over epochs."""
    function = flow.program.function_of(step)
    if not loops:
        return function is not None and _AFTER_A_BATCH.match(function.name) is not None and _always(flow.program, step, function)
    inner = loops[0]
    epochs = len(loops) > 1 and isinstance(loops[1], ast.For) and "epoch" in text_of(loops[1].target).lower()
    trains = any(event.what == "step" and event.always for event in events_of(flow, inner.body))
    return epochs and trains and isinstance(inner, ast.For) and "epoch" not in text_of(inner.target).lower() and _always(flow.program, step, inner)


def _same(flow: Flow, one: ast.AST, other: ast.AST) -> bool:
    """Whether two expressions are the same number, by their text or as constants; never a product."""
    if not isinstance(one, (ast.Name, ast.Attribute, ast.Constant)) or not isinstance(other, (ast.Name, ast.Attribute, ast.Constant)):
        return False
    if ast.unparse(one) == ast.unparse(other):
        return True
    numbers = flow.number(one), flow.number(other)
    return numbers[0] is not None and numbers[0] == numbers[1] and not isinstance(one, ast.Constant)


def _over_a_loader(program: Program, loop: ast.For) -> bool:
    """Whether a loop goes through a loader, by its kind."""
    at: ast.AST = loop.iter
    while isinstance(at, ast.Call) and at.args and isinstance(at.func, (ast.Name, ast.Attribute)):
        at = at.args[0]
    return program.family(at) == "loader"


def _lasts(flow: Flow, made: ast.Call, step: ast.Call, steps: int) -> bool:
    """Whether a loop whose passes train a batch each, over whatever gives batches, runs in so many epochs that even
    with one batch in each there are this many steps. A loop in which the schedule is made counts no epochs."""
    loops, anew = flow.loops(step), flow.loops(made)
    passes = [flow.number(_passes(one)) for one in loops[1:] if one not in anew]
    trains = any(event.what == "step" and event.always for event in events_of(flow, loops[0].body))
    return trains and step in ast.walk(loops[0]) and any(one is not None and one >= steps for one in passes)


def _fallen_after(flow: Flow, made: ast.Call, name: str) -> int | None:
    """After how many steps a rate is a thousandth of the first one; None where the schedule does not say."""
    gamma = flow.number(argument(made, "gamma", 2 if name in ("StepLR", "MultiStepLR") else 1))
    if name == "MultiStepLR":
        listed = flow.value(argument(made, "milestones", 1))
        places = [flow.number(one) for one in listed.elts] if isinstance(listed, (ast.List, ast.Tuple)) else []
        gamma = 0.1 if gamma is None and argument(made, "gamma", 2) is None else gamma
        known = [one for one in places if one is not None]
        if not known or len(known) < len(places) or gamma is None or not 0 < gamma < 1:
            return None
        return round(max(known)) if gamma ** len(known) <= 1.001 * LEAST_RATIO else None
    if name == "StepLR":
        every = flow.number(argument(made, "step_size", 1))
        gamma = 0.1 if gamma is None and argument(made, "gamma", 2) is None else gamma
    else:
        every = 1.0 if name == "ExponentialLR" else None
    if every is None or gamma is None or not 0 < gamma < 1:
        return None
    return gone_after(every, gamma)


def _batches(flow: Flow, made: ast.Call, length: ast.AST | None) -> set[str]:
    """What counts the batches of an epoch in a schedule's length: a loader, or a number. Empty where the length is
    counted otherwise. The length of a LambdaLR is what the function was made with that makes its factors."""
    per_epoch = argument(made, "steps_per_epoch")
    factors = flow.value(argument(made, "lr_lambda", 1))
    look = [one for one in (length, per_epoch) if one is not None]
    look += factors.args if isinstance(factors, ast.Call) and flow.program.local_function(factors) is not None else []
    for one in list(look):
        key = flow.key(one)
        look += [value for value in flow.values(key)[:2] if value is not None] if key is not None else []
    found = set()
    for one in look:
        for factor in [one.left, one.right] if is_binary(one, ast.Mult) else [one] if one is per_epoch else []:
            if is_call(factor, "len") and factor.args:
                found.add(text_of(factor.args[0]))
            elif isinstance(factor, (ast.Name, ast.Attribute)):
                found.add(text_of(factor))
    return found


def _count(loop: ast.For) -> str | None:
    """How often a loop runs, as text, where that has a name."""
    passes = _passes(loop)
    return text_of(passes) if isinstance(passes, (ast.Name, ast.Attribute)) else None


@RULES.add("schedule-of-a-lost-optimizer", "the rate of the optimizer that steps never changes", "make the schedule after the optimizer's last assignment")
def _other_optimizer(program: Program) -> Iterator[Remark]:
    """A schedule whose optimizer's variable is given a new optimizer afterwards."""
    flow = flow_of(program)
    for key, values in flow.assigned():
        calls = [value for value in values if isinstance(value, ast.Call) and is_torch_optimizer(program, value)]
        if len(calls) < 2 or len(calls) != len(values):
            continue
        for schedule in program.calls():
            name = program.called(schedule)
            of = argument(schedule, "optimizer", 0)
            if not name.startswith("torch.optim.lr_scheduler.") or of is None or flow.key(of) != key:
                continue
            block = program.block(program.statement(schedule))
            places = [number for number, one in enumerate(block) if any(call is inner for call in calls for inner in ast.walk(one) if isinstance(one, ast.Assign))]
            at = next((number for number, one in enumerate(block) if any(inner is schedule for inner in ast.walk(one))), None)
            if at is None or not places or max(places) < at or min(places) > at:
                continue
            again = any(
                program.called(one).startswith("torch.optim.lr_scheduler.")
                for later in block[max(places) :] for one, _ in calls_in(later)
            )
            first = block[at]
            held = flow.key(first.targets[0]) if isinstance(first, ast.Assign) else None
            # A local one that nothing reads any more has done its work, for the optimizer that it was made for.
            read = held is None or held[1].startswith("self.") or any(
                is_read(one) and flow.key(one) == held for later in block[max(places) :] for one in ast.walk(later)
            )
            if not again and read:
                line = block[max(places)].lineno
                yield Remark(block[max(places)], f"{key[1]} is made anew in line {line}, after the schedule of line {schedule.lineno} was made for the one before: the schedule changes a rate that no step uses")


@RULES.add("two-set-the-rate", _RATE, "one writer: chain the schedules (SequentialLR, ChainedScheduler), or set the rate by hand alone")
def _two_writers(program: Program) -> Iterator[Remark]:
    """Two that set the rate of one optimizer, each as if it were alone."""
    flow = flow_of(program)
    by_optimizer: dict[Key, list[tuple[Key, ast.Call, str]]] = {}
    for key, made, name in _schedules(program, flow):
        of = flow.origin(flow.key(argument(made, "optimizer", 0)))
        if of is not None:
            by_optimizer.setdefault(of, []).append((key, made, name))
    for of, schedules in by_optimizer.items():
        alone = [one for one in schedules if not _passed_on(program, flow, one[0])]
        stepped = [(key, made, name, step) for key, made, name in alone for step in _steps(flow, key)[:1] if len(_steps(flow, key)) == 1]
        steady = [one for one in stepped if (loops := program.loops(one[3])) and _always(program, one[3], loops[0])]
        if len(steady) > 1 and any(one[2] in _ABSOLUTE for one in steady):
            first = next(one for one in steady if one[2] in _ABSOLUTE)
            second = next(one for one in steady if one is not first)
            yield Remark(first[3], f"{first[0][1]} ({first[2]}) and {second[0][1]} ({second[2]}) both set the rate of {of[1]}: {first[2]} computes it from the initial rate, and undoes what the other did")
        for key, _made, name, step in stepped:
            for node in _rate_writes(program, flow, of):
                loops = program.loops(node)
                own = [one for one in loops if any(inner is step for inner in ast.walk(one))]
                if own and _always(program, node, own[0]) and name != "ReduceLROnPlateau":
                    yield Remark(node, f"{short(node.targets[0])} is set by hand in the loop that steps {key[1]}: what the schedule computes is overwritten")
                    break


def _passed_on(program: Program, flow: Flow, key: Key) -> bool:
    """Whether a schedule is given to another one, or into a list."""
    for node in flow.escapes(key):
        parent = program.parent[node]
        if isinstance(parent, ast.keyword):
            parent = program.parent[parent]
        if isinstance(parent, (ast.List, ast.Tuple, ast.Dict, ast.Return)) or program.family(parent) == "scheduler":
            return True
    return False


def _rate_writes(program: Program, flow: Flow, of: Key) -> Iterator[ast.Assign]:
    """Assignments to the rate of an optimizer's groups whose value reads no rate."""
    for node in program.everywhere(ast.Assign):
        target = node.targets[0]
        if not isinstance(target, ast.Subscript) or not isinstance(target.slice, ast.Constant) or target.slice.value != "lr":
            continue
        if flow.key(owner_of_group(program, target.value)) != of:
            continue
        text = text_of(node.value)
        if not any(word in text for word in ("lr'", 'lr"', "get_last_lr", "get_lr", "param_groups", "group[")):
            yield node


@RULES.add("made-in-the-loop", "momentum and the adapted step sizes are lost each time", "make it once, before the loop")
def _made_in_the_loop(program: Program) -> Iterator[Remark]:
    flow = flow_of(program)
    for call in program.calls():
        parent = program.parent.get(call)
        if program.family(call) == "scaler" and isinstance(parent, ast.Assign) and (around := program.loops(call)) and program.parent.get(parent) is around[0]:
            own_steps = [one for one in events_of(flow, around[0].body) if one.what in ("backward", "step") and one.scaled]
            if {one.what for one in own_steps if one.always} == {"backward", "step"}:
                yield Remark(call, f"{short(call)} is made anew in each pass of the loop that uses it (line {around[0].lineno}): its scale never follows the gradients")
        if not is_torch_optimizer(program, call) or not isinstance(parent, ast.Assign):
            continue
        key, module, loops = flow.key(parent.targets[0]), first_module(call), program.loops(call)
        if key is not None and not loops and _again_in_a_method(program, flow, key, call):
            name = program.function_name(call)
            yield Remark(call, f"{key[1]} is made anew in each call of {name}, which steps it: its moments always start from 0")
        if key is None or not loops or program.parent.get(parent) is not loops[0]:
            continue
        loop = loops[0]
        events = events_of(flow, loop.body)
        made_here = any(value is not None and loop in program.parents(value) for value in flow.values(flow.key(module)))
        trained = any(one.what == "backward" and one.always for one in events)
        stepped = any(one.what == "step" and one.of == key and one.always for one in events)
        plain = program.kind_name(call).endswith(("LBFGS", "SGD")) and argument(call, "momentum", 2) is None
        if flow.key(module) is None or made_here or not trained or not stepped or plain:
            continue
        if program.family(module) == "module" and not mentions(loop, *_OTHER_WEIGHTS):
            yield Remark(call, f"{key[1]} is made anew in each pass of the loop that steps it (line {loop.lineno}): its moments always start from 0")


def _again_in_a_method(program: Program, flow: Flow, key: Key, call: ast.Call) -> bool:
    """Whether a method makes an optimizer that the class has already, and then trains with it."""
    function = program.function_of(call)
    if function is None or not key[1].startswith("self.") or function.name == "__init__" or len(flow.values(key)) < 2:
        return False
    if program.parent.get(program.parent.get(call, call)) is not function or mentions(function, *_OTHER_WEIGHTS):
        return False
    events = events_of(flow, function.body)
    return any(one.what == "backward" and one.always for one in events) and any(one.what == "step" and one.of == key for one in events)


@RULES.add("one-network-in-two-optimizers", "the other network never changes", "give each optimizer the parameters of its own network")
def _same_network(program: Program) -> Iterator[Remark]:
    """Two optimizers that were made with one network, while another network of the same place is in none."""
    flow = flow_of(program)
    held: dict[Key, list[ast.Call]] = {}
    for call in program.calls():
        if is_torch_optimizer(program, call) and isinstance(program.parent.get(call), ast.Assign):
            key = flow.key(first_module(call))
            if key is not None:
                held.setdefault(key, []).append(call)
    everything = [call for call in program.calls() if is_torch_optimizer(program, call)]
    for key, calls in held.items():
        targets = [flow.key(program.parent[call].targets[0]) for call in calls]  # type: ignore[attr-defined]
        if len(calls) != 2 or len(everything) != 2 or targets[0] == targets[1] or program.scope(calls[0]) is not program.scope(calls[1]):
            continue
        others = [
            other for other, values in flow.assigned()
            if other != key and other[0] is key[0] and len(values) == 1 and isinstance(values[0], ast.Call)
            and program.family(values[0]) == "module" and program.kind_name(values[0]) in program.classes
            and not program.loops(values[0]) and flow.made(key) is not None
        ]
        for other in others:
            called = flow.called_on(other)
            if not called & {"eval", "load_state_dict", "requires_grad_", "parameters"} and not _frozen(program, flow, other):
                yield Remark(calls[1], f"the optimizers of lines {calls[0].lineno} and {calls[1].lineno} both hold the parameters of {key[1]}, and none holds those of {other[1]}")
                break


def _frozen(program: Program, flow: Flow, key: Key) -> bool:
    """Whether a module is a copy, or is given to a call that may do more with it than run it."""
    return any(
        isinstance(call := program.parent.get(node), ast.Call) and node in call.args and program.local_function(call) is None
        for node in flow.escapes(key)
    )


@RULES.add("rate-as-factor", "the rate is far smaller than was meant", "return a factor: 1.0 at the peak")
def _rate_as_factor(program: Program) -> Iterator[Remark]:
    """The function of a LambdaLR gives a factor; a rate there is multiplied by the rate."""
    flow = flow_of(program)
    for call in program.calls():
        if program.called(call) != "torch.optim.lr_scheduler.LambdaLR":
            continue
        made = flow.made(flow.origin(flow.key(argument(call, "optimizer", 0))))
        rate = argument(made, "lr", 1) if made is not None else None
        given = argument(call, "lr_lambda", 1)
        if rate is None or not isinstance(rate, (ast.Name, ast.Attribute)) or flow.number(rate) == 1:
            continue
        results: list[ast.AST | None] = []
        if isinstance(given, ast.Lambda):
            results = [given.body]
        elif isinstance(given, ast.Name) and len(program.functions.get(given.id, [])) == 1:
            results = [one.value for one in ast.walk(program.functions[given.id][0]) if isinstance(one, ast.Return)]
        text = text_of(rate)
        if results and all(result is not None and text in _factors(result) for result in results):
            yield Remark(call, f"LambdaLR multiplies the rate by what its function returns, and that is a rate itself ({text} is a factor of it): the rate in use is about the square of {text}")


def _factors(node: ast.AST) -> list[str]:
    """The factors of a product, as text."""
    waiting, found = [node], []
    while waiting:
        at = waiting.pop()
        if is_binary(at, ast.Mult):
            waiting += [at.left, at.right]
        elif is_binary(at, ast.Div):
            waiting.append(at.left)
            found.append("/" + text_of(at.right))
        else:
            found.append(text_of(at))
    return [] if any(one.startswith("/") and one[1:] in found for one in found) else found


@RULES.add("schedule-given-a-score", _RATE, "step() without a score; ReduceLROnPlateau alone takes one")
def _step_given_a_score(program: Program) -> Iterator[Remark]:
    """A schedule that counts steps is given a loss, which it takes for the number of the epoch."""
    flow = flow_of(program)
    for key, _made, name in _schedules(program, flow):
        for step in _steps(flow, key):
            if len(step.args) != 1 or step.keywords:
                continue
            given = step.args[0]
            loops = [one for one in flow.loops(step) if isinstance(one, ast.For)]
            counted = [inner.id for one in loops if _passes(one) is not None for inner in ast.walk(one.target) if isinstance(inner, ast.Name)]
            if name == "ReduceLROnPlateau" and isinstance(given, ast.Name) and given.id in counted:
                yield Remark(step, f"{short(step)} gives ReduceLROnPlateau the number of the epoch for a score: it rises without end, and the rate is cut again and again")
            elif name != "ReduceLROnPlateau" and _is_score(program, flow, given):
                yield Remark(step, f"{short(step)} gives {name} a loss, which it takes for the number of the epoch")


def _is_score(program: Program, flow: Flow, node: ast.AST) -> bool:
    """Whether a value is a loss or made of one."""

    if is_method(node, "item", "detach"):
        node = node.func.value
    return is_loss(program, node) or (isinstance(node, ast.Name) and is_loss(program, flow.made(flow.key(node))))
