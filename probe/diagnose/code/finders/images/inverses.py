"""Layers of a flow and what should undo them. Pure; standard library only."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from probe.diagnose.code.computed.computation import Computation, computation_of
from probe.diagnose.code.computed.value import Value, bare, number
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Remark
from probe.diagnose.code.syntax import short
from probe.diagnose.code.traits.arithmetic import of_one_layer, product, sides


class _Affine(NamedTuple):
    """What is stretched and moved: the whole, the logarithm of the factor and its sign, and what it is moved by."""

    whole: Value
    log: Value
    sign: int
    shift: Value


def inverse_that_stretches_again(program: Program) -> Iterator[Remark]:
    """A layer multiplies by a factor and adds a shift, and its inverse takes the shift away and multiplies by the same factor; or
    divides by it in both."""
    computation = computation_of(program)
    there, back = list(_moved_after(computation)), list(_moved_before(computation))
    for one in there:
        for other in back:
            alike = of_one_layer(one.log, other.log) and of_one_layer(one.shift, other.shift) and one.whole.node is not other.whole.node
            if alike and one.sign == other.sign and one.whole.where.functions[-1:] != other.whole.where.functions[-1:]:
                yield Remark(other.whole.node, f"{short(other.whole.node)} should undo {short(one.whole.node)} (line {one.whole.line}), and {'multiplies' if one.sign > 0 else 'divides'} by the same factor as that does")
                return


def _moved_after(computation: Computation) -> Iterator[_Affine]:
    """x * exp(s) + t."""
    for value in computation.of("add"):
        for stretched, shift in sides(value):
            if bare(stretched).op in ("mul", "div") and number(shift) is None and (found := _factor(stretched)) is not None:
                yield _Affine(value, *found, bare(shift))


def _moved_before(computation: Computation) -> Iterator[_Affine]:
    """(x - t) * exp(s)."""
    for value in computation.of("mul", "div"):
        found = _factor(value)
        for one in product(value).above if found is not None else ():
            one = bare(one)
            if found is not None and one.op == "sub" and len(one.args) == 2 and number(one.args[1]) is None and number(one.args[0]) is None:
                yield _Affine(value, *found, bare(one.args[1]))


def _factor(value: Value) -> tuple[Value, int] | None:
    """The logarithm of the one exponential that a value is multiplied (1) or divided (-1) by, without its sign."""
    made = product(value)
    found = [(bare(one).args[0], way) for factors, way in ((made.above, 1), (made.below, -1)) for one in factors if bare(one).op == "exp" and bare(one).args]
    if len(found) != 1 or len(made.above) + len(made.below) != 2:
        return None
    log, way = found[0]
    log = bare(log)
    while log.op == "neg" or (log.op == "mul" and any(number(one) == -1 for one in log.args)):
        log, way = bare(log.args[0] if number(log.args[0]) is None else log.args[1]), -way
    return log, way
