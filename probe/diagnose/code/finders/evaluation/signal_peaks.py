"""The largest value that a peak signal-to-noise ratio is told, and what the images can hold. Pure; standard library only."""

from __future__ import annotations

import math
from collections.abc import Iterator

from probe.diagnose.code.computed.computation import Computation, computation_of
from probe.diagnose.code.computed.value import Many, Value, bare, number, origins
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Remark
from probe.diagnose.code.syntax import short
from probe.diagnose.code.traits.basic import squared

_PEAKS = (1.0, 2.0, 255.0, 65535.0)
_TURNED = ("part", "rows", "stack", "element", "flip", "permute", "transpose", "roll", "pad", "narrow", "interpolate", "requires_grad", "either")


def peak_of_another_range(program: Program) -> Iterator[Remark]:
    """A ratio of the largest value to the error, where the images have another largest value."""
    computation = computation_of(program)
    for value in computation.of("log10"):
        found = _peak_and_error(computation, value)
        for image in _compared(found[1]) if found is not None else ():
            known = _range_of(image)
            if found is None or known is None:
                continue
            most, told = known
            if most is None and found[0] in (1.0, 255.0):
                yield Remark(value.node, f"{short(value.node)} takes {found[0]:g} for the largest value, and the images are shifted and scaled by then: {short(told.node)} (line {told.line})")
                return
            if most is not None and found[0] in _PEAKS and not math.isclose(found[0], most):
                yield Remark(value.node, f"{short(value.node)} takes {found[0]:g} for the largest value, and the images lie between 0 and {most:g}: {short(told.node)} (line {told.line})")
                return


def _peak_and_error(computation: Computation, value: Value) -> tuple[float, Value] | None:
    """The largest value that log10(peak / root of the error), or log10(peak ** 2 / error) is told, and the error.
    It is 1 in -10 * log10(error)."""
    inside = bare(value.args[0]) if value.args else None
    if inside is not None and any(user.op == "mul" and any(number(one) == -10 for one in user.args) for user in computation.users(value)):
        return 1.0, bare(inside, "add", "clamp", "maximum", "max", "item", "float")
    if inside is None or inside.op != "div" or len(inside.args) != 2:
        return None
    below = bare(inside.args[1], "add", "clamp", "maximum", "max", "item", "float")
    peak = _number(inside.args[0])
    if peak is None or peak <= 0:
        return None
    root = below.op == "sqrt"
    return (peak if root else math.sqrt(peak), below.args[0] if root and below.args else below)


def _number(value: Value) -> float | None:
    value = bare(value)
    if value.op == "pow" and len(value.args) == 2:
        base, power = number(value.args[0]), number(value.args[1])
        return None if base is None or power is None else base**power
    return number(value)


def _compared(error: Value) -> Iterator[Value]:
    """The images of which a mean squared error is one."""
    for one in origins(error, stop=("sub", "run", "mse_loss")):
        if one.op == "mse_loss":
            yield from one.args[:2]
        elif (inner := squared(one)) is not None:
            found = bare(inner)
            while found.op == "part" and found.args:
                found = bare(found.args[0])
            if found.op == "sub":
                yield from found.args


def _range_of(image: Value) -> tuple[float | None, Value] | None:
    """The largest value that images can have (None: they are normalized), and what tells so; None if unknown."""
    for _ in range(12):
        image = bare(image)
        if image.op == "sigmoid" or (image.op in ("clamp", "clip", "clamp_") and _bounds(image) == (0, 1)):
            return 1.0, image
        if image.op in ("clamp", "clip", "clamp_") and _bounds(image) == (0, 255):
            return 255.0, image
        if image.op == "div" and len(image.args) == 2 and _is_shifted(image.args[0]) and _is_fixed(image.args[1]):
            return None, image
        if image.op == "tanh" or _is_doubled_less_one(image):
            return None, image
        if not image.args or image.op not in _TURNED or isinstance(image, Many):
            return None
        image = image.args[0]
    return None


def _is_doubled_less_one(value: Value) -> bool:
    """Whether numbers from 0 to 1 are brought to -1…1."""
    inner = bare(value.args[0]) if value.op == "sub" and len(value.args) == 2 and number(value.args[1]) == 1 else value
    return inner is not value and inner.op == "mul" and any(number(one) == 2 for one in inner.args)


def _bounds(value: Value) -> tuple[float | None, float | None]:
    least, most = value.argument("min", 1), value.argument("max", 2)
    return (None if least is None else number(least), None if most is None else number(most))


def _is_shifted(value: Value) -> bool:
    """Whether a fixed number other than 0 is taken off."""
    value = bare(value)
    return value.op == "sub" and len(value.args) == 2 and _is_fixed(value.args[1]) and number(value.args[1]) != 0


def _is_fixed(value: Value) -> bool:
    """Whether a value is a number, or a few that are written in the program."""
    value = bare(value)
    if number(value) is not None:
        return True
    return isinstance(value, Many) and bool(value.parts) and not value.grown and all(number(one) is not None for one in value.parts)
