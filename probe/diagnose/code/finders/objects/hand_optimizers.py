"""Optimizers and updates written by hand, shared storage, and which group is decayed. Pure; standard library only."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from probe.diagnose.code.computed.computation import computation_of
from probe.diagnose.code.computed.value import Value, bare
from probe.diagnose.code.flow import Flow, flow_of
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Finders, Remark
from probe.diagnose.code.syntax import (
    entry_of,
    is_attribute,
    is_binary,
    is_method,
    is_name,
    last_word,
    names_read,
    names_set,
    number_in,
    own,
    pairs_of,
    short,
    text_of,
)
from probe.diagnose.code.traits.updates import is_optimizer, modules, optimizer_of, plain, runs
from probe.diagnose.code.traits.weights import in_place, shared

FINDERS = Finders()
_ADDS = ("add", "sub", "lerp", "addcmul")
_SLIGHT = ("bias", "norm", "bn", "ln")
"""Words of names of parameters that are not decayed."""


def moment_not_kept(program: Program) -> Iterator[Remark]:
    """An optimizer of the program computes a moment anew from the one in its state, and never puts it back."""
    yield from _in_a_list(program)
    for of in (one for found in program.classes.values() for one in found):
        if not any(last_word(base) == "Optimizer" for base in of.bases):
            continue
        for function in (one for one in of.body if isinstance(one, (ast.FunctionDef, ast.AsyncFunctionDef))):
            taken: dict[str, tuple[str, int]] = {}
            pairs = [(one, target, value) for one in ast.walk(function) if isinstance(one, ast.Assign) for target, value in pairs_of(one)]
            for node, target, value in sorted(pairs, key=lambda one: one[0].lineno):
                if is_name(target) and isinstance(value, ast.Subscript) and isinstance(value.slice, ast.Constant) and "state" in text_of(value.value):
                    taken[target.id] = (text_of(value), node.lineno)
                    continue
                if not is_name(target) or target.id not in taken or target.id not in names_read(value) or not _is_new_sum(value, target.id):
                    continue
                place, line = taken.pop(target.id)
                if not _put_back(function, place, target.id, line, node.lineno):
                    yield Remark(node, f"{short(node)} gives the name {target.id} a new tensor, and {place} keeps its first value: nothing is carried from step to step")


def _in_a_list(program: Program) -> Iterator[Remark]:
    """Moments that an object keeps in a list, and that a loop over it computes anew under the loop's own name."""
    for loop in program.everywhere(ast.For):
        owned = any(is_attribute(one) and text_of(one).startswith("self.") for one in ast.walk(loop.iter))
        if not owned or last_word(loop.iter.func if isinstance(loop.iter, ast.Call) else loop.iter) not in ("zip", "enumerate"):
            continue
        names = names_set(loop.target)
        for node in (one for one in loop.body if isinstance(one, ast.Assign)):
            target = node.targets[0]
            if not is_name(target) or target.id not in names or target.id not in names_read(node.value) or not _is_new_sum(node.value, target.id):
                continue
            graded = any(is_attribute(one, "grad") and not is_name(one.value, target.id) for one in ast.walk(node.value))
            after = [one for other in loop.body if other.lineno > node.lineno for one in ast.walk(other)]
            used = any(is_name(one, target.id) for one in after)
            stored = any(isinstance(one, (ast.Assign, ast.AugAssign)) and any(isinstance(each, ast.Subscript) for each in ast.walk(one)) for one in after)
            stored = stored or any(is_method(one, "append", "copy_", "set_", "update") for one in after) or any(is_method(one) and one.func.attr.endswith("_") and is_name(one.func.value, target.id) for one in ast.walk(loop))
            if graded and used and not stored:
                yield Remark(node, f"{short(node)} gives the name {target.id} a new tensor, and {short(loop.iter)} (line {loop.lineno}) goes over the old one again in the next step: nothing is carried from step to step")


def _is_new_sum(value: ast.expr, name: str) -> bool:
    """Whether an expression is a new tensor that something is added in, made of the one of that name."""
    methods = [one.func.attr for one in ast.walk(value) if isinstance(one, ast.Call) and isinstance(one.func, ast.Attribute)]
    if any(one.endswith("_") for one in methods):
        return False
    return is_binary(value, ast.Add, ast.Sub) or (is_method(value, *_ADDS) and names_read(value) != {name})


