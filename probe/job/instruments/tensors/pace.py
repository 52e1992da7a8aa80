"""Pace: chooses the steps on which an instrument samples, within a share of the budget.

HOT PATH, on the training thread: `due` is compared with the step, `took` is called after each sample.
"""

from __future__ import annotations

from collections import deque
from statistics import median

from probe.job.instruments.core.recorder import FIRST_SAMPLE, Recorder
from probe.job.instruments.tensors.gradient_norm import interval_for, usual_wall_ns

SHARE = 0.05
"""Fraction of the budget: 0.05 % of step time at the default of 1 %."""
EVENLY = (8, 8, 8, 8, 8)
"""Steps between the first samples, whatever they cost: they warm caches, and answers need a few soon."""
SHORTEST_STEPS = 8
"""Minimum number of steps between later samples."""


class Pace:
    """When to sample next. `due`: the step from which on to sample.

    `common`: sample on multiples of a power of two, so that samples on different ranks, or of different
    instruments, fall on the same steps. If a sample costs more, the power of two is larger, and its steps are
    still among those of the others.
    """

    __slots__ = (
        "_budget_ratio",
        "_common",
        "_costs",
        "_early",
        "_recorder",
        "_samples",
        "_shortest",
        "due",
        "fixed_interval",
    )

    def __init__(
        self, recorder: Recorder, budget_ratio: float, *, first: int = FIRST_SAMPLE,
        early: tuple[int, ...] = EVENLY, shortest: int = SHORTEST_STEPS, common: bool = True,
    ) -> None:
        self.due = first
        self.fixed_interval: int | None = None
        """Steps between samples regardless of cost, for measurements and tests."""
        self._recorder = recorder
        self._budget_ratio = budget_ratio
        self._early, self._shortest, self._common = early, shortest, common
        self._costs: deque[int] = deque(maxlen=5)
        self._samples = 0

    def took(self, cpu_ns: int) -> None:
        """A sample ended; it took `cpu_ns` of CPU time."""
        self._costs.append(cpu_ns)
        self._samples += 1
        if self.fixed_interval is not None:
            interval = self.fixed_interval
        elif self._samples <= len(self._early):
            interval = self._early[self._samples - 1]
        else:
            allowed_ns = self._budget_ratio * SHARE * usual_wall_ns(self._recorder)
            interval = max(self._shortest, interval_for(median(self._costs), allowed_ns))
        self.wait(interval)

    def wait(self, steps: int) -> None:
        """Sample again after this many steps; if `common`, at the next multiple of the next power of two."""
        step = max(self._recorder.step, 0)
        if self._common:
            every = 1 << (steps - 1).bit_length()
            self.due = (step // every + 1) * every
        else:
            self.due = step + steps
