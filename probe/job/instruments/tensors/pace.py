"""Pace: on which steps something is looked at, within a share of the budget.

HOT PATH, on the training thread: `due` is compared with the step, `took` follows a look.
"""

from __future__ import annotations

from collections import deque
from statistics import median

from probe.job.instruments.core.recorder import FIRST_SAMPLE, Recorder
from probe.job.instruments.tensors.gradient_norm import interval_for, usual_wall_ns

SHARE = 0.05
"""Part of the budget: 0.05 % of step time at the default of 1 %."""
FIRST_LOOKS, FIRST_STEPS = 6, 10
"""So many looks come this far apart in any case: the first ones warm caches, and answers need a few soon."""
SHORTEST_STEPS = 10


class Pace:
    """When to look next. `due`: the step from which on to look."""

    __slots__ = ("_budget_ratio", "_costs", "_looks", "_recorder", "due")

    def __init__(self, recorder: Recorder, budget_ratio: float) -> None:
        self.due = FIRST_SAMPLE
        self._recorder = recorder
        self._budget_ratio = budget_ratio
        self._costs: deque[int] = deque(maxlen=5)
        self._looks = 0

    def took(self, cpu_ns: int) -> None:
        """A look ended that took so much CPU time."""
        self._looks += 1
        self._costs.append(cpu_ns)
        interval = FIRST_STEPS
        if self._looks >= FIRST_LOOKS:
            allowed_ns = self._budget_ratio * SHARE * usual_wall_ns(self._recorder)
            interval = max(SHORTEST_STEPS, interval_for(median(self._costs), allowed_ns))
        self.due = self._recorder.step + interval
