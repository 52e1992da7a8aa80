"""Means of all but one, and sums of all but the diagonal. Pure; standard library only."""

from __future__ import annotations

from collections.abc import Iterator

from probe.diagnose.code.computed.computation import computation_of
from probe.diagnose.code.computed.value import Value, bare, number, same
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Remark
from probe.diagnose.code.syntax import short
from probe.diagnose.code.traits.arithmetic import addends, product
from probe.diagnose.code.traits.basic import losses, squared


def others_divided_by_all(program: Program) -> Iterator[Remark]:
    """The sum of a row less one of its values is divided by how many values the row has."""
    computation = computation_of(program)
    for value in computation.of("div"):
        rest = bare(value.args[0]) if len(value.args) == 2 else value
        total, own = (bare(one) for one in rest.args) if rest.op == "sub" and len(rest.args) == 2 else (value, value)
        axis = number(total.argument("dim", 1)) if total.op == "sum" and total.args else None
        if axis is None or not (bare(total.args[0]) is own or same(total.args[0], rest.args[1])):
            continue
        if _is_size(value.args[1], total.args[0], int(axis)):
            yield Remark(value.node, f"{short(value.node)} is the sum of all others, and is divided by the number of all, {short(value.args[1].node)}: it is no mean of them")
            return


def _is_size(size: Value, of: Value, axis: int) -> bool:
    """Whether a number is how many values there are along an axis."""
    known = number(size)
    if of.op in ("view", "reshape") and known is not None:
        sizes = [number(one) for one in of.args[1:]]
        return -len(sizes) <= axis < len(sizes) and sizes[axis] == known
    if size.op == "part" and size.args[0].op in ("shape", "size"):
        return size.args[0].args[0] is of and number(size.args[1]) == axis
    return size.op == "size" and len(size.args) == 2 and size.args[0] is of and number(size.args[1]) == axis


def diagonal_among_the_rest(program: Program) -> Iterator[Remark]:
    """A loss pulls the diagonal of a matrix to 1, and the squares of all its entries to 0."""
    computation = computation_of(program)
    for _, loss in losses(computation):
        parts = [(product(one), sign) for one, sign in addends(loss)]
        tables = [(one, inner) for made, sign in parts for one in made.above if sign * made.sign > 0 and (inner := _squares(one)) is not None and bare(inner).op not in ("diagonal", "diag", "sub")]
        for one, table in tables:
            pulled = [(made, sign, bare(inner)) for made, sign in parts for each in made.above if (inner := _squares(each)) is not None]
            to_one = any(sign * made.sign > 0 and inner.op == "sub" and number(inner.args[1]) == 1 and _is_diagonal(inner.args[0], table) for made, sign, inner in pulled)
            taken_away = any(sign * made.sign < 0 and _is_diagonal(inner, table) for made, sign, inner in pulled)
            if to_one and not taken_away:
                yield Remark(one.node, f"{short(one.node)} pulls all entries of {short(table.node)} (line {table.line}) to 0, its diagonal among them, which another term of the loss pulls to 1")
                return


def _squares(value: Value) -> Value | None:
    """x of (x ** 2).sum() and of x ** 2."""
    value = bare(value)
    if value.op in ("sum", "mean") and value.args and len(value.args) == 1:
        value = bare(value.args[0])
    return squared(value)


def _is_diagonal(value: Value, table: Value) -> bool:
    value = bare(value)
    return value.op in ("diagonal", "diag") and bool(value.args) and (value.args[0] is table or same(value.args[0], table))
