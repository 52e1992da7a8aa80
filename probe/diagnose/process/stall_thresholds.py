"""Patience: how long a run may be without a sign of training before it is late, stalled, hopeless.

Every threshold of the verdicts stands here, with its unit and where it comes from. Pure. Standard
library only.
"""

from __future__ import annotations

from dataclasses import dataclass

from probe.diagnose.process import wording
from probe.diagnose.process.evidence import Evidence
from probe.diagnose.process.progress import WARM_UP_STEPS, Progress
from probe.diagnose.states import ALARM, NOTICE

STALL_STEPS = 4.0
"""A step is late after so many usual ones. The bar: a hang is noticed within five seconds or five usual
steps. A fifth of that is for looking: a second, in which the process is looked at four times."""
WARM_UP_S = 300.0
"""Before there is a usual step: compiling, reading an index or forming a group takes minutes. Judgement."""
HISTORY_FACTOR = 1.5
"""A pause may be so much longer than the longest that the run went on from. Judgement."""
HISTORY_MOST_S = 1800.0
"""Longer pauses than this do not make a run more patient: half an hour is the default time limit of
gloo's collectives, after which a group gives up anyway."""
UNSURE_FACTOR = 3.0
"""What wakes up now and then, or computes with the GIL held, may go on: it is given so many times longer."""
LONG_S = 600.0
"""What computes in one call for this long is an alarm, and so is a checkpoint: NCCL's default time limit,
after which the other ranks give up."""
LONG_MOVING_S = 3600.0
"""What moves from line to line without a step may be an evaluation or a last export: an hour. Judgement."""
LONG_FACTOR = 10.0
"""…or so many times the run's patience, when that is longer."""
QUIET_S, QUIET_STEPS = 1.0, 3.0
"""Up to here nothing is to be seen: a second, three usual steps."""
BUSY_RATIO = 0.25
"""A thread that uses so much of a core works. One that waits and polls uses 0.02 or less."""
REST_RATIO = 0.02
STARVED_RATIO = 0.9
"""Starved: of the time it wanted to run it was left waiting for so much. It then runs ten times slower,
and four times is what makes a step late."""
STARVED_WINDOW_RATIO = 0.5
"""… and that was so much of all time."""
THROTTLED_RATIO = 0.5
"""…or its control group was out of CPU in so many periods."""
SWAP_FAULTS_PER_S = 50.0
"""Major faults per second that slow any loop: at 0.1-10 ms each, half a percent to half of its time."""
STILL_RATIO = 0.8
"""Asleep without a break for so much of the time it was watched: it does not poll."""
SAMPLES_MISSED = 3.0
"""The agent's thread is shut out of the interpreter when it missed so many samples."""


@dataclass(frozen=True)
class Case:
    """The evidence, seen with patience: what several rules need."""

    e: Evidence

    @property
    def quiet_s(self) -> float | None:
        """Without a sign of training; None for a process without recording."""
        return quiet_s(self.e.progress)

    @property
    def limit_s(self) -> float:
        """When a step is late."""
        return limit_s(self.e.stall_s, self.e.progress)

    @property
    def patience_s(self) -> float:
        """When waiting is a stall."""
        return patience_s(self.e.stall_s, self.e.progress)

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
        return bool(thread.changed) or thread.wanted_ratio >= BUSY_RATIO

    @property
    def sleeps(self) -> bool:
        """The training thread was asleep for as long as it was watched, without a break."""
        still_s, watched_s = self.e.still_s, self.e.watched_s
        if still_s is None or watched_s is None:
            return False
        return still_s >= STILL_RATIO * min(watched_s, self.quiet_s or watched_s) > 0

    def waiting(self, *, sure: bool) -> str:
        """Severity of something that waits; `sure` when nothing suggests that it will go on."""
        if self.quiet_s is None:
            return NOTICE
        return ALARM if self.quiet_s > self.patience_s * (1.0 if sure else UNSURE_FACTOR) else NOTICE

    def working(self, *, moving: bool = False) -> str:
        """Severity of something that works; `moving` when it goes from line to line."""
        long_s = max(LONG_MOVING_S if moving else LONG_S, LONG_FACTOR * self.patience_s)
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


def limit_s(stall_s: float, progress: Progress | None) -> float:
    """When a step is late, in seconds without a sign of training."""
    if progress is None or progress.steps < WARM_UP_STEPS:
        return max(WARM_UP_S, stall_s)
    return max(stall_s, STALL_STEPS * (progress.usual_step_s or 0.0))


def patience_s(stall_s: float, progress: Progress | None) -> float:
    """When it counts as a stall: later than late, where the run went on from longer pauses."""
    longest_s = min(HISTORY_MOST_S, (progress and progress.longest_pause_s) or 0.0)
    return max(limit_s(stall_s, progress), HISTORY_FACTOR * longest_s)


def quiet_s(progress: Progress | None) -> float | None:
    """Seconds without a sign of training; None without a recording."""
    if progress is None:
        return None
    return progress.recorded_s if progress.quiet_s is None else progress.quiet_s
