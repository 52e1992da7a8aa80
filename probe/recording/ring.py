"""Ring: fixed-width rows in a memory-mapped file, readable from outside and after death.

HOT PATH: `append` is called inside training steps. It takes no lock, makes no
system call and allocates nothing but its argument tuple and the row's bytes: one
counter tick, two `struct` calls, one checksum. Number and checksum are at the row's
end, so a row that carries the number its place expects and the checksum of its bytes
is whole and is what was written; the oldest place may be in the middle of being
overwritten and readers leave it out (`recording.reader`).

Several threads may append to one ring: `next()` on the counter is one step
under the GIL, so no two get the same place. Standard library only.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import mmap
import os
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

from probe.base import descriptors
from probe.base.errors import NoRoom
from probe.recording import layout
from probe.recording.mapping import map_file
from probe.recording.tables import Table

_CLOSED = (ValueError, TypeError)
"""What writing into a closed map raises; which one depends on the version of Python."""


class Ring:
    """One ring, open for writing by the process that made it.

    `append(*fields)` writes a row and returns its number; `put(number, *fields)`
    writes that row again (a pending row that became complete). Fields are in the
    table's column order, with the NULL values of `layout`. `rest(column)` is a `put`
    for the fields from that column on. `owner` is the process whose ring it is.
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
        """Rows that were written, once it is closed."""
        self._numbers = itertools.count(1)
        self.append, self.put = _writers(self._map, packer, rows, self._numbers)
        self._columns, self._packer, self._row_bytes, self._closed = columns, packer, row_bytes, False

    def rest(self, column: str) -> Callable[..., int]:
        """A function like `put` that writes only the fields from `column` on."""
        names = [name for name, _ in self._columns]
        packer = struct.Struct(layout.row_format(self._columns[names.index(column) :]))
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
        """The fields of a row; None when another has its place by now, or the ring is closed. Not for the
        thread that appends: rows are read as they were written, and one that is being written is not."""
        place = layout.HEADER_BYTES + (number % self.rows) * self._row_bytes
        try:
            *fields, found = self._packer.unpack_from(self._map, place)
        except _CLOSED:
            if not self._map.closed:
                raise
            return None
        return fields if found == number else None

    def close(self) -> None:
        """Forget the memory map; the file stays. Later writes do nothing."""
        if not self._closed:
            self.written = next(self._numbers) - 1
        self.append, self.put, self._closed = _ignore, _ignore, True
        with contextlib.suppress(BufferError):  # a writer on another thread holds the buffer this instant
            self._map.close()


def _ignore(*_fields: object) -> int:
    return 0


def _writers(
    buffer: mmap.mmap, packer: struct.Struct, rows: int, numbers: itertools.count[int]
) -> tuple[Callable[..., int], Callable[..., int]]:
    """Closures instead of methods: half the attribute look-ups on the hot path."""
    pack, store, check = packer.pack, _storing(packer.size), zlib.adler32
    size = packer.size + layout.CHECK_BYTES
    base = layout.HEADER_BYTES

    def append(*fields: int | float) -> int:
        number = next(numbers)
        row = pack(*fields, number)
        try:
            store(buffer, base + (number % rows) * size, row, check(row))
        except _CLOSED:  # by another thread, while a hook was on its way here
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

    return append, put


def _storing(size: int) -> Callable[[mmap.mmap, int, bytes, int], None]:
    """Puts the bytes of a row and its checksum into the map at once."""
    return struct.Struct(f"<{size}sI").pack_into


def reserve(path: Path, size: int) -> mmap.mmap:
    """A new file of `size` bytes, mapped, with its room really there.

    The blocks are reserved up front: on a full tmpfs an unreserved page would be
    a SIGBUS in the training process at the first write. Raises `NoRoom`.
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