def _put_back(function: ast.AST, place: str, name: str, first: int, line: int) -> bool:
    """Whether what a name stands for was changed in place before it got another tensor, or is put into the state after that."""
    for one in ast.walk(function):
        at = getattr(one, "lineno", 0)
        if isinstance(one, ast.AugAssign) and is_name(one.target, name) and first <= at <= line:
            return True
        if is_method(one) and one.func.attr.endswith("_") and name in names_read(one.func.value) and first <= at <= line:
            return True
        if isinstance(one, ast.Assign) and at >= line and any(text_of(target) == place for each in one.targets for target in ast.walk(each)):
            return True
        if isinstance(one, ast.Call) and at >= line and (is_method(one, "update") or (is_method(one, "copy_") and name in names_read(one))):
            return True
        if isinstance(one, ast.Assign) and at > line and isinstance(one.targets[0], ast.Subscript) and name in names_read(one.value) and "state" in text_of(one.targets[0]):
            return True
    return False


@FINDERS.add("alias-for-a-copy")
def _storage_shared(program: Program) -> Iterator[Remark]:
    """The parameters of one network are given the storage of those of another, which an optimizer goes on changing."""
    computation = computation_of(program)
    for value in computation.of("set_attribute"):
        if value.data != "data" or len(value.args) != 2 or value.args[0].op not in ("element", "part"):
            continue
        into, given = shared(value.args[0]), shared(value.args[1])
        if len(into) != 1 or len(given) != 1:
            continue
        copy, of = plain(into[0].args[0]), plain(given[0].args[0])
        if copy is of or copy.op == "either" or of.op == "either" or any(is_optimizer(one) and any(each is copy for each in modules(one)) for one in computation.values):
            continue
        steps = [one for one in computation.of("step") if (optimizer := optimizer_of(one)) is not None and any(each is of for each in modules(optimizer))]
        around = value.where.loops[:-1]  # without the loop over the parameters itself
        again = [one for one in steps if one.number > value.number or runs(one) != runs(value) or (around and one.where.loops[:1] == around[:1])]
        if again:
            yield Remark(value.node, f"{short(value.node)} is given the storage of {short(given[0].node)} and no copy of it: each step of line {again[0].line} changes both networks from then on")
            return


@FINDERS.add("gradients-not-cleared")
def _updated_by_hand(program: Program) -> Iterator[Remark]:
    """Tensors are moved along their gradients in place, pass by pass, and nothing ever clears a gradient."""
    for one in program.everywhere(ast.Attribute):
        stored = one.attr == "grad" and not isinstance(one.ctx, ast.Load)
        if stored or one.attr in ("zero_grad", "zero_", "clear_grad") or (one.attr == "grad" and is_attribute(program.parent.get(one), "fill_", "data", "detach_")):
            return
    computation = computation_of(program)
    if any("autograd.grad" in one.op or is_optimizer(one) or one.op in ("delattr", "setattr") for one in computation.values):
        return
    backs = [one for one in computation.of("backward") if one.where.loops]
    for value in computation.of("sub", "add"):
        weight = bare(value.args[0], shapes=False) if len(value.args) == 2 else None
        own_gradient = weight is not None and any(part.op == "grad" and part.args and bare(part.args[0], shapes=False) is weight for one in value.args[1:] for part in _factors(one))
        if weight is None or not own_gradient or not _in_its_place(value):
            continue
        back = next((one for one in backs if runs(one) == runs(value) and value.where.loops[: len(one.where.loops)] == one.where.loops and one.number < value.number), None)
        if back is not None and back.where.loops[-1] not in weight.where.loops and weight.op not in ("@input", "unknown"):
            yield Remark(value.node, f"{short(value.node)} uses a gradient that nothing ever clears: {short(back.node)} (line {back.line}) adds to those of all passes before")
            return


def _factors(value: Value) -> Iterator[Value]:
    yield value
    if value.op in ("mul", "neg", "div"):
        for one in value.args:
            yield from _factors(one)


def _in_its_place(value: Value) -> bool:
    """Whether a sum changes its first part itself: `w -= ...` and `w.sub_(...)`."""
    return isinstance(value.node, ast.AugAssign) or in_place(value)


