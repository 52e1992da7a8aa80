"""Ring reader: complete rows as numpy arrays, while their process writes.

A row in place *i* is complete if its number belongs in place *i* and its checksum matches. Places about to be
overwritten and rows that change during the copy are left out. Expected rows that are not complete are
counted; `left_out` describes them. Files are read with `pread`, never mapped: a truncated file is an error,
not a SIGBUS. Used by the server's drain thread and the query worker; may import numpy.
"""

from __future__ import annotations

import functools
import json
import os
import struct
import time
import zlib
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from probe.base.errors import RecordingError
from probe.recording import layout
from probe.recording.recording import Meta
from probe.recording.strings import DAMAGED, read_strings

NUMBER = "_number"
"""Column of a row's number; hidden from queries."""
CHECK = "_check"
"""Column of a row's checksum; hidden too."""
WRITERS = 8
"""Threads that may be writing a row at once: this many of the oldest places are not read."""
_FIRST_LOOK_ROWS = 64
_FEW_ROWS = 256
"""Up to this many new rows are read one by one, if the last read found about as many."""
_WAITS_S = (0.002, 0.008, 0.03, 0.06)
"""Waits before reading again if rows are incomplete and the process is there, all that the query worker's
sandbox shows of it: on a busy machine a writer may lose the processor in the middle of a row."""
_ADLER = 65521
_AT_ONCE = 4096
"""Rows whose checksums are computed at once: they fit into the cache."""
_EXACT_BYTES = 361
"""Up to this many bytes, a checksum's sums stay below 2**24, which float32 represents exactly."""

Rows = npt.NDArray[np.void]
_NONE_LOST: npt.NDArray[np.int64] = np.empty(0, np.int64)


class _Header(NamedTuple):
    version: int
    owner: layout.Owner
    rows: int
    table: str
    columns: tuple[tuple[str, str], ...]
    dtype: np.dtype[np.void]


Facts = tuple[tuple[int, int, int], _Header]
"""Device, inode and size of a ring's file, and its header."""


