"""Which row of a batch is said to be the partner of which. Pure; standard library only."""

from __future__ import annotations

from collections.abc import Iterator

from probe.diagnose.code.computed.computation import computation_of
from probe.diagnose.code.computed.value import KEPT, Many, Value, bare, constant, number, same
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Remark
from probe.diagnose.code.syntax import short

_MASKED = ("div", "mul", "masked_fill", "fill_diagonal_", "sub", "where", "exp", *KEPT)
_TURNED = ("t", "T", "mT", "transpose")
_ROWS = 5
"""Rows in each half, for which targets are worked out."""


def partner_elsewhere(program: Program) -> Iterator[Remark]:
    """Two views of a batch are joined, all rows are compared with all, and the targets name other rows than the second views."""
    for loss in computation_of(program).of("cross_entropy"):
        halves = _halves(loss.args[0]) if len(loss.args) > 1 else None
        told = _numbers(loss.args[1], halves) if halves is not None else None
        if halves is None or not isinstance(told, list) or len(told) != 2 * _ROWS:
            continue
        meant = [(row + _ROWS) % (2 * _ROWS) for row in range(2 * _ROWS)]
        itself = told == list(range(2 * _ROWS))
        if itself and bare(loss.args[1]).op != "arange":
            yield Remark(loss.node, f"{short(loss.node)} names each row as its own partner, and {short(halves[0].node)} (line {halves[0].line}) puts its other view in the other half: {short(bare(loss.args[1]).node)} (line {bare(loss.args[1]).line})")
            return
        if itself or any(one == other for one, other in zip(told, meant, strict=True)):
            continue
        yield Remark(loss.node, f"{short(loss.node)} names as the partner of the first of {2 * _ROWS} rows the row {told[0]:g}, and {short(halves[0].node)} (line {halves[0].line}) puts its other view at {_ROWS}: {short(bare(loss.args[1]).node)} (line {bare(loss.args[1]).line})")
        return


def _halves(scores: Value) -> tuple[Value, Value, Value] | None:
    """Where two views were joined whose rows are all compared with all: that, and the two."""
    for _ in range(12):
        if scores.op == "matmul" and len(scores.args) == 2:
            break
        if scores.op not in _MASKED or not scores.args:
            return None
        scores = scores.args[1] if scores.op == "where" and len(scores.args) == 3 and number(scores.args[1]) is None and not scores.args[1].op.startswith("full") and scores.args[1].op != "float" else scores.args[2 if scores.op == "where" else 0]
    if scores.op != "matmul" or bare(scores.args[1], shapes=False).op not in _TURNED:
        return None
    one, other = (bare(side, *_TURNED, "normalize", "div", "mul", shapes=False) for side in scores.args)
    inner = one.args[0] if one.op == "cat" and one.args and same(one, other) and number(one.argument("dim", 1)) in (None, 0) else None
    if not isinstance(inner, Many) or len(inner.parts) != 2 or inner.grown or inner.parts[0] is inner.parts[1]:
        return None
    return one, inner.parts[0], inner.parts[1]


def _numbers(value: Value, halves: tuple[Value, Value, Value], depth: int = 20) -> list[float] | float | None:
    """What numbers a value has, for `_ROWS` rows in each half; None where that is unknown."""
    if depth == 0:
        return None
    op, args = value.op, value.args
    known = number(value)
    if known is not None:
        return known
    if op in ("len", "size") or (op == "part" and args and args[0].op in ("shape", "size")):
        of = args[0] if op in ("len", "size") else args[0].args[0]
        axis = None if op == "len" else number(value.argument("dim", 1)) if op == "size" else constant(args[1])
        return _length(of, halves) if axis in (None, 0) else None
    if op == "arange":
        bounds = [_numbers(one, halves, depth - 1) for one in args]
        if not bounds or len(bounds) > 2 or any(not isinstance(one, float) for one in bounds):
            return None
        first, end = (0.0, bounds[0]) if len(bounds) == 1 else bounds
        assert isinstance(first, float) and isinstance(end, float)
        return [float(one) for one in range(int(first), int(end))]
    if op == "cat" and args and isinstance(args[0], Many):
        parts = [_numbers(one, halves, depth - 1) for one in args[0].parts]
        return None if any(not isinstance(one, list) for one in parts) else [each for one in parts if isinstance(one, list) for each in one]
    if op == "roll" and len(args) > 1:
        row, by = _numbers(args[0], halves, depth - 1), _numbers(args[1], halves, depth - 1)
        return None if not isinstance(row, list) or not isinstance(by, float) else [row[(place - int(by)) % len(row)] for place in range(len(row))]
    if op in ("add", "sub", "mul", "mod", "floordiv") and len(args) == 2:
        return _joined(op, _numbers(args[0], halves, depth - 1), _numbers(args[1], halves, depth - 1))
    return _numbers(args[0], halves, depth - 1) if op in KEPT and args and not isinstance(value, Many) else None


def _joined(op: str, one: list[float] | float | None, other: list[float] | float | None) -> list[float] | float | None:
    if one is None or other is None or (op in ("mod", "floordiv") and other == 0):
        return None
    if isinstance(one, list) or isinstance(other, list):
        rows = one if isinstance(one, list) else other if isinstance(other, list) else []
        pairs = [(one[place] if isinstance(one, list) else one, other[place] if isinstance(other, list) and len(other) == len(rows) else other) for place in range(len(rows))]
        found = [_joined(op, first, second) if not isinstance(second, list) else None for first, second in pairs]
        return [each for each in found if isinstance(each, float)] if all(isinstance(each, float) for each in found) else None
    return {"add": one + other, "sub": one - other, "mul": one * other}.get(op, one % other if op == "mod" else one // other if op == "floordiv" else 0.0)


def _length(of: Value, halves: tuple[Value, Value, Value]) -> float | None:
    """How many rows a value has: as many as a half, or as both."""
    of = bare(of, "normalize", "div")
    if any(same(of, bare(half, "normalize", "div")) for half in halves[1:]):
        return float(_ROWS)
    return 2.0 * _ROWS if same(of, halves[0]) or (of.op == "matmul" and same(bare(of.args[0], "normalize", "div"), halves[0])) else None
