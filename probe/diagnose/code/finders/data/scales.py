"""Means, deviations and scales that inputs are given. Pure; standard library only."""

from __future__ import annotations

from collections.abc import Iterator

from probe.diagnose.code.computed.computation import computation_of
from probe.diagnose.code.computed.value import KEPT, SHAPED, Many, Value, bare, number
from probe.diagnose.code.finders.rows.byte_ranges import is_read_to_255
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Finders, Remark
from probe.diagnose.code.syntax import short
from probe.diagnose.code.traits.basic import is_mean_of, variance_of, without_small
from probe.diagnose.code.traits.pictures import applied

FINDERS = Finders()


@FINDERS.add("divided-by-variance")
def _divided_by_variance(program: Program) -> Iterator[Remark]:
    """What is centred is divided by its variance."""
    for value in computation_of(program).of("div"):
        centred, by = bare(value.args[0]), without_small(value.args[1])
        if centred.op == "sub" and variance_of(by) is not None:
            yield Remark(value.node, f"{short(value.node)} divides by a variance (line {by.line}), not by its root")


@FINDERS.add("mean-for-deviation")
def _mean_for_deviation(program: Program) -> Iterator[Remark]:
    """A deviation is subtracted and a mean is divided by."""
    for value in computation_of(program).of("div"):
        centred, by = bare(value.args[0]), without_small(value.args[1])
        if centred.op != "sub":
            continue
        taken = bare(centred.args[1])
        if taken.op == "std" and by.op == "mean" and is_mean_of(by, taken.args[0]):
            yield Remark(value.node, f"{short(value.node)} subtracts a deviation (line {taken.line}) and divides by a mean (line {by.line})")


@FINDERS.add("normalized-by-wrong-constants")
def _bytes_undivided(program: Program) -> Iterator[Remark]:
    """A mean and a deviation of numbers up to 1 meet pictures whose numbers go up to 255."""
    computation = computation_of(program)
    for value in computation.of("div", "sub"):
        centred = bare(value.args[0], shapes=False) if value.args else value
        if value.op == "div" and len(value.args) == 2 and centred.op == "sub" and len(centred.args) == 2:
            taken, by = numbers_in(centred.args[1]), numbers_in(value.args[1])
            if taken and by and min(taken) > 0.05 and max(*taken, *by) < 1 and is_read_to_255(centred.args[0]):
                yield Remark(value.node, f"{short(value.node)} takes mean and deviation of numbers up to 1, and {short(centred.args[0].node)} holds numbers up to 255")
        elif value.op == "sub" and len(value.args) == 2 and number(value.args[1]) == 1 and centred.op == "mul" and any(number(one) == 2 for one in centred.args):
            picture = next((one for one in centred.args if number(one) is None), None)
            if picture is not None and is_read_to_255(picture):
                yield Remark(value.node, f"{short(value.node)} brings numbers up to 1 to -1…1, and {short(picture.node)} holds numbers up to 255")
    for value in computation.of("run", "torchvision.transforms.functional.normalize"):
        if applied(value) not in ("Normalize", "normalize"):
            continue
        settings, given = (value.args[0], value.args[-1]) if value.op == "run" else (value, value.args[0])
        mean = settings.argument("mean", 0 if value.op == "run" else 1)
        means = numbers_in(mean) if mean is not None else ()
        if means and min(means) > 0.05 and max(means) < 1 and is_read_to_255(given):
            yield Remark(settings.node, f"{short(settings.node)} takes a mean of numbers up to 1, and {short(given.node)} (line {given.line}) holds numbers up to 255")


@FINDERS.add("normalized-by-wrong-constants")
def _statistics_of_bytes(program: Program) -> Iterator[Remark]:
    """The mean or deviation of pixels as they were read meets the same pixels divided by 255."""
    computation = computation_of(program)
    for value in computation.of("sub"):
        given = bare(value.args[0]) if len(value.args) == 2 else value
        level = bare(value.args[1], "part", "transpose", "permute") if len(value.args) == 2 else value
        if given.op != "div" or (by := number(given.args[-1])) not in (255, 256) or level.op not in ("mean", "median") or not level.args:
            continue
        pixels, read = _root(level.args[0]), _root(given.args[0])
        if pixels is read and pixels.op not in ("@input", "rows"):
            yield Remark(value.node, f"{short(value.node)} takes from numbers up to 1 ({short(given.node)}, line {given.line}) the mean of numbers up to {by:g}: {short(level.node)} (line {level.line}) is that of the pixels as they were read")
            return


def _root(value: Value) -> Value:
    """What the pixels are rows of that a value holds, as long as nothing is computed with them."""
    for _ in range(30):
        value = bare(value)
        if value.op == "part" and value.args:
            value = value.args[0]
        elif isinstance(value, Many) and len(value.parts) == 1:
            value = value.parts[0]
        elif value.op in ("cat", "permute", "transpose", "rows") and value.args:
            value = value.args[0]
        else:
            break
    return value


def numbers_in(value: Value) -> tuple[float, ...]:
    """The numbers in a list, a tuple or an array of them, or the one number that a value is."""
    while value.args and not isinstance(value, Many) and value.op in (*SHAPED, *KEPT, "part", "transpose", "permute"):
        value = value.args[0]
    parts = [number(one) for one in value.parts] if isinstance(value, Many) else [number(value)]
    return tuple(one for one in parts if one is not None) if None not in parts else ()