class RingFile:
    """A ring, open for reading; a context manager.

    `owner`: the process it must belong to, if known. Raises `RecordingError` for a file that is not a ring,
    is damaged or another process's, `OSError` when it cannot be opened. `lost`: numbers of the rows that the
    last `read` missed because they were damaged or never completed. `like`: the `facts` of an earlier opening
    of the same ring; the header of a file that is still the same is not checked again.
    """

    def __init__(
        self, path: Path, owner: layout.Owner = layout.NOBODY, like: Facts | None = None
    ) -> None:
        self.path = path
        self.lost = _NONE_LOST
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            found = os.fstat(self._descriptor)
            identity = found.st_dev, found.st_ino, found.st_size
            if like is None or like[0] != identity:
                like = identity, self._header(owner, found.st_size)
            self.facts = like
            self.version, self.owner, self.rows, self.table, self.columns, self.dtype = self.facts[1]
        except (ValueError, KeyError, TypeError, struct.error) as error:
            os.close(self._descriptor)
            raise RecordingError(f"{path} is not a ring: {error}") from None
        except BaseException:
            os.close(self._descriptor)
            raise

    def _header(self, owner: layout.Owner, size_bytes: int) -> _Header:
        head = self._pread(layout.HEADER_BYTES, 0)
        length = struct.unpack_from(layout.HEADER, head)[-1]
        if length > layout.HEADER_BYTES - layout.LAYOUT_OFFSET:
            raise ValueError("impossible sizes")
        found = _header_of(head[: layout.LAYOUT_OFFSET + length])
        if layout.NOBODY not in (owner, found.owner) and owner != found.owner:
            raise ValueError("it belongs to another process")
        if found.owner != layout.NOBODY and found.table != self.path.name.removesuffix(".ring"):
            raise ValueError(f"it holds {found.table}")
        if size_bytes < layout.HEADER_BYTES + found.rows * found.dtype.itemsize:
            raise ValueError("the file is truncated")
        return found

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
        """Highest number written; `known` is one that was written, or 0.

        Reads only places after `known`. A number that no neighbour confirms is damage.
        """
        if known and not self.written_after(known):
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

    def written_after(self, known: int) -> bool:
        """Whether any of the places after the number `known` holds a newer row: a cheap check."""
        size = self.dtype.itemsize
        place = (known + 1) % self.rows
        run = min(WRITERS, self.rows - place)
        parts = [(run, place)] if run == WRITERS else [(run, place), (WRITERS - run, 0)]
        for count, first in parts:
            data = self._pread(count * size, layout.HEADER_BYTES + first * size)
            for number in np.frombuffer(data, self.dtype)[NUMBER].tolist():
                if number > known:
                    return True
        return False

    def _confirmed(
        self, numbers: npt.NDArray[np.int64], first: int, known: int
    ) -> npt.NDArray[np.bool_]:
        """Which numbers are in their place and confirmed by a neighbour, nearly always the one before; exact
        for numbers above `known`."""
        places = np.arange(first, first + len(numbers)) % self.rows
        whole = (numbers > 0) & (numbers % self.rows == places)
        confirmed = numbers == 1
        for distance in range(1, min(WRITERS, len(numbers) - 1) + 1):
            confirmed[distance:] |= numbers[:-distance] == numbers[distance:] - distance
            if not (whole & ~confirmed & (numbers > known)).any():
                break
        return np.asarray(whole & confirmed)

    def read(self, after: int, highest: int | None = None, known: int = 0) -> Rows:
        """Complete rows with numbers above `after`, in order. `highest` saves the search for it; a reader in
        pieces gives the last number of the piece, and the highest of all as `known`. Waits up to 0.1 s for
        rows being written.
        """
        if highest is None:
            highest = self.highest(after)
        first = max(after + 1, highest - self.rows + WRITERS + 1, 1)
        count = highest - first + 1
        if count <= 0:
            self.lost = _NONE_LOST
            return np.empty(0, self.dtype)
        rows = self._read_once(first, count, highest, known)
        for wait_s in _WAITS_S:
            if not len(self.lost) or not os.path.exists(f"/proc/{self.owner[0]}"):
                break
            time.sleep(wait_s)
            rows = self._read_once(first, count, highest, known)
        return rows

    def _read_once(self, first: int, count: int, highest: int, known: int) -> Rows:
        self.lost = _NONE_LOST
        rows = self._copy(first, count)
        again = self._copy(first, count)
        numbers = np.arange(first, first + count)
        whole = (rows[NUMBER] == numbers) & self._intact(rows)
        whole &= _bytes_of(rows, self.dtype.itemsize) == _bytes_of(again, self.dtype.itemsize)
        current = numbers > self.highest(max(highest, known)) - self.rows + WRITERS
        torn = self._torn_after(highest)
        if (whole & current).all() and not len(torn):
            return rows
        missing = current & ~whole & ~self._not_written_yet(again, numbers, highest)
        self.lost = np.concatenate([numbers[missing], torn])
        return np.asarray(rows[whole & current])

    def _torn_after(self, highest: int) -> npt.NDArray[np.int64]:
        """Numbers after the newest row whose places hold neither their old content nor a complete row:
        damaged, or the writer was killed."""
        numbers = np.arange(highest + 1, highest + 1 + WRITERS)
        rows = self._copy(highest + 1, WRITERS)
        known = (rows[NUMBER] == numbers) | (rows[NUMBER] == numbers - self.rows)
        empty = ~rows.view(np.uint8).reshape(WRITERS, self.dtype.itemsize).any(axis=1)
        torn = ~(empty | known & self._intact(rows))
        # A row being written has changed at the second read.
        if torn.any() and self.version != layout.UNCHECKED:
            size = self.dtype.itemsize
            torn &= _bytes_of(rows, size) == _bytes_of(self._copy(highest + 1, WRITERS), size)
            return np.asarray(numbers[torn], np.int64)
        return _NONE_LOST

    def _not_written_yet(
        self, rows: Rows, numbers: npt.NDArray[np.int64], highest: int
    ) -> npt.NDArray[np.bool_]:
        """Which of the newest rows are not written yet: a thread took the number, and the place still holds
        its old content."""
        before = (rows[NUMBER] == numbers - self.rows) | (rows[NUMBER] == 0)
        return np.asarray(before & (numbers > highest - WRITERS))

    def _intact(self, rows: Rows) -> npt.NDArray[np.bool_]:
        """Which rows match their checksum."""
        if self.version == layout.UNCHECKED:
            return np.ones(len(rows), np.bool_)
        return np.asarray(adler32(rows, self.dtype.itemsize - layout.CHECK_BYTES) == rows[CHECK])

    def left_out(self, up_to: int | None = None) -> str:
        """A sentence about `lost`, up to the number `up_to`; empty without lost rows."""
        lost = self.lost if up_to is None else self.lost[self.lost <= up_to]
        if not len(lost):
            return ""
        which = f"number {lost[0]}" if len(lost) == 1 else f"numbers {lost[0]} to {lost[-1]}"
        return f"{_rows(len(lost))} of {self.table} left out ({which}): damaged or incomplete"

    def last(self, known: int = 0) -> tuple[int, Rows]:
        """Highest number and the last few complete rows."""
        highest = self.highest(known)
        return highest, self.read(max(0, highest - WRITERS), highest)

    def _copy(self, first: int, count: int) -> Rows:
        """Copy the places of `count` numbers from `first` on, in that order."""
        return np.frombuffer(self.raw(first, count), self.dtype)

    def raw(self, first: int, count: int) -> bytes:
        """The bytes of these places, whatever they hold."""
        size = self.dtype.itemsize
        place = first % self.rows
        parts: list[bytes] = []
        while count > 0:
            run = min(count, self.rows - place)
            parts.append(self._pread(run * size, layout.HEADER_BYTES + place * size))
            place, count = 0, count - run
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _pread(self, size: int, offset: int) -> bytes:
        data = os.pread(self._descriptor, size, offset)
        if len(data) != size:
            raise RecordingError(f"{self.path} is truncated")
        return data


