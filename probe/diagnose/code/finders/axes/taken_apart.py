"""Rows that are joined of two axes, and taken apart again the other way round. Pure; standard library only."""

from __future__ import annotations

from collections.abc import Iterator

from probe.diagnose.code.computed.computation import Computation, computation_of
from probe.diagnose.code.computed.value import Many, Value, constant, is_none, number, same
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Remark
from probe.diagnose.code.syntax import short
from probe.diagnose.code.traits.extents import at_least, view_sizes

_ROWWISE = frozenset({
    "run", "relu", "tanh", "sigmoid", "gelu", "elu", "leaky_relu", "softplus", "dropout", "exp", "log", "to", "float", "detach", "normalize", "neg", "softmax",
    "log_softmax", "clamp", "contiguous", "cpu", "cuda", "squeeze", "layer_norm", "silu",
})
"""What is done with each row by itself."""
_PAIRED = ("add", "sub", "mul", "div", "cat", "min", "maximum", "minimum", "log_prob")
_ERRORS = ("binary_cross_entropy_with_logits", "binary_cross_entropy", "mse_loss", "l1_loss", "smooth_l1_loss")
_REDUCED = ("mean", "sum", "max", "min", "logsumexp", "softmax", "log_softmax", "std", "var", "argmax", "argmin", "amax", "amin", "topk", "sort", "median")


def grouped_in_another_order(program: Program) -> Iterator[Remark]:
    """Rows of which each is there n times are taken apart as if the copies of one stood elsewhere, and what is reduced goes over
    rows of different ones."""
    computation = computation_of(program)
    said: set[int] = set()
    for value in computation.of("view", "reshape"):
        sizes = view_sizes(value)
        if len(sizes) < 2 or id(value.node) in said or not _is_reduced(computation, value):
            continue
        joined = _joined(computation, value.args[0])
        repeated = joined is not None and joined[0].op == "repeat_interleave"
        if joined is None or (repeated and any(user.op in ("mean", "std", "var") for user in computation.users(value))):
            continue  # groups that are averaged are those of groups-of-other-rows
        made, times, is_outer = joined
        first, second = sizes[:2]
        is_copies = [_is_equal(one, times) for one in (first, second)]
        if all(is_copies) and (first is times) is not (second is times):
            is_copies = [first is times, second is times]  # both are as long, and one is the very number
        if is_copies == ([False, True] if is_outer else [True, False]) and (number(first) != 1 and number(second) != 1):
            said.add(id(value.node))
            order = "all rows once, then all of them again" if is_outer else "all copies of one row, then those of the next"
            yield Remark(value.node, f"{short(value.node)} takes rows apart in another order than {short(made.node)} (line {made.line}) has joined them in, which gives {order}: one group holds rows of different ones")


def _is_equal(size: Value, times: Value | int) -> bool:
    return number(size) == times if isinstance(times, int) else size is times or same(size, times)


def _joined(computation: Computation, value: Value, depth: int = 40) -> tuple[Value, Value | int, bool] | None:
    """What makes rows of each of several n times: it, n, and whether the rows are gone through n times one after the other,
    instead of each n times in a row."""
    if depth == 0 or not value.args:
        return None
    if value.op in ("repeat", "tile") and len(value.args) > 2 and all(number(one) == 1 for one in value.args[2:]) and number(value.args[1]) != 1:
        single = value.args[0].op == "unsqueeze" and number(value.args[0].argument("dim", 1)) == 0
        return None if single else (value, value.args[1], True)
    if value.op == "repeat_interleave" and len(value.args) > 1 and number(value.argument("dim", 2)) == 0:
        return value, value.args[1], False
    if value.op == "flatten" and number(value.argument("start_dim", 1)) == 1 and value.argument("end_dim", 2) is None:
        return _joined(computation, value.args[0], depth - 1)
    if value.op in ("view", "reshape", "flatten"):
        stack = value.args[0]
        outer = _outer(computation, value)
        if outer is not None:
            return outer
        merges = len(view_sizes(value)) in (1, 2) and number(view_sizes(value)[0]) == -1 if value.op != "flatten" else [number(one) for one in value.args[1:]] == [0, 1]
        rows = stack.args[0] if stack.op == "stack" and len(stack.args) == 1 and not stack.named else None
        if merges and isinstance(rows, Many) and (len(rows.parts) > 1) != rows.grown:
            times = _turns(computation, rows.parts[0]) if rows.grown else len(rows.parts)
            return None if times is None else (value, times, True)
        return None
    if value.op == "run":
        found = [_joined(computation, one, depth - 1) for one in value.args[1:]]
    elif value.op in _PAIRED:
        found = [_joined(computation, one, depth - 1) for one in (value.args[0].made_of() if value.op == "cat" else value.args)]
    elif value.op in _ERRORS and constant(value.named.get("reduction")) == "none":
        found = [_joined(computation, one, depth - 1) for one in value.args[:2]]
    elif value.op in _ROWWISE or (value.op in ("sum", "mean") and number(value.argument("dim", 1)) in (1, -1)):
        found = [_joined(computation, value.args[0], depth - 1)]
    else:
        return None
    known = [one for one in found if one is not None]
    return known[0] if known and len({one[2] for one in known}) == 1 else None


