"""Safe point: work that the training thread does between two optimizer steps.

Any thread submits; the training thread finds out at the end of a step (one look
at one attribute, `Recorder.waiting`) and works at the beginning of the next one,
when everything that belongs to the step (schedule, scaler, logging) is over and
nothing of the next has begun:

    data       the training loader is asked for the next batch
    forward    the first module is called with gradients on, in jobs without a loader
    step end   at the next step's end, where neither was seen in between

Work is done in the order of submission, each piece at most once; what is not
reached in time is taken back. An appointment is for the boundary before one step and
no other. While anything runs, the instruments are silent. HOT
PATH: `_arm` and `_visit`, only while somebody waits. Standard library only.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from probe.base.errors import NoBoundary, ProbeError
from probe.base.isolation import Isolation, capture, describe
from probe.checkpoint.random_states import random_states
from probe.job.boundary.signal_errors import from_signal
from probe.job.instruments.core.recorder import Recorder
from probe.recording.layout import NULL_STRING

PASS_S = 1.0
"""No further piece is begun in one visit after so long; the rest waits for the next step."""
_LOOK_S = 1.0
"""While paused, the thread looks so often whether it still is to be."""


class Visit:
    """One piece of work. `held_s`, `step` and `where` are known when it is done."""

    __slots__ = ("_claim", "done", "error", "held_s", "interrupt", "result", "step", "where", "work")

    def __init__(self, work: Callable[[], Any]) -> None:
        self.work = work
        self.done = threading.Event()
        self.result: Any = None
        self.error: BaseException | None = None
        self.interrupt: BaseException | None = None
        """What a signal's handler raised meanwhile: not the work's outcome, it means the training."""
        self.held_s: float | None = None
        self.step: int | None = None
        self.where: str | None = None
        self._claim = threading.Lock()

    def claim(self) -> bool:
        """Whether the caller is the first: who runs it, or who takes it back."""
        return self._claim.acquire(blocking=False)

    def run(self, step: int | None, where: str) -> None:
        """Do it, once; whatever it raises is the outcome."""
        if self.claim():
            self.step, self.where = step, where
            begun_s = time.monotonic()
            self.result, self.error = capture(self.work)
            self.held_s = time.monotonic() - begun_s
            if self.error is not None and _is_interrupt(self.error):
                self.interrupt = self.error  # two threads that raise one exception mix up its traceback
                self.error = InterruptedError(f"a signal's handler raised {describe(self.interrupt)}")
            self.done.set()

    def outcome(self) -> Any:
        """What the work returned; raises what it raised."""
        if self.error is not None:
            raise self.error
        return self.result


class Appointment(Visit):
    """Work for the boundary before one step and no other: see `control.together`. One at a time."""

    __slots__ = ("at_step", "due")

    def __init__(self, work: Callable[[], Any], at_step: int) -> None:
        super().__init__(work)
        self.at_step = at_step
        self.due = False
        """Whether that boundary has begun."""

    def meet(self, step: int | None, where: str) -> None:
        """On the training thread, at the boundary."""
        if self.claim():
            self.step, self.where = step, where
            begun_s = time.monotonic()
            self.keep()
            self.held_s = time.monotonic() - begun_s
            self.done.set()

    def keep(self) -> None:
        """Do it, when all others do."""
        raise NotImplementedError

    def passed(self) -> None:
        """On the training thread: the boundary is over, and nothing could be done there."""
        raise NotImplementedError


class SafePoint:
    """The place between two steps of this process's training thread."""

    def __init__(self, recorder: Recorder, isolation: Isolation) -> None:
        self._recorder = recorder
        self._isolation = isolation
        self._queue: deque[Visit] = deque()
        self._appointment: Appointment | None = None
        self._closed: ProbeError | None = None
        self._paused_until_s: float | None = None
        self._wake = threading.Event()
        self._resided_in: int | None = None
        self.residents: tuple[Callable[[], object], ...] = ()
        """Called at every boundary; see `reside`."""
        self.residents_need_random_states = False
        self.leave_with: int | None = None
        """Set by work on the training thread: the thread ends by SystemExit with this, after the work."""
        self.boundary = ""
        """Where the visit under way takes place."""
        self.random_at_step_end: dict[str, Any] | None = None
        """Random states right after the step that is over; only while a visit is under way."""

    # Any thread -------------------------------------------------------------

    def submit(self, work: Callable[[], Any]) -> Visit:
        """Have `work` done at the next boundary. Raises when nothing is done there any more."""
        if self._closed is not None:
            raise self._closed
        visit = Visit(work)
        self._queue.append(visit)
        self._recorder.waiting = self._arm
        self._wake.set()
        return visit

    def wait(self, visit: Visit, wait_s: float, where: Callable[[], str]) -> None:
        """Wait until it is done; after `wait_s` take it back and raise `NoBoundary`.

        One that has begun is waited for: whoever submitted it bounds how long it takes.
        `where` says what the training thread does instead."""
        if not visit.done.wait(wait_s) and self.take_back(visit):
            raise NoBoundary(f"no step ended within {wait_s:g} s: {where()}. Nothing was changed")
        visit.done.wait()

    def appoint(self, appointment: Appointment) -> bool:
        """Have it kept at its boundary; False when that may be past already. Raises like `submit`."""
        if self._closed is not None:
            raise self._closed
        recorder = self._recorder
        self._appointment = appointment
        recorder.waiting = self._arm  # before the look: a step that ends after it sees this
        step = recorder.counted_step
        self._wake.set()
        return step is not None and (
            step < appointment.at_step or (step == appointment.at_step and self.paused)
        )

    def withdraw(self, appointment: Appointment) -> None:
        """It is over, or called off: steps are not looked at for it any more."""
        if self._appointment is appointment:
            self._appointment = None

    def take_back(self, visit: Visit) -> bool:
        """Whether it was not begun, and will not be."""
        return visit.claim()  # it stays in the queue, and is passed over there

    def guard(self, name: str, hook: Callable[..., Any]) -> Callable[..., Any]:
        """See `Isolation.guard`."""
        return self._isolation.guard(name, hook)

    @property
    def closed(self) -> bool:
        """Whether there are no boundaries any more: probe leaves the process."""
        return self._closed is not None

    def reside(self, residents: tuple[Callable[[], object], ...], *, random_states: bool) -> None:
        """Call these at every boundary from now on; `random_states`: they need `random_at_step_end`."""
        self.residents = residents
        self.residents_need_random_states = random_states
        if residents:
            self._recorder.waiting = self._arm

    @property
    def waiting(self) -> int:
        """Pieces of work that have not been begun."""
        return len(self._queue)

    @property
    def paused(self) -> bool:
        """Whether the training thread is held until `resume`."""
        return self._paused_until_s is not None

    @property
    def paused_until_s(self) -> float | None:
        """The end of the pause, on the monotonic clock; None when it is not held."""
        return self._paused_until_s

    def pause(self, for_s: float) -> float:
        """Hold the training thread at the boundary it is at; by work on the training thread. Returns
        `paused_until_s`."""
        self._paused_until_s = until_s = time.monotonic() + for_s
        return until_s

    def resume(self) -> bool:
        """Let the training thread go on; whether it was held."""
        was, self._paused_until_s = self._paused_until_s, None
        self._wake.set()
        return was is not None

    def close(self, why: ProbeError) -> None:
        """Nothing is done here any more: what waits is answered with `why`."""
        self._closed = why
        self.residents = ()
        self._recorder.waiting = self._recorder.visit = None
        for visit in list(self._queue):
            if visit.claim():
                visit.error = why
                visit.done.set()
        self._queue.clear()
        self.resume()

    # The training thread ----------------------------------------------------

    def _arm(self, boundary: str) -> None:
        """A step has ended: work now, or when the next begins."""
        recorder = self._recorder
        appointed = self._is_due()
        if not (appointed or self._queue or self.residents or recorder.visit is not None):
            if self._appointment is None:  # it was called off
                recorder.waiting = None
                if self._queue or self.residents or self._appointment is not None:
                    recorder.waiting = self._arm
            return
        if boundary != "optimizer" or recorder.visit is not None:
            unvisited = recorder.visit is not None
            self.random_at_step_end = None
            self._work("step end")
            if not unvisited or recorder.waiting is None:
                return  # else who waits still is not to miss every other step
        if self._queue or appointed or self.residents_need_random_states:
            self.random_at_step_end = random_states()
        recorder.visit = self._visit
        recorder.expect_forward()

    def _visit(self, where: str, loader: int) -> None:
        """A step begins: is this the place? Not for the batch of an evaluation, and not in the
        forward of a job whose steps begin with a batch: that is in the middle of a round of its loop."""
        fed_by = self._recorder.fed_by
        if loader == fed_by if where == "data" else fed_by == NULL_STRING:
            self._work(where)

    def _work(self, where: str) -> None:
        recorder = self._recorder
        recorder.visit = None
        if _capturing():
            return  # nothing may be done while a CUDA graph is captured; an appointment is then passed
        self.boundary = where
        self._isolation.mute()
        begun_s = time.monotonic()
        try:
            if recorder.step != self._resided_in:  # once a step
                self._resided_in = recorder.step
                for resident in self.residents:
                    resident()
            self._keep_appointment(where)
            self._do_queued(where, begun_s)
            while self._is_paused() and self.leave_with is None:
                self._wake.clear()
                if not self._queue:
                    if recorder.phase != "paused":
                        recorder.hold("paused")
                    _, interrupt = capture(lambda: self._wake.wait(_LOOK_S))
                    if interrupt is not None:
                        self._isolation.let_through(interrupt)
                self._keep_appointment(where)
                self._do_queued(where, time.monotonic())
        finally:
            self._isolation.unmute()
            self.boundary = ""
            self.random_at_step_end = None
            if recorder.phase != "other":
                recorder.let_go()
            recorder.waiting = None
            if (self._queue or self.residents or self._appointment) and self._closed is None:
                recorder.waiting = self._arm
        if self.leave_with is not None:
            self._paused_until_s = None
            raise SystemExit(self.leave_with)

    def _is_due(self) -> bool:
        """Whether the boundary that begins is the one of the appointment."""
        appointment, step = self._appointment, self._recorder.step
        if appointment is None or step < appointment.at_step:
            return False
        if step == appointment.at_step or (appointment.due and self._recorder.visit is not None):
            appointment.due = True  # in the latter case no place of the step before was seen
            return True
        self._appointment = None
        appointment.passed()
        return False

    def _keep_appointment(self, where: str) -> None:
        appointment = self._appointment
        if appointment is not None and (appointment.due or self._is_due()):
            self._appointment = None
            self._recorder.hold("acting")
            appointment.meet(self._recorder.counted_step, where)
            interrupt, appointment.interrupt = appointment.interrupt, None
            if interrupt is not None:
                self._isolation.let_through(interrupt)

    def _do_queued(self, where: str, begun_s: float) -> None:
        if self._queue:
            self._recorder.hold("acting")
        while self._queue and time.monotonic() - begun_s < PASS_S:
            visit = self._queue.popleft()
            visit.run(self._recorder.counted_step, where)
            interrupt, visit.interrupt = visit.interrupt, None
            if interrupt is not None:
                self._isolation.let_through(interrupt)

    def _is_paused(self) -> bool:
        until_s = self._paused_until_s
        if until_s is not None and time.monotonic() >= until_s:
            self._paused_until_s = None
        return self._paused_until_s is not None


def as_interrupt(error: BaseException | None) -> BaseException | None:
    """What a signal's handler of the job raised; None for anything else."""
    return error if error is not None and _is_interrupt(error) else None


def _is_interrupt(error: BaseException) -> bool:
    return isinstance(error, (KeyboardInterrupt, SystemExit)) or from_signal(error)


def _capturing() -> bool:
    torch: Any = sys.modules.get("torch")
    return torch is not None and torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()