class Tail:
    """The end of one ring, for a reader that returns every second: unchanged rows are not read again.

    `read` compares the bytes of the last `kept` rows and of the places after them with those of the last
    time, so it also notices if one of these rows is completed later. `highest`: the highest number written;
    `rows`: the last `kept` rows; `new`: the rows written since the last time, with `kept_only` at most `kept`
    of them; `read_again`: `new` and all rows that may have been completed since. Incomplete rows are in none
    of them. Not to be used by two threads at once.
    """

    def __init__(
        self, path: Path, owner: layout.Owner, kept: int = 1, *, kept_only: bool = False
    ) -> None:
        self._path, self.owner, self._kept, self._kept_only = path, owner, kept, kept_only
        self.highest = 0
        self.version = layout.VERSION
        self.rows: Rows | None = None
        self.new: Rows | None = None
        self.read_again: Rows | None = None
        self._seen = b""
        self._expected = _FIRST_LOOK_ROWS
        self.facts: Facts | None = None

    def read(self) -> bool:
        """Whether anything is different from the last time. Raises like `RingFile`."""
        with RingFile(self._path, self.owner, self.facts) as ring:
            self.version, self.facts = ring.version, ring.facts
            first, count = self._compared(ring)
            if self._seen and ring.raw(first, count) == self._seen:
                self.new = self.read_again = None
                return False
            known = self.highest
            found = self._near(ring, first, known) if known else None
            if found is None:  # more new rows than the places nearby hold
                self.highest = ring.highest(known)
                # Before the rows, so that a change in between is noticed the next time.
                self._seen = ring.raw(*self._compared(ring))
                after = (self.highest if self._kept_only else known) - self._kept
                found = ring.read(max(0, after), self.highest)
        self.rows = found[found[NUMBER] > self.highest - self._kept]
        self.new = found[found[NUMBER] > known]
        self._expected = min(_FEW_ROWS, max(_FIRST_LOOK_ROWS, 2 * len(self.new)))
        self.read_again = found
        return True

    def _compared(self, ring: RingFile) -> tuple[int, int]:
        """The first number that is compared, and how many."""
        return max(1, self.highest - self._kept + 1), min(self._kept + WRITERS, ring.rows)

    def _near(self, ring: RingFile, first: int, known: int) -> Rows | None:
        """The rows from `first` on, if only a few are new: for few, `RingFile.read` takes ten times as long.
        None if there may be more, or for rows without checksums."""
        size = ring.dtype.itemsize
        count = min(self._kept + WRITERS + self._expected, ring.rows)
        if ring.version == layout.UNCHECKED:
            return None
        data = ring.raw(first, count)
        numbers = [number for (number,) in _numbers_of(size).iter_unpack(data)]
        newest, before = known, -WRITERS - 1
        for place, number in enumerate(numbers):
            if number > first + place:  # the writer has wrapped around
                return None
            if number == first + place:
                if number == 1 or place - before <= WRITERS:  # confirmed by a neighbour
                    newest = max(newest, number)
                before = place
        if newest > first + count - 2 * WRITERS:
            return None
        self.highest = newest
        start, length = self._compared(ring)
        self._seen = data[(start - first) * size : (start - first + length) * size]
        whole = [
            data[at : at + size]
            for at, number in zip(range(0, len(data), size), range(first, newest + 1), strict=False)
            if numbers[number - first] == number and _is_intact(data, at, size)
        ]
        return np.frombuffer(b"".join(whole), ring.dtype)


