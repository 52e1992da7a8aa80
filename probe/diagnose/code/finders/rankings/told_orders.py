"""Labels that are counted up, and the order in which the rows that they belong to were joined. Pure; standard library only."""

from __future__ import annotations

from collections.abc import Iterator

from probe.diagnose.code.computed.computation import Computation, computation_of
from probe.diagnose.code.computed.value import Many, Value, bare, number, same, takes_all
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Finders, Remark
from probe.diagnose.code.syntax import short
from probe.diagnose.code.traits.extents import view_sizes

FINDERS = Finders()
_ROWWISE = frozenset({
    "run", "relu", "tanh", "sigmoid", "gelu", "leaky_relu", "dropout", "normalize", "neg", "softmax", "log_softmax", "clamp", "contiguous", "silu", "exp", "log",
    "to", "float", "cpu", "cuda", "clone", "squeeze", "layer_norm", "matmul", "linear", "cdist", "pow", "square", "mul", "div", "cosine_similarity", "max_pool2d", "avg_pool2d",
})
"""What is done with each row by itself."""
_MADE = ("randn", "rand", "zeros", "ones", "empty", "randint", "normal", "uniform")


@FINDERS.add("targets-of-another-layout")
def _counted_in_another_order(program: Program) -> Iterator[Remark]:
    """Rows of k kinds are joined kind after kind, and the labels count from 0 to k - 1 again and again; or the other way round."""
    computation = computation_of(program)
    for loss in computation.of("cross_entropy", "nll_loss"):
        labels = _labels(loss.args[1]) if len(loss.args) > 1 else None
        rows = _rows(computation, loss.args[0]) if labels is not None else None
        if labels is None or rows is None or not _are_as_many(labels[1], rows[1]) or labels[2] == rows[2]:
            continue
        orders = ("one kind of rows after the other", "rows of all kinds by turns")
        told = ("one number after the other", "all numbers by turns")
        yield Remark(loss.node, f"{short(loss.node)} gets {orders[0 if rows[2] else 1]} from {short(rows[0].node)} (line {rows[0].line}), and {short(labels[0].node)} (line {labels[0].line}) counts {told[0 if labels[2] else 1]}: most rows have the label of another kind")
        return


def _are_as_many(one: Value | int, other: Value | int) -> bool:
    first, second = (count if isinstance(count, int) else number(count) for count in (one, other))
    if first is not None or second is not None:
        return first == second and (first or 0) > 1
    return isinstance(one, Value) and isinstance(other, Value) and same(one, other)


def _labels(value: Value) -> tuple[Value, Value | int, bool] | None:
    """Where labels are counted, up to which number, and whether each number stands in a row of its own copies."""
    value = bare(value, shapes=False)
    inner = bare(value.args[0], shapes=False) if value.args else value
    if value.op in ("repeat", "tile") and len(value.args) == 2 and not isinstance(value.args[1], Many) and _is_count(inner) and number(value.args[1]) != 1:
        if number(value.args[1]) == number(inner.args[0]) is not None:
            return None
        return value, inner.args[0], False
    if value.op == "repeat_interleave" and len(value.args) > 1 and _is_count(inner) and number(value.args[1]) != 1:
        return value, inner.args[0], True
    if value.op in ("reshape", "view", "flatten", "ravel") and value.args:
        grid = value.args[0]
        if grid.op in ("expand", "repeat") and grid.args and len(grid.args) == 3:
            column = grid.args[0]
            counted = bare(column)
            is_column = (column.op == "unsqueeze" and number(column.argument("dim", 1)) in (1, -1)) or (column.op in ("view", "reshape") and [number(one) for one in column.args[1:]] == [-1, 1])
            is_row = (column.op == "unsqueeze" and number(column.argument("dim", 1)) == 0) or (column.op in ("view", "reshape") and [number(one) for one in column.args[1:]] == [1, -1])
            if _is_count(counted) and (is_column or is_row):
                return value, counted.args[0], is_column
    if value.op in ("mod", "remainder") and len(value.args) == 2 and inner.op == "arange":
        return value, value.args[1], False
    return None


