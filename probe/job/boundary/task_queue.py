"""Task queue: the one order in which the snippets and actions of this process run.

The agent's thread adds each task in order of arrival. Tasks run in one of two places:

    at a boundary   the training thread runs them between two steps (`SafePoint`)
    beside          the request's thread starts a snippet on a thread of its own; one runs at a time

In each place tasks run first in, first out, and a task begins only when the same client's earlier tasks are
done. A task runs at most once: the first thread to claim it runs or cancels it. The thread of its request
waits for it, even if the client has gone, and cancels it when its time is over. The training thread takes no
lock: it reads a copy of the queue, which is one bytecode, and claims. Decision 21. Standard library only.
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
        """Tell it repeatedly for `wait_s`; returns whether it has ended."""

    def abandon(self) -> None:
        """In a forked child: release what it holds of the process."""


class Task:
    """One piece of work. `held_s`, `step` and `where` are known when it was done at a boundary."""

    __slots__ = (
        "_claim", "after", "beside", "client", "done", "error", "held_s", "interrupt", "result", "step",
        "where", "work",
    )

    def __init__(
        self, work: Callable[[], Any], client: object = None, beside: Beside | None = None
    ) -> None:
        """`client` names the caller, None if unknown: a task without one blocks no other. `beside`: runs this
        snippet on its own thread, instead of `work` at a boundary."""
        self.work = work
        self.client = client
        self.beside = beside
        self.after: threading.Event | None = None
        """Set when the same client's earlier task is done."""
        self.done = threading.Event()
        self.result: Any = None
        self.error: BaseException | None = None
        self.interrupt: BaseException | None = None
        """An exception of a signal handler during the work: for the training, not the work's outcome."""
        self.held_s: float | None = None
        self.step: int | None = None
        self.where: str | None = None
        self._claim = threading.Lock()

    def claim(self) -> bool:
        """Whether the caller is the first: it runs the task, or cancels it."""
        return self._claim.acquire(blocking=False)

    def is_free(self) -> bool:
        """Whether no earlier task of the same client is pending."""
        return self.after is None or self.after.is_set()

    def run(self, step: int | None, where: str) -> None:
        """Run it at a boundary, on the training thread; its exception, if any, is the outcome."""
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
        """Do the work: the part of `run` that an `Appointment` replaces."""
        self.result, self.error = capture(self.work)
        self.interrupt = as_interrupt(self.error)
        if self.interrupt is not None:  # two threads that raise one exception mix up its traceback
            self.error = InterruptedError(f"a signal handler raised {describe(self.interrupt)}")

    def cancel(self, why: BaseException) -> bool:
        """Cancel it, with the outcome `why`; returns whether it had not begun and now never will."""
        claimed = self.claim()
        if claimed:
            self.error = why
            self.done.set()
        return claimed

    def outcome(self) -> Any:
        """The work's result; raises the work's exception."""
        if self.error is not None:
            raise self.error
        return self.result


class TaskQueue:
    """Tasks that have neither begun nor been cancelled, in order of arrival."""

    def __init__(self, notice: Callable[[], object]) -> None:
        """`notice` is called, on any thread, when another task can run at a boundary."""
        self._notice = notice
        self.tasks: dict[Task, None] = {}
        """Read a copy: other threads add and remove tasks."""
        self._last: dict[object, Task] = {}
        self._running: Task | None = None
        self._closed: ProbeError | None = None
        self._changed = threading.Condition()

    # Any thread but the training thread ---------------------------------------

    def add(self, task: Task) -> Task:
        """Append a task; raises after `close`."""
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
        """Wait until it has run at a boundary, or cancel it after `wait_s`: see `Task.outcome`.

        Once it has begun there is no limit here: the work has its own. `where` describes what the training
        thread does instead."""
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
        """Start it beside the training when it is next and no other runs; raises `EvalBusy` if that takes too
        long, `LimitReached` if the job can start no other thread, and the error of `close`."""
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
        """The snippet beside the training has ended: let the next one begin."""
        self._running = None
        self._tell()

    def leave(self, task: Task) -> None:
        """Remove a task that is over or cancelled: its client's next one may begin."""
        task.done.set()
        self.tasks.pop(task, None)
        self._tell()

    def close(self, why: ProbeError) -> None:
        """Let no task begin any more: waiting ones get the error `why`."""
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
        """In a forked child, where no other thread exists."""
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
        """Whether the running snippet was told to stop and has not ended: then no other waits for it."""
        running = self.running
        return running is not None and time.monotonic() > running.deadline + GRACE_S

    def _busy(self, task: Task, wait_s: float) -> EvalBusy:
        running, front = self.running, self._running
        if running is None or front is None or not (task.is_free() or task.after is front.done):
            return _behind(wait_s)
        return EvalBusy(f"an earlier snippet has been running for {time.monotonic() - running.started:.1f} s")

    # The training thread: no lock ---------------------------------------------

    def next_at_boundary(self) -> Task | None:
        """The first task that can run at a boundary now."""
        for task in list(self.tasks):
            if task.beside is None and task.is_free():
                return task
        return None

    def run(self, task: Task, step: int | None, where: str) -> BaseException | None:
        """Remove it from the queue and run it; returns an exception of a signal handler in that time."""
        self.tasks.pop(task, None)
        task.run(step, where)
        interrupt, task.interrupt = task.interrupt, None
        return interrupt


def as_interrupt(error: BaseException | None) -> BaseException | None:
    """The error, if a signal handler of the job raised it; else None."""
    if error is not None and (isinstance(error, (KeyboardInterrupt, SystemExit)) or from_signal(error)):
        return error
    return None


def _behind(wait_s: float) -> EvalBusy:
    return EvalBusy(f"an earlier request of the same client is not done after {wait_s:g} s")
