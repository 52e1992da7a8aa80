"""Alignment: matches step numbers of ranks that started counting at different steps.

Ranks recorded from the start count alike. Attaching to the ranks of a running job happens at slightly
different times, so one rank's step 40 may be another's 38. Ranks of one job end their steps together, because
each step has a collective: aligning the step ends in time reveals the offset, or that it is ambiguous. Pure.
Standard library only; any thread.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from itertools import pairwise

FEWEST_STEPS = 4
"""Least number of steps that two ranks must have in common in time. Judgement: three differences of one sign
occur by chance in one of four cases; with more steps the distance decides."""
CLOSE_RATIO = 0.3
"""Largest distance of the ends of the same step, in usual step times. Judgement: at half a step it is
ambiguous, and the work after the last collective of a step (the optimizer, logging) takes less."""
CLEAR_FACTOR = 2.0
"""Every other alignment must be worse by this factor."""

Ends = Sequence[tuple[int, int]]
"""Finished steps of one rank, in order: its own step number, and the end of the step (wall clock, ns)."""


def offsets(ends: Mapping[int, Ends]) -> dict[int, int] | None:
    """For each rank, the offset to add to its own step numbers to get those of the lowest rank, whose offset
    is 0. None unless it is unambiguous for every rank.

    The ranks' clocks must agree within a quarter of a step, which holds on one host."""
    if not ends:
        return None
    first, *others = sorted(ends)
    found = {first: 0}
    for rank in others:
        offset = _offset(ends[first], ends[rank])
        if offset is None:
            return None
        found[rank] = offset
    return found


def _offset(ours: Ends, theirs: Ends) -> int | None:
    """The offset to add to their step numbers to get ours; None if ambiguous."""
    known, asked = dict(ours), dict(theirs)
    usual_ns = _usual_ns(ours)
    if usual_ns is None or len(asked) < FEWEST_STEPS:
        return None
    near = _nearest(ours, theirs)
    if near is None:
        return None
    scores: list[tuple[float, int]] = []
    for offset in range(near - 2, near + 3):
        both = ((known.get(step + offset), t_ns) for step, t_ns in asked.items())
        apart_ns = [abs(own_ns - t_ns) for own_ns, t_ns in both if own_ns is not None]
        if len(apart_ns) >= FEWEST_STEPS:
            scores.append((statistics.median(apart_ns), offset))
    scores.sort()
    if not scores or scores[0][0] > CLOSE_RATIO * usual_ns:
        return None
    if len(scores) > 1 and scores[1][0] < CLEAR_FACTOR * scores[0][0]:
        return None
    return scores[0][1]


def _nearest(ours: Ends, theirs: Ends) -> int | None:
    """The most frequent difference in number between steps that end at about the same time."""
    found: list[int] = []
    for step, t_ns in theirs:
        own, own_ns = min(ours, key=lambda one: abs(one[1] - t_ns))
        inside = ours[0][1] <= t_ns <= ours[-1][1]
        if inside or own_ns not in (ours[0][1], ours[-1][1]):
            found.append(own - step)
    return statistics.mode(found) if found else None


def _usual_ns(ends: Ends) -> float | None:
    """Median time between the ends of consecutive steps."""
    between = [
        later_ns - earlier_ns
        for (earlier, earlier_ns), (later, later_ns) in pairwise(ends)
        if later == earlier + 1
    ]
    return statistics.median(between) if len(between) >= FEWEST_STEPS - 1 else None
