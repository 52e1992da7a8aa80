"""Ring: fixed-width rows in a memory-mapped file, readable from outside and after death.

HOT PATH: `append` is called inside training steps. It takes no lock, makes no
system call and allocates nothing but its argument tuple: one counter tick and
one `struct.pack_into`. The row's number is packed last, so a row that carries
the number its place expects is whole; the oldest place may be in the middle of
being overwritten and readers leave it out (`recording.reader`).

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
from collections.abc import Callable
from pathlib import Path

from probe import descriptors
from probe.errors import NoRoom
from probe.recording import layout
from probe.recording.mapping import map_file
from probe.tables import Table


class Ring:
    """One ring, open for writing by the process that made it.

    `append(*fields)` writes a row and returns its number; `put(number, *fields)`
    writes that row again (a pending row that became complete). Fields are in the
    table's column order, with the NULL values of `layout`. `rest(column)` is a `put`
    for the fields from that column on.
    """

    def __init__(self, path: Path, table: Table, rows: int) -> None:
        columns = layout.stored_columns(table)
        packer = struct.Struct(layout.row_format(columns))
        described = json.dumps({"table": table.full_name, "columns": columns}).encode()
        size = layout.HEADER_BYTES + rows * packer.size
        self.path = path
        self.rows = rows
        self._map = reserve(path, size)
        header = struct.pack(
            layout.HEADER, layout.MAGIC, layout.VERSION, packer.size, rows, len(described)
        )
        self._map[layout.LAYOUT_OFFSET : layout.LAYOUT_OFFSET + len(described)] = described
        self._map[: len(header)] = header
        self.append, self.put = _writers(self._map, packer, rows)
        self._columns, self._row_bytes, self._closed = columns, packer.size, False

    def rest(self, column: str) -> Callable[..., int]:
        """A function like `put` that writes only the fields from `column` on."""
        names = [name for name, _ in self._columns]
        packer = struct.Struct(layout.row_format(self._columns[names.index(column) :]))
        pack_into, buffer, size, rows = packer.pack_into, self._map, self._row_bytes, self.rows
        base = layout.HEADER_BYTES + size - packer.size

        def put(number: int, *fields: int | float) -> int:
            if not self._closed:
                pack_into(buffer, base + (number % rows) * size, *fields, number)
            return number

        return put

    def close(self) -> None:
        """Forget the memory map; the file stays. Later writes do nothing."""
        self.append, self.put, self._closed = _ignore, _ignore, True
        with contextlib.suppress(BufferError):  # a writer on another thread holds the buffer this instant
            self._map.close()


def _ignore(*_fields: object) -> int:
    return 0


def _writers(
    buffer: mmap.mmap, packer: struct.Struct, rows: int
) -> tuple[Callable[..., int], Callable[..., int]]:
    """Closures instead of methods: half the attribute look-ups on the hot path."""
    pack_into = packer.pack_into
    size = packer.size
    base = layout.HEADER_BYTES
    numbers = itertools.count(1)

    def append(*fields: int | float) -> int:
        number = next(numbers)
        pack_into(buffer, base + (number % rows) * size, *fields, number)
        return number

    def put(number: int, *fields: int | float) -> int:
        pack_into(buffer, base + (number % rows) * size, *fields, number)
        return number

    return append, put


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
