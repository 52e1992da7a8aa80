"""Stall thresholds: when a run without a sign of training is late or stalled, and how severe that is.

The thresholds are parameters (`stall_parameters`). Pure. Standard library only.
"""

from __future__ import annotations

from dataclasses import dataclass

from probe.diagnose.process import wording
from probe.diagnose.process.evidence import Evidence, Frame, Thread
from probe.diagnose.process.progress import WARM_UP_STEPS, Progress
from probe.diagnose.stall_parameters import StallThresholds
from probe.diagnose.states import ALARM, INFO, NOTICE

DEFAULTS = StallThresholds()


@dataclass(frozen=True)
class Case:
    """Evidence compared with the thresholds: conditions shared by several rules."""

    evidence: Evidence
    thresholds: StallThresholds = DEFAULTS

    @property
    def progress(self) -> Progress | None:
        """Progress of training; None for a process without a recording."""
        return self.evidence.progress

    @property
    def training(self) -> Thread | None:
        """The training thread; None if no thread could be read."""
        return self.evidence.training

    @property
    def quiet_s(self) -> float | None:
        """Time without a sign of training; None for a process without a recording."""
        return quiet_s(self.progress)

    @property
    def limit_s(self) -> float:
        """Quiet time after which a step is late."""
        return limit_s(self.evidence.stall_s, self.progress, self.thresholds)

    @property
    def patience_s(self) -> float:
        """Quiet time after which waiting is a stall."""
        return patience_s(self.evidence.stall_s, self.progress, self.thresholds)

    @property
    def trains(self) -> bool:
        """Whether it ever finished a step; otherwise it may be a server, which waits by design."""
        return self.progress is not None and self.progress.steps > 0

    @property
    def late(self) -> bool:
        """Whether the current step is late."""
        return self.quiet_s is not None and self.quiet_s > self.limit_s

    @property
    def works(self) -> bool:
        """Whether the training thread's stack changes, or it uses the CPU or waits for one."""
        thread = self.training
        if thread is None:
            return False
        return bool(thread.changed) or thread.wanted_ratio >= self.thresholds.busy_ratio

    @property
    def had_cpu(self) -> bool:
        """Whether the training thread had enough CPU time for the step: CPU shortage is not the cause."""
        used_s, usual_s = self.evidence.used_s, self.progress.usual_step_s if self.progress else None
        if used_s is None or usual_s is None:
            return False
        return used_s >= self.thresholds.stall_steps * usual_s

    @property
    def circles(self) -> Frame | None:
        """The function in which the training thread apparently loops forever: every sample is in it, none is
        in torch's own training code, and it has lasted too long. None: no sign of that."""
        thread, quiet_s = self.training, self.quiet_s
        if thread is None or thread.in_torch or quiet_s is None or not self.trains:
            return None
        too_long = quiet_s > self.patience_s * self.thresholds.unsure_factor
        return thread.stays_in if too_long else None

    @property
    def sleeps(self) -> bool:
        """Whether the training thread slept continuously while it was observed."""
        still_s, watched_s = self.evidence.still_s, self.evidence.watched_s
        if still_s is None or watched_s is None:
            return False
        return still_s >= self.thresholds.still_ratio * min(watched_s, self.quiet_s or watched_s) > 0

    def waiting(self, *, sure: bool) -> str:
        """Severity of a wait; `sure`: nothing suggests that it will end."""
        if self.quiet_s is None:
            return NOTICE
        factor = 1.0 if sure else self.thresholds.unsure_factor
        return ALARM if self.quiet_s > self.patience_s * factor else NOTICE

    def working(self, *, moving: bool = False) -> str:
        """Severity of a long computation; `moving`: its stack changes."""
        limits = self.thresholds
        long_s = limits.long_moving_s if moving else limits.long_s
        long_s = max(long_s, limits.long_factor * self.patience_s)
        return ALARM if self.trains and self.quiet_s is not None and self.quiet_s > long_s else NOTICE

    def slow(self, severity: str) -> str:
        """The severity of a step in which the process works: `info` while no longer than a pause may last, as
        of an evaluation that nothing marks as one."""
        short = self.trains and self.quiet_s is not None and self.quiet_s <= self.patience_s
        return INFO if short else severity

    @property
    def since(self) -> str:
        """`; no step for 12 s, since step 41 (usually 60 ms)`: how long training has been quiet; empty if
        unknown."""
        p = self.progress
        if p is None or self.quiet_s is None:
            return ""
        if p.usual_step_s is None:
            return f"; no step has finished in {wording.seconds(p.recorded_s)}"
        usual = wording.seconds(p.usual_step_s)
        since = "" if p.step is None else f", since step {p.step:,}"
        return f"; no step for {wording.seconds(p.last_step_s or 0.0)}{since} (usually {usual})"


def limit_s(stall_s: float, progress: Progress | None, thresholds: StallThresholds = DEFAULTS) -> float:
    """Seconds without a sign of training after which a step is late."""
    steps, usual_step_s = (0, None) if progress is None else (progress.steps, progress.usual_step_s)
    return limit_after_s(stall_s, steps, usual_step_s, thresholds)


def limit_after_s(
    stall_s: float, steps: int, usual_step_s: float | None, thresholds: StallThresholds = DEFAULTS
) -> float:
    """`limit_s` for a number of finished steps and a usual step time."""
    if steps < WARM_UP_STEPS:
        return max(thresholds.warm_up_s, stall_s)
    return max(stall_s, thresholds.stall_steps * (usual_step_s or 0.0))


def patience_s(stall_s: float, progress: Progress | None, thresholds: StallThresholds = DEFAULTS) -> float:
    """Seconds after which a wait is a stall: more than `limit_s` if the run recovered from longer pauses."""
    longest_s = min(thresholds.history_most_s, (progress and progress.longest_pause_s) or 0.0)
    return max(limit_s(stall_s, progress, thresholds), thresholds.history_factor * longest_s)


def quiet_s(progress: Progress | None) -> float | None:
    """Seconds without a sign of training; None without a recording."""
    if progress is None:
        return None
    return progress.recorded_s if progress.quiet_s is None else progress.quiet_s


def usual_quiet_s(progress: Progress, thresholds: StallThresholds = DEFAULTS) -> float:
    """Quiet time up to which a run that finishes steps counts as running normally."""
    return max(thresholds.quiet_s, thresholds.quiet_steps * (progress.usual_step_s or 0.0))
