"""Copies the rows of many rings into one table of a query, all at once, because an insert takes milliseconds.

Every process numbers its own texts; here they are renumbered into one list. Runs in the query worker; may
import duckdb, numpy.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

import duckdb
import numpy as np

from probe.base.errors import RecordingError
from probe.recording import segments
from probe.recording.layout import NOBODY, Owner
from probe.recording.reader import NUMBER, RingFile, Rows, damaged_texts, spelled, with_texts
from probe.recording.strings import read_strings
from probe.recording.tables import Table

AT_ONCE_BYTES = 32 << 20
"""Collected rows are inserted when they take this much memory: an insert holds several copies."""
_OWNER = (("rank", "BIGINT"), ("run", "VARCHAR"), ("attempt", "BIGINT"), ("pid", "BIGINT"))

Columns = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Source:
    """One recorded process, as a query reads it. `rings` may be gone already."""

    folder: Path
    rings: Path
    run: str
    attempt: int
    rank: int
    pid: int
    owner: Owner = NOBODY
    """The owner that its rings must have."""


class RingRows:
    """Rows of `table` for the table `target`, which has some of its `columns`, in the order in which they are
    added; `flush` inserts the collected rows. `texts` caches the texts of each process."""

    def __init__(
        self, connection: duckdb.DuckDBPyConnection, table: Table, columns: Collection[str], target: str,
        texts: dict[Path, list[str | None]],
    ) -> None:
        self._connection = connection
        self._table = table
        self._known = columns
        self._target = target
        self._read_texts = texts
        self._parts: list[tuple[Source, Rows]] = []
        self._columns: Columns = ()
        self._bytes = 0
        self._texts: list[str | None] = [None]
        self._numbers: dict[str | None, int] = {None: 0}

    def read(self, source: Source, after: int, notes: list[str]) -> tuple[int, int]:
        """Add the rows after `after` of one process's ring; returns the number of the last row written and
        how many were added. Raises like `RingFile`."""
        with RingFile(source.rings / f"{self._table.full_name}.ring", source.owner) as ring:
            highest = max(after, ring.highest(after))
            rows = ring.read(after, highest)
            columns = ring.columns
            if ring.left_out():
                notes.append(f"pid {source.pid}: {ring.left_out()}")
            if not len(rows) and ring.highest() < after:
                name = self._table.full_name
                notes.append(f"pid {source.pid}: the ring of {name} is older than its sealed rows")
        if len(rows):
            texts = self._texts_of(source, ring, rows, notes)
            rows, columns, texts = spelled(rows, columns, texts)
            rows, texts, damaged = with_texts(rows, columns, texts)
            if damaged:
                notes.append(f"pid {source.pid}: {damaged_texts(self._table.full_name, damaged)}")
            self.add(source, rows, columns, texts)
        return highest, len(rows)

    def _texts_of(self, source: Source, ring: RingFile, rows: Rows, notes: list[str]) -> list[str | None]:
        """The texts that the rows refer to; none, and a note, if they cannot be read. Read again only when
        the rows refer to newer ones."""
        highest = max((int(rows[name].max()) for name, kind in ring.columns if kind == "VARCHAR"), default=0)
        known = self._read_texts.get(source.rings, [None])
        if highest < len(known):
            return known
        try:
            found = self._read_texts[source.rings] = read_strings(
                source.rings / "strings", source.owner, ring.version
            )
            return found
        except FileNotFoundError:
            if not ring.path.exists():  # just sealed and removed
                raise
            notes.append(f"pid {source.pid}: the texts in {source.rings} are gone")
        except (OSError, RecordingError) as error:
            notes.append(f"pid {source.pid}: {error}")
        return [None]

    def add(self, source: Source, rows: Rows, columns: Columns, texts: Sequence[str | None]) -> None:
        """Add rows of one process's ring, whose VARCHAR columns are indices into `texts`."""
        if not len(rows):
            return
        if columns != self._columns or self._bytes > AT_ONCE_BYTES:
            self.flush()
        self._columns = columns
        rows = rows.copy()  # the original is read-only
        numbers = np.array([self._number(text) for text in texts] or [0], np.uint32)
        for name, kind in columns:
            if kind == "VARCHAR" and name in self._known:
                own = rows[name]
                rows[name] = numbers[np.where(own < len(numbers), own, 0)]
        self._parts.append((source, rows))
        self._bytes += rows.nbytes

    def _number(self, text: str | None) -> int:
        known = self._numbers.get(text)
        if known is None:
            known = self._numbers[text] = len(self._texts)
            self._texts.append(text)
        return known

    def flush(self) -> None:
        """Insert the collected rows."""
        if not self._parts:
            return
        parts, self._parts, self._bytes = self._parts, [], 0
        rows = parts[0][1] if len(parts) == 1 else np.concatenate([part for _, part in parts])
        kept = tuple(column for column in self._columns if column[0] in self._known)
        arrays, expressions = segments.for_duckdb(rows, kept)
        counts = [len(part) for _, part in parts]
        for name, kind in _OWNER:
            values = [getattr(source, name) for source, _ in parts]
            if kind == "VARCHAR":
                values = [self._number(value) for value in values]
            arrays[f"probe_{name}"] = np.repeat(np.array(values, np.int64), counts)
            text = f"getvariable('probe_texts')[probe_{name} + 1]" if kind == "VARCHAR" else f"probe_{name}"
            expressions.append(text)
        segments.set_texts(self._connection, self._texts)
        names = [name for name, _ in (*kept, *_OWNER)]
        if NUMBER in self._known:
            names.append(NUMBER)
            expressions.append(NUMBER)
        targets = ", ".join(f'"{name}"' for name in names)
        self._connection.register("probe_rows", arrays)
        try:
            self._connection.execute(
                f"INSERT INTO {self._target} ({targets}) SELECT {', '.join(expressions)} FROM probe_rows"
            )
        finally:
            self._connection.unregister("probe_rows")
