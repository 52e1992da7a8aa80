"""The server's journal of a process, `watch.bin`, next to the process's own.

It is opened and closed for each record: a recording may be removed at any moment, and an open descriptor
would keep its blocks. Any thread of the server. Standard library only.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

from probe.recording import captures, places
from probe.recording.journal import Journal, read_journal


def note(folder: Path, record: dict[str, Any]) -> bool:
    """Append one record about the process recorded in `folder`; False when it could not be written.

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
    """Append rows of a journal table; False when they could not be written."""
    return note(folder, {"table": table, "rows": rows})


def note_capture(folder: Path, capture: dict[str, Any], reason: str) -> bool:
    """Append a capture as rows of python.stacks; False when it could not be written."""
    return note_rows(folder, "python.stacks", captures.journal_rows(capture, reason))


def rows_of(records: Iterable[dict[str, Any]], table: str) -> Iterator[dict[str, Any]]:
    """The rows of one table in the records of a journal."""
    for record in records:
        if record.get("table") == table:
            yield from record.get("rows", ())


def last_capture(folder: Path) -> tuple[dict[str, Any], str] | None:
    """The last capture in both journals of a recording, and its reason; None without."""
    records = chain.from_iterable(map(read_journal, places.journals(folder)))
    return captures.last_capture(rows_of(records, "python.stacks"))
