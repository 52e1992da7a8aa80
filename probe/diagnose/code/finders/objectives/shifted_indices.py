"""Numbers of rows that are shifted where samples are joined, and by how much. Pure; standard library only."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from probe.diagnose.code.computed.computation import Computation, computation_of
from probe.diagnose.code.computed.value import (
    KEPT,
    SHAPED,
    Many,
    Value,
    bare,
    constant,
    is_none,
    number,
    same,
)
from probe.diagnose.code.flow import Flow, flow_of
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Remark
from probe.diagnose.code.syntax import is_name, names_of, names_read, number_in, short
from probe.diagnose.code.traits.extents import view_sizes

_SIZES = ("len", "num_nodes", "number_of_nodes", "num_vertices", "n_nodes", "n_atoms", "num_atoms", "numel")
"""Operations and attributes that say how many rows a sample has."""
_LIKE = frozenset({"relu", "elu", "gelu", "silu", "tanh", "dropout", "leaky_relu", "normalize", "layer_norm", "mul", "add", "sub", "div", "identity", "softmax"})
"""Operations whose result is shaped as the first thing that they are done on."""


def shifted_by_another_number(program: Program) -> Iterator[Remark]:
    """Numbers of rows of one sample that are to say rows of all samples, and are shifted by a number that does not lead
    there: by the size of the sample before, or by the number of samples."""
    yield from _by_the_one_before(program)
    yield from _by_the_other_axis(program)


# By the size of the one before ---------------------------------------------------------


def _by_the_one_before(program: Program) -> Iterator[Remark]:
    """In a loop over samples, each is shifted by the size of the one before it alone, and all are joined."""
    flow, computation = flow_of(program), computation_of(program)
    for loop in program.everywhere(ast.For):
        if not isinstance(loop, ast.For) or (isinstance(loop.iter, (ast.Tuple, ast.List)) and len(loop.iter.elts) < 3):
            continue
        for node in loop.body:
            target = node.targets[0] if isinstance(node, ast.Assign) and len(node.targets) == 1 else None
            if not isinstance(node, ast.Assign) or not isinstance(target, ast.Name) or not _starts_at_zero(flow, target, loop, node):
                continue
            sizes = [bare(one, "int") for one in computation.stored.get(target, ())]
            if not sizes or not all(_is_size(one) for one in sizes) or not _of_this_pass(flow, loop, node.value):
                continue
            shifts = [one for one in _added(loop, target.id) if one.lineno < node.lineno]
            shifted = next((one for value in computation.of("add") for one in shifts if value.node is one and _is_joined(computation, value)), None)
            if shifted is not None:
                yield Remark(shifted, f"{short(shifted)} shifts by the size of the one sample before ({short(node)}, line {node.lineno}), and what is joined holds the rows of all samples before it")


def _starts_at_zero(flow: Flow, target: ast.Name, loop: ast.For, node: ast.Assign) -> bool:
    """Whether a name is 0 before a loop, and is set in one place of the loop alone."""
    places = flow.bindings(target)
    others = [one for one in places if one.node is not node]
    return len(places) == 2 and len(others) == 1 and number_in(others[0].value) == 0 and others[0].how == "assign" and others[0].node not in ast.walk(loop)


def _is_size(value: Value) -> bool:
    if value.op == "part" and len(value.args) == 2:
        return value.args[0].op in ("shape", "size") and constant(value.args[1]) is not None
    return (value.op in _SIZES and len(value.args) == 1) or (value.op == "size" and len(value.args) == 2)


def _of_this_pass(flow: Flow, loop: ast.For, node: ast.AST, depth: int = 4) -> bool:
    """Whether an expression is made of what a loop goes over and nothing that it has kept from earlier passes."""
    read = [one for one in ast.walk(node) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Load) and flow.bindings(one)]
    for name in read:
        if name.id in names_of(loop.target):
            continue
        made = [one for one in flow.bindings(name) if one.how != "parameter"]
        inside = [one for one in made if one.node in loop.body]
        fresh = len(made) == 1 and inside and made[0].how == "assign" and made[0].value is not None and name.id not in names_read(made[0].value)
        if not fresh or depth == 0 or not _of_this_pass(flow, loop, made[0].value or node, depth - 1):
            return False
    return bool(read)


def _added(loop: ast.For, name: str) -> Iterator[ast.BinOp | ast.AugAssign]:
    """The sums in a loop that have a name as one of their two parts."""
    for one in ast.walk(loop):
        if isinstance(one, (ast.BinOp, ast.AugAssign)) and isinstance(one.op, ast.Add):
            sides = (one.left, one.right) if isinstance(one, ast.BinOp) else (one.value,)
            if any(is_name(side, name) for side in sides):
                yield one


def _is_joined(computation: Computation, value: Value) -> bool:
    """Whether rows are put into a list whose entries are joined to one."""
    waiting, seen = [value], {id(value)}
    while waiting:
        for user in computation.users(waiting.pop()):
            if user.op in ("append", "extend") and user.args[0] is not value and any(one.op == "cat" for one in computation.users(user.args[0])):
                return True
            if id(user) not in seen and (user.op in KEPT or user.op in SHAPED or user.op in ("t", "T", "tuple")):
                seen.add(id(user))
                waiting.append(user)
    return False


# By the size of the other axis -----------------------------------------------------------


def _by_the_other_axis(program: Program) -> Iterator[Remark]:
    """Rows of samples of one size stand in a row, and their numbers are counted by the number of samples: `sample * samples + row`."""
    computation = computation_of(program)
    for value in computation.of("part", "index_select"):
        index = value.args[-1] if value.op == "part" and len(value.args) == 2 else value.args[2] if len(value.args) == 3 and number(value.args[1]) == 0 else None
        if isinstance(index, Many) and index.op == "tuple":
            index = index.parts[0] if index.parts and all(one.op == "slice" for one in index.parts[1:]) else None
        whole = _joined_axes(value.args[0]) if index is not None and index.op not in ("@constant", "slice") else None
        counted, factor = (_factor(index) if index is not None and whole is not None else None) or (None, None)
        if whole is None or factor is None or counted is None or not _is_size_of(factor, whole, 0) or _is_size_of(factor, whole, 1):
            continue
        yield Remark(value.node, f"{short(value.node)} takes rows of {short(value.args[0].node, 40)} by {short(counted.node)} (line {counted.line}), which counts each sample for as many rows as there are samples, and not for as many as each has")
        return


def _joined_axes(value: Value) -> Value | None:
    """The tensor whose first two axes are made one, of `x.reshape(a * b, ...)` and `x.flatten(0, 1)`."""
    value = bare(value, "detach", shapes=False)
    while value.op == "contiguous" and value.args:
        value = value.args[0]
    if value.op == "flatten" and len(value.args) == 3:
        return value.args[0] if [number(one) for one in value.args[1:]] == [0, 1] else None
    if value.op not in ("view", "reshape") or len(value.args) < 2:
        return None
    sizes = view_sizes(value)
    source, first = value.args[0], sizes[0]
    if first.op == "mul" and len(first.args) == 2:
        ordered = [(a, b) for a, b in (first.args, first.args[::-1]) if _is_size_of(a, source, 0) and _is_size_of(b, source, 1)]
        return source if ordered else None
    before = view_sizes(source) if source.op in ("view", "reshape") else []
    return source if number(first) == -1 and len(before) == len(sizes) + 1 else None


def _factor(index: Value) -> tuple[Value, Value] | None:
    """`a * b + c` and b, where `a * b` is a product with a size."""
    index = _bare_index(index)
    if index.op != "add" or len(index.args) != 2:
        return None
    for one in map(_bare_index, index.args):
        if one.op == "mul" and len(one.args) == 2:
            return next(((index, each) for each in one.args if _is_axis(each)), None)
    return None


def _bare_index(value: Value) -> Value:
    """A value without what adds axes to it or changes its type: `x[:, None]`, `x.view(-1, 1)`, `x.long()`."""
    while value.args:
        index = value.args[1] if value.op == "part" else None
        adds_axes = isinstance(index, Many) and all(is_none(one) or (one.op == "slice" and all(map(is_none, one.args))) for one in index.parts)
        if not adds_axes and value.op not in SHAPED and (value.op not in KEPT or value.op in ("either", "stack", "rows")):
            break
        value = value.args[0]
    return value


def _is_axis(value: Value) -> bool:
    """Whether a value is the size of an axis."""
    return (value.op == "part" and len(value.args) == 2 and number(value.args[1]) is not None and _shape(value.args[0]) is not None) or (value.op == "size" and len(value.args) == 2) or value.op == "len"


def _shape(value: Value) -> Value | None:
    """The tensor whose shape a value is, or begins."""
    if value.op == "part" and len(value.args) == 2 and value.args[1].op == "slice" and is_none(value.args[1].args[0]):
        value = value.args[0]
    return value.args[0] if (value.op == "shape" or (value.op == "size" and len(value.args) == 1)) and value.args else None


def _is_size_of(size: Value, tensor: Value, axis: int, depth: int = 12) -> bool:
    """Whether a value is the size of an axis, the first or the second, of a tensor, or of what it has that axis from."""
    if size.op == "part" and len(size.args) == 2 and number(size.args[1]) == axis and _shape(size.args[0]) is tensor:
        return True
    if (size.op == "size" and len(size.args) == 2 and number(size.args[1]) == axis and size.args[0] is tensor) or (size.op == "len" and axis == 0 and size.args[0] is tensor):
        return True
    if tensor.op in ("view", "reshape") and len(tensor.args) > 1:
        sizes = view_sizes(tensor)
        return axis < len(sizes) and same(sizes[axis], size)
    if depth == 0 or not tensor.args:
        return False
    if tensor.op == "run" and tensor.args[0].op == "torch.nn.Linear" and len(tensor.args) > 1:
        return _is_size_of(size, tensor.args[1], axis, depth - 1)
    turned = tensor.op in ("transpose", "permute") and len(tensor.args) > 2 and axis == 0 and (
        number(tensor.args[1]) == 0 if tensor.op == "permute" else all(number(one) not in (0, None) for one in tensor.args[1:])
    )
    kept = tensor.op in _LIKE or turned or (tensor.op in KEPT and tensor.op not in ("either", "stack", "rows", "tensor"))
    return kept and _is_size_of(size, tensor.args[0], axis, depth - 1)
