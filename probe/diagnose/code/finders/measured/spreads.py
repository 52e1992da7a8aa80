"""Squared errors that are weighted by a spread, and the logarithm of it beside them. Pure; standard library only."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from probe.diagnose.code.computed.computation import computation_of
from probe.diagnose.code.computed.value import Value, bare, number, origins, same
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Remark
from probe.diagnose.code.syntax import short
from probe.diagnose.code.traits.arithmetic import Product, addends, linear, product
from probe.diagnose.code.traits.basic import losses, squared, without_small


class _Error(NamedTuple):
    """A squared error that is multiplied by `weight` and by exp(-power * of), or divided by `of` to that power where `logged`
    is False; `whole` where that is a divisor of the square itself, of which the rule deviation-as-variance speaks."""

    weight: float
    of: Value
    power: float
    logged: bool
    whole: bool = False


def spread_of_no_density(program: Program) -> Iterator[Remark]:
    """The squared error is weighted by a precision whose logarithm counts twice, or half, of what a normal density has."""
    for _, loss in losses(computation_of(program)):
        for whole in linear(loss):
            parts = [(one, product(one), sign) for one, sign in addends(whole)] if whole.op == "add" else []
            errors = [(one, found) for one, made, sign in parts if sign * made.sign > 0 and (found := _error(made)) is not None]
            for one, error in errors:
                counted = next((weight for other, made, sign in parts if other is not one and sign * made.sign > 0 and (weight := _logarithm(made, error)) is not None), None)
                share = 0.0 if counted is None else counted / error.weight / error.power
                if error.whole and (error.power, share) in ((2.0, 0.5), (1.0, 2.0)):
                    continue
                if any(abs(share - wrong) < 1e-6 for wrong in (0.5, 2.0)) and any(each.op == "run" for each in origins(error.of)):
                    way = "twice" if share > 1 else "half"
                    yield Remark(whole.node, f"{short(whole.node)} counts the logarithm of the variance {way} as much as the squared error over it: the variance that makes it smallest is {'half' if share > 1 else 'twice'} that of the errors")
                    return


def _error(made: Product) -> _Error | None:
    """A squared error with its weight and its precision, if that is all that a product is."""
    weight, squares = 1.0, 0
    precision: list[_Error | None] = []
    for one in made.above:
        if (known := number(one)) is not None:
            weight *= known
        elif (inner := squared(one)) is not None and bare(inner).op != "exp":
            squares += 1
            scaled = bare(inner)
            if scaled.op in ("mul", "div") and len(scaled.args) == 2:
                precision += _by(scaled.args[1], 2.0, scaled.op == "div") or [None]
                scaled = bare(scaled.args[0])
            if scaled.op != "sub":
                return None
        else:
            precision += _by(one, 1.0, False) or [None]
    for one in made.below:
        if (known := number(one)) is not None and known:
            weight /= known
        else:
            precision += [each if each.logged else each._replace(whole=True) for each in _by(one, 1.0, True)] or [None]
    found = precision[0] if len(precision) == 1 else None
    return None if found is None or squares != 1 or weight <= 0 else found._replace(weight=weight)


def _by(value: Value, power: float, below: bool) -> list[_Error]:
    """What a factor (or, `below`, a divisor) says of the spread."""
    value = without_small(value)
    if (inner := squared(value)) is not None:
        value, power = without_small(inner), power * 2
    if value.op == "exp" and value.args:
        exponent = product(value.args[0])
        others = [one for one in exponent.above if number(one) is None]
        for one in exponent.above:
            power *= number(one) or 1.0
        for one in exponent.below:
            power /= number(one) or 1.0
        right = (exponent.sign > 0) is below
        return [_Error(1.0, others[0], power, True)] if len(others) == 1 and right and power > 0 and all(number(one) for one in exponent.below) else []
    return [_Error(1.0, value, power, False)] if below else []


def _logarithm(made: Product, error: _Error) -> float | None:
    """How much the logarithm of the spread of an error counts, if a product is that."""
    weight, rest = 1.0, []
    for one in made.above:
        if (known := number(one)) is not None:
            weight *= known
        else:
            rest.append(one)
    for one in made.below:
        known = number(one)
        if not known:
            return None
        weight /= known
    if len(rest) != 1:
        return None
    inner = bare(rest[0])
    if error.logged:
        return weight if same(inner, bare(error.of)) else None
    if inner.op != "log" or not inner.args:
        return None
    spread = without_small(inner.args[0])
    if (of := squared(spread)) is not None:
        spread, weight = without_small(of), weight * 2
    return weight if same(spread, error.of) else None
