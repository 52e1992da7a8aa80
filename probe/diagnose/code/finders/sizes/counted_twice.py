"""Schedules whose length counts the passes of a training twice. Pure; standard library only."""

from __future__ import annotations

import math
from collections.abc import Iterator

from probe.diagnose.code.computed.computation import Computation, computation_of
from probe.diagnose.code.computed.value import Value, bare, constant, number, origins
from probe.diagnose.code.finders.training.schedule_lengths import bound_of, told_length, whole_lengths
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Finders, Remark
from probe.diagnose.code.syntax import short
from probe.diagnose.code.traits.arithmetic import product
from probe.diagnose.code.traits.updates import is_schedule, optimizer_of

FINDERS = Finders()
_COUNTS = ("len", "ceil", "floordiv", "size", "shape")


@FINDERS.add("schedule-at-the-wrong-level")
def _epochs_counted_twice(program: Program) -> Iterator[Remark]:
    """A schedule is as long as the batches of all epochs, times the number of epochs."""
    computation = computation_of(program)
    epochs = list(_epochs(computation))
    for value in computation.of("mul") if epochs else ():
        made = product(value)
        counted = [one for one in made.above if any(each.op in _COUNTS for each in origins(one, stop=_COUNTS))]
        twice = next((bound for bound in epochs if sum(_is_that(one, bound) for one in made.above if one not in counted) > 1), None)
        if twice is None or not counted or any(_is_that(one, twice) for one in made.below):
            continue
        schedule = next((one for one in _schedules(computation) if any(part is value for part in origins(one))), None)
        if schedule is not None:
            yield Remark(value.node, f"{short(value.node)} counts the {short(twice.node)} epochs twice, as {short(counted[0].node)} is multiplied by that before: the schedule (line {schedule.line}) ends long after the training")
            return


@FINDERS.add("schedule-at-the-wrong-level")
def _as_long_as_all_updates(program: Program) -> Iterator[Remark]:
    """A schedule is as long as the optimizer makes steps in all loops, and moves on in the outer ones only; all are numbers that
    are known."""
    computation = computation_of(program)
    for value in computation.of("step"):
        schedule = value.args[0] if value.args else value
        if not is_schedule(schedule) or value.where.under or not value.where.loops:
            continue
        loops = value.where.loops
        updates = [one for one in computation.of("step") if (held := optimizer_of(one)) is not None and held is schedule.argument("optimizer", 0)]
        moved = [one for one in computation.of("step") if one.args and one.args[0] is schedule]
        if len(moved) != 1 or len(updates) != 1 or updates[0].where.under or updates[0].where.loops[: len(loops)] != loops or updates[0].where.loops == loops:
            continue
        passes = [number(bound_of(computation, updates[0], loop)) or 0.0 for loop in updates[0].where.loops]
        whole, most = math.prod(passes), math.prod(passes[: len(loops)])
        lengths = [(one, warm) for one, warm in told_length(schedule)] if schedule.op.endswith(".LambdaLR") else [(one, None) for one in whole_lengths(schedule)]
        told = next((one for one, warm in lengths if (steps := number(one)) is not None and whole in (steps, steps + (warm or 0))), None)
        if told is not None and most > 1 and whole >= 2 * most:
            yield Remark(value.node, f"{short(value.node)} runs {most:g} times in all, once for {whole / most:g} steps of the optimizer (line {updates[0].line}), and {schedule.op.rpartition('.')[2]} is made for {whole:g} steps ({short(told.node)}, line {told.line})")
            return


def _epochs(computation: Computation) -> Iterator[Value]:
    """How often the outer one of the loops in which an optimizer steps runs."""
    for step in computation.of("step"):
        if optimizer_of(step) is None or len(step.where.loops) < 2:
            continue
        for count in computation.of("index"):
            if count.args and len(count.args) < 3 and count.data != "enumerate" and count.where.loops[-1:] in (step.where.loops[:1], ()) and _runs(count, step):
                yield count.args[-1]


def _runs(count: Value, step: Value) -> bool:
    """Whether a count is that of the outer loop around a step."""
    loop = step.where.loops[0]
    iterated = getattr(loop, "iter", None)
    return count.node is loop or count.node is iterated or count.node is getattr(loop, "target", None)


def _is_that(value: Value, bound: Value) -> bool:
    """Whether a factor is the number of epochs itself, and not another number that is as large."""
    return bare(value) is bare(bound)


def _schedules(computation: Computation) -> Iterator[Value]:
    yield from (one for one in computation.values if is_schedule(one))
    yield from (one for one in computation.of("set_item") if len(one.args) > 2 and constant(one.args[1]) == "lr")
