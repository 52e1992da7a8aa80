"""States, copies and settings: what is kept, loaded, replaced or set so that nothing comes of it. Pure."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from probe.diagnose.code.computed.computation import computation_of
from probe.diagnose.code.data.data_flow import trains
from probe.diagnose.code.finders.runs.resumed_runs import steps_alone
from probe.diagnose.code.flow import Flow, flow_of
from probe.diagnose.code.loop.average_rules import past_of_lists
from probe.diagnose.code.loop.best_rules import comparison_above, goes_on_from
from probe.diagnose.code.loop.step_calls import calls_in, goes_over, is_optimizer, is_torch_optimizer
from probe.diagnose.code.program import Key, Program
from probe.diagnose.code.rule import Remark, Rules
from probe.diagnose.code.syntax import (
    argument,
    is_attribute,
    is_call,
    is_false,
    is_method,
    is_name,
    is_string,
    is_true,
    iterated,
    last_word,
    mentions,
    pairs_of,
    returned,
    short,
    text_of,
)

RULES = Rules("loop")
_SIZES = ("in_features", "out_features", "in_channels", "out_channels", "num_features", "hidden_size", "embedding_dim")
"""Attributes of a module that are numbers: a new one is made for them, not of the old one."""
_FOLDS = re.compile(r"(^|_)(k_?)?folds?(_|$)|kfold", re.I)
_LOST = "what was kept, loaded or set has no effect"


def state_of(program: Program, node: ast.AST | None) -> ast.Call | None:
    """The `m.state_dict()` whose tensors a value shares, through copies that do not copy them."""
    if isinstance(node, ast.Call):
        if is_method(node, "state_dict") and not node.args:
            return node
        name = program.dotted(node.func)
        if is_method(node, "copy") and not node.args:
            return state_of(program, node.func.value)
        if (name == "copy.copy" or is_call(node, "dict", "OrderedDict")) and len(node.args) == 1:
            return state_of(program, node.args[0])
    if isinstance(node, ast.DictComp) and isinstance(node.generators[0].iter, ast.Call):
        items = node.generators[0].iter
        value: ast.AST = node.value
        on_host = not any("cuda" in source.text or "device" in source.text for source in program.sources)
        while is_method(value, *(("detach", "cpu") if on_host else ("detach",))):  # on the host, cpu() copies nothing
            value = value.func.value
        if is_method(items, "items") and isinstance(value, ast.Name):
            return state_of(program, items.func.value)
        if is_method(items, "named_parameters") and (isinstance(value, ast.Name) or is_attribute(value, "data")):
            return items
    return None


@RULES.add("kept-without-a-copy", "the state that is loaded at the end is the last one, not the best", "copy.deepcopy(model.state_dict())")
def _kept_without_a_copy(program: Program) -> Iterator[Remark]:
    """The best state, kept as what it is rather than as what it was."""
    flow = flow_of(program)
    yield from _loaded_into_itself(program)
    for node in program.everywhere(ast.Assign):
        for target, value in pairs_of(node):
            if isinstance(value, ast.Dict):
                for kept in value.values:
                    if is_method(state_of(program, kept)) and _is_loaded(flow, target, value, kept):
                        yield Remark(kept, f"{short(kept)} in {short(target)} holds the weights themselves, not a copy: the steps after it change it too")
            results = program.results(value)
            state = state_of(program, results[0] if len(results) == 1 else value)
            key = flow.key(target)
            if not is_method(state) or key is None or program.family(state.func.value) not in (None, "module"):
                continue
            if comparison_above(program, node) is not None and _used_after(program, flow, key, node, state):
                yield Remark(node, f"{key[1]} holds the weights themselves, not a copy: the steps after line {node.lineno} change it too")


def _is_loaded(flow: Flow, target: ast.expr, kept: ast.Dict, value: ast.expr) -> bool:
    """Whether an entry of a dictionary is loaded into a model, from a variable that holds such dictionaries only."""
    variable = flow.key(target)
    name = next((text_of(key) for key, one in zip(kept.keys, kept.values, strict=True) if one is value and key is not None), None)
    if variable is None or not all(isinstance(one, (ast.Dict, ast.Constant)) for one in flow.values(variable)):
        return False
    loaded = [one.args[0] for one in flow.program.calls() if is_method(one, "load_state_dict") and one.args]
    entries = (one.value for one in loaded if isinstance(one, ast.Subscript) and text_of(one.slice) == name)
    return any(variable in (flow.key(one), *map(flow.key, flow.program.results(flow.value(one)))) for one in entries)


def _used_after(program: Program, flow: Flow, key: Key, node: ast.stmt, state: ast.Call) -> bool:
    """Whether a variable is read outside of the branch and the loops that set it, or loaded outside of the branch."""
    loops = program.loops(node)
    if not loops and not key[1].startswith("self."):
        return False
    branch = next(one for one in program.parents(node) if isinstance(one, ast.If))
    for read in flow.escapes(key):
        around = list(program.parents(read))
        if branch in around or any(isinstance(one, ast.Compare) for one in around[:2]):
            continue
        copied_back = is_method(around[1], "copy_") and loops and loops[0] not in around
        if not loops or loops[-1] not in around or copied_back or _loaded_back(flow, around[0], state):
            return True
    return False


def _loaded_back(flow: Flow, call: ast.AST, state: ast.Call) -> bool:
    """Whether a call loads a state into the module that it was taken from, perhaps steps later."""
    taken = state.func.value if is_method(state) else None
    return is_method(call, "load_state_dict") and flow.key(call.func.value) == flow.key(taken)


@RULES.add("state-without-its-past", "the difference is always 0: both names hold the weights as they are now", "keep what was there before: {k: v.clone() for k, v in model.state_dict().items()}")
def _two_of_one_state(program: Program) -> Iterator[Remark]:
    """The difference between two states of one module, of which neither is a copy."""
    flow = flow_of(program)
    yield from past_of_lists(program)
    for node in program.everywhere(ast.BinOp):
        if not isinstance(node.op, ast.Sub) or not isinstance(node.left, ast.Subscript) or not isinstance(node.right, ast.Subscript):
            continue
        states = [flow.only(flow.key(one.value)) for one in (node.left, node.right)]
        one, other = (state if is_method(state, "state_dict") and not state.args else None for state in states)
        if one is None or other is None or one is other or text_of(node.left.slice) != text_of(node.right.slice):
            continue
        if flow.key(one.func.value) is not None and flow.key(one.func.value) == flow.key(other.func.value):
            yield Remark(node, f"{short(node)} is 0: {text_of(one)} of line {one.lineno} and of line {other.lineno} are the same tensors")


def _loaded_into_itself(program: Program) -> Iterator[Remark]:
    """A state that is kept before a training and loaded into its module after it, and is no copy."""
    flow = flow_of(program)
    for node in program.everywhere(ast.Assign):
        state = state_of(program, node.value)
        key = flow.key(node.targets[0])
        if not is_method(state) or key is None or not is_name(node.targets[0]) or len(flow.values(key)) != 1 or is_optimizer(flow, state.func.value):
            continue
        owner = text_of(state.func.value)
        for load in program.calls():
            if not is_method(load, "load_state_dict") or len(load.args) != 1 or flow.key(load.args[0]) != key or text_of(load.func.value) != owner or load.lineno < node.lineno:
                continue
            between = [one for one in ast.walk(program.frame(node)) if node.lineno < getattr(one, "lineno", 0) <= load.lineno]
            again = any(isinstance(one, ast.Assign) and owner in [text_of(target) for target in one.targets] for one in between)
            moved = any(is_method(one, "step") and is_optimizer(flow, one.func.value) for one in between if isinstance(one, ast.Call))
            moved = moved or any(isinstance(one, (ast.AugAssign, ast.Assign)) and is_attribute(one.target if isinstance(one, ast.AugAssign) else one.targets[0], "data") for one in between)
            moved = moved or any(isinstance(one, ast.Call) and trains(program, one) and owner in [text_of(part) for part in one.args] for one in between)
            if moved and not again and comparison_above(program, node) is None:
                yield Remark(load, f"{short(load)} changes nothing: {key[1]} holds the weights of {owner} themselves, and the steps since line {node.lineno} changed it too")


@RULES.add("alias-for-a-copy", "both are one network: it is compared with itself", "copy.deepcopy(model)")
def _alias(program: Program) -> Iterator[Remark]:
    """A second name for a module that is meant to be a second module."""
    flow = flow_of(program)
    for call in program.calls():
        state = call.args[0] if is_method(call, "load_state_dict") and call.args else None
        if not is_method(call) or not is_method(state, "state_dict"):
            continue
        mine, other = flow.key(call.func.value), flow.key(state.func.value)
        if mine is None or other is None or mine == other:
            continue
        for one, two in ((mine, other), (other, mine)):
            value = flow.only(one)
            if value is not None and flow.key(value) == two and len(flow.values(two)) == 1:
                yield Remark(value, f"{one[1]} is {two[1]} under another name, not a copy: what is loaded from one into the other is what it has already")


@RULES.add("one-module-from-a-cache", "both names are one network: the copy changes with the original in each step", "make them without the cache, or copy.deepcopy(model)")
def _from_cache(program: Program) -> Iterator[Remark]:
    """A function that makes a module and remembers its result, called twice with the same arguments."""
    for function in program.everywhere(ast.FunctionDef):
        cached = any((program.dotted(one.func if isinstance(one, ast.Call) else one) or "") in ("functools.lru_cache", "functools.cache") for one in function.decorator_list)
        makes = any(program.family(one) == "module" for one in returned(function))
        calls = [one for one in program.calls() if program.local_function(one) is function] if cached and makes else []
        for one in calls:
            again = next((other for other in calls if other is not one and other.lineno > one.lineno and text_of(other) == text_of(one)), None)
            if again is not None and program.scope(one) is program.scope(again):
                yield Remark(again, f"{short(again)} gives the module of line {one.lineno} again: {function.name}() remembers what it has made")
                break


@RULES.add("state-not-loaded", "the weights stay what they were", "call load_state_dict")
def _state_not_loaded(program: Program) -> Iterator[Remark]:
    """A state dict that is changed, and never loaded; a state given to state_dict, which loads nothing."""
    flow = flow_of(program)
    for call in program.calls():
        func = call.func
        if not isinstance(func, ast.Attribute) or not isinstance(program.parent.get(call), ast.Expr):
            continue
        if func.attr == "state_dict" and len(call.args) == 1 and program.family(func.value) == "module" and not call.keywords:
            yield Remark(call, f"{short(call)} loads nothing: it writes the module's state into its argument")
        of = func.value.func if func.attr == "update" and isinstance(func.value, ast.Call) else None
        if is_attribute(of, "state_dict") and program.family(of.value) in ("module", "optimizer"):
            yield Remark(call, f"{short(func.value)} gives a new dict: update changes that one, and the weights stay as they are")
    for key, values in flow.assigned():
        state = values[0] if len(values) == 1 else None
        if not is_method(state, "state_dict") or state.args:
            continue
        if program.family(state.func.value) not in ("module", None) or key[1].startswith("self.") or (isinstance(key[0], ast.Module) and not program.sources):
            continue
        updates = [call for call in flow.calls.get(key, []) if is_method(call, "update")]
        others = [call for call in flow.calls.get(key, []) if call not in updates and is_method(call) and call.func.attr not in ("keys", "items")]
        reads = [node for node in flow.escapes(key) if not isinstance(program.parent.get(node), (ast.comprehension, ast.Compare))]
        if updates and not others and not reads:
            yield Remark(updates[0], f"{key[1]} is changed in line {updates[0].lineno} and never loaded: load_state_dict({key[1]}) is missing, and the weights stay as they are")


@RULES.add("replaced-after-the-optimizer", "the new parameters never change", "make the optimizer after the model is complete")
def _replaced(program: Program) -> Iterator[Remark]:
    """A module, or a part of one, that is made anew after the optimizer took its parameters."""
    flow = flow_of(program)
    for call in program.calls():
        parent = program.parent.get(call)
        if not is_torch_optimizer(program, call) or not isinstance(parent, ast.Assign):
            continue
        rest = program.after(parent)
        if not any(_makes_again(program, one) for one in rest):
            for owner in _optimized_modules(flow, call):
                yield from _made_anew(flow, call, owner, rest)


def _optimized_modules(flow: Flow, call: ast.Call) -> Iterator[ast.expr]:
    """`m` for each `m.parameters()` that an optimizer is given, alone or in groups."""
    first = argument(call, "params", 0)
    found = [] if first is None else [first, flow.value(first)]
    groups = [one for value in found if isinstance(value, ast.List) for one in value.elts]
    found += [value for one in groups if isinstance(one, ast.Dict) for value in one.values]
    for one in dict.fromkeys(found):
        if is_method(one, "parameters"):
            yield one.func.value


def _made_anew(flow: Flow, call: ast.Call, owner: ast.expr, rest: list[ast.stmt]) -> Iterator[Remark]:
    """A module, or a part of it, that a statement makes anew and not from itself."""
    program, of, key = flow.program, text_of(owner), flow.key(owner)
    for later in rest:
        if not isinstance(later, ast.Assign) or len(later.targets) != 1:
            continue
        target, made = later.targets[0], later.value
        kind = program.kind(made) if isinstance(made, ast.Call) else None
        new = kind is not None and kind.family == "module" and program.called(made).rpartition(".")[2] == kind.name.rpartition(".")[2]
        itself = any(
            (text_of(one) == of or (key is not None and flow.key(one) == key)) and not is_attribute(program.parent.get(one), *_SIZES)
            for one in ast.walk(made) if isinstance(one, (ast.Name, ast.Attribute))
        )
        again = flow.key(target) == key if key is not None else text_of(target) == of
        part = isinstance(target, ast.Attribute) and (text_of(target.value) == of or text_of(target.value).startswith(of + "."))
        if new and not itself and (again or part) and _has_parameters(program, made):
            yield Remark(later, f"{short(target)} is made anew after the optimizer of line {call.lineno} took the parameters of {short(owner)}: no optimizer holds the new ones")


def _has_parameters(program: Program, made: ast.AST) -> bool:
    name = program.called(made) if isinstance(made, ast.Call) else ""
    return name in program.classes or any(word in name for word in ("Linear", "Conv", "Embedding", "LSTM", "GRU", "Norm", "Sequential", "Attention", "Transformer", "RNN", "Bilinear"))


def _makes_again(program: Program, statement: ast.stmt) -> bool:
    for one in ast.walk(statement):
        if isinstance(one, ast.Call) and program.family(one) == "optimizer":
            return True
        if is_method(one, "add_param_group", "prepare", "configure_optimizers"):
            return True
    return False


@RULES.add("loaded-and-written-over", _LOST, "load after everything is made and initialised")
def _written_over(program: Program) -> Iterator[Remark]:
    """Weights that are initialised, or a module that is made, after its state was loaded."""
    flow = flow_of(program)
    for call in program.calls():
        func = call.func
        statement = program.parent.get(call)
        if not is_attribute(func, "load_state_dict") or not isinstance(statement, (ast.Expr, ast.Assign)):
            continue
        key = flow.key(func.value)
        if key is None or program.family(func.value) not in ("module", "optimizer"):
            continue
        for later in program.after(statement):
            if isinstance(later, ast.Assign) and flow.key(later.targets[0]) == key and isinstance(later.value, ast.Call):
                kind = program.kind(later.value)
                name = program.called(later.value)
                if kind is not None and kind.family in ("module", "optimizer") and name == kind.name and not any(
                    isinstance(one, ast.Name) and flow.key(one) == key for one in ast.walk(later.value)
                ) and not _read_between(flow, key, call, later):
                    yield Remark(later, f"{key[1]} is made anew after its state was loaded in line {call.lineno}: what was loaded is lost")
                break
            for inner, always in calls_in(later):
                if always and _initialises(program, inner) and flow.key(inner.func.value if is_method(inner) else None) == key:
                    yield Remark(inner, f"{short(inner)} initialises {key[1]} after its state was loaded in line {call.lineno}: what was loaded is lost")
            if any(is_method(one, "load_state_dict") for one in ast.walk(later)):
                break


def _read_between(flow: Flow, key: Key, call: ast.Call, later: ast.stmt) -> bool:
    return any(call.lineno < getattr(one, "lineno", 0) < later.lineno for one in flow.escapes(key)) or any(
        call.lineno < one.lineno < later.lineno for one in flow.calls.get(key, [])
    )


def _initialises(program: Program, call: ast.Call) -> bool:
    """`m.apply(f)` where `f` writes initial weights, and `m.reset_parameters()` and methods of the program like it."""
    if not is_method(call):
        return False
    if call.func.attr == "reset_parameters":
        return True
    if call.func.attr == "apply" and len(call.args) == 1 and isinstance(call.args[0], ast.Name):
        found = program.functions.get(call.args[0].id, [])
        return len(found) == 1 and any(program.called(one).startswith("torch.nn.init.") for one in ast.walk(found[0]) if isinstance(one, ast.Call))
    return False


@RULES.add("resumed-in-part", "the first steps after a resumption are those of a new run", "load every state that is saved")
def _resumed_in_part(program: Program) -> Iterator[Remark]:
    """A checkpoint with the optimizer's or schedule's state, of which a resumption takes the weights and the epoch alone."""
    flow = flow_of(program)
    saved: dict[str, str] = {}
    for node in program.everywhere(ast.Dict):
        for name, value in zip(node.keys, node.values, strict=False):
            if is_string(name) and is_method(value, "state_dict"):
                family = "optimizer" if is_optimizer(flow, value.func.value) else program.family(value.func.value)
                if family is None:
                    family = "optimizer" if "optim" in name.value.lower() else "scheduler" if "sched" in name.value.lower() else None
                if family in ("optimizer", "scheduler"):
                    saved[name.value] = family
    for load in program.calls():
        parent = program.parent.get(load)
        if program.called(load) != "torch.load" or not isinstance(parent, ast.Assign) or (key := flow.key(parent.targets[0])) is None:
            continue
        reads = [node for node in flow.escapes(key) if getattr(node, "lineno", 0) > load.lineno and program.scope(node) is program.scope(load)]
        taken = {
            at.slice.value: at for node in reads
            if isinstance(at := program.parent.get(node), ast.Subscript) and is_string(at.slice)
        }
        whole = [node for node in reads if not _harmless(program, node)]
        counted = [name for name, at in taken.items() if any(part in name for part in ("epoch", "step", "iter")) and goes_on_from(program, at)]
        weights = [at for at in taken.values() if _given_to_load(program, at)]
        if whole or not counted or not weights or flow.calls.get(key):
            continue
        for word, best in _best_saved(program, flow):
            if word not in taken:
                yield Remark(load, f"{key[1]} is resumed from at its {counted[0]!r}, and {best}, which is saved under {word!r}, begins anew: the first epoch after the resumption counts as the best one")
        for word, family in saved.items():
            if word not in taken and not (family == "scheduler" and any(steps_alone(computation_of(program)))):
                what = "moments and momentum start from 0 again" if family == "optimizer" else "the schedule starts from its beginning again"
                yield Remark(load, f"{key[1]} is resumed from at its {counted[0]!r}, and the state of the {family} that is saved under {word!r} is not loaded: {what}")
        for family, made in _never_kept(program, saved):
            what = "moments and momentum start from 0 again" if family == "optimizer" else "the schedule starts from its beginning again"
            yield Remark(load, f"{key[1]} is resumed from at its {counted[0]!r}, and the state of {short(made, 40)} (line {made.lineno}) is never saved: {what}")


def _never_kept(program: Program, saved: dict[str, str]) -> Iterator[tuple[str, ast.Call]]:
    """Optimizers and schedules with a state that a program neither saves nor loads."""
    loads = {program.family(one.func.value) for one in program.calls() if is_method(one, "load_state_dict")}
    text = "\n".join(source.text for source in program.sources)
    for family, word in (("optimizer", "optim"), ("scheduler", "sched")):
        makers = [one for one in program.calls() if program.family(one) == family and program.called(one).startswith("torch.optim.")]
        kept = family in (*saved.values(), *loads) or None in loads or re.search(rf"{word}\w*[.]state_dict\(", text)
        names = {last_word(one.func) for one in makers}
        given = {word.arg for one in makers for word in one.keywords}
        stateless = names == {"SGD"} and "momentum" not in given
        if makers and not kept and not stateless and not given & {"last_epoch", None} and "LBFGS" not in names:
            yield family, makers[0]


def _best_saved(program: Program, flow: Flow) -> Iterator[tuple[str, str]]:
    """The best scores so far that a checkpoint holds, and that begin as a number and are compared with later ones."""
    for node in program.everywhere(ast.Dict):
        for name, value in zip(node.keys, node.values, strict=False):
            if not is_string(name) or not isinstance(value, (ast.Name, ast.Attribute)) or "best" not in last_word(value).lower():
                continue
            values = flow.values(flow.key(value))
            begins = any(flow.number(one) is not None for one in values if one is not None)
            compared = any(isinstance(one, ast.Compare) and any(text_of(part) == text_of(value) for part in (one.left, *one.comparators)) for one in program.everywhere(ast.Compare))
            if len(values) == 2 and begins and compared and not any(is_method(one, "get") or isinstance(one, ast.Subscript) for one in values):
                yield name.value, last_word(value)


def _harmless(program: Program, node: ast.AST) -> bool:
    """Whether a checkpoint is read by a key, asked whether it has one, or is another one that is being saved."""
    parent = program.parent.get(node)
    if isinstance(parent, ast.Call):
        return program.called(parent) == "torch.save"
    return isinstance(parent, (ast.Subscript, ast.Compare))


def _given_to_load(program: Program, node: ast.AST) -> bool:
    call = program.parent.get(node)
    return is_method(call, "load_state_dict") and (
        program.family(call.func.value) in ("module", None)
    )


@RULES.add("thawed-after-the-optimizer", "they never change", "give the optimizer all parameters, or add_param_group")
def _thawed(program: Program) -> Iterator[Remark]:
    """Parameters that get a gradient after an optimizer was made with those that had one."""
    flow = flow_of(program)
    for call in program.calls():
        parent = program.parent.get(call)
        if not is_torch_optimizer(program, call) or not isinstance(parent, ast.Assign):
            continue
        given: ast.AST | None = call.args[0] if call.args else None
        if isinstance(given, ast.Name):
            given = flow.only(flow.key(given))
        if given is None or not mentions(given, "requires_grad"):
            continue
        optimizer = flow.key(parent.targets[0])
        if optimizer is None or len(flow.values(optimizer)) != 1:
            continue
        if any(is_attribute(one, "add_param_group") for one in program.everywhere(ast.Attribute)):
            continue
        of = program.class_of(call)
        for node in ast.walk(program.scope(call) if of is None else of):
            later = getattr(node, "lineno", 0) > call.lineno
            if later and (thawed := _thaws(program, node)) is not None:
                yield Remark(node, f"{thawed} gets a gradient here, and the optimizer of line {call.lineno} holds only the parameters that had one before")
                break
    yield from _thawed_beside(program, flow)


def _thawed_beside(program: Program, flow: Flow) -> Iterator[Remark]:
    """A part of a network that gets a gradient, where the one optimizer was given the parameters of other parts."""
    makers = [call for call in program.calls() if program.family(call) == "optimizer"]
    if len(makers) != 1 or not is_torch_optimizer(program, makers[0]) or any(is_attribute(one, "add_param_group") for one in program.everywhere(ast.Attribute)):
        return
    held = [text_of(one) for one in _optimized_modules(flow, makers[0])]
    frozen = any(isinstance(one.targets[0], ast.Attribute) and one.targets[0].attr == "requires_grad" and is_false(one.value) for one in program.everywhere(ast.Assign))
    frozen = frozen or any(is_method(one, "requires_grad_") and one.args and is_false(one.args[0]) for one in program.calls())
    if not held or not frozen or not any(is_method(one, "backward") for one in program.calls()):
        return
    for loop in program.everywhere(ast.For):
        over = iterated(loop)
        if not is_method(over, "parameters") or loop.lineno < makers[0].lineno or program.frame(loop) is not program.frame(makers[0]):
            continue
        owner = text_of(over.func.value)
        inside = any(f"{owner}.".startswith((f"{one}.", f"{one}[")) for one in held)
        root = any(one.startswith((f"{owner}.", f"{owner}[")) or _root(one) == _root(owner) for one in held)
        thaws = any(isinstance(one, ast.Assign) and is_attribute(one.targets[0], "requires_grad") and is_true(one.value) for one in loop.body)
        if thaws and root and not inside:
            yield Remark(loop, f"the parameters of {owner} get a gradient here, and the optimizer of line {makers[0].lineno} holds those of {held[0]} alone")


def _root(text: str) -> str:
    """`model` of `model.layer4[0]`; `self.model` of `self.model.layer4`."""
    words = re.split(r"[.\[]", text)
    return ".".join(words[:2]) if words[0] == "self" else words[0]


def _thaws(program: Program, node: ast.AST) -> str | None:
    """What a statement gives a gradient to."""
    if isinstance(node, ast.Assign) and is_attribute(node.targets[0], "requires_grad"):
        target = node.targets[0].value
        if is_true(node.value) and goes_over(program, target, "parameters", "named_parameters"):
            return short(target)
    local = program.local_function(node) if isinstance(node, ast.Call) and isinstance(program.parent.get(node), ast.Expr) else None
    if local is not None:
        for one in ast.walk(local):
            thawed = one.targets[0] if isinstance(one, ast.Assign) and is_true(one.value) else None
            always = not any(isinstance(around, ast.If) for around in program.parents(one))
            if always and is_attribute(thawed, "requires_grad") and goes_over(program, thawed.value, "parameters", "named_parameters"):
                return short(node)
    given = program.arguments(local, node) if local is not None and isinstance(node, ast.Call) else {}
    told = {name for name, value in given.items() if is_true(value)}
    for one in ast.walk(local) if local is not None and told else ():
        if isinstance(one, ast.Assign) and is_attribute(one.targets[0], "requires_grad") and is_name(one.value, *told):
            return short(node)
    if is_method(node, "requires_grad_") and isinstance(program.parent.get(node), ast.Expr):
        off = node.args and not (is_true(node.args[0]))
        if not off and (program.family(node.func.value) == "module" or goes_over(program, node.func.value, "parameters", "named_parameters")):
            return short(node.func.value)
    return None


@RULES.add("model-kept-across-folds", "from the second fold on, the model has been trained on the rows that it is scored on", "make the model and its optimizer anew in each fold")
def _kept_across_folds(program: Program) -> Iterator[Remark]:
    """A cross-validation whose folds train one model further."""
    flow = flow_of(program)
    for loop in program.everywhere(ast.For):
        if not _goes_over_folds(loop) or any(isinstance(one, ast.For) and _goes_over_folds(one) for one in program.loops(loop)):
            continue
        inside = [one for one in ast.walk(loop) if isinstance(one, ast.Call)]
        if any(is_method(one, "load_state_dict", "reset_parameters", "apply", "deepcopy") or is_call(one, "deepcopy") for one in inside):
            continue
        models = {one.func.id for one in inside if isinstance(one.func, ast.Name) and program.family(one.func) == "module"}
        models |= {one.id for call in inside if (local := program.local_function(call)) is not None and trains(program, local) for one in call.args if is_name(one) and program.family(one) == "module"}
        for name in sorted(models if trains(program, loop) else ()):
            made = [one for one in flow.bound.get((program.scope(loop), name), []) if one.how == "assign"]
            if len(made) == 1 and made[0].value is not None and loop not in program.parents(made[0].node) and getattr(made[0].node, "lineno", 0) < loop.lineno:
                yield Remark(loop, f"{name} is made once, in line {getattr(made[0].node, 'lineno', 0)}, and trained further in each fold of {short(loop.iter, 40)}")


def _goes_over_folds(loop: ast.For) -> bool:
    """Whether each round of a loop is one fold of a cross-validation."""
    over = iterated(loop)
    source = over.func.value if is_method(over, "split") else over
    return any(_FOLDS.search(one.id) for one in ast.walk(loop.target) if isinstance(one, ast.Name)) or bool(_FOLDS.search(last_word(source)))
