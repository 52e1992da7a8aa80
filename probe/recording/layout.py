"""How one row of a ring is laid out in bytes: one fact, for the writer and the reader.

Little-endian, packed, the columns of the table in order, then the row's number.
A string is the number of its entry in the string table. NULL is a value that
cannot be a measurement: the lowest integer, the lowest double, string 0.
Standard library only; any thread.
"""

from __future__ import annotations

from probe.tables import Table

NULL_INTEGER = -(2**63)
NULL_DOUBLE = -1.7976931348623157e308
NULL_BOOLEAN = -1
NULL_STRING = 0

CODES = {"BIGINT": "q", "DOUBLE": "d", "BOOLEAN": "b", "VARCHAR": "I"}
"""struct code of each SQL type a ring can hold."""

NUMPY = {"BIGINT": "<i8", "DOUBLE": "<f8", "BOOLEAN": "i1", "VARCHAR": "<u4"}
"""numpy dtype of each of them."""

NULLS: dict[str, int | float] = {
    "BIGINT": NULL_INTEGER,
    "DOUBLE": NULL_DOUBLE,
    "BOOLEAN": NULL_BOOLEAN,
    "VARCHAR": NULL_STRING,
}

VERSION = 1
MAGIC = b"PROBRING"
HEADER_BYTES = 4096
HEADER = "<8sIIII"
"""magic, version, bytes per row, rows, bytes of the JSON layout that follows at offset 64."""
LAYOUT_OFFSET = 64


def row_format(columns: tuple[tuple[str, str], ...]) -> str:
    """struct format of a row of (name, type) columns; the last field is the row's number, from 1."""
    return "<" + "".join(CODES[kind] for _, kind in columns) + "q"


def stored_columns(table: Table) -> tuple[tuple[str, str], ...]:
    """(name, type) of the columns a ring of the table stores."""
    return tuple((column.name, column.type) for column in table.columns)