def decay_of_the_others(program: Program) -> Iterator[Remark]:
    """Of two groups the one that holds biases and norms is decayed, and the one that holds the matrices is not."""
    flow = flow_of(program)
    for node in program.everywhere(ast.List):
        groups = [(one, entry_of(one, "params"), entry_of(one, "weight_decay")) for one in node.elts if isinstance(one, ast.Dict)]
        if len(groups) != 2 or any(params is None or decay is None for _, params, decay in groups):
            continue
        slight = [_holds_slight(program, flow, params) for _, params, _ in groups if params is not None]
        free = [_is_zero(flow, decay) for _, _, decay in groups]
        if slight in ([True, False], [False, True]) and free == [not one for one in slight]:
            first = slight.index(True)
            yield Remark(groups[first][0], f"{short(groups[first][0])} decays the parameters that {_told(program, flow, groups[first][1])} picks, biases and norms, and the group of line {groups[1 - first][0].lineno}, with the weights, is not decayed")


def _is_zero(flow: Flow, decay: ast.expr | None) -> bool:
    value = flow.value(decay) if decay is not None else None
    return number_in(value) == 0 or number_in(decay) == 0


def _tests(program: Program, flow: Flow, params: ast.expr) -> Iterator[tuple[ast.expr, bool]]:
    """The conditions under which a parameter comes into a group, each with the value that it has then."""
    value = flow.value(params)
    for made in (params, value):
        if isinstance(made, (ast.ListComp, ast.GeneratorExp)):
            for one in made.generators:
                yield from ((test, True) for test in one.ifs)
            return
    if not is_name(params):
        return
    for call in own(program.scope(params), ast.Call):
        if not is_method(call, "append") or not is_name(call.func.value, params.id):
            continue
        inner: ast.AST = call
        for around in program.parents(call):
            if isinstance(around, ast.If):
                yield around.test, inner in around.body
                break
            inner = around
        else:
            return


def _holds_slight(program: Program, flow: Flow, params: ast.expr) -> bool | None:
    """Whether a group holds the biases and norms (True), or all but them (False); None where that is not told."""
    said: set[bool] = set()
    for test, there in _tests(program, flow, params):
        inner, holds = test, there
        while isinstance(inner, ast.UnaryOp) and isinstance(inner.op, ast.Not):
            inner, holds = inner.operand, not holds
        told = _asks_for_slight(flow, inner)
        if told is not None:
            said.add(told == holds)
    return said.pop() if len(said) == 1 else None


def _asks_for_slight(flow: Flow, test: ast.expr) -> bool | None:
    """Whether a test is met by biases and norms alone (True) or by all but them (False)."""
    if isinstance(test, ast.BoolOp):
        told = {_asks_for_slight(flow, one) for one in test.values} - {None}
        return told.pop() if len(told) == 1 and isinstance(test.op, ast.Or) else None
    if isinstance(test, ast.Call) and last_word(test.func) == "any" and test.args and isinstance(test.args[0], ast.GeneratorExp):
        inner, over = test.args[0].elt, test.args[0].generators[0].iter
        found = flow.value(over)
        words = found.elts if isinstance(found, (ast.List, ast.Tuple, ast.Set)) else over.elts if isinstance(over, (ast.List, ast.Tuple)) else []
        slight = bool(words) and all(isinstance(one, ast.Constant) and any(word in str(one.value).lower() for word in _SLIGHT) for one in words)
        return True if slight and isinstance(inner, ast.Compare) and isinstance(inner.ops[0], ast.In) else None
    if is_method(test, "endswith") and test.args and isinstance(test.args[0], ast.Constant):
        return True if "bias" in str(test.args[0].value) else None
    if not isinstance(test, ast.Compare) or len(test.ops) != 1:
        return None
    left, op, right = test.left, test.ops[0], test.comparators[0]
    if isinstance(left, ast.Constant) and isinstance(op, (ast.In, ast.NotIn)) and any(word in str(left.value).lower() for word in _SLIGHT):
        return isinstance(op, ast.In)
    axes = is_attribute(left, "ndim") or is_method(left, "dim", "ndimension") or (isinstance(left, ast.Call) and last_word(left.func) == "len" and "shape" in text_of(left))
    if axes:
        slight_ones = {(ast.Eq, 1): True, (ast.LtE, 1): True, (ast.Lt, 2): True, (ast.GtE, 2): False, (ast.Gt, 1): False, (ast.NotEq, 1): False}
        return slight_ones.get((type(op), int(number_in(right) or 0)))
    return None


def _told(program: Program, flow: Flow, params: ast.expr | None) -> str:
    test = next((one for one, _ in _tests(program, flow, params)), None) if params is not None else None
    return short(params) if test is None and params is not None else short(test) if test is not None else "its test"
