"""Notes: what the server writes about a process, beside what the process writes about itself.

One record at a time into `watch.bin`, opened and closed for each: a recording may
be removed at any moment, and whoever holds no descriptor keeps nothing alive.
Called by the server's threads (`probe-watch`, and whoever sees a process end).
Standard library only.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from probe.recording import places
from probe.recording.captures import journal_rows
from probe.recording.journal import Journal


def note(folder: Path, record: dict[str, Any]) -> bool:
    """Append one record about the process recorded in `folder`; False when it could not be kept.

    A record is `{"table": …, "rows": […]}` or `{"event": …}`, as in the process's own journal."""
    try:
        journal = Journal(places.journals(folder)[1])
    except OSError:  # the recording was removed, or the disk is full
        return False
    try:
        return journal.append(record)
    finally:
        journal.close()


def note_rows(folder: Path, table: str, rows: list[dict[str, Any]]) -> bool:
    """Append rows of a journal table; False when they could not be kept."""
    return note(folder, {"table": table, "rows": rows})


def note_capture(folder: Path, capture: dict[str, Any], reason: str) -> bool:
    """Keep a capture as rows of python.stacks; False when it could not be kept."""
    return note_rows(folder, "python.stacks", journal_rows(capture, reason))
