"""Rate watch: checks that the next steps use the requested rates, and finds out which code overwrites them.

A rate is read right before and right after each of the optimizer's steps. If it has changed, a known
scheduler that stepped since wrote it, as its `_last_lr` shows, or else the job's own code did. Training
thread, for a bounded number of steps. Standard library only.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Sequence
from typing import Any, NamedTuple

from probe.job.actions.rates.schedules import nested, same, to_float

STEPS = 20
"""Steps of the optimizer that are watched."""


class Written(NamedTuple):
    """A rate that the job wrote, and where."""

    step: int | None
    group: int
    rate: float


class RateWatch:
    """Watches groups of one optimizer. `factor`: what their rates were multiplied by; None if set."""

    def __init__(
        self, optimizer: Any, schedulers: Sequence[Any], groups: Sequence[int], factor: float | None
    ) -> None:
        self.used: list[tuple[int | None, list[float]]] = []
        """Each step, and the rates of the watched groups that it used."""
        self.continued: list[Written] = []
        """Rates that the job's own code computed from the changed ones."""
        self.inside: list[Written] = []
        """Rates that the optimizer's own step wrote."""
        self._groups = list(groups)
        self._factor = factor
        self._schedulers = [weakref.ref(one) for one in nested(schedulers)]
        self._expected = {index: self._rate(optimizer, index) for index in self._groups}
        self._left: dict[int, float] = {}
        self._last = self._last_rates()

    @property
    def complete(self) -> bool:
        """Whether enough steps were seen."""
        return len(self.used) >= STEPS

    def overwritten(self, optimizer: Any, step: int | None) -> list[Written]:
        """Right before a step: rates that the job's own code wrote over the requested ones."""
        last = self._last_rates()
        stepped = [rates for key, rates in last.items() if rates is not self._last.get(key)]
        self._last = last
        found = []
        for index in self._groups:
            rate, expected = self._rate(optimizer, index), self._expected[index]
            self._expected[index] = rate
            if rate == expected or any(_wrote(rates, index, rate) for rates in stepped):
                continue
            written = Written(step, index, rate)
            if self._continues_from(rate, expected):
                self.continued.append(written)
            else:
                found.append(written)
        return found

    def begins(self, optimizer: Any) -> None:
        """The step begins, with our rates in place."""
        self._left = {index: self._rate(optimizer, index) for index in self._groups}

    def ends(self, optimizer: Any, step: int | None) -> None:
        """The step has ended; the rates that it used are still in place."""
        rates = [self._rate(optimizer, index) for index in self._groups]
        for index, rate in zip(self._groups, rates, strict=True):
            if index in self._left and rate != self._left[index]:
                self.inside.append(Written(step, index, rate))
                self._expected[index] = rate
        self.used.append((step, rates))

    def _continues_from(self, rate: float, expected: float) -> bool:
        """Whether code computed `rate` from the changed rate, and not from numbers of its own.

        The new rate is nearer to the one it was computed from: rates change little from step to step."""
        if self._factor is None or expected <= 0.0 or rate <= 0.0:
            return False
        from_ours = abs(math.log(rate / expected))
        return from_ours < abs(math.log(rate / (expected / self._factor)))

    def _rate(self, optimizer: Any, index: int) -> float:
        groups = optimizer.param_groups
        return to_float(groups[index]["lr"]) if index < len(groups) else 0.0

    def _last_rates(self) -> dict[int, Any]:
        """Each scheduler's list of its last rates; a step of it makes a new list."""
        alive = [scheduler for reference in self._schedulers if (scheduler := reference()) is not None]
        return {id(scheduler): vars(scheduler).get("_last_lr") for scheduler in alive}


def _wrote(rates: Any, index: int, rate: float) -> bool:
    """Whether a scheduler's last rates have this rate of a group."""
    return isinstance(rates, list) and index < len(rates) and same(rates[index], rate)
