"""Supervision of the server's threads and tasks: one that fails is logged, counted and restarted.

    thread = Supervised("probe-drain", self.run, self._stopping)
    thread.start()

An error about one recording (`FAILURES`) is caught where that recording is known, so the others are still
processed. An unexpected one ends its thread: it is in server.log with its traceback, counted in
`GET /v1/health`, and another thread continues after a pause. Imports duckdb, for its error class.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import duckdb

from probe.base.errors import ProbeError
from probe.server.runtime.threads import show_name

_log = logging.getLogger("probe.threads")
FAILURES = (
    ProbeError, duckdb.Error, OSError, ValueError, LookupError, TypeError, AttributeError, RuntimeError,
    ArithmeticError, AssertionError,
)
"""Errors that one damaged or removed recording may cause: that recording is skipped this time."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 60.0
"""Before a failed thread is restarted; doubled each time it fails again soon."""
_LONGEST_TEXT = 300
CANCEL_AGAIN_S = 0.5


@dataclass
class Failures:
    """How often a part of the server has failed, and the last error."""

    name: str
    times: int = 0
    last: str = ""
    last_s: float = 0.0
    """Monotonic seconds."""


_failed: dict[str, Failures] = {}


def note(name: str, error: BaseException | None) -> Failures:
    """A part of the server failed and is restarted: log it (the same error once) and count it. Any thread."""
    found = _failed.setdefault(name, Failures(name))
    text = f"{type(error).__name__}: {error}"[:_LONGEST_TEXT]
    if text != found.last:
        _log.error("%s failed and continues: %s", name, text, exc_info=error)
    found.times += 1
    found.last, found.last_s = text, time.monotonic()
    return found


def failures() -> list[dict[str, Any]]:
    """The failures so far, for `GET /v1/health`."""
    now_s = time.monotonic()
    return [
        {"thread": one.name, "times": one.times, "last": one.last, "ago_s": round(now_s - one.last_s, 1)}
        for one in list(_failed.values())
    ]


class Supervised:
    """A thread that runs `run` until it returns; when it raises, another one after a pause."""

    def __init__(self, name: str, run: Callable[[], object], stopping: threading.Event) -> None:
        self._name, self._run, self._stopping = name, run, stopping
        self._pause_s = FIRST_PAUSE_S
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread."""
        self._thread = threading.Thread(target=self._body, name=self._name, daemon=True)
        self._thread.start()

    def stop(self, wait_s: float) -> bool:
        """Have `run` return, as far as it heeds `stopping`. Whether the thread has ended within `wait_s`, or
        was never started."""
        self._stopping.set()
        deadline_s = time.monotonic() + wait_s
        while (thread := self._thread) is not None and thread.is_alive():
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                return False
            thread.join(left_s)
        return True

    def _body(self) -> None:
        show_name()
        began_s = time.monotonic()
        ended = False
        try:
            self._run()
            ended = True
        finally:
            if not ended and not self._stopping.is_set():
                self._restart(sys.exc_info()[1], time.monotonic() - began_s)

    def _restart(self, error: BaseException | None, lasted_s: float) -> None:
        note(self._name, error)
        if lasted_s > LONGEST_PAUSE_S:
            self._pause_s = FIRST_PAUSE_S
        if not self._stopping.wait(self._pause_s):
            self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)
            self.start()


def quiet_end(arguments: threading.ExceptHookArgs) -> None:
    """For `threading.excepthook`: an error of a supervised thread is logged already; log any other."""
    name = arguments.thread.name if arguments.thread is not None else "a thread"
    if name not in _failed:
        note(name, arguments.exc_value)


async def end_tasks(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel tasks of the event loop until all have ended; their errors are dropped. One cancellation is not
    enough: before Python 3.12, `asyncio.wait_for` swallows it if what it waits for ends at that moment."""
    pending = set(tasks)
    while pending:
        for task in pending:
            task.cancel()
        done, pending = await asyncio.wait(pending, timeout=CANCEL_AGAIN_S)
        for task in done:
            if not task.cancelled():
                task.exception()  # or asyncio would log it
