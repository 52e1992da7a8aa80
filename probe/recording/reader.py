"""Reading rings from outside: whole rows as numpy arrays, whoever writes them right now.

A row in place *i* is whole when the number at its end is positive and leads to
place *i*. Places next to be overwritten are left out, and so are rows that
change while they are copied. Files are read with `pread`, never mapped: a file
cut short is an error here, not a SIGBUS. Used by the server's drain thread and
by the query worker; may import numpy.
"""

from __future__ import annotations

import functools
import json
import os
import struct
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from probe.errors import RecordingError
from probe.recording import layout

NUMBER = "_number"
"""Name of a row's number among its columns; nobody sees it in a query."""
WRITERS = 8
"""Threads that may be in the middle of a row at once: so many of the oldest places are not read."""
_FIRST_LOOK_ROWS = 64
_NUMBER_AT = struct.Struct("<q")

Rows = npt.NDArray[np.void]


class RingFile:
    """A ring, open for reading; a context manager.

    Raises `RecordingError` when the file is no ring or is damaged, `OSError` when
    it cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            self._read_header()
        except (ValueError, KeyError, TypeError, struct.error) as error:
            os.close(self._descriptor)
            raise RecordingError(f"{path} is not a ring: {error}") from None
        except BaseException:
            os.close(self._descriptor)
            raise

    def _read_header(self) -> None:
        head = self._pread(layout.HEADER_BYTES, 0)
        magic, version, row_bytes, rows, length = struct.unpack_from(layout.HEADER, head)
        if magic != layout.MAGIC or version != layout.VERSION:
            raise ValueError(f"magic {magic!r}, version {version}")
        if length > layout.HEADER_BYTES - layout.LAYOUT_OFFSET or rows < 1:
            raise ValueError("impossible sizes")
        described = _described(head[layout.LAYOUT_OFFSET : layout.LAYOUT_OFFSET + length])
        self.table, self.columns, self.dtype = described
        self.rows: int = rows
        if self.dtype.itemsize != row_bytes:
            raise ValueError(f"rows of {row_bytes} bytes, their columns take {self.dtype.itemsize}")
        if os.fstat(self._descriptor).st_size < layout.HEADER_BYTES + rows * row_bytes:
            raise ValueError("the file was cut short")

    def __enter__(self) -> RingFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def highest(self, known: int = 0) -> int:
        """Highest number written, given that `known` was written (0: nothing known).

        Looks only at places after `known`, so a reader that remembers it pays for
        new rows only. A number that none of its neighbours confirms is damage.
        """
        if known and not self._written_after(known):
            return known
        look = min(_FIRST_LOOK_ROWS, self.rows)
        for _ in range(64):
            first = max(1, known + 1 - WRITERS)
            numbers = self._copy(first, look + WRITERS)[NUMBER]
            newest = int(numbers[self._confirmed(numbers, first, known)].max(initial=known))
            if newest <= known:
                break
            known = newest
            look = min(look * 2, self.rows)
        return known

    def _written_after(self, known: int) -> bool:
        """Whether any of the next places holds a newer row: cheap, for most looks find none."""
        size = self.dtype.itemsize
        place = (known + 1) % self.rows
        run = min(WRITERS, self.rows - place)
        parts = [(run, place)] if run == WRITERS else [(run, place), (WRITERS - run, 0)]
        for count, first in parts:
            data = self._pread(count * size, layout.HEADER_BYTES + first * size)
            for end in range(size, count * size + 1, size):
                if _NUMBER_AT.unpack_from(data, end - _NUMBER_AT.size)[0] > known:
                    return True
        return False

    def _confirmed(
        self, numbers: npt.NDArray[np.int64], first: int, known: int
    ) -> npt.NDArray[np.bool_]:
        """Which numbers are where they belong and are confirmed by a neighbour; those above `known` for
        certain. Nearly always it is the neighbour just before."""
        places = np.arange(first, first + len(numbers)) % self.rows
        whole = (numbers > 0) & (numbers % self.rows == places)
        confirmed = numbers == 1
        for distance in range(1, min(WRITERS, len(numbers) - 1) + 1):
            confirmed[distance:] |= numbers[:-distance] == numbers[distance:] - distance
            if not (whole & ~confirmed & (numbers > known)).any():
                break
        return np.asarray(whole & confirmed)

    def read(self, after: int, highest: int | None = None) -> Rows:
        """Whole rows with numbers above `after`, in order of their numbers.

        `highest` spares the search when the caller just did it. A row being
        written this instant is not there yet.
        """
        if highest is None:
            highest = self.highest(after)
        first = max(after + 1, highest - self.rows + WRITERS + 1, 1)
        count = highest - first + 1
        if count <= 0:
            return np.empty(0, self.dtype)
        rows = self._copy(first, count)
        again = self._copy(first, count)
        whole = rows[NUMBER] == np.arange(first, first + count)
        whole &= rows[NUMBER] > self.highest(highest) - self.rows + WRITERS
        size = self.dtype.itemsize
        same = rows.view(np.uint8).reshape(count, size) == again.view(np.uint8).reshape(count, size)
        whole &= same.all(axis=1)
        return rows if whole.all() else rows[whole]

    def last(self, known: int = 0) -> tuple[int, Rows]:
        """Highest number and the last few whole rows."""
        highest = self.highest(known)
        return highest, self.read(max(0, highest - WRITERS), highest)

    def _copy(self, first: int, count: int) -> Rows:
        """Copy of the places of `count` numbers from `first`, in that order."""
        size = self.dtype.itemsize
        place = first % self.rows
        parts: list[bytes] = []
        while count > 0:
            run = min(count, self.rows - place)
            parts.append(self._pread(run * size, layout.HEADER_BYTES + place * size))
            place, count = 0, count - run
        return np.frombuffer(b"".join(parts), self.dtype)

    def _pread(self, size: int, offset: int) -> bytes:
        data = os.pread(self._descriptor, size, offset)
        if len(data) != size:
            raise RecordingError(f"{self.path} was cut short")
        return data


@functools.lru_cache(maxsize=64)
def _described(text: bytes) -> tuple[str, tuple[tuple[str, str], ...], np.dtype[np.void]]:
    """Table, columns and row of a ring, from the layout in its header; most rings have the same few."""
    described = json.loads(text)
    columns = tuple((str(name), str(kind)) for name, kind in described["columns"])
    dtype = np.dtype([(name, layout.NUMPY[kind]) for name, kind in columns] + [(NUMBER, "<i8")])
    return str(described["table"]), columns, dtype


def sealable(rows: Rows, highest: int, capacity: int, pending: npt.NDArray[np.bool_] | None) -> int:
    """How many of `rows`, from the start, will not change any more.

    Stops before a row that is pending and before a gap that a thread may be about
    to fill; neither is waited for once a quarter of the ring has been written past it.
    """
    numbers = rows[NUMBER]
    if len(numbers) == 0:
        return 0
    recent = highest - numbers <= capacity // 4
    unsure = np.zeros(len(numbers), np.bool_)
    gap_before = np.diff(numbers) != 1
    unsure[1:] = gap_before & (highest - (numbers[:-1] + 1) <= capacity // 4)
    if pending is not None:
        unsure |= pending & recent
    stop = np.flatnonzero(unsure)
    return int(stop[0]) if len(stop) else len(numbers)


def pending_rows(rows: Rows, column: str, texts: list[str | None]) -> npt.NDArray[np.bool_] | None:
    """Which rows say `pending` in the string column `column`; None when the table has none such."""
    if not column or column not in (rows.dtype.names or ()):
        return None
    numbers = [number for number, text in enumerate(texts) if text == "pending"]
    return np.asarray(np.isin(rows[column], numbers))


def _not_a_number(values: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    return np.isnan(values) if values.dtype.kind == "f" else np.zeros(len(values), np.bool_)


def for_duckdb(rows: Rows, columns: tuple[tuple[str, str], ...]) -> tuple[dict[str, Any], list[str]]:
    """Arrays to register with DuckDB, and the SQL expressions that give the columns.

    The expressions expect the texts of the string table as a list in the variable
    `probe_texts`. NULL sentinels become NULL and NaN stays NaN: both travel as flags
    beside the values, because an array's NaN would be read as NULL and its mask, by
    older releases, not at all.
    """
    arrays: dict[str, Any] = {NUMBER: np.ascontiguousarray(rows[NUMBER])}
    expressions: list[str] = []
    for name, kind in columns:
        values = np.ascontiguousarray(rows[name])
        quoted = '"' + name.replace('"', '""') + '"'
        expression = quoted
        if kind == "VARCHAR":
            expression = f"getvariable('probe_texts')[{quoted}::BIGINT + 1]"
        else:
            missing = values == layout.NULLS[kind]
            if kind == "BOOLEAN":
                values = values != 0
            flagged = (("nan", _not_a_number(values), "'NaN'::DOUBLE"), ("null", missing, "NULL"))
            for suffix, flags, meaning in flagged:
                if flags.any():
                    arrays[f"{name} {suffix}"] = flags
                    expression = f'CASE WHEN "{name} {suffix}" THEN {meaning} ELSE {expression} END'
        arrays[name] = values
        expressions.append(f"CAST({expression} AS {kind}) AS {quoted}")
    return arrays, expressions
