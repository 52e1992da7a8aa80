"""Safe point: work that the training thread does between two optimizer steps.

Any thread adds a task to the queue (`task_queue`). The training thread finds out at the end of a step, by one
read of `Recorder.end_awaited`, and works at the beginning of the next one, when everything that belongs to
the step (schedule, scaler, logging) is over and nothing of the next has begun:

    data       the loop requests the next batch from the training loader
    forward    the first module is called with gradients on, in jobs without a loader
    step end   at the next step's end, where neither was seen in between

An appointment is for the boundary before one step and no other, and comes before the queue. While anything
runs, the instruments are silent. HOT PATH: `step_ended` and `step_begins`, only while something waits.
Standard library only.

No task is lost in the race between the thread that adds it and the training thread that stops listening, and
neither takes a lock: they go in opposite order. Adding writes the queue first and sets `end_awaited` second.
`_listen_if_needed` clears `end_awaited` first, reads the queue second, and sets `end_awaited` again if it
finds something. Either the task was in the queue when that was read, or `end_awaited` was set after it was
cleared. Reading first and clearing second would lose a task that is added in between. An appointment,
callbacks, and a task whose client's earlier request has just been answered follow the same order.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from probe.base.accelerator import capturing
from probe.base.errors import ProbeError
from probe.base.isolation import Isolation, capture
from probe.checkpoint.random_states import random_states
from probe.job.boundary.task_queue import Task, TaskQueue
from probe.job.instruments.core.recorder import Recorder
from probe.recording.layout import NULL_STRING

PASS_S = 1.0
"""No further task begins at one boundary after this time; the rest waits for the next step."""
_PAUSE_CHECK_S = 1.0
"""How often a paused training thread checks whether the pause is over."""


class Appointment(Task):
    """Work for the boundary before one step and no other: see `boundary.coordinated`. One at a time."""

    __slots__ = ("at_step", "due")

    def __init__(self, work: Callable[[], Any], at_step: int) -> None:
        super().__init__(work)
        self.at_step = at_step
        self.due = False
        """Whether that boundary has begun."""

    def passed(self) -> None:
        """On the training thread: the boundary has passed, and the work could not run there."""
        raise NotImplementedError


class SafePoint:
    """The place between two steps of this process's training thread; the recorder's `StepListener`."""

    def __init__(self, recorder: Recorder, isolation: Isolation) -> None:
        self.queue = TaskQueue(self._listen)
        self._recorder = recorder
        self._isolation = isolation
        self._appointment: Appointment | None = None
        self._closed: ProbeError | None = None
        self._paused_until_s: float | None = None
        self._wake = threading.Event()
        self._callbacks: tuple[Callable[[], object], ...] = ()
        self._callbacks_need_random_states = False
        self._called_in_step: int | None = None
        self.leave_with: int | None = None
        """Set by work on the training thread: after it, the thread ends by SystemExit with this code."""
        self.boundary = ""
        """The boundary at which the training thread runs work; empty while it trains."""
        self.random_at_step_end: dict[str, Any] | None = None
        """Random states right after the step that has ended; only while the training thread runs work."""
        recorder.listener = self

    # Any thread -------------------------------------------------------------

    def _listen(self) -> None:
        """Have the training thread notice that something was added."""
        self._recorder.end_awaited = True
        self._wake.set()

    def appoint(self, appointment: Appointment) -> bool:
        """Schedule it for its boundary; False if that may have passed already. Raises when probe leaves."""
        if self._closed is not None:
            raise self._closed
        recorder = self._recorder
        self._appointment = appointment
        self._listen()  # before the step is read: one that ends after that sees this
        step = recorder.counted_step
        return step is not None and (
            step < appointment.at_step or (step == appointment.at_step and self.paused)
        )

    def withdraw(self, appointment: Appointment) -> None:
        """Remove it: it is over, or called off."""
        if self._appointment is appointment:
            self._appointment = None

    def guard(self, name: str, hook: Callable[..., Any]) -> Callable[..., Any]:
        """See `Isolation.guard`."""
        return self._isolation.guard(name, hook)

    @property
    def closed(self) -> bool:
        """Whether there are no boundaries any more: probe leaves the process."""
        return self._closed is not None

    def call_at_boundaries(
        self, callbacks: tuple[Callable[[], object], ...], *, random_states: bool
    ) -> None:
        """Call these once a step from now on; `random_states`: they need `random_at_step_end`."""
        self._callbacks = callbacks
        self._callbacks_need_random_states = random_states
        if callbacks:
            self._recorder.end_awaited = True

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
        """Release the training thread; returns whether it was held."""
        was, self._paused_until_s = self._paused_until_s, None
        self._wake.set()
        return was is not None

    def close(self, why: ProbeError) -> None:
        """End all work here: waiting tasks get the error `why`."""
        self._closed = why
        self._callbacks = ()
        self._recorder.end_awaited = self._recorder.begin_awaited = False
        self.queue.close(why)
        self.resume()

    # The training thread ----------------------------------------------------

    def step_ended(self, boundary: str) -> None:
        """Run work now, or when the next step begins. Not if that has begun already: its backward would see
        parameters that have changed since its forward."""
        if boundary == "backward":
            return
        recorder = self._recorder
        appointed, unseen = self._is_due(), recorder.begin_awaited
        queued = bool(self.queue.tasks) and self.queue.next_at_boundary() is not None
        if not (appointed or queued or self._callbacks or unseen):
            if self._appointment is None:  # it was called off
                self._listen_if_needed()
            return
        if boundary != "optimizer" or unseen:
            self.random_at_step_end = None
            self._work("step end")
            if not unseen or not recorder.end_awaited:
                return  # else a task that still waits would miss every other step
        if queued or appointed or self._callbacks_need_random_states:
            self.random_at_step_end = random_states()
        recorder.await_begin()

    def step_begins(self, where: str, loader: int) -> None:
        """Run work, if a step begins here: not at the batch of an evaluation, and not in the forward of a job
        whose steps begin with a batch, which is in the middle of an iteration of its loop."""
        fed_by = self._recorder.fed_by
        if loader == fed_by if where == "data" else fed_by == NULL_STRING:
            self._work(where)

    def _work(self, where: str) -> None:
        recorder = self._recorder
        recorder.begin_awaited = False
        if capturing():
            return  # no work may run while a device graph is captured; an appointment is then missed
        self.boundary = where
        self._isolation.mute()
        begun_s = time.monotonic()
        try:
            if recorder.step != self._called_in_step:
                self._called_in_step = recorder.step
                for callback in self._callbacks:
                    callback()
            self._keep_appointment(where)
            self._run_queued(where, begun_s)
            while self._is_paused() and self.leave_with is None:
                self._wake.clear()
                if self.queue.next_at_boundary() is None:
                    if recorder.phase != "paused":
                        recorder.hold("paused")
                    _, interrupt = capture(lambda: self._wake.wait(_PAUSE_CHECK_S))
                    if interrupt is not None:
                        self._isolation.let_through(interrupt)
                self._keep_appointment(where)
                self._run_queued(where, time.monotonic())
        finally:
            self._isolation.unmute()
            self.boundary = ""
            self.random_at_step_end = None
            if recorder.phase != "other":
                recorder.let_go()
            self._listen_if_needed()
        if self.leave_with is not None:
            self._paused_until_s = None
            raise SystemExit(self.leave_with)

    def _listen_if_needed(self) -> None:
        """Stop listening to the ends of steps, unless something waits: see the module on the order."""
        recorder = self._recorder
        recorder.end_awaited = False
        waits = self._callbacks or self._appointment or self.queue.next_at_boundary() is not None
        if waits and self._closed is None:
            recorder.end_awaited = True

    def _is_due(self) -> bool:
        """Whether the boundary that begins is the one of the appointment."""
        appointment, step = self._appointment, self._recorder.step
        if appointment is None or step < appointment.at_step:
            return False
        if step == appointment.at_step or (appointment.due and self._recorder.begin_awaited):
            appointment.due = True  # in the latter case, the beginning of the step before was not seen
            return True
        self._appointment = None
        appointment.passed()
        return False

    def _keep_appointment(self, where: str) -> None:
        appointment = self._appointment
        if appointment is not None and (appointment.due or self._is_due()):
            self._appointment = None
            self._run(appointment, where)

    def _run_queued(self, where: str, begun_s: float) -> None:
        while self.queue.tasks and time.monotonic() - begun_s < PASS_S:
            task = self.queue.next_at_boundary()
            if task is None:
                return
            self._run(task, where)

    def _run(self, task: Task, where: str) -> None:
        if self._recorder.phase != "acting":
            self._recorder.hold("acting")
        interrupt = self.queue.run(task, self._recorder.counted_step, where)
        if interrupt is not None:
            self._isolation.let_through(interrupt)

    def _is_paused(self) -> bool:
        until_s = self._paused_until_s
        if until_s is not None and time.monotonic() >= until_s:
            self._paused_until_s = None
        return self._paused_until_s is not None
