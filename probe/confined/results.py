"""Encodes a query's result as JSON, CSV or an Arrow stream, limited in rows and bytes.

JSON has no NaN, no bytes and no dates, so: NaN and infinities are the strings `NaN`, `Infinity`, `-Infinity`;
integers of any size are exact; decimals, dates, intervals and UUIDs are text; bytes are hexadecimal text;
lists, structs and maps are JSON (a map whose keys are not text is a list of pairs). CSV writes the same
values: NULL is empty, an empty text is `""`. Arrow has DuckDB's own types. Runs in the query worker; may
import pyarrow, inside a function, where it is installed.
"""

from __future__ import annotations

import io
import json
import math
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from probe.base.csv_line import csv_line
from probe.base.errors import PackageMissing, QueryTimeout, SqlInvalid

if TYPE_CHECKING:
    import duckdb

LARGEST_BYTES = 64 << 20
_CHUNK_ROWS = 2048


class Cursor(Protocol):
    """The part of a DuckDB connection that is used after `execute`."""

    def fetchmany(self, size: int) -> list[tuple[Any, ...]]:
        """The next rows."""


def encode(
    cursor: Cursor, types: Sequence[tuple[str, str]], limit: int, deadline: float
) -> tuple[bytes, bytes, bool]:
    """(columns, rows, truncated), the first two as JSON arrays in bytes.

    `types` are name and SQL type of each column; `deadline` is a monotonic time. Raises `QueryTimeout` when
    it passes, and `SqlInvalid` for a value that Python cannot represent.
    """
    columns = [{"name": name, "type": kind} for name, kind in types]
    parts, truncated = _parts(cursor, limit, deadline, _rows_text)
    return json.dumps(columns).encode(), b"[" + b",".join(parts) + b"]", truncated


def csv(cursor: Cursor, names: Sequence[str], limit: int, deadline: float) -> tuple[bytes, bool]:
    """(CSV with a line of names, truncated); see `encode`."""
    parts, truncated = _parts(cursor, limit, deadline, _csv_lines)
    return b"".join([_csv_lines([tuple(names)]), *parts]), truncated


def arrow(connection: duckdb.DuckDBPyConnection, limit: int, deadline: float) -> tuple[bytes, bool]:
    """(An Arrow IPC stream, truncated), of the statement that was executed last; see `encode`.

    Raises `PackageMissing` without pyarrow."""
    try:
        import pyarrow
    except ImportError:
        raise PackageMissing(
            "an Arrow answer needs pyarrow in the server's environment",
            hint="`pip install pyarrow` there, or request text/csv or application/json.",
        ) from None
    reader: Any = connection.to_arrow_reader(_CHUNK_ROWS)
    sink = io.BytesIO()
    count = 0
    truncated = False
    with pyarrow.ipc.new_stream(sink, reader.schema) as writer:
        for batch in reader:
            truncated = count + batch.num_rows > limit or sink.tell() + batch.nbytes > LARGEST_BYTES
            if sink.tell() + batch.nbytes <= LARGEST_BYTES:
                writer.write_batch(batch.slice(0, limit - count))
            count += batch.num_rows
            if truncated:
                break
            if time.monotonic() > deadline:
                raise QueryTimeout("the result was not complete at the deadline")
    return sink.getvalue(), truncated


def _parts(
    cursor: Cursor, limit: int, deadline: float, text_of: Callable[[Sequence[tuple[Any, ...]]], bytes]
) -> tuple[list[bytes], bool]:
    """The text of as many rows as fit, in parts, and whether there are more."""
    parts: list[bytes] = []
    room = LARGEST_BYTES
    count = 0
    truncated = False
    while not truncated:
        rows = _fetch(cursor, min(_CHUNK_ROWS, limit - count + 1))
        if not rows:
            break
        truncated = count + len(rows) > limit
        rows = rows[: limit - count]
        count += len(rows)
        room, whole = _append(parts, rows, room, text_of)
        truncated = truncated or not whole
        if time.monotonic() > deadline:
            raise QueryTimeout("the result was not complete at the deadline")
    return parts, truncated


def _append(
    parts: list[bytes], rows: Sequence[tuple[Any, ...]], room: int,
    text_of: Callable[[Sequence[tuple[Any, ...]]], bytes],
) -> tuple[int, bool]:
    """Append as many rows as there is room for; (room left, whether all fitted)."""
    while rows:
        some = rows
        text = text_of(some)
        while len(text) >= room and len(some) > 1:
            some = some[: len(some) // 2]
            text = text_of(some)
        if len(text) >= room:
            return room, False
        parts.append(text)
        room -= len(text) + 1
        rows = rows[len(some) :]
    return room, True


def _fetch(cursor: Cursor, size: int) -> list[tuple[Any, ...]]:
    try:
        return cursor.fetchmany(size)
    except (ValueError, OverflowError, TypeError) as error:
        raise SqlInvalid(
            f"a value in the result cannot be converted: {error}", hint="CAST the column to VARCHAR."
        ) from None


def _rows_text(rows: Sequence[tuple[Any, ...]]) -> bytes:
    """The rows as JSON without the outer brackets."""
    try:
        try:
            text = json.dumps(rows, allow_nan=False, separators=(",", ":"))
        except (TypeError, ValueError):
            text = json.dumps(as_json(rows), allow_nan=False, separators=(",", ":"))
    except RecursionError:
        raise SqlInvalid("a value in the result is nested too deeply") from None
    return text[1:-1].encode("ascii")


def _csv_lines(rows: Sequence[tuple[Any, ...]]) -> bytes:
    """Lines of CSV (RFC 4180, ended by `\\n`)."""
    try:
        text = "".join(csv_line(map(as_json, row)) + "\n" for row in rows)
    except RecursionError:
        raise SqlInvalid("a value in the result is nested too deeply") from None
    return text.encode("utf-8", "backslashreplace")


def as_json(value: Any) -> Any:
    """A value as described at the top of this module."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        if math.isfinite(value):
            return value
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value).hex()
    if isinstance(value, (list, tuple)):
        return [as_json(item) for item in value]
    if isinstance(value, dict):
        if all(isinstance(key, str) for key in value):
            return {key: as_json(item) for key, item in value.items()}
        return [[as_json(key), as_json(item)] for key, item in value.items()]
    return str(value)
