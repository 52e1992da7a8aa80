"""Patience: how long a run may be without a sign of training before it is late, stalled, hopeless.

The thresholds are parameters (`stall_parameters`). Pure. Standard library only.
"""

from __future__ import annotations

from dataclasses import dataclass

from probe.diagnose.process import wording
from probe.diagnose.process.evidence import Evidence
from probe.diagnose.process.progress import WARM_UP_STEPS, Progress
from probe.diagnose.stall_parameters import StallThresholds
from probe.diagnose.states import ALARM, NOTICE

DEFAULTS = StallThresholds()


@dataclass(frozen=True)
class Case:
    """The evidence, held against the thresholds: what several rules need."""

    e: Evidence
    thresholds: StallThresholds = DEFAULTS

    @property
    def quiet_s(self) -> float | None:
        """Without a sign of training; None for a process without recording."""
        return quiet_s(self.e.progress)

    @property
    def limit_s(self) -> float:
        """When a step is late."""
        return limit_s(self.e.stall_s, self.e.progress, self.thresholds)

    @property
    def patience_s(self) -> float:
        """When waiting is a stall."""
        return patience_s(self.e.stall_s, self.e.progress, self.thresholds)

    @property
    def trains(self) -> bool:
        """Whether it ever made a step: what never did may be a server, and wait as it should."""
        return self.e.progress is not None and self.e.progress.steps > 0

    @property
    def late(self) -> bool:
        """Beyond four usual steps."""
        return self.quiet_s is not None and self.quiet_s > self.limit_s

    @property
    def works(self) -> bool:
        """The training thread changes its stack, or uses the CPU or would if it were let."""
        thread = self.e.training
        if thread is None:
            return False
        return bool(thread.changed) or thread.wanted_ratio >= self.thresholds.busy_ratio

    @property
    def sleeps(self) -> bool:
        """The training thread was asleep for as long as it was watched, without a break."""
        still_s, watched_s = self.e.still_s, self.e.watched_s
        if still_s is None or watched_s is None:
            return False
        return still_s >= self.thresholds.still_ratio * min(watched_s, self.quiet_s or watched_s) > 0

    def waiting(self, *, sure: bool) -> str:
        """Severity of something that waits; `sure` when nothing suggests that it will go on."""
        if self.quiet_s is None:
            return NOTICE
        factor = 1.0 if sure else self.thresholds.unsure_factor
        return ALARM if self.quiet_s > self.patience_s * factor else NOTICE

    def working(self, *, moving: bool = False) -> str:
        """Severity of something that works; `moving` when it goes from line to line."""
        limits = self.thresholds
        long_s = limits.long_moving_s if moving else limits.long_s
        long_s = max(long_s, limits.long_factor * self.patience_s)
        return ALARM if self.trains and self.quiet_s is not None and self.quiet_s > long_s else NOTICE

    def since(self) -> str:
        """How long there has been no sign of training, as an ending of a sentence."""
        p = self.e.progress
        if p is None or self.quiet_s is None:
            return ""
        if p.usual_step_s is None:
            return f"; no step yet after {wording.seconds(p.recorded_s)}"
        usual = wording.seconds(p.usual_step_s)
        return f"; no step for {wording.seconds(p.last_step_s or 0.0)} (usually {usual})"


def limit_s(stall_s: float, progress: Progress | None, thresholds: StallThresholds = DEFAULTS) -> float:
    """When a step is late, in seconds without a sign of training."""
    if progress is None or progress.steps < WARM_UP_STEPS:
        return max(thresholds.warm_up_s, stall_s)
    return max(stall_s, thresholds.stall_steps * (progress.usual_step_s or 0.0))


def patience_s(stall_s: float, progress: Progress | None, thresholds: StallThresholds = DEFAULTS) -> float:
    """When it counts as a stall: later than late, where the run went on from longer pauses."""
    longest_s = min(thresholds.history_most_s, (progress and progress.longest_pause_s) or 0.0)
    return max(limit_s(stall_s, progress, thresholds), thresholds.history_factor * longest_s)


def quiet_s(progress: Progress | None) -> float | None:
    """Seconds without a sign of training; None without a recording."""
    if progress is None:
        return None
    return progress.recorded_s if progress.quiet_s is None else progress.quiet_s


def usual_quiet_s(progress: Progress, thresholds: StallThresholds = DEFAULTS) -> float:
    """Up to here a run that makes steps goes on as usual."""
    return max(thresholds.quiet_s, thresholds.quiet_steps * (progress.usual_step_s or 0.0))
