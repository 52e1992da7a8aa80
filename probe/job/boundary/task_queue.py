"""Task queue: the one order in which the snippets and actions of this process run.

The agent's thread adds each task in order of arrival. Tasks leave by two doors:

    at a boundary   the training thread runs them between two steps (`SafePoint`)
    beside          the request's thread starts a snippet on a thread of its own; one runs at a time

At each door the first that came is the first to go, and nothing begins before what the same client asked for
earlier is done. A task is done at most once: whoever claims it first runs it, or cancels it. It is waited for
by the thread of its request, which exists whether or not the client is still there, and cancelled when its
time is over. The training thread takes no lock: it reads a copy of the queue, which is one bytecode, and
claims. Decision 21. Standard library only.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, Protocol

from probe.base.errors import EvalBusy, LimitReached, NoBoundary, ProbeError
from probe.base.isolation import capture, describe
from probe.base.signal_errors import from_signal

GRACE_S = 0.5
"""How long a snippet that was told to stop may take to end."""


class Beside(Protocol):
    """A snippet on a thread of its own."""

    started: float
    deadline: float
    thread: threading.Thread

    def start(self) -> None:
        """Begin; raises RuntimeError when there can be no thread."""

    def interrupt(self) -> None:
        """Tell it to stop."""

    def press(self, wait_s: float) -> bool:
        """Tell it again and again for `wait_s`; whether it has ended."""

    def abandon(self) -> None:
        """In a forked child: let go of what it holds of the process."""


class Task:
    """One piece of work. `held_s`, `step` and `where` are known when it was done at a boundary."""

    __slots__ = (
        "_claim", "after", "beside", "client", "done", "error", "held_s", "interrupt", "result", "step",
        "where", "work",
    )

    def __init__(
        self, work: Callable[[], Any], client: object = None, beside: Beside | None = None
    ) -> None:
        """`client` names who asked, None when that is not known: tasks without one are in nobody's way.
        `beside`: it runs as this, and not `work` at a boundary."""
        self.work = work
        self.client = client
        self.beside = beside
        self.after: threading.Event | None = None
        """Set when what the same client asked for before is done."""
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
        """Whether the caller is the first: it runs the task, or cancels it."""
        return self._claim.acquire(blocking=False)

    def is_free(self) -> bool:
        """Whether nothing of the same client is in front of it."""
        return self.after is None or self.after.is_set()

    def run(self, step: int | None, where: str) -> None:
        """Do it at a boundary, on the training thread; whatever it raises is the outcome."""
        if self.claim():
            self.step, self.where = step, where
            begun_s = time.monotonic()
            self.error = InterruptedError("a signal reached the training while this began or ended")
            try:
                self.keep()
                self.held_s = time.monotonic() - begun_s
            finally:
                self.done.set()

    def keep(self) -> None:
        """The part of `run` that does it."""
        self.result, self.error = capture(self.work)
        self.interrupt = as_interrupt(self.error)
        if self.interrupt is not None:  # two threads that raise one exception mix up its traceback
            self.error = InterruptedError(f"a signal's handler raised {describe(self.interrupt)}")

    def cancel(self, why: BaseException) -> bool:
        """Whether it had not begun; then it never will, and `why` is its outcome."""
        claimed = self.claim()
        if claimed:
            self.error = why
            self.done.set()
        return claimed

    def outcome(self) -> Any:
        """What the work returned; raises what it raised."""
        if self.error is not None:
            raise self.error
        return self.result


class TaskQueue:
    """Tasks that have neither begun nor been cancelled, in order of arrival."""

    def __init__(self, notice: Callable[[], object]) -> None:
        """`notice` is called, on any thread, when a task can run at a boundary that could not before."""
        self._notice = notice
        self.tasks: dict[Task, None] = {}
        """Read a copy: other threads add and take out."""
        self._last: dict[object, Task] = {}
        self._running: Task | None = None
        self._closed: ProbeError | None = None
        self._changed = threading.Condition()

    # Any thread but the training thread ---------------------------------------

    def add(self, task: Task) -> Task:
        """Put it behind the others; raises when nothing begins any more."""
        with self._changed:
            if self._closed is not None:
                raise self._closed
            self._last = {client: one for client, one in self._last.items() if not one.done.is_set()}
            if task.client is not None:
                earlier = self._last.get(task.client)
                task.after = None if earlier is None else earlier.done
                self._last[task.client] = task
            self.tasks[task] = None
        self._tell()
        return task

    def wait(self, task: Task, wait_s: float, where: Callable[[], str]) -> None:
        """Until it was done at a boundary, or could not be within `wait_s`: `Task.outcome` says which.

        One that has begun is waited for: whoever added it bounds how long it takes. `where` says what the
        training thread does instead."""
        if not task.done.wait(wait_s) and task.claim():
            place, _ = capture(where)
            task.error = (
                NoBoundary(f"no step ended within {wait_s:g} s: {place or '?'}. Nothing was changed")
                if task.is_free() else _behind(wait_s)
            )
            task.done.set()
        task.done.wait()
        self.leave(task)

    def begin(self, task: Task, wait_s: float) -> None:
        """Start it beside the training when it is next and no other runs; raises `EvalBusy` when that takes
        too long, `LimitReached` when the job can have no further thread, and what `close` says."""
        assert task.beside is not None
        with self._changed:
            is_next = self._changed.wait_for(
                lambda: task.done.is_set() or self._is_next(task), 0.0 if self._is_overdue() else wait_s
            )
            if not task.claim():
                raise task.error or _behind(wait_s)
            self.tasks.pop(task, None)
            if not is_next:
                raise self._busy(task, wait_s)
            self._running = task
            _, error = capture(task.beside.start)
        if error is not None:
            self.ended()
            raise LimitReached(f"the job cannot start a thread for the snippet: {error}")

    def ended(self) -> None:
        """The one that ran beside the training has ended."""
        self._running = None
        self._tell()

    def leave(self, task: Task) -> None:
        """It is over, or cancelled: what its client asked for next may begin."""
        task.done.set()
        self.tasks.pop(task, None)
        self._tell()

    def close(self, why: ProbeError) -> None:
        """Nothing begins any more: what waits is answered with `why`."""
        with self._changed:
            self._closed = why
            for task in list(self.tasks):
                task.cancel(why)
            self.tasks.clear()
            self._changed.notify_all()

    @property
    def running(self) -> Beside | None:
        """The snippet that runs beside the training."""
        task = self._running
        beside = None if task is None else task.beside
        return beside if beside is not None and beside.thread.is_alive() else None

    def abandon(self) -> None:
        """In a forked child, where no other thread is."""
        if self._running is not None and self._running.beside is not None:
            self._running.beside.abandon()

    @property
    def waiting(self) -> int:
        """Tasks that wait for a boundary."""
        return sum(task.beside is None for task in list(self.tasks))

    def _tell(self) -> None:
        with self._changed:
            self._changed.notify_all()
        if self.next_at_boundary() is not None:
            self._notice()

    def _is_next(self, task: Task) -> bool:
        if self.running is not None:
            return False
        free = (one for one in list(self.tasks) if one.beside is not None and one.is_free())
        return next(free, None) is task

    def _is_overdue(self) -> bool:
        """Whether the one that runs was told to stop and does not end: nobody waits behind that."""
        running = self.running
        return running is not None and time.monotonic() > running.deadline + GRACE_S

    def _busy(self, task: Task, wait_s: float) -> EvalBusy:
        running, front = self.running, self._running
        if running is None or front is None or not (task.is_free() or task.after is front.done):
            return _behind(wait_s)
        return EvalBusy(f"an earlier snippet has been running for {time.monotonic() - running.started:.1f} s")

    # The training thread: no lock ---------------------------------------------

    def next_at_boundary(self) -> Task | None:
        """The first that can run at a boundary now."""
        for task in list(self.tasks):
            if task.beside is None and task.is_free():
                return task
        return None

    def run(self, task: Task, step: int | None, where: str) -> BaseException | None:
        """Take it out, if it is here, and run it; what a signal's handler raised meanwhile."""
        self.tasks.pop(task, None)
        task.run(step, where)
        interrupt, task.interrupt = task.interrupt, None
        return interrupt


def as_interrupt(error: BaseException | None) -> BaseException | None:
    """What a signal's handler of the job raised; None for anything else."""
    if error is not None and (isinstance(error, (KeyboardInterrupt, SystemExit)) or from_signal(error)):
        return error
    return None


def _behind(wait_s: float) -> EvalBusy:
    return EvalBusy(f"an earlier request of the same client has not been done for {wait_s:g} s")
