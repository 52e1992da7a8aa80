"""Alignment: which steps of two ranks are the same step of the job, when they do not count from the same one.

Ranks that are recorded from the start count alike. Who attaches to a running job does so at slightly
different times, and then one rank's step 40 is another's 38. Ranks of one job end their steps together,
because each step has a collective in it: lined up in time, the step ends show the difference, or that
nothing is clear. Pure. Standard library only; any thread.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from itertools import pairwise

FEWEST_STEPS = 4
"""Steps that two ranks must have in common at the same time. Judgement: three differences of one sign are
chance in one of four cases, and beyond that it is the distance that decides."""
CLOSE_RATIO = 0.3
"""The same steps end so close to each other, in usual steps. Judgement: half a step is where it could
be one or the other, and what follows the last collective of a step (the optimizer, logging) takes less."""
CLEAR_FACTOR = 2.0
"""…and every other way to line them up is so many times worse."""

Ends = Sequence[tuple[int, int]]
"""Finished steps of one rank, in order: its own number of the step, and when it ended (wall clock, ns)."""


def offsets(ends: Mapping[int, Ends]) -> dict[int, int] | None:
    """By rank, what to add to its own number of a step to get one number for all ranks: that of the
    lowest rank, whose offset is 0. None when it is not clear for each of them.

    The clocks of the ranks must agree to within a quarter of a step: those of one host do."""
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
    """What to add to their numbers to get ours; None when that is not clear."""
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
    """The difference in number between steps that end at about the same time, as most of them have it."""
    found: list[int] = []
    for step, t_ns in theirs:
        own, own_ns = min(ours, key=lambda one: abs(one[1] - t_ns))
        inside = ours[0][1] <= t_ns <= ours[-1][1]
        if inside or own_ns not in (ours[0][1], ours[-1][1]):
            found.append(own - step)
    return statistics.mode(found) if found else None


def _usual_ns(ends: Ends) -> float | None:
    """Median time between the ends of neighbouring steps."""
    between = [
        later_ns - earlier_ns
        for (earlier, earlier_ns), (later, later_ns) in pairwise(ends)
        if later == earlier + 1
    ]
    return statistics.median(between) if len(between) >= FEWEST_STEPS - 1 else None
