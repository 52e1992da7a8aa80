"""Means, deviations and scales that inputs are given. Pure; standard library only."""

from __future__ import annotations

from collections.abc import Iterator

from probe.diagnose.code.computed.computation import computation_of
from probe.diagnose.code.computed.value import bare
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Finders, Remark
from probe.diagnose.code.syntax import short
from probe.diagnose.code.traits.basic import is_mean_of, variance_of, without_small

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
