"""Supervision: a thread of the server that fails is noted and goes on.

    thread = Supervised("probe-drain", self.run, self._stopping)
    thread.start()

What a round over recordings may fail with is caught where the one recording is known (`FAILURES`): the
others are looked at all the same. What nobody expected ends its thread, as an exception should: it is in
server.log with its traceback, counted in `GET /v1/health`, and another thread goes on after a pause. So
nothing is swallowed, and no thread is missing. Imports duckdb, for its error.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import duckdb

from probe.base.errors import ProbeError

_log = logging.getLogger("probe.threads")
FAILURES = (
    ProbeError, duckdb.Error, OSError, ValueError, LookupError, TypeError, AttributeError, RuntimeError,
    ArithmeticError, AssertionError,
)
"""What a look at one recording may fail with: it costs that recording the look."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 60.0
"""Before a thread that failed goes on; doubled each time that it fails again soon."""
_LONGEST_TEXT = 300


@dataclass
class Failed:
    """How often a thread has failed, and with what the last time."""

    name: str
    times: int = 0
    last: str = ""
    last_s: float = 0.0
    """Monotonic seconds."""


_failed: dict[str, Failed] = {}


def note(name: str, error: BaseException | None) -> Failed:
    """Something of the server's own failed and goes on: in the log, the same only once, and in `failures`.
    Any thread."""
    found = _failed.setdefault(name, Failed(name))
    text = f"{type(error).__name__}: {error}"[:_LONGEST_TEXT]
    if text != found.last:
        _log.error("%s failed and goes on: %s", name, text, exc_info=error)
    found.times += 1
    found.last, found.last_s = text, time.monotonic()
    return found


def failures() -> list[dict[str, Any]]:
    """What `note` was told, for `GET /v1/health`."""
    now_s = time.monotonic()
    return [
        {"thread": one.name, "times": one.times, "last": one.last, "ago_s": round(now_s - one.last_s, 1)}
        for one in list(_failed.values())
    ]


class Supervised:
    """A thread that runs `run` until that returns; when it raises, again, after a pause."""

    def __init__(self, name: str, run: Callable[[], object], stopping: threading.Event) -> None:
        self._name, self._run, self._stopping = name, run, stopping
        self._pause_s = FIRST_PAUSE_S
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread."""
        self._thread = threading.Thread(target=self._body, name=self._name, daemon=True)
        self._thread.start()

    def join(self, wait_s: float) -> bool:
        """Whether it has ended, or was never started, after at most `wait_s`. Set `stopping` before."""
        deadline_s = time.monotonic() + wait_s
        while (thread := self._thread) is not None and thread.is_alive():
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                return False
            thread.join(left_s)
        return True

    def _body(self) -> None:
        began_s = time.monotonic()
        ended = False
        try:
            self._run()
            ended = True
        finally:
            if not ended and not self._stopping.is_set():
                self._go_on(sys.exc_info()[1], time.monotonic() - began_s)

    def _go_on(self, error: BaseException | None, lasted_s: float) -> None:
        note(self._name, error)
        if lasted_s > LONGEST_PAUSE_S:
            self._pause_s = FIRST_PAUSE_S
        if not self._stopping.wait(self._pause_s):
            self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)
            self.start()


def quiet_end(arguments: threading.ExceptHookArgs) -> None:
    """For `threading.excepthook`: what ends a thread of ours was logged by `note`; any other is logged
    here."""
    name = arguments.thread.name if arguments.thread is not None else "a thread"
    if name not in _failed:
        note(name, arguments.exc_value)
