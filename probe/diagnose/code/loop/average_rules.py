"""Averages and other copies of parameters: what they share with the model, and what they leave out. Pure."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from probe.diagnose.code.data.data_flow import trains
from probe.diagnose.code.flow import Flow, flow_of
from probe.diagnose.code.loop.best_rules import comparison_above
from probe.diagnose.code.program import Key, Program
from probe.diagnose.code.rule import Finders, Remark, Rules
from probe.diagnose.code.syntax import (
    argument,
    is_attribute,
    is_binary,
    is_call,
    is_false,
    is_method,
    is_name,
    is_read,
    iterated,
    last_word,
    pairs_of,
    short,
    text_of,
)

RULES = Rules("loop")
FINDERS = Finders()
_PARAMETERS = ("parameters", "named_parameters")
_IN_PLACE = ("mul_", "add_", "lerp_", "copy_", "sub_", "div_", "addcmul_")


@RULES.add("average-shares-the-weights", "average and model are one: the model is pulled back or the average is not one, and nothing can be restored", "keep copies: p.detach().clone()")
def _shares(program: Program) -> Iterator[Remark]:
    """A store of parameters that holds the parameters themselves, and is changed in place."""
    flow = flow_of(program)
    yield from _shared_at_once(program, flow)
    for loop in program.everywhere(ast.For):
        named = _parameter_of(loop)
        if named is None:
            continue
        for node in ast.walk(loop):
            if not isinstance(node, ast.Assign) or not isinstance(node.targets[0], ast.Subscript) or not _is_itself(node.value, named):
                continue
            store = flow.key(node.targets[0].value)
            changed = _changed_in_place(program, store) if store is not None else None
            if changed is not None:
                yield Remark(node, f"{short(node)} keeps the parameter itself, and {short(changed)} (line {changed.lineno}) changes it")


def _shared_at_once(program: Program, flow: Flow) -> Iterator[Remark]:
    """A store of parameters that one expression fills with the parameters themselves, and that is changed in place."""
    for node in program.everywhere(ast.Assign):
        value = node.value
        if not isinstance(value, (ast.DictComp, ast.ListComp)) or len(value.generators) != 1:
            continue
        one = value.generators[0]
        named = _parameter_in(one.iter, one.target)
        store = flow.key(node.targets[0])
        if named is None or store is None or not _is_itself(value.value if isinstance(value, ast.DictComp) else value.elt, named):
            continue
        changed = _changed_in_place(program, store) or _changed_beside(program, flow, store)
        if changed is not None:
            yield Remark(node, f"{short(node)} keeps the parameters themselves, and {short(changed)} (line {changed.lineno}) changes them")


def _changed_beside(program: Program, flow: Flow, store: Key) -> ast.Call | None:
    """A call that changes what a loop over a store and the parameters of a model takes out of the store."""
    for loop in program.everywhere(ast.For):
        if not is_call(loop.iter, "zip") or not isinstance(loop.target, ast.Tuple) or not any(is_method(one, "parameters") for one in loop.iter.args):
            continue
        for one, target in zip(loop.iter.args, loop.target.elts, strict=False):
            for call in ast.walk(loop) if flow.key(one) == store and isinstance(target, ast.Name) else ():
                if is_method(call, *_IN_PLACE) and _is_itself(call.func.value, target.id):  # type: ignore[attr-defined]
                    return call
    return None


def _parameter_of(loop: ast.For) -> str | None:
    """The name that a loop over the parameters of a model gives to each."""
    return _parameter_in(iterated(loop), loop.target)


def _parameter_in(over: ast.AST, target: ast.AST) -> str | None:
    """The name in a target that stands for a parameter, where `over` goes over the parameters of a model."""
    if not is_method(over, *_PARAMETERS):
        return None
    if over.func.attr == "named_parameters":
        target = target.elts[-1] if isinstance(target, ast.Tuple) and len(target.elts) == 2 else ast.Constant(None)
    return target.id if isinstance(target, ast.Name) else None


def _is_itself(node: ast.AST, name: str) -> bool:
    """Whether an expression is a parameter or shares its memory: `p`, `p.data`, `p.detach()`."""
    while is_attribute(node, "data") or (is_method(node, "detach") and not node.args):
        node = node.value if isinstance(node, ast.Attribute) else node.func.value
    return is_name(node, name)


def _changed_in_place(program: Program, store: Key) -> ast.Call | None:
    """A call that changes an element of a store where it lies: `store[name].mul_(decay)`."""
    flow = flow_of(program)
    for read in flow.reads.get(store, []):
        at = program.parent.get(read)
        if not isinstance(at, ast.Subscript) or at.value is not read:
            continue
        called = program.parent.get(at)
        while is_attribute(called, "data"):
            called = program.parent.get(called)
        call = program.parent.get(called) if called is not None else None
        if is_attribute(called, *_IN_PLACE) and isinstance(call, ast.Call) and call.func is called:
            return call
    return None


@RULES.add("parameter-rebound", "the parameter keeps its value: only the name of the loop stands for the new one", "change it in place: p.copy_(value), or p.data = value")
def _rebound(program: Program) -> Iterator[Remark]:
    """A loop over parameters that gives its variable a new value which nothing reads."""
    for loop in program.everywhere(ast.For):
        over = iterated(loop)
        walked = over.args if is_call(over, "zip") else [over]
        targets = loop.target.elts if isinstance(loop.target, ast.Tuple) and len(walked) > 1 else [loop.target]
        names = {name for one, target in zip(walked, targets, strict=False) if (name := _parameter_in(one, target)) is not None}
        for node in loop.body:
            target = node.targets[0] if isinstance(node, ast.Assign) and len(node.targets) == 1 else None
            if not names or not isinstance(node, ast.Assign) or not is_name(target, *names) or not isinstance(node.value, (ast.BinOp, ast.Call)):
                continue
            later = [one for after in program.after(node) for one in ast.walk(after)]
            outside = [one for one in ast.walk(program.frame(loop)) if is_read(one, target.id) and one.lineno > (loop.end_lineno or 0)]
            if not any(is_read(one, target.id) for one in later) and not outside and any(is_read(one, target.id) for one in ast.walk(node.value)):
                yield Remark(node, f"{short(node)} gives the name {target.id} a new tensor: the parameter that it stood for keeps its value")


@RULES.add("averaged-without-statistics", "the averaged weights run with statistics of batch normalization that are not theirs", "call torch.optim.swa_utils.update_bn(loader, averaged), or give use_buffers=True")
def _without_statistics(program: Program) -> Iterator[Remark]:
    """An AveragedModel of a network with batch normalization whose statistics nothing computes."""
    names = {program.called(call).rpartition(".")[2] for call in program.calls()}
    normalized = any(name.startswith(("BatchNorm", "SyncBatchNorm", "LazyBatchNorm")) for name in names)
    if not normalized or "update_bn" in names or any(is_attribute(one, "buffers", "named_buffers", "running_mean", "reset_running_stats") for one in program.everywhere(ast.Attribute)):
        return
    flow = flow_of(program)
    for call in program.calls():
        averaged = argument(call, "parameters", 1) if program.called(call) == "torch.nn.utils.vector_to_parameters" else None
        net = averaged.func.value if is_method(averaged, "parameters") else None
        key = flow.key(net)
        if net is not None and key is not None and _is_average(flow, argument(call, "vec", 0)) and _never_trained(flow, key):
            yield Remark(call, f"{short(call)} sets the parameters of {text_of(net)} alone: its running means and variances are those it was made with")
        buffers = argument(call, "use_buffers")
        given = buffers is not None and not is_false(buffers)
        parent = program.parent.get(call)
        if program.called(call) != "torch.optim.swa_utils.AveragedModel" or given or not isinstance(parent, ast.Assign):
            continue
        key = flow.key(parent.targets[0])
        used = [program.parent.get(one) for one in flow.escapes(key)] if key is not None else []
        if any(isinstance(one, ast.Call) for one in used) and (key is None or "train" not in flow.called_on(key)):
            yield Remark(call, f"{text_of(parent.targets[0])} averages the parameters alone: its running means and variances are those of the model at the last update, and not of the averaged weights")


def _is_average(flow: Flow, node: ast.AST | None) -> bool:
    """Whether a vector is moved towards others, or is a weighted sum of them."""
    return any(
        isinstance(one.node, ast.AugAssign) or is_binary(part, ast.Add, ast.Div) or is_method(part, "lerp", "mean")
        for one in flow.bindings(node) if one.value is not None for part in ast.walk(one.value)
    )


def _never_trained(flow: Flow, key: Key) -> bool:
    """Whether a network is made anew and only evaluated: nothing gives it a state, an optimizer or train mode."""
    program, made = flow.program, flow.made(key)
    fresh = made is not None and program.family(made) == "module" and not {"train", "load_state_dict"} & flow.called_on(key)
    optimized = any(program.family(call) == "optimizer" for read in flow.reads.get(key, []) for call in program.calls_around(read))
    return fresh and not optimized


@RULES.add("perturbation-kept", "each step leaves the weights where the perturbation moved them: they drift away from what the optimizer computes", "take it away before the optimizer's step: p.sub_(e)")
def _perturbation_kept(program: Program) -> Iterator[Remark]:
    """A perturbation along the gradient that is added to the parameters, kept for later, and never taken away."""
    flow = flow_of(program)
    for call in program.calls():
        loop = next(iter(program.loops(call)), None)
        if not is_method(call, "add_") or not isinstance(program.parent.get(call), ast.Expr) or len(call.args) != 1 or not isinstance(loop, ast.For):
            continue
        moved, by = call.func.value, call.args[0]
        scaled = [one for one in flow.origins(by) if is_attribute(one, "grad")]
        if not isinstance(moved, ast.Name) or not isinstance(by, ast.Name) or not scaled:
            continue
        kept = [one for one in ast.walk(loop) if isinstance(one, ast.Assign) and is_name(one.value, by.id) and isinstance(one.targets[0], ast.Subscript)]
        store = flow.key(kept[0].targets[0].value) if kept and isinstance(kept[0].targets[0], ast.Subscript) else None
        of = program.class_of(call) or program.frame(call)
        beside = any(is_method(one, "step") for one in ast.walk(of)) and any(is_method(one, "norm") for one in ast.walk(of))
        if store is None or not beside or _read_again(program, store, kept[0]):
            continue
        yield Remark(call, f"{short(call)} moves the weights, {short(kept[0])} keeps by how much, and nothing takes it away again")


def _read_again(program: Program, store: Key, kept: ast.AST) -> bool:
    """Whether anything but the assignment itself and a reset reads a store."""
    flow = flow_of(program)
    inside = set(ast.walk(kept))
    for one in flow.reads.get(store, []):
        around = program.parent.get(one)
        call = program.parent.get(around) if is_attribute(around, "clear") else None
        if one not in inside and not isinstance(call, ast.Call):
            return True
    return False


@FINDERS.add("snapshots-alike")
def _snapshots(program: Program) -> Iterator[Remark]:
    """States of one model that a loop puts into a list while it trains the model, without copies."""
    flow = flow_of(program)
    for call in program.calls():
        given = call.args[0] if is_method(call, "append") and len(call.args) == 1 else None
        loop = next(iter(program.loops(call)), None)
        if given is None or loop is None or not isinstance(program.parent.get(call), ast.Expr):
            continue
        results = program.results(given)
        state: ast.AST | None = given if is_method(given, "state_dict") else results[0] if len(results) == 1 else None
        if not is_method(state, "state_dict") or state.args:
            continue
        owner: ast.AST | None = state.func.value
        if state is not given and isinstance(given, ast.Call) and is_name(owner):
            local = program.local_function(given)
            owner = program.arguments(local, given).get(owner.id) if local is not None else None
        key = flow.key(owner)
        values = list(flow.bound.get(key, [])) if key is not None else []
        fresh = [one for one in values if loop in program.parents(one.node) or one.node is loop]
        alias = [flow.key(one.whole) for one in fresh if one.whole is not None]
        if owner is None or key is None or not values or (fresh and (len(alias) != 1 or alias[0] is None or program.family(fresh[0].whole) != "module")):
            continue
        store = flow.key(call.func.value) if is_method(call) else None
        if store is not None and not program.without_gradient(call) and trains(program, loop) and program.family(owner) in ("module", None) and any(one.how != "for" for one in values):
            yield Remark(call, f"{short(call)} keeps the weights of {text_of(owner)} themselves, not a copy: the training in the loop of line {loop.lineno} changes all entries")


@RULES.add("best-is-the-same-model", "what is used as the best model is the last one", "best_model = copy.deepcopy(model)")
def _best_alias(program: Program) -> Iterator[Remark]:
    """The best model so far, kept under another name and not as a copy, while its training goes on."""
    flow = flow_of(program)
    for node in program.everywhere(ast.Assign):
        for target, value in pairs_of(node):
            key, of = flow.key(target), flow.key(value) if isinstance(value, (ast.Name, ast.Attribute)) else None
            loops = program.loops(node)
            if key is None or of is None or key == of or program.family(value) != "module" or not loops or comparison_above(program, node) is None:
                continue
            made = flow.made(of)
            if made is not None and any(made in ast.walk(loop) for loop in loops):
                continue
            inside = [part for loop in loops for part in ast.walk(loop) if isinstance(part, ast.Call)]
            around = {*loops, *(made_in for call in inside if (made_in := program.local_function(call)) is not None)}
            anew = [one.value for one in flow.bound.get(of, []) if one.how == "assign" and isinstance(one.value, ast.Call) and around & {*program.parents(one.value)}]
            if any(text_of(value) not in {text_of(part) for part in ast.walk(one)} for one in anew):
                continue  # What a function makes in each pass.
            outer = loops[-1]
            later = [one for one in flow.reads.get(key, []) if one not in ast.walk(outer) and getattr(one, "lineno", 0) > node.lineno]
            if later and any(trains(program, loop) for loop in loops) and not any(one.how == "for" for one in flow.bound.get(of, [])):
                yield Remark(node, f"{short(node)} gives {text_of(value)} a second name: the epochs after the best one change it too")


def past_of_lists(program: Program) -> Iterator[Remark]:
    """The difference between the parameters of a model and a list of the same parameters, made before."""
    flow = flow_of(program)
    for call in program.calls():
        loop = program.parent.get(call)
        if not is_call(call, "zip") or len(call.args) != 2 or not isinstance(loop, (ast.For, ast.comprehension)) or loop.iter is not call:
            continue
        names = [one.id for one in loop.target.elts if isinstance(one, ast.Name)] if isinstance(loop.target, ast.Tuple) else []
        owners = [_listed(flow, one) for one in call.args]
        if len(names) != 2 or None in owners or owners[0] != owners[1] or all(is_method(one, "parameters") for one in call.args):
            continue
        around: ast.AST = loop if isinstance(loop, ast.For) else program.parent.get(loop, loop)
        for node in ast.walk(around):
            if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub) and {last_word(_bare(node.left)), last_word(_bare(node.right))} == set(names):
                yield Remark(node, f"{short(node)} is 0: both lists hold the parameters of {owners[0]} themselves, as they are now")
                break


def _bare(node: ast.AST) -> ast.AST:
    while is_attribute(node, "data") or is_method(node, "detach"):
        node = node.value if isinstance(node, ast.Attribute) else node.func.value
    return node


def _listed(flow: Flow, node: ast.AST) -> str | None:
    """The module whose parameters a list holds, without copies of them."""
    value = flow.value(node)
    if is_call(value, "list", "tuple") and len(value.args) == 1:
        value = value.args[0]
    if isinstance(value, (ast.ListComp, ast.GeneratorExp)) and len(value.generators) == 1:
        one = value.generators[0]
        itself = is_name(_bare(value.elt)) and text_of(_bare(value.elt)) == text_of(one.target)
        value = one.iter if itself else node
    return text_of(value.func.value) if is_method(value, "parameters") and not value.args else None
