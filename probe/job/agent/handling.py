"""Handling: which exception the training thread handles while no step ends, to detect retry loops.

A round of the agent's thread. It samples only if no step has ended for a while, a few times per round, and
reads only what Python keeps: the exception that a thread is handling. A sampled exception gets a mark in its
`__dict__`: this tells one exception handled for long from a series of new ones, without keeping any of them
alive. Standard library only.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

from probe.base import clock
from probe.base.isolation import capture
from probe.job.agent.endings import message_of
from probe.job.instruments.core.recorder import Recorder

EVENT = "handling"
QUIET_S = 3.0
"""Sampling begins after this time without a step; it is shorter than the default of PROBE_STALL_S."""
LOOKS = 8
BETWEEN_S = 0.004
_MARK = "_probe_saw"
_AGAIN_S, _RARELY_S = 5.0, 60.0
"""Interval between records of the same exception: at first, and at most."""
_GONE_S = 5.0


class Handling:
    """Samples the exception that the training thread handles. `journal` writes a record."""

    def __init__(self, recorder: Recorder, journal: Callable[[dict[str, Any]], object]) -> None:
        self._recorder = recorder
        self._journal = journal
        self._step: object = None
        self._since_s = 0.0
        self._forget()

    def _forget(self) -> None:
        self._what: dict[str, Any] | None = None
        self._new = self._seen = self._looks = 0
        self._first_s = self._last_s = self._written_s = 0.0
        self._wait_s = 0.0

    def check(self) -> None:
        """Sample, if no step has ended for a while, and journal news. On the agent's thread."""
        now_s, step = time.monotonic(), self._recorder.counted_step
        if step != self._step:
            self._step, self._since_s = step, now_s
            if self._what is not None:
                self._forget()
        if step is None or now_s - self._since_s < QUIET_S:
            return
        for _ in range(LOOKS):
            self._sample()
            time.sleep(BETWEEN_S)
        if self._what is not None and now_s - self._last_s > _GONE_S:
            self._forget()
            self._journal({"event": EVENT, "t_ns": clock.wall_ns(), "type": None})
        elif self._new > 1 and now_s >= self._written_s + self._wait_s:
            self._written_s = now_s
            self._wait_s = min(_RARELY_S, max(_AGAIN_S, 2 * self._wait_s))
            self._journal({
                "event": EVENT, "t_ns": clock.wall_ns(), **(self._what or {}), "new": self._new,
                "seen": self._seen, "looks": self._looks, "over_s": self._last_s - self._first_s,
            })

    def _sample(self) -> None:
        found, _ = capture(lambda: sys._current_exceptions().get(self._recorder.thread or 0))
        error = found[1] if isinstance(found, tuple) else found
        self._looks += 1
        if isinstance(error, BaseException):
            self._note(error, time.monotonic())

    def _note(self, error: BaseException, now_s: float) -> None:
        marks = error.__dict__
        is_new = _MARK not in marks
        place = _raised_at(error)
        kind = f"{type(error).__module__}.{type(error).__qualname__}".removeprefix("builtins.")
        known = self._what
        if known is None or (kind, *place) != (known["type"], known["func"], known["file"], known["lineno"]):
            if not is_new:  # an outer exception, seen before
                return
            self._forget()
            self._first_s = now_s
            own = type(error).__module__ == "builtins"  # attributes of other classes may be the job's code
            number, name = (getattr(error, key, None) if own else None for key in ("errno", "filename"))
            self._what = {
                "type": kind, "message": message_of(error)[:300], "func": place[0], "file": place[1],
                "lineno": place[2], "errno": number if isinstance(number, int) else None,
                "filename": name if isinstance(name, str) else None,
            }
        if is_new:
            marks[_MARK] = True
        self._new += is_new
        self._seen += 1
        self._last_s = now_s


def _raised_at(error: BaseException) -> tuple[str | None, str | None, int | None]:
    """Function, file and line of the innermost frame of its traceback."""
    trace = error.__traceback__
    if trace is None:
        return None, None, None
    while trace.tb_next is not None:
        trace = trace.tb_next
    code = trace.tb_frame.f_code
    name = code.co_qualname if sys.version_info >= (3, 11) else code.co_name
    return name, code.co_filename, trace.tb_lineno
