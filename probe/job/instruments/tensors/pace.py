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
EVENLY = (8, 8, 8, 8, 8)
"""Steps between the first looks, whatever they cost: they warm caches, and answers need a few soon."""
SHORTEST_STEPS = 8
"""Between two later looks."""


class Pace:
    """When to look next. `due`: the step from which on to look.

    `common`: on steps with the same numbers on every rank and for whatever else is compared, which are the
    multiples of a power of two. Where looks cost more it is a larger one, and they still meet the others.
    """

    __slots__ = (
        "_budget_ratio", "_common", "_costs", "_early", "_looks", "_recorder", "_shortest", "due",
        "fixed_interval",
    )

    def __init__(
        self, recorder: Recorder, budget_ratio: float, *, first: int = FIRST_SAMPLE,
        early: tuple[int, ...] = EVENLY, shortest: int = SHORTEST_STEPS, common: bool = True,
    ) -> None:
        self.due = first
        self.fixed_interval: int | None = None
        """Steps between looks regardless of cost, for measurements and tests."""
        self._recorder = recorder
        self._budget_ratio = budget_ratio
        self._early, self._shortest, self._common = early, shortest, common
        self._costs: deque[int] = deque(maxlen=5)
        self._looks = 0

    def took(self, cpu_ns: int) -> None:
        """A look ended that took so much CPU time."""
        self._costs.append(cpu_ns)
        self._looks += 1
        if self.fixed_interval is not None:
            interval = self.fixed_interval
        elif self._looks <= len(self._early):
            interval = self._early[self._looks - 1]
        else:
            allowed_ns = self._budget_ratio * SHARE * usual_wall_ns(self._recorder)
            interval = max(self._shortest, interval_for(median(self._costs), allowed_ns))
        self.wait(interval)

    def wait(self, steps: int) -> None:
        """Look next after so many steps; in common, when the next of these many that are counted ends."""
        step = max(self._recorder.step, 0)
        if self._common:
            every = 1 << (steps - 1).bit_length()
            self.due = (step // every + 1) * every
        else:
            self.due = step + steps