@functools.lru_cache(maxsize=256)
def _numbers_of(row_bytes: int) -> struct.Struct:
    """Unpacks the number of a row with a checksum."""
    return struct.Struct(f"<{row_bytes - 8 - layout.CHECK_BYTES}xq{layout.CHECK_BYTES}x")


def _is_intact(data: bytes, start: int, size: int) -> bool:
    """Whether the row at `start` matches its checksum."""
    end = start + size - layout.CHECK_BYTES
    return zlib.adler32(data[start:end]) == int.from_bytes(data[end : end + layout.CHECK_BYTES], "little")


def _header_of(head: bytes) -> _Header:
    """A ring's header, verified. Raises `ValueError`, `KeyError` or `TypeError`."""
    magic, version, row_bytes, rows, _ = struct.unpack_from(layout.HEADER, head)
    if magic != layout.MAGIC:
        raise ValueError(f"magic {magic!r}")
    if version not in (layout.VERSION, layout.UNCHECKED):
        raise ValueError(f"format {version}, this probe reads {layout.VERSION}: "
                         "read it with the version of probe that wrote it")
    if rows < 1:
        raise ValueError("impossible sizes")
    described, owner = head[layout.LAYOUT_OFFSET :], layout.NOBODY
    if version != layout.UNCHECKED:
        owner = struct.unpack_from(layout.OWNED, head, layout.OWNED_OFFSET)[:2]
        if head != layout.header(row_bytes, rows, described, owner):
            raise ValueError("its header is damaged")
    table, columns, dtype = _described(described, version != layout.UNCHECKED)
    if dtype.itemsize != row_bytes:
        raise ValueError(f"rows of {row_bytes} bytes, their columns take {dtype.itemsize}")
    return _Header(version, owner, rows, table, columns, dtype)


@functools.lru_cache(maxsize=64)
def _described(
    text: bytes, is_checked: bool
) -> tuple[str, tuple[tuple[str, str], ...], np.dtype[np.void]]:
    """Table, columns and row dtype from the layout in a ring's header; most rings share a few."""
    described = json.loads(text)
    columns = tuple((str(name), str(kind)) for name, kind in described["columns"])
    ending = [(NUMBER, "<i8"), (CHECK, "<u4")] if is_checked else [(NUMBER, "<i8")]
    dtype = np.dtype([*((name, layout.NUMPY[kind]) for name, kind in columns), *ending])
    return str(described["table"]), columns, dtype


def open_ring(meta: Meta, table: str) -> RingFile:
    """Open a ring of a recorded process; raises like `RingFile`."""
    return RingFile(Path(meta.rings) / f"{table}.ring", meta.owner)


def texts_of(meta: Meta, ring: RingFile) -> list[str | None]:
    """The strings that a ring's rows refer to; raises `OSError` or `RecordingError`."""
    return read_strings(Path(meta.rings) / "strings", meta.owner, ring.version)


