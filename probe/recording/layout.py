"""Byte layout of a ring's rows, for writer and reader.

Little-endian, packed: the table's columns in order, the row's number, and a checksum of both (Adler-32, the
cheapest that detects every changed byte: rows are written inside training steps). Strings are numbers in the
string table. NULL is a value that no measurement has: the lowest integer, the lowest double, string 0. The
header has a CRC-32 and names its owner. The texts of tables that are made on demand are in the rows (`TEXT`).
Standard library only; any thread.
"""

from __future__ import annotations

import struct
import zlib

from probe.recording.tables import Table

NULL_INTEGER = -(2**63)
NULL_DOUBLE = -1.7976931348623157e308
NULL_BOOLEAN = -1
NULL_STRING = 0

NULL_TEXT = b""

TEXT_BYTES = 255
"""Limit for a text in a row; longer ones are truncated."""

CODES = {"BIGINT": "q", "DOUBLE": "d", "BOOLEAN": "b", "VARCHAR": "I", "TEXT": f"{TEXT_BYTES + 1}p"}
"""struct code of each SQL type a ring can hold. TEXT is a VARCHAR whose text is in the row: its length, then
UTF-8; a NUL is the empty text."""

NUMPY = {"BIGINT": "<i8", "DOUBLE": "<f8", "BOOLEAN": "i1", "VARCHAR": "<u4", "TEXT": f"S{TEXT_BYTES + 1}"}
"""numpy dtype of each of these types."""

NULLS: dict[str, int | float] = {
    "BIGINT": NULL_INTEGER,
    "DOUBLE": NULL_DOUBLE,
    "BOOLEAN": NULL_BOOLEAN,
    "VARCHAR": NULL_STRING,
}

VERSION = 2
UNCHECKED = 1
"""The previous version, without checksums and owner."""
MAGIC = b"PROBRING"
HEADER_BYTES = 4096
HEADER = "<8sIIII"
"""magic, version, bytes per row, rows, bytes of the JSON layout that follows at offset 64."""
OWNED = "<qqI"
"""pid and start (wall clock, ns) of the owning process, checksum of the header."""
OWNED_OFFSET = struct.calcsize(HEADER)
LAYOUT_OFFSET = 64
CHECK_BYTES = 4
"""Size of a row's checksum, at the end of the row."""

Owner = tuple[int, int]
"""pid and start (wall clock, ns) of a recorded process; (0, 0) if there is no owner."""
NOBODY: Owner = (0, 0)


def header(row_bytes: int, rows: int, described: bytes, owner: Owner) -> bytes:
    """The beginning of a ring file, including the JSON layout."""
    head = struct.pack(HEADER, MAGIC, VERSION, row_bytes, rows, len(described)) + struct.pack("<qq", *owner)
    head += struct.pack("<I", zlib.crc32(described, zlib.crc32(head)))
    return head.ljust(LAYOUT_OFFSET, b"\0") + described


def row_format(columns: tuple[tuple[str, str], ...]) -> str:
    """struct format of a row of (name, type) columns up to its number, which counts from 1; the checksum
    comes after it."""
    return "<" + "".join(CODES[kind] for _, kind in columns) + "q"


def row_bytes(columns: tuple[tuple[str, str], ...]) -> int:
    """Bytes of a whole row."""
    return struct.calcsize(row_format(columns)) + CHECK_BYTES


def stored_columns(table: Table) -> tuple[tuple[str, str], ...]:
    """(name, type) of the columns a ring of the table stores."""
    if table.on_demand:
        return tuple((name, "TEXT" if kind == "VARCHAR" else kind) for name, kind, *_ in table.columns)
    return tuple((column.name, column.type) for column in table.columns)


def packed_text(text: str) -> bytes:
    """A text as a row holds it; a longer one ends in an ellipsis."""
    data = text[: TEXT_BYTES + 1].encode("utf-8", "backslashreplace")
    if len(data) > TEXT_BYTES:
        data = data[: TEXT_BYTES - 3].decode("utf-8", "ignore").encode() + b"\xe2\x80\xa6"
    return data or b"\0"


def unpacked_text(data: bytes) -> str | None:
    """The text of a TEXT field as numpy returns it, without the NULs at its end; None for NULL."""
    return data[1:].decode("utf-8", "replace").replace("\0", "\\x00") if data else None