def _is_count(value: Value) -> bool:
    return value.op in ("arange", "range") and len(value.args) == 1


def _rows(computation: Computation, value: Value) -> tuple[Value, Value | int, bool] | None:
    """Where rows of several kinds were joined, how many kinds there are, and whether the rows of one kind stand together."""
    for _ in range(60):
        if value.op == "cat" and value.args and isinstance(value.args[0], Many) and number(value.argument("dim", 1)) in (None, 0):
            kinds = _kinds(computation, value.args[0])
            return None if kinds is None else (value, kinds, True)
        if value.op in ("reshape", "view", "flatten") and value.args:
            sizes = [one for given in value.args[1:] for one in (given.parts if isinstance(given, Many) else [given])]
            merges = [number(one) for one in sizes] == [0, 1] if value.op == "flatten" else len(view_sizes(value)) > 1 and (number(sizes[0]) == -1 or sizes[0].op == "mul" or (number(sizes[0]) or 0) > 1)
            inner = _moved(value.args[0])
            if inner.op == "stack" and inner.args and isinstance(inner.args[0], Many) and merges:
                dim = number(inner.argument("dim", 1)) or 0
                kinds = _kinds(computation, inner.args[0]) if dim in (0, 1) else None
                return None if kinds is None else (value, kinds, dim == 0)
            lengths = _lengths(inner) if merges else None
            first = (lengths[0] or 0) if lengths is not None else 0
            if lengths is not None and first and len(lengths) > 2 and (value.op == "flatten" or number(sizes[0]) in (-1, first * (lengths[1] or -1)) or (lengths[1] is None and len(sizes) == len(lengths) - 1)):
                return value, first, True
            if value.op == "flatten" and not merges:
                value = value.args[0]
                continue
            if value.op != "flatten" and merges:
                return None
            return None
        if value.op == "run" and len(value.args) > 1:
            value = value.args[1]
        elif value.op in _ROWWISE and value.args:
            value = value.args[0] if number(value.args[0]) is None else value.args[-1]
        elif value.op in ("add", "sub") and len(value.args) == 2:
            return next((found for one in value.args if (found := _rows(computation, one)) is not None), None)
        else:
            return None
    return None


def _moved(value: Value) -> Value:
    """A value without what only moves it, or changes its type."""
    while value.op in ("to", "float", "cpu", "cuda", "clone", "contiguous", "detach") and value.args:
        value = value.args[0]
    return value


def _kinds(computation: Computation, parts: Many) -> Value | int | None:
    """How many parts a list has."""
    if not parts.grown:
        return len(parts.parts)
    part = parts.parts[0] if len(parts.parts) == 1 else None
    found = [over for count, node, over in computation.passes if part is not None and part.where.loops and node is part.where.loops[-1] and count <= part.number]
    return found[-1].args[0] if found and found[-1].op == "range" and len(found[-1].args) == 1 else None


def _lengths(value: Value, depth: int = 12) -> list[int | None] | None:
    """The lengths of the axes of a tensor, as far as they are known; the first one always is."""
    if depth == 0:
        return None
    value = bare(value, shapes=False)
    if value.op in _MADE:
        sizes = [number(one) for given in value.args for one in (given.parts if isinstance(given, Many) else [given])]
        return [None if one is None else int(one) for one in sizes] if len(sizes) > 1 and sizes[0] is not None and all(one is None or one >= 1 for one in sizes) else None
    if value.op in ("add", "sub", "mul", "div"):
        found = [one for one in (_lengths(arg, depth - 1) for arg in value.args) if one is not None]
        return max(found, key=len) if found else None
    if value.op == "part" and len(value.args) == 2 and isinstance(value.args[1], Many) and value.args[1].op == "tuple":
        whole, index = _lengths(value.args[0], depth - 1), value.args[1].parts
        if whole is None or len(index) > len(whole) or not index or not takes_all(index[0]) or any(one.op != "slice" for one in index):
            return None
        return [whole[0], *(length if place >= len(index) or takes_all(index[place]) else None for place, length in list(enumerate(whole))[1:])]
    return None
