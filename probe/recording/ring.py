"""Ring: fixed-width rows in a memory-mapped file, readable from other processes and after death.

HOT PATH: `append` runs inside training steps. No lock, no system call, no allocation except its argument
tuple and the row's bytes: one counter tick, two `struct` calls, one checksum; or the same in C
(`base/compiled/ring.c`), where that is loaded. Number and checksum end a row: a row with the number that its
place expects and a matching checksum is complete. The oldest place may be half overwritten, and readers skip
it (`recording.reader`).

Several threads may append: `next()` on the counter is atomic under the GIL, so no two get the same place.
Standard library only.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import json
import mmap
import os
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from probe.base import compiled, descriptors
from probe.base.errors import NoRoom
from probe.recording import layout
from probe.recording.mapping import map_file
from probe.recording.tables import Table

_CLOSED = (ValueError, TypeError)
"""Raised by writing into a closed map, depending on the Python version."""


class Ring:
    """One ring, open for writing by the process that made it.

    `append(*fields)` writes a row and returns its number, `append_row(fields)` the same with a list;
    `put(number, *fields)` writes that row again, such as a pending row that became complete. Fields are in
    column order, with the NULLs of `layout`.
    """

    def __init__(self, path: Path, table: Table, rows: int, owner: layout.Owner = layout.NOBODY) -> None:
        columns = layout.stored_columns(table)
        packer = struct.Struct(layout.row_format(columns))
        described = json.dumps({"table": table.full_name, "columns": columns}).encode()
        row_bytes = layout.row_bytes(columns)
        self.path = path
        self.rows = rows
        self._map = reserve(path, layout.HEADER_BYTES + rows * row_bytes)
        header = layout.header(row_bytes, rows, described, owner)
        self._map[: len(header)] = header
        self.written = 0
        """Number of rows written, once it is closed."""
        self._numbers = itertools.count(1)
        self._writer = _compiled_writer(self._map, packer, rows)
        """Writes the rows in C; None if Python writes them."""
        if self._writer is not None:
            self.append, self.append_row = self._writer.append, self._writer.append_row
            self.put = self._writer.put
        else:
            self.append, self.append_row, self.put = _writers(self._map, packer, rows, self._numbers)
        self._columns, self._packer, self._row_bytes, self._closed = columns, packer, row_bytes, False

    def rest(self, column: str) -> Callable[..., int]:
        """A `put` that writes only the fields from `column` on."""
        first = [name for name, _ in self._columns].index(column)
        if self._writer is not None:
            found: Callable[..., int] = self._writer.rest(first)
            return found
        packer = struct.Struct(layout.row_format(self._columns[first:]))
        kept = self._row_bytes - layout.CHECK_BYTES - packer.size
        pack, store = packer.pack, _storing(kept + packer.size)
        buffer, size, rows, check = self._map, self._row_bytes, self.rows, zlib.adler32

        def put(number: int, *fields: int | float) -> int:
            place = layout.HEADER_BYTES + (number % rows) * size
            end = pack(*fields, number)
            try:
                row = buffer[place : place + kept] + end
                store(buffer, place, row, check(row))
            except _CLOSED:
                if not buffer.closed:
                    raise
            return number

        return put

    def read(self, number: int) -> list[int | float] | None:
        """The fields of a row; None when a newer row has its place, or the ring is closed. Must not run
        while the row is being written."""
        place = layout.HEADER_BYTES + (number % self.rows) * self._row_bytes
        try:
            *fields, found = self._packer.unpack_from(self._map, place)
        except _CLOSED:
            if not self._map.closed:
                raise
            return None
        return fields if found == number else None

    def close(self) -> None:
        """Close the map; the file stays. Later writes do nothing."""
        if self._writer is not None:
            self.written = self._writer.close()
        elif not self._closed:
            self.written = next(self._numbers) - 1
        self.append, self.append_row, self.put, self._closed = _ignore, _ignore, _ignore, True
        with contextlib.suppress(BufferError):  # another thread is writing right now
            self._map.close()


def _ignore(*_fields: object) -> int:
    return 0


def _compiled_writer(buffer: mmap.mmap, packer: struct.Struct, rows: int) -> Any:
    """The writer in C; None if it is not loaded, or cannot write such rows."""
    library = compiled.library()
    if library is None:
        return None
    view = ctypes.c_char.from_buffer(buffer, layout.HEADER_BYTES)  # keeps it mapped
    codes = packer.format.removeprefix("<").removesuffix("q")  # without the row's number
    try:
        return library.Writer(ctypes.addressof(view), view, codes, rows)
    except ValueError:
        return None


def _writers(
    buffer: mmap.mmap, packer: struct.Struct, rows: int, numbers: itertools.count[int]
) -> tuple[Callable[..., int], Callable[[list[Any]], int], Callable[..., int]]:
    """`append`, `append_row` and `put` as closures: half the attribute lookups of methods."""
    pack, store, check = packer.pack, _storing(packer.size), zlib.adler32
    size = packer.size + layout.CHECK_BYTES
    base = layout.HEADER_BYTES

    def append(*fields: int | float) -> int:
        number = next(numbers)
        row = pack(*fields, number)
        try:
            store(buffer, base + (number % rows) * size, row, check(row))
        except _CLOSED:  # closed by another thread in between
            if not buffer.closed:
                raise
        return number

    def append_row(fields: list[Any]) -> int:
        number = next(numbers)
        row = pack(*fields, number)
        try:
            store(buffer, base + (number % rows) * size, row, check(row))
        except _CLOSED:
            if not buffer.closed:
                raise
        return number

    def put(number: int, *fields: int | float) -> int:
        row = pack(*fields, number)
        try:
            store(buffer, base + (number % rows) * size, row, check(row))
        except _CLOSED:
            if not buffer.closed:
                raise
        return number

    return append, append_row, put


def _storing(size: int) -> Callable[[mmap.mmap, int, bytes, int], None]:
    """Writes the bytes of a row and its checksum in one call."""
    return struct.Struct(f"<{size}sI").pack_into


def reserve(path: Path, size: int) -> mmap.mmap:
    """A new file of `size` bytes, mapped, with all blocks reserved; raises `NoRoom`.

    On a full tmpfs, writing to a block that is not reserved would be a SIGBUS in the training process.
    """
    try:
        made = descriptors.opened(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW)
    except OSError as error:
        raise NoRoom(f"cannot make {path}: {error.strerror}") from None
    with made:
        try:
            os.posix_fallocate(made.fileno(), 0, size)
            return map_file(made.fileno(), size)
        except OSError as error:
            os.unlink(path)
            raise NoRoom(f"no room for {size} bytes at {path.parent}: {error.strerror or error}") from None
