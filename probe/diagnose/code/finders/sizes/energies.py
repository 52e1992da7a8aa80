"""Motions that follow from an energy: Hamilton's equations. Pure; standard library only."""

from __future__ import annotations

from collections.abc import Iterator

from probe.diagnose.code.computed.computation import computation_of
from probe.diagnose.code.computed.value import Many, Value, bare, constant, number, origins
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Remark
from probe.diagnose.code.syntax import short
from probe.diagnose.code.traits.basic import losses

_GRADIENTS = ("torch.autograd.grad", "torch.func.grad")


def both_with_a_plus(program: Program) -> Iterator[Remark]:
    """Places and momenta change by the derivatives of an energy by one another, and neither by the negative one."""
    computation = computation_of(program)
    trained = {id(one) for _, loss in losses(computation) for one in origins(loss)}
    for value in computation.of("cat", "stack"):
        parts = value.args[0].parts if id(value) in trained and value.args and isinstance(value.args[0], Many) else []
        halves = [_half(one) for one in parts]
        if len(halves) != 2 or None in halves:
            continue
        (one, first), (other, second) = (half for half in halves if half is not None)
        if one is other and (first, second) == (1, 0):
            yield Remark(value.node, f"{short(value.node)} exchanges the halves of the gradient {short(one.node)} (line {one.line}), and neither has a minus: an energy that is kept moves its momenta by the negative derivative")
            return
    moved: list[tuple[Value, Value, Value, Value]] = []
    for value in computation.of("add"):
        found = _moved(value) if id(value) in trained else None
        if found is None:
            continue
        place, energy, by = found
        for before, other, same_energy, of in moved:
            if same_energy is energy and bare(other) is bare(by) and bare(of) is bare(place):
                yield Remark(value.node, f"{short(value.node)} and {short(before.node)} (line {before.line}) move each of two by the derivative of {short(energy.node)} (line {energy.line}) by the other one, both with a plus: an energy that is kept moves its momenta by the negative derivative")
                return
        moved.append((value, place, energy, by))


def _half(value: Value) -> tuple[Value, int] | None:
    """The gradient of an energy that a value is a half of, and which."""
    value = bare(value)
    if value.op != "part" or len(value.args) != 2:
        return None
    whole, place = value.args[0], constant(value.args[1])
    if whole.op in ("chunk", "split", "tensor_split") and isinstance(place, int):
        gradient = bare(whole.args[0])
    else:
        index = value.args[1]
        cut = list(index.made_of())[-1] if index.op == "tuple" else index
        if cut.op != "slice":
            return None
        start, end = constant(cut.args[0]), constant(cut.args[1])
        if (start is None) is (end is None):
            return None
        gradient, place = bare(whole), 0 if start is None else 1
    return (gradient, place) if isinstance(place, int) and _is_gradient(gradient) else None


def _is_gradient(value: Value) -> bool:
    """Whether a value is the gradient of what a network gives."""
    inner = value.args[0] if value.op == "part" and value.args and value.args[0].op in _GRADIENTS else value
    return inner.op in _GRADIENTS and bool(inner.args) and any(one.op == "run" for one in origins(inner.args[0]))


def _moved(value: Value) -> tuple[Value, Value, Value] | None:
    """What is moved by a step times the derivative of an energy, the energy, and by what it was derived."""
    if len(value.args) != 2:
        return None
    for place, step in (value.args, value.args[::-1]):
        factors = [bare(one) for one in step.args] if bare(step).op == "mul" else []
        slope = next((one for one in factors if one.op == "part" and one.args[0].op in _GRADIENTS), None)
        if slope is None or len(factors) != 2 or any((number(one) or 0) < 0 or one.op == "neg" for one in factors):
            continue
        call, at = slope.args[0], constant(slope.args[1])
        by = call.args[1] if len(call.args) > 1 else call
        if isinstance(by, Many) and isinstance(at, int) and at < len(by.parts) == 2 and any(one.op == "run" for one in origins(call.args[0])):
            return place, call.args[0], by.parts[at]
    return None