def _outer(computation: Computation, value: Value) -> tuple[Value, Value | int, bool] | None:
    """What joins the first two of three axes: it, one of their lengths, and whether that is the first one; None where neither is
    known."""
    merges = [number(one) for one in value.args[1:]] == [0, 1] if value.op == "flatten" else len(view_sizes(value)) == 2 and number(view_sizes(value)[1]) != -1
    stack = value.args[0]
    if merges and stack.op == "stack" and number(stack.argument("dim", 1)) == 1 and isinstance(stack.args[0], Many):
        rows = stack.args[0]
        times = _turns(computation, rows.parts[0]) if rows.grown and len(rows.parts) == 1 else len(rows.parts) if not rows.grown else None
        return None if times is None else (value, times, False)
    first = _first(stack) if merges and at_least(stack) == 3 and value.op != "flatten" else None
    return None if first is None or number(first) in (1, -1) else (value, first, True)


def _first(value: Value, depth: int = 12) -> Value | None:
    """How long the first axis of a value is, where it is drawn or made with a size: of a sum, that of its longest part."""
    if depth == 0:
        return None
    if value.op in ("randn", "rand", "zeros", "ones", "empty"):
        sizes = [one for given in value.args for one in (given.parts if isinstance(given, Many) else [given])]
        return sizes[0] if len(sizes) == 3 else None
    if value.op == "matmul" and value.args:
        return _first(value.args[0], depth - 1)
    if value.op in ("add", "sub", "mul") and len(value.args) == 2:
        found = [one for one in (_first(each, depth - 1) for each in value.args) if one is not None]
        return found[0] if len(found) == 1 else None
    return _first(value.args[0], depth - 1) if value.op in _ROWWISE - {"run", "squeeze"} and value.args else None


def _turns(computation: Computation, part: Value) -> Value | None:
    """How often the loop runs in which a part of a list is made, where it is one over range(n)."""
    found = [over for count, node, over in computation.passes if part.where.loops and node is part.where.loops[-1] and count <= part.number]
    over = found[-1] if found else part
    for _ in range(6):
        over = over.args[0] if over.op in ("list", "tolist", "tuple", "enumerate", "array", "asarray", "sorted", "reversed") and over.args and not isinstance(over, Many) else over
    if over.op == "range" and len(over.args) == 1:
        return over.args[0]
    if found and over.op == "part" and over.args[1].op == "slice" and is_none(over.args[1].args[0]) and not is_none(over.args[1].args[1]):
        return over.args[1].args[1]
    drawn = [one for one in over.args if one.op not in ("default_rng", "Generator", "RandomState")] if found and over.op in ("choice", "sample") and "axis" not in over.named else []
    return over.named.get("size") or over.named.get("k") or (drawn[1] if len(drawn) > 1 else None)


def _is_reduced(computation: Computation, value: Value) -> bool:
    """Whether something is reduced over one of the two axes."""
    return any(user.op in _REDUCED and user.args and user.args[0] is value and number(user.argument("dim", 1)) in (0, 1) for user in computation.users(value))
