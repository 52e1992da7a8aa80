"""How far an action is that takes steps or writes a large file, for the line that says what is waited for.

Looks at files of this host and at the step that the server knows; the job is not asked. Runs on the line's
thread, at a terminal only; standard-library layers only.
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
"""Between two requests for the step."""
_DOING = {"profile": "profiling", "capture": "capturing", "watch": "watching"}
_STOP = "; Ctrl-C stops waiting"


def look_of(session: Session, action: str, arguments: Mapping[str, Any]) -> Look | None:
    """What tells the progress of an action, None for one that tells none."""
    steps, path = arguments.get("steps"), arguments.get("path")
    if isinstance(steps, int) and steps > 0:
        return _Steps(session, action, steps)
    if action == "checkpoint" and isinstance(path, str) and os.path.isabs(path):  # of a job on this host
        return _Bytes(Path(path))
    return None


class _Bytes:
    """How much of a checkpoint is written. Its size is known to nobody before."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._began_s = time.time() - 1.0  # clocks of files are coarse

    def __call__(self, progress: Progress) -> None:
        written = self._written()
        if written:
            progress.what = f"writing {self._path.name or self._path}: {size(written)} so far{_STOP}"

    def _written(self) -> int:
        """Bytes in files that grow beside the path, or in folders of all ranks below it (`job.actions.saving`
        names them)."""
        found = 0
        with contextlib.suppress(OSError):
            beside = self._path.parent.glob(f".{self._path.name}.*.tmp") if self._path.name else ()
            for file in (*beside, *self._path.glob(".*.tmp/*")):
                about = file.stat()
                found += about.st_size if about.st_mtime >= self._began_s else 0
        return found


class _Steps:
    """How many of the wanted steps are over: the first begins when the present one ends."""

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
        except ProbeError:  # it matters to nothing but this line
            return
        if step is None:
            return
        self._first = step if self._first is None else self._first
        over = step - self._first - 1
        if over >= 0:
            progress.done, progress.total = min(over, self._steps), self._steps
            doing = f"{self._doing} step {over + 1} of {self._steps}"
            progress.what = (doing if over < self._steps else f"all {self._steps} steps are over") + _STOP

    def _step(self) -> int | None:
        """The newest step that all ranks have finished."""
        answer = self._session.request("GET", "/v1/ranks", {"endpoint": self._session.address.endpoint})
        steps = [one.get("step") for one in answer.get("ranks") or () if one.get("ended_ns") is None]
        return None if not steps or None in steps else min(steps)
