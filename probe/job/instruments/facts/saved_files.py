"""Saved files: records files that the job saves with torch or safetensors, their size, and the free space.

Writes python.saves. HOT PATH, but not of an ordinary step: `note`, after a call that saved. The agent's
thread reads the file system (`collect`). Standard library only.
"""

from __future__ import annotations

import os
from collections import deque
from io import BufferedWriter
from typing import Any

from probe.base.clock import wall_ns
from probe.job.instruments.core.recorder import HELD_PHASES, Recorder
from probe.recording.journal import Journal

MOST_WAITING, MOST_ROWS = 64, 2000
_NAMES = ("f", "filename")
"""Names of the calls' second argument."""


class SavedFiles:
    """Writes a row for each file that the training thread saved."""

    def __init__(self, recorder: Recorder, journal: Journal) -> None:
        self._recorder, self._journal = recorder, journal
        self._waiting: deque[tuple[int, int, str]] = deque(maxlen=MOST_WAITING)
        self._rows = 0

    def collect(self) -> None:
        """Write the rows of files saved since the last call; on the agent's thread."""
        rows: list[dict[str, Any]] = []
        while self._waiting and self._rows + len(rows) < MOST_ROWS:
            step, t_ns, path = self._waiting.popleft()
            rows.append({"step": step, "t_ns": t_ns, **_found(path)})
        if rows:
            self._rows += len(rows)
            self._journal.append({"table": "python.saves", "rows": rows})

    # HOT PATH ---------------------------------------------------------------

    def note(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A call saved; its second argument is a path or an open file."""
        recorder = self._recorder
        if recorder.elsewhere() or recorder.phase in HELD_PHASES:
            return
        file = args[1] if len(args) > 1 else next((kwargs[name] for name in _NAMES if name in kwargs), None)
        if type(file) is BufferedWriter:
            file = file.name
        path = file if type(file) is str else os.fspath(file) if isinstance(file, os.PathLike) else None
        if type(path) is str:
            self._waiting.append((recorder.step, wall_ns(), path))


def _found(path: str) -> dict[str, Any]:
    """The file system's data on a file; NULL if unavailable, for example because the file is gone."""
    path = os.path.abspath(path)
    found: dict[str, Any] = {"path": path[-400:], "bytes": None, "file": None, "free_bytes": None}
    try:
        status = os.stat(path)
        room = os.statvfs(path)
    except OSError:
        return found
    free = room.f_bavail * room.f_frsize
    return {**found, "bytes": status.st_size, "file": f"{status.st_dev}:{status.st_ino}", "free_bytes": free}
