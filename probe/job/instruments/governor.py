"""Governor: keeps the cost of recording within the budget, and records it.

Runs on the agent's thread. From the last few hundred steps it computes the cost of every step by the hooks'
own clock, and how much longer sampled steps take than plain ones, which includes costs that our clocks do not
see. From these it chooses how often modules are recorded. Each adjustment writes rows of probe.overhead: for
steps, for modules, and for gradients, which space their own samples. `decide` is pure.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

from probe.base.clock import wall_ns
from probe.job.instruments.core.past_steps import StepCost
from probe.job.instruments.core.recorder import Recorder
from probe.job.instruments.tensors.gradients import Gradients
from probe.recording.layout import NULL_DOUBLE, NULL_INTEGER

MODULES_SHARE = 0.2
"""Fraction of the budget for sampled steps: 0.2 % of step time at the default of 1 %."""
SHORTEST, LONGEST = 10, 10_000
"""Minimum and maximum steps between samples; if more are needed, modules are turned off."""
THINNED = 8
"""Phases are timed on every n-th step if timing every step would exceed the budget."""
CLEARLY_INSIDE = 0.8
"""Fraction of the budget below which every step is timed again."""
ENOUGH_PLAIN, ENOUGH_SAMPLED = 8, 3
ADJUST_EVERY_STEPS, ADJUST_EVERY_S = 20, 2.0
"""Minimum between two adjustments: each holds the GIL for some hundred microseconds."""


class Decision(NamedTuple):
    """Result of one adjustment. Times in ns per step; None: not measured."""

    wall_ns: float
    steps_cost_ns: float
    modules_cost_ns: float | None
    shadow_wall_ns: float | None
    interval_steps: int
    """0 if modules are off."""
    timed_every_steps: int


def decide(
    recent: Sequence[StepCost], budget_ratio: float, interval: int, timed_every: int
) -> Decision | None:
    """Decide from the recent steps; None while there are too few.

    `interval` and `timed_every` are the current values, which are kept if nothing better is known."""
    plain = [step for step in recent if not step.sampled and not step.shadow]
    sampled = [step for step in recent if step.sampled]
    shadow = [step.wall_ns for step in recent if step.shadow]
    if len(plain) < ENOUGH_PLAIN:
        return None
    wall = float(median(step.wall_ns for step in plain))
    cost = float(median(step.cost_ns for step in plain))
    if cost > budget_ratio * wall:
        timed_every = THINNED
    elif cost < CLEARLY_INSIDE * budget_ratio * wall:
        timed_every = 1
    extra: float | None = None
    if len(sampled) >= ENOUGH_SAMPLED:
        own = median(step.cost_ns for step in sampled) - cost
        longer = median(step.wall_ns for step in sampled) - wall
        extra = max(float(own), float(longer), 0.0)
        allowed = budget_ratio * MODULES_SHARE * wall
        interval = max(SHORTEST, round(extra / allowed)) if allowed > 0 else SHORTEST
        if interval > LONGEST:
            interval = 0
    return Decision(
        wall, cost, extra / interval if extra is not None and interval else extra and 0.0,
        float(median(shadow)) if shadow else None, interval, timed_every,
    )


class Governor:
    """Applies decisions to the recorder and writes probe.overhead."""

    def __init__(
        self, recorder: Recorder, budget_ratio: float, *, modules: bool, gradients: Gradients | None = None
    ) -> None:
        self._recorder = recorder
        self._budget_ratio = budget_ratio
        self._modules = modules
        self._append = recorder.rings["probe.overhead"].append
        self._gradients = gradients
        self._gradients_before = (0, 0)
        self._adjusted_step = 0
        self._next_s = 0.0

    def adjust(self) -> None:
        """Adjust, if enough steps and time have passed."""
        recorder = self._recorder
        now = time.monotonic()
        if recorder.step - self._adjusted_step < ADJUST_EVERY_STEPS or now < self._next_s:
            return
        before = recorder.modules_interval if recorder.start_sampling is not None else 0
        decision = decide(recorder.recent, self._budget_ratio, before, recorder.timed_every)
        if decision is None:
            return
        steps = recorder.step - self._adjusted_step
        self._adjusted_step = recorder.step
        self._next_s = now + ADJUST_EVERY_S
        timed = decision.timed_every_steps
        change = (timed > recorder.timed_every) - (timed < recorder.timed_every)
        recorder.timed_every = timed
        action = ("kept", "lengthened", "shortened")[change]
        self._write("steps", decision, decision.steps_cost_ns, timed, action)
        if self._modules:
            action = self._apply(before, decision.interval_steps)
            cost = NULL_DOUBLE if decision.modules_cost_ns is None else decision.modules_cost_ns
            interval = recorder.modules_interval if action != "off" else NULL_INTEGER
            self._write("modules", decision, cost, interval, action)
        if self._gradients is not None:
            self._note_gradients(decision, self._gradients, steps)

    def _note_gradients(self, decision: Decision, gradients: Gradients, steps: int) -> None:
        """Record the cost of gradients since the last adjustment; they space their own samples."""
        spent = gradients.spent_ns + gradients.norm.spent_ns
        before, interval = self._gradients_before
        change = (gradients.interval > interval) - (gradients.interval < interval)
        action = ("kept", "lengthened", "shortened")[change if interval else 0]
        self._gradients_before = (spent, gradients.interval)
        self._write("gradients", decision, (spent - before) / steps, gradients.interval, action)

    def _apply(self, before: int, wanted: int) -> str:
        recorder = self._recorder
        if recorder.modules_fixed or wanted == before:
            return "kept"
        if wanted == 0:
            recorder.start_sampling = None
            return "off"
        recorder.modules_interval = wanted
        if wanted < before:
            recorder.next_sample = min(recorder.next_sample, recorder.step + wanted)
            return "shortened"
        recorder.next_sample = max(recorder.next_sample, recorder.step + wanted // 2)
        return "lengthened"

    def _write(self, instrument: str, decision: Decision, cost: float, interval: int, action: str) -> None:
        recorder = self._recorder
        shadow = NULL_DOUBLE if decision.shadow_wall_ns is None else decision.shadow_wall_ns
        self._append(
            recorder.step, wall_ns(), recorder.intern(instrument), cost, decision.wall_ns,
            shadow, self._budget_ratio, interval, recorder.intern(action),
        )