def with_texts(
    rows: Rows, columns: tuple[tuple[str, str], ...], texts: list[str | None]
) -> tuple[Rows, list[str | None], int]:
    """Rows and strings in which every reference finds a string or the marker of a damaged one; and how many
    rows refer to damaged ones."""
    names = [name for name, kind in columns if kind == "VARCHAR"]
    damaged = np.array([text == DAMAGED for text in texts])
    beyond = any((rows[name] >= len(texts)).any() for name in names)
    if not names or not (beyond or damaged.any()):
        return rows, texts, 0
    marker = len(texts)
    texts, damaged = [*texts, DAMAGED], np.append(damaged, True)
    rows = rows.copy()
    affected = np.zeros(len(rows), np.bool_)
    for name in names:
        rows[name] = np.minimum(rows[name], marker)
        affected |= damaged[rows[name]]
    return rows, texts, int(affected.sum())


def spelled(
    rows: Rows, columns: tuple[tuple[str, str], ...], texts: list[str | None]
) -> tuple[Rows, tuple[tuple[str, str], ...], list[str | None]]:
    """Rows whose TEXT columns have become VARCHAR, and `texts` with theirs, without secrets: a job's own
    texts are redacted here, before they are sealed or shown, because that takes too long inside a step."""
    chosen = [name for name, kind in columns if kind == "TEXT"]
    if not chosen:
        return rows, columns, texts
    from probe.base import redaction

    texts = list(texts)
    columns = tuple((name, "VARCHAR" if kind == "TEXT" else kind) for name, kind in columns)
    ending = [(name, rows.dtype[name]) for name in (NUMBER, CHECK) if name in (rows.dtype.names or ())]
    found = np.empty(len(rows), [*((name, layout.NUMPY[kind]) for name, kind in columns), *ending])
    for name in rows.dtype.names or ():
        if name not in chosen:
            found[name] = rows[name]
            continue
        different, places = np.unique(rows[name], return_inverse=True)
        numbers = []
        for text in map(layout.unpacked_text, different.tolist()):
            numbers.append(layout.NULL_STRING if text is None else len(texts))
            if text is not None:
                secret = redaction.secret_name(name)
                texts.append(redaction.REDACTED if secret else redaction.redact(text))
        found[name] = np.array(numbers, np.uint32)[places.reshape(-1)]
    return found, columns, texts


def damaged_texts(table: str, rows: int) -> str:
    """A sentence about rows with damaged strings; empty without any."""
    return f"{_rows(rows)} of {table} show {DAMAGED} for a string that fails its checksum" if rows else ""


def _rows(count: int) -> str:
    return "1 row" if count == 1 else f"{count} rows"


def _bytes_of(rows: Rows, size: int) -> npt.NDArray[np.void]:
    """Each row as one value, for comparison by bytes."""
    return rows.view(np.dtype((np.void, size)))


def adler32(rows: Rows, size: int) -> npt.NDArray[np.uint32]:
    """`zlib.adler32` of the first `size` bytes of each row."""
    found = np.empty(len(rows), np.uint32)
    kind = np.dtype(np.float32 if size <= _EXACT_BYTES else np.float64)
    weights: Any = np.arange(size, 0, -1).astype(kind)
    flat = rows.view(np.uint8).reshape(len(rows), rows.dtype.itemsize)
    for start in range(0, len(rows), _AT_ONCE):
        part = flat[start : start + _AT_ONCE, :size].astype(kind)
        low = part.sum(axis=1).astype(np.int64) + 1
        high = (part @ weights).astype(np.int64) + size
        found[start : start + _AT_ONCE] = (high % _ADLER) << 16 | low % _ADLER
    return found


def sealable(rows: Rows, highest: int, capacity: int, pending: npt.NDArray[np.bool_] | None) -> int:
    """How many of `rows`, from the start, are final.

    Stops before a pending row and before a gap that a thread may be about to fill, until a quarter of the
    ring has been written after it.
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
    """Which rows have `pending` in the column `column`; None if the table has no such column."""
    if not column or column not in (rows.dtype.names or ()):
        return None
    numbers = [number for number, text in enumerate(texts) if text == "pending"]
    return np.asarray(np.isin(rows[column], numbers))
