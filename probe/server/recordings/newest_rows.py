"""The newest rows of a recording's rings: its last finished step, its last sign of life.

A ring that has not changed since the last call is not read again (`recording.reader.Tail`). Used by several
threads at once; a lock is held for the microseconds of one read. May import numpy (through the ring reader).
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np

from probe.base.errors import RecordingError
from probe.recording.layout import NULL_INTEGER
from probe.recording.reader import WRITERS, RingFile, Rows, Tail
from probe.recording.recording import Meta

_AT_ONCE_ROWS = 1024
"""Rows of one read: for more, the kernel maps new memory each time, which takes longer than the reading."""


class NewestRows:
    """The newest rows of recorded processes; `forget` those that have ended."""

    def __init__(self) -> None:
        self._tails: dict[str, dict[str, Tail]] = {}
        """By the folder of the rings, and by table."""
        self._lock = threading.Lock()

    def forget(self, meta: Meta) -> None:
        """Drop what is known of a recording."""
        with self._lock:
            self._tails.pop(meta.rings, None)

    def progress(self, meta: Meta) -> tuple[int | None, int | None, int | None]:
        """(last finished step, its time, time of the last row of any kind)."""
        step, last_step_ns = self._step_and_time(meta, "python.steps")
        times = [last_step_ns]
        times += [self._step_and_time(meta, name)[1] for name in ("python.pulse", "process.memory")]
        return step, last_step_ns, max((time for time in times if time is not None), default=None)

    def steps(self, meta: Meta, count: int, after: int | None = None) -> Rows | None:
        """The last `count` rows of python.steps; `after`: only those of later steps. None when the ring does
        not exist yet or any more."""
        with self._lock:
            if (tail := self._read(meta, "python.steps")) is None:
                return None
            known, facts, last = tail.highest, tail.facts, tail.rows
        if after is not None and last is not None and len(last):
            count = min(count, int(last[-1]["step"]) - after)
        try:
            with RingFile(Path(meta.rings) / "python.steps.ring", meta.owner, facts) as ring:
                places = range(max(0, known - max(count, 0)), known, _AT_ONCE_ROWS)
                parts = [ring.read(place, min(place + _AT_ONCE_ROWS, known), known) for place in places]
                rows = np.concatenate(parts) if parts else np.empty(0, ring.dtype)
        except (OSError, RecordingError):
            return None
        return rows if after is None else rows[rows["step"] > after]

    def count(self, meta: Meta, table: str) -> int:
        """How many rows were written to a ring; 0 without one."""
        with self._lock:
            tail = self._read(meta, table)
            return 0 if tail is None else tail.highest

    def backwards(self, meta: Meta) -> int:
        """How many backward passes the first step has had so far."""
        row = self._newest(meta, "python.losses")
        micro_step = NULL_INTEGER if row is None else int(row["micro_step"])
        return 0 if micro_step == NULL_INTEGER else micro_step + 1

    def _step_and_time(self, meta: Meta, table: str) -> tuple[int | None, int | None]:
        """step and t_ns of the newest row of a ring."""
        row = self._newest(meta, table)
        if row is None:
            return None, None
        found = [int(row[name]) for name in ("step", "t_ns")]
        step, t_ns = (None if value == NULL_INTEGER else value for value in found)
        return step, t_ns

    def _newest(self, meta: Meta, table: str) -> Any:
        """The newest row of a ring; None without one."""
        with self._lock:
            tail = self._read(meta, table)
            return None if tail is None or tail.rows is None or not len(tail.rows) else tail.rows[-1]

    def _read(self, meta: Meta, table: str) -> Tail | None:
        """The end of a ring, read now; None without one. The caller has the lock."""
        tails = self._tails.setdefault(meta.rings, {})
        tail = tails.get(table)
        if tail is None or tail.owner != meta.owner:
            path = Path(meta.rings) / f"{table}.ring"
            tail = tails[table] = Tail(path, meta.owner, WRITERS, kept_only=True)
        try:
            tail.read()
        except (OSError, RecordingError):
            del tails[table]
            return None
        return tail
