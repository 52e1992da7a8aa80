"""Levels of quantiles, and the sides of the differences that they weight. Pure; standard library only."""

from __future__ import annotations

from collections.abc import Iterator

from probe.diagnose.code.computed.computation import Computation, computation_of
from probe.diagnose.code.computed.value import KEPT, Value, bare, constant, number, origins
from probe.diagnose.code.finders.losses.bootstraps import backups
from probe.diagnose.code.finders.objects.pairwise_ranks import along_an_axis
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Remark
from probe.diagnose.code.syntax import short
from probe.diagnose.code.traits.basic import losses
from probe.diagnose.code.traits.extents import rank

_LEVELS = ("linspace", "arange")
_LAST = (2, 98)
"""The last of three axes, as `along_an_axis` counts them from the start and from the end."""


def levels_along_the_targets(program: Program) -> Iterator[Remark]:
    """Each predicted quantile is compared with each target, and the levels, a row, lie along the targets."""
    computation = computation_of(program)
    trained = {id(one) for _, loss in losses(computation) for one in origins(loss)}
    for value, levels, gap in _weighted(computation):
        if id(value) not in trained or rank(levels) != 1 or not any(one.op in _LEVELS for one in origins(levels)):
            continue
        sides = [along_an_axis(one) for one in gap.args]
        if None in sides or len(sides) != 2:
            continue
        (first, at), (second, other) = (one for one in sides if one is not None)
        predicted, place = (first, at) if _is_learned(first) else (second, other)
        if at == other or _is_learned(first) is _is_learned(second) or place not in _LAST or rank(predicted) not in (2, None):
            continue
        yield Remark(value.node, f"{short(value.node)} lays the levels {short(levels.node)} along the last axis of {short(gap.node)} (line {gap.line}), and that is the one of the targets: the predictions lie along the one before it")
        return


def best_of_each_quantile(program: Program) -> Iterator[Remark]:
    """The largest of the actions is taken for each quantile by itself, and the quantiles of the target are learned as those of one
    action."""
    computation = computation_of(program)
    found = [(one, bare(one.future)) for one in backups(computation)]
    for _, _, gap in _weighted(computation, asked=True):
        inside = {id(one) for side in gap.args for one in origins(side)}
        for one, future in found:
            largest = future.args[0] if future.op in ("part", "values") and future.args and future.args[0].op == "max" and (future.op == "values" or constant(future.args[1]) == 0) else future
            over = number(largest.argument("dim", 1)) if largest.op in ("max", "amax") else None
            if id(one.whole) in inside and over is not None and largest.args and _is_output(largest.args[0]):
                yield Remark(largest.node, f"{short(largest.node)} takes the best action for each quantile by itself: the quantiles that {short(one.whole.node)} (line {one.whole.line}) is made of are those of several actions")
                return


def _weighted(computation: Computation, asked: bool = False) -> Iterator[tuple[Value, Value, Value]]:
    """Where differences are weighted by the levels of quantiles: where both meet, the levels, and the differences; if `asked`, by
    the question alone on which side of the prediction a target lies."""
    for value in computation.of("sub"):
        below = bare(value.args[1]) if len(value.args) == 2 else value
        if below.op in ("lt", "le") and number(below.args[1]) == 0:
            gap = bare(below.args[0])
            if gap.op == "sub" and len(gap.args) == 2 and number(value.args[0]) is None:
                yield value, _plain(value.args[0]), gap
    for value in computation.of("mul") if not asked else ():
        for one, other in (value.args, value.args[::-1]) if len(value.args) == 2 else ():
            gap = bare(other)
            if gap.op == "sub" and len(gap.args) == 2 and rank(one) == 1 and any(part.op in _LEVELS for part in origins(one)) and not _is_learned(one):
                yield value, _plain(one), gap


def _plain(value: Value) -> Value:
    while value.args and value.op in KEPT:
        value = value.args[0]
    return value


def _is_learned(value: Value) -> bool:
    """Whether a network computes a value with a gradient."""
    return any(one.op == "run" and not one.where.no_grad for one in origins(value, ("detach",)))


def _is_output(value: Value) -> bool:
    """Whether a value is what a network gives, in some shape."""
    return bare(value, "permute", "transpose").op == "run"

