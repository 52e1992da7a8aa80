"""Progress of an action that takes several steps or writes a large file, for the wait line.

Reads file sizes on this host and the step known to the server; sends nothing to the job. Runs on the wait
line's thread, only in a terminal; standard-library layers only.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from probe.base.errors import ProbeError
from probe_cli.core.figures import size
from probe_cli.core.session import Session
from probe_cli.core.wait_line import Progress

Look = Callable[[Progress], None]
_EVERY_S = 1.0
"""Interval between two requests for the step."""
_DOING = {"profile": "profiling", "capture": "capturing", "watch": "watching"}
_STOP = "; Ctrl-C stops waiting"


def look_of(session: Session, action: str, arguments: Mapping[str, Any]) -> Look | None:
    """A callable that updates the progress of an action; None for an action without progress."""
    steps, path = arguments.get("steps"), arguments.get("path")
    if isinstance(steps, int) and steps > 0:
        return _Steps(session, action, steps)
    if action == "checkpoint" and isinstance(path, str) and os.path.isabs(path):  # the job is on this host
        return _Bytes(Path(path))
    return None


class _Bytes:
    """Bytes of a checkpoint written so far; its final size is not known in advance."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._began_s = time.time() - 1.0  # file timestamps are coarse

    def __call__(self, progress: Progress) -> None:
        written = self._written()
        if written:
            progress.what = f"writing {self._path.name or self._path}: {size(written)} so far{_STOP}"

    def _written(self) -> int:
        """Bytes in temporary files next to the path, or below it in the folder of all ranks; named by
        `job.actions.saving`."""
        found = 0
        with contextlib.suppress(OSError):
            beside = self._path.parent.glob(f".{self._path.name}.*.tmp") if self._path.name else ()
            for file in (*beside, *self._path.glob(".*.tmp/*")):
                about = file.stat()
                found += about.st_size if about.st_mtime >= self._began_s else 0
        return found


class _Steps:
    """How many of the requested steps have finished; the first starts when the current one ends."""

    def __init__(self, session: Session, action: str, steps: int) -> None:
        self._session = session
        self._doing = _DOING.get(action, action)
        self._steps = steps
        self._first: int | None = None
        self._next_s = 0.0

    def __call__(self, progress: Progress) -> None:
        if time.monotonic() < self._next_s:
            return
        self._next_s = time.monotonic() + _EVERY_S
        try:
            step = self._step()
        except ProbeError:  # only this line needs the step
            return
        if step is None:
            return
        self._first = step if self._first is None else self._first
        over = step - self._first - 1
        if over >= 0:
            progress.done, progress.total = min(over, self._steps), self._steps
            doing = f"{self._doing} step {over + 1} of {self._steps}"
            progress.what = (doing if over < self._steps else f"all {self._steps} steps finished") + _STOP

    def _step(self) -> int | None:
        """The newest step that all ranks have finished."""
        answer = self._session.request("GET", "/v1/ranks", {"endpoint": self._session.address.endpoint})
        steps = [one.get("step") for one in answer.get("ranks") or () if one.get("ended_ns") is None]
        return None if not steps or None in steps else min(steps)
