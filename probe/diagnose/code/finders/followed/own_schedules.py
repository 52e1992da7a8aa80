"""Schedules of the rate that a program computes itself, and what they count. Pure; standard library only."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterator

from probe.diagnose.code.computed.computation import Computation, computation_of
from probe.diagnose.code.computed.value import Value, bare, constant, number, origins, same
from probe.diagnose.code.finders.training.schedule_lengths import (
    counts_batches,
    cut_at,
    loops_around,
    one_in,
    only_every,
)
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Finders, Remark
from probe.diagnose.code.syntax import short
from probe.diagnose.code.traits.updates import optimizer_of

FINDERS = Finders()


@FINDERS.add("schedule-at-the-wrong-level")
def _own_schedule_counts_passes(program: Program) -> Iterator[Remark]:
    """A schedule that a program computes itself is as long as there are updates, and what it counts grows with each pass,
    also where the optimizer does not step."""
    computation = computation_of(program)
    steps = [one for one in computation.of("step") if optimizer_of(one) is not None]
    for kept in computation.of("set_item"):
        if len(kept.args) < 3 or constant(kept.args[1]) != "lr":
            continue
        made_of = list(origins(kept.args[2]))
        grown = [one for count in made_of if count.op == "count" for one in computation.users(count) if one.op == "add" and one.args[0] is count]
        grown += [one for one in made_of if one.op == "add" and isinstance(one.node, ast.AugAssign) and number(one.args[1]) == 1]
        grown += [one for one in made_of if _numbers_batches(one)]
        for more in grown:
            by = next(one_in(more), None)
            spans = [one.args[1] for one in made_of if one.op == "div" and len(one.args) == 2 and any(part is more for part in origins(one.args[0]))] if by is not None else []
            whole = next((one for one in spans for _, over in loops_around(computation, more) if counts_batches(one, over, cut_at(computation, over))), None)
            if whole is not None and by is not None and (number(by) or 2) > 1 and not any(one.op in ("div", "floordiv", "ceil") for one in origins(whole)):
                yield Remark(kept.node, f"{short(kept.node)} counts one in {short(by.node)} batches ({short(more.node)}, line {more.line}), and the schedule is made for {short(whole.node)} (line {whole.line}), all batches")
                return
        for more, step in itertools.product(grown, steps):
            every = next(only_every(step, more), None) if more.where.loops == step.where.loops else None
            length = _in_updates(computation, made_of, more, step, every) if every is not None else None
            if length is not None and every is not None:
                yield Remark(kept.node, f"{short(kept.node)} counts each pass ({short(more.node)}, line {more.line}), and the optimizer steps in one of {short(every.node)}: the schedule is made for {short(length.node)} (line {length.line}) of those")
                return


def _in_updates(computation: Computation, made_of: list[Value], more: Value, step: Value, every: Value) -> Value | None:
    """The length of a schedule, where that is the number of updates: of the batches over `every`, or what the loop ends at."""
    for one in made_of:
        if one.op in ("div", "floordiv", "ceil") and len(one.args) == 2 and same(bare(one.args[1]), every) and any(each.op == "len" for each in origins(one.args[0], stop=("len",))):
            return one
    updates = _updates_until(computation, step) if number(every) != 1 else None
    return updates if updates is not None and any(_ends_at(one, more, updates) for one in made_of) else None


def _numbers_batches(value: Value) -> bool:
    """Whether a value is the number of a batch, of all passes: `epoch * len(loader) + i`."""
    if value.op != "add" or len(value.args) != 2:
        return False
    return any(one.op == "index" and other.op == "mul" and any(each.op == "index" for each in other.args) and any(each.op == "len" for each in other.args) for one, other in (value.args, value.args[::-1]))


def _updates_until(computation: Computation, step: Value) -> Value | None:
    """The number of updates that a loop ends after: `while update < n`, where `update` is counted with the step."""
    for loop in reversed(step.where.loops):
        test = next((one for one in computation.of("lt") if isinstance(loop, ast.While) and one.node is loop.test and len(one.args) == 2), None)
        if test is not None:
            counted = [one for one in computation.of("add") if isinstance(one.node, ast.AugAssign) and ast.unparse(one.node.target) == ast.unparse(test.node.left) and one.where.loops == step.where.loops] if isinstance(test.node, ast.Compare) else []
            return bare(test.args[1]) if counted and all(one.where.under == step.where.under for one in counted) else None
    return None


def _ends_at(share: Value, more: Value, updates: Value) -> bool:
    """Whether a value is what is counted, over the number of all updates, both perhaps after a warm-up."""
    if share.op != "div" or len(share.args) != 2 or not any(one is more for one in origins(share.args[0])):
        return False
    above = bare(share.args[0])
    warm = number(above.args[1]) if above.op == "sub" and len(above.args) == 2 else 0.0
    length, whole = _most(share.args[1]), number(updates)
    return length is not None and whole is not None and length + (warm or 0.0) == whole


def _most(value: Value) -> float | None:
    """A number, or the largest of those in `max(1, n)`."""
    value = bare(value)
    if value.op in ("max", "maximum", "builtins.max"):
        known = [number(one) for one in value.args]
        return max((one for one in known if one is not None), default=None) if None not in known else None
    return number(value)
