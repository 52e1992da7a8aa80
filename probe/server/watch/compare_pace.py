"""When the watch compares the ranks of a job: often enough to notice a straggler within five seconds, two of
which are the steps that it must be slow for, and rarely enough to cost nothing.

Part of thread `probe-watch`. Pure; standard library and `probe.diagnose` only.
"""

from __future__ import annotations

import math

from probe.diagnose.ranks.stragglers import SLOW_RATIO

SHORTEST_S = 1.0
"""Least time between comparisons."""
COST = 100.0
"""The time between comparisons is at least this many times the CPU time of one: a hundredth of a core."""
URGENT_COST = 25.0
"""The same when the steps have just become slower: a twenty-fifth of a core, …"""
URGENT_S, URGENT_AGAIN_S = 6.0, 60.0
"""…for this long, at most once in that time."""
SLOWER_RATIO = 1.0 + SLOW_RATIO
"""Steps have become slower if the last ones take this many times as long as usual ones: the least by which a
straggler delays the others."""


class ComparePace:
    """The pace of one job. `now_s` is a monotonic clock; it is asked once in each round of the watch."""

    def __init__(self) -> None:
        self._due_s = 0.0
        self._cost_s: float | None = None
        self._urgent_s: float | None = None
        self._usual_step_s: float | None = None

    def is_due(self, now_s: float, usual_step_s: float | None, recent_step_s: float | None) -> bool:
        """Whether to compare now. The usual and the recent time of a step are those of any rank: ranks wait
        for each other. The recent one is judged by the usual one of the round before, as many steps of a fast
        job end between two rounds."""
        before_s, self._usual_step_s = self._usual_step_s, usual_step_s
        slower_s = math.inf if before_s is None else SLOWER_RATIO * before_s
        slower = recent_step_s is not None and recent_step_s >= slower_s
        if slower and (self._urgent_s is None or now_s >= self._urgent_s + URGENT_AGAIN_S):
            self._urgent_s = now_s
            self._due_s = min(self._due_s, now_s + SHORTEST_S)
        return now_s >= self._due_s

    def compared(self, now_s: float, cost_s: float) -> None:
        """A comparison that was due at `now_s` took `cost_s` of CPU time. Of the last two costs the smaller
        one counts: the first comparison that finds something imports and warms up what later ones only use.
        The time counts from when it was due, as rounds are a second apart."""
        usual_cost_s = cost_s if self._cost_s is None else min(cost_s, self._cost_s)
        self._cost_s = cost_s
        is_urgent = self._urgent_s is not None and now_s < self._urgent_s + URGENT_S
        interval_s = max(SHORTEST_S, (URGENT_COST if is_urgent else COST) * usual_cost_s)
        self._due_s = max(self._due_s, now_s - interval_s) + interval_s
