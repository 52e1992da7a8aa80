"""Rows that one host's query worker sends to another's.

A host packs the tables and columns of its own ranks that the SQL's text mentions: as plain arrays with flags
for NULL, texts as indices into a list, a constant column as one value. The host of the query adds the rows of
all hosts to its own and runs the SQL. Received names, kinds, sizes and numbers are checked before use. Runs
in the query worker; may import duckdb, numpy.
"""

from __future__ import annotations

import functools
import math
import re
import zlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import duckdb
import numpy as np
import numpy.typing as npt

from probe.recording import declared, segments
from probe.recording.tables import BY_NAME, COMMON, Table, columns_of
from probe.server.runtime import packed_answers

NOT_CARRIED = frozenset(
    {"cluster.hosts", "cluster.ranks", "cluster.stacks", "cluster.stack_classes", "probe.tables"}
)
"""Tables that the host of the query fills for the whole job, or that are the same on every host."""
MOST_ROWS = 1 << 26
MOST_NOTES = 32
LONGEST_NOTE = 512
_KINDS = {"BIGINT": "<i8", "DOUBLE": "<f8", "BOOLEAN": "|b1", "VARCHAR": "<i4"}
_SMALL_BYTES = 4096
_SAMPLE_BYTES = 32 << 10
_WORTH_RATIO = 0.5
_EVERYTHING = re.compile(
    r"(?:\bselect|\bdistinct|\ball|[,.(])\s*\*|--|/\*|\$\$|u&"
    r"|\b(?:columns|natural|summarize|describe|desc|show|pivot|unpivot|table|positional|query|distinct\s+on)\b"
)
"""With one of these in it, SQL may read columns that it does not name."""
_COUNT = re.compile(r"\bcount\s*\(\s*\*\s*\)")


def wanted_columns(table: Table, sql: str) -> list[str]:
    """Names of the columns of `table` that `sql` may read: a superset, found without parsing, which always
    includes the columns that identify the process."""
    columns = [column.name for column in columns_of(table)]
    words = _words(sql)
    if words is None:
        return columns
    kept = words | {column.name for column in COMMON}
    return [name for name in columns if name.lower() in kept]


@functools.lru_cache(maxsize=4)  # called once for each table, and the SQL of all recipes is long
def _words(sql: str) -> frozenset[str] | None:
    """The words of some SQL, of which each may name a column; None if it may read columns unnamed."""
    text = _COUNT.sub("count()", sql.lower())
    from_first = len(re.findall(r"\bfrom\b", text)) > len(re.findall(r"\bselect\b", text))
    if from_first or _EVERYTHING.search(text):
        return None
    return frozenset(re.findall(r"\w+", text))


def searchable(sql: str) -> str:
    """Text in which a host finds the same tables and columns as in `sql`: each word once. The SQL of all
    recipes is far too long for a request, and repeats its words."""
    text = sql.lower()
    everything = "" if _words(sql) is not None else "select * u& " if "u&" in text else "select * "
    return everything + " ".join(sorted(set(re.findall(r"\w+", text))))


# Packing ----------------------------------------------------------------------


def pack(
    connection: duckdb.DuckDBPyConnection, tables: Sequence[Table], sql: str, room_bytes: int,
    notes: list[str],
) -> bytes:
    """The visible rows of these tables, in about `room_bytes` at most; notes say what did not fit."""
    packed: dict[str, Any] = {}
    blobs: list[bytes] = []
    for table in tables:
        if table.full_name in NOT_CARRIED:
            continue
        names = wanted_columns(table, sql)
        rows = _size(connection, table)
        fits = max(1, room_bytes // max(1, len(tables)) // (8 * len(names)))
        if rows > fits:
            notes.append(f"{table.full_name}: {rows:,} rows do not fit, only the newest {fits:,} were sent")
        packed[table.full_name] = _packed_table(connection, table, names, fits, blobs)
    own = declared.as_json(table for table in tables if table.schema == declared.SCHEMA)
    return packed_answers.pack({"tables": packed, "declared": own, "notes": notes[:MOST_NOTES]}, blobs)


def _size(connection: duckdb.DuckDBPyConnection, table: Table) -> int:
    found = connection.execute(f"SELECT count(*) FROM {full_name(table)}").fetchall()
    return int(found[0][0])


def _packed_table(
    connection: duckdb.DuckDBPyConnection, table: Table, names: list[str], fits: int, blobs: list[bytes]
) -> dict[str, Any]:
    """The description of one table's rows; their bytes go to `blobs`."""
    own = {column.name for column in table.columns}
    newest = "t_ns" if "t_ns" in own else "step" if "step" in own else None
    order = f" ORDER BY {quoted_name(newest)} DESC NULLS LAST" if newest else ""
    columns = {column.name: column.type for column in columns_of(table)}
    picked: list[str] = []
    texts: dict[str, list[str]] = {}
    relation = f"(SELECT {', '.join(map(quoted_name, names))} FROM {full_name(table)}{order} LIMIT {fits})"
    connection.execute(f"CREATE OR REPLACE TEMP TABLE probe_packed AS FROM {relation}")
    for number, name in enumerate(names):
        expression = quoted_name(name)
        if columns[name] == "VARCHAR":
            kind = f"probe_texts_{number}"
            distinct = f"SELECT DISTINCT {expression} FROM probe_packed WHERE {expression} IS NOT NULL"
            found = connection.execute(f"{distinct} ORDER BY 1").fetchall()
            texts[name] = [row[0] for row in found]
            connection.execute(f"CREATE TYPE {kind} AS ENUM ({distinct} ORDER BY 1)")
            expression = f"enum_code({expression}::{kind})::INTEGER"
        picked.append(f"{expression} AS c{number}")
    arrays = connection.execute(f"SELECT {', '.join(picked)} FROM probe_packed").fetchnumpy()
    rows = len(next(iter(arrays.values()))) if arrays else 0
    described = [
        _packed_column(name, columns[name], arrays[f"c{number}"], texts.get(name), blobs)
        for number, name in enumerate(names)
    ]
    for number, name in enumerate(names):
        if name in texts:
            connection.execute(f"DROP TYPE probe_texts_{number}")
    return {"rows": rows, "columns": described}


def _packed_column(
    name: str, kind: str, array: npt.NDArray[Any], texts: list[str] | None, blobs: list[bytes]
) -> dict[str, Any]:
    missing = np.ma.getmaskarray(array)
    fill: Any = -1 if texts is not None else 0
    values = np.ascontiguousarray(np.ma.filled(array, fill), _KINDS[kind])
    described: dict[str, Any] = {"name": name, "kind": kind}
    if texts is not None:
        described["texts"] = texts
    if len(values) and not missing.any() and (values == values[0]).all():
        described["constant"] = values[0].item()
        return described
    described["values"] = _blob(values.tobytes(), blobs)
    if texts is None and missing.any():
        described["nulls"] = _blob(np.packbits(missing).tobytes(), blobs)
    return described


def _blob(data: bytes, blobs: list[bytes]) -> list[int]:
    """[index of the byte string, its size, whether it is compressed]; compressed if that halves it."""
    squeezed = 0
    size = len(data)
    if size > _SMALL_BYTES:
        sample = data[:_SAMPLE_BYTES]
        if len(zlib.compress(sample, 1)) < len(sample) * _WORTH_RATIO:
            data, squeezed = zlib.compress(data, 1), 1
    blobs.append(data)
    return [len(blobs) - 1, size, squeezed]


# Unpacking --------------------------------------------------------------------


class _Column(NamedTuple):
    """One column of one host: values, where they are NULL, and the texts that indices refer to."""

    values: npt.NDArray[Any]
    missing: npt.NDArray[np.bool_]
    texts: list[str]


class RemoteRows:
    """The rows of all other hosts, checked."""

    def __init__(self, parts: Sequence[tuple[str, bytes]]) -> None:
        """`parts`: names of hosts, and what they packed."""
        self.own: dict[str, list[Table]] = {}
        """The tables that jobs declared, by host."""
        self._notes: list[str] = []
        self._sent: dict[str, set[str]] = {}
        """Names of the tables that each host sent."""
        self._tables: dict[str, list[tuple[int, dict[str, _Column]]]] = {}
        for host, data in parts:
            try:
                self._add(host, data)
            except (ValueError, KeyError, TypeError, IndexError, zlib.error, OverflowError) as error:
                self._notes.append(f"the rows of host {host} cannot be read: {error}")

    def check(self, tables: Sequence[Table]) -> list[str]:
        """Notes of the hosts, and notes on rows that could not be read and on built-in `tables` that a host
        did not send; tables that jobs declared need not exist everywhere."""
        whole = {table.full_name: table for table in tables}
        wanted = (whole.keys() & BY_NAME.keys()) - NOT_CARRIED
        missing = [
            f"host {host} sent no rows of {name}"
            for host, sent in self._sent.items() for name in sorted(wanted - sent)
        ]
        other = [
            f"{table.full_name} of host {host} has columns of other types: left out"
            for host, own in self.own.items() for table in own
            if table.full_name in whole and not declared.fits(table, whole[table.full_name])
        ]
        return [*self._notes, *missing, *other]

    def _add(self, host: str, data: bytes) -> None:
        head, blobs = packed_answers.unpack(data)
        found: dict[str, tuple[int, dict[str, _Column]]] = {}
        own = declared.of_json(head.get("declared", []))
        for table in _known(head["tables"], own):
            described = head["tables"][table.full_name]
            rows = described["rows"]
            if type(rows) is not int or not 0 <= rows <= MOST_ROWS:
                raise ValueError("an impossible number of rows")
            kinds = {column.name: column.type for column in columns_of(table)}
            columns = {}
            for column in described["columns"]:
                if kinds.get(column["name"]) == column["kind"]:
                    columns[column["name"]] = _unpacked(column, rows, blobs)
            found[table.full_name] = (rows, columns)
        self._sent[host] = set(found)
        self.own[host] = own
        for name, one in found.items():  # only if the whole answer is valid
            self._tables.setdefault(name, []).append(one)
        notes = head.get("notes")
        for note in notes[:MOST_NOTES] if isinstance(notes, list) else []:
            self._notes.append(f"host {host}: {str(note)[:LONGEST_NOTE]}")

    def insert(self, connection: duckdb.DuckDBPyConnection, table: Table, target: str) -> None:
        """Insert the rows into `target`, which has all columns of `table`; columns that no host sent are
        NULL."""
        parts = [part for part in self._tables.get(table.full_name, []) if part[0] and _fits(part[1], table)]
        if not parts:
            return
        arrays: dict[str, Any] = {}
        names: list[str] = []
        expressions: list[str] = []
        texts: list[str | None] = [None]
        for column in columns_of(table):
            if not any(column.name in columns for _, columns in parts):
                continue
            values, missing = _joined(parts, column.name, column.type, texts)
            names.append(quoted_name(column.name))
            expressions.append(_expression(column.name, column.type, values, missing, arrays))
        segments.set_texts(connection, texts)
        connection.register("probe_carried", arrays)
        try:
            connection.execute(
                f"INSERT INTO {target} ({', '.join(names)}) "
                f"SELECT {', '.join(expressions)} FROM probe_carried"
            )
        finally:
            connection.unregister("probe_carried")


def _known(tables: Any, own: Sequence[Table]) -> list[Table]:
    """The tables that a host sent, built in or declared by its jobs."""
    known = {**{table.full_name: table for table in own}, **BY_NAME}
    return [known[name] for name in tables if name in known and name not in NOT_CARRIED]


def _fits(columns: dict[str, _Column], table: Table) -> bool:
    """Whether a host's columns have the types of `table`; those of declared tables may differ."""
    kinds = {column.name: np.dtype(_KINDS[column.type]) for column in columns_of(table)}
    return all(kinds.get(name) == column.values.dtype for name, column in columns.items())


def _unpacked(column: dict[str, Any], rows: int, blobs: Sequence[memoryview]) -> _Column:
    """Unpack one column; raises `ValueError` and others for data that `_packed_column` does not produce."""
    dtype = np.dtype(_KINDS[column["kind"]])
    texts: list[str] = []
    if column["kind"] == "VARCHAR":
        texts = column["texts"]
        if not isinstance(texts, list) or any(type(text) is not str for text in texts):
            raise ValueError("texts that are not strings")
        "".join(texts).encode()  # half of a surrogate pair is a ValueError
    if "constant" in column:
        if type(column["constant"]) not in (int, float, bool):
            raise ValueError("a constant that is not a number")
        values = np.full(rows, column["constant"], dtype)
    else:
        values = np.frombuffer(_bytes_of(column["values"], rows * dtype.itemsize, blobs), dtype)
        if column["kind"] == "BOOLEAN":
            values = values.view(np.uint8) != 0
    missing = np.zeros(rows, np.bool_)
    if column["kind"] == "VARCHAR":
        if len(values) and (int(values.min()) < -1 or int(values.max()) >= len(texts)):
            raise ValueError("the index of a missing text")
        missing = values < 0
    elif "nulls" in column:
        packed = _bytes_of(column["nulls"], math.ceil(rows / 8), blobs)
        missing = np.unpackbits(np.frombuffer(packed, np.uint8), count=rows).astype(np.bool_)
    return _Column(values, missing, texts)


def _bytes_of(described: Any, size: int, blobs: Sequence[memoryview]) -> bytes:
    number, told, squeezed = described
    if type(number) is not int or number < 0 or told != size:
        raise ValueError("a size that does not match")
    data = bytes(blobs[number])
    if squeezed:
        decompressor = zlib.decompressobj()
        data = decompressor.decompress(data, size + 1)
    if len(data) != size:
        raise ValueError("a size that does not match")
    return data


def _joined(
    parts: Sequence[tuple[int, dict[str, _Column]]], name: str, kind: str, texts: list[str | None]
) -> tuple[npt.NDArray[Any], npt.NDArray[np.bool_]]:
    """One column of all hosts; its texts are appended to `texts`, whose first element is NULL."""
    values: list[npt.NDArray[Any]] = []
    missing: list[npt.NDArray[np.bool_]] = []
    for rows, columns in parts:
        column = columns.get(name)
        if column is None:
            values.append(np.zeros(rows, _KINDS[kind]))
            missing.append(np.ones(rows, np.bool_))
            continue
        found = column.values
        if kind == "VARCHAR":
            found = np.where(column.missing, -1, found + (len(texts) if column.texts else 0))
            texts += column.texts
        values.append(found)
        missing.append(column.missing)
    return np.concatenate(values), np.concatenate(missing)


def _expression(
    name: str, kind: str, values: npt.NDArray[Any], missing: npt.NDArray[np.bool_], arrays: dict[str, Any]
) -> str:
    """SQL of one column; NULL and NaN are sent as flags, because DuckDB reads an array's NaN as NULL."""
    quoted = quoted_name(name)
    if kind == "VARCHAR":
        arrays[name] = np.ascontiguousarray(np.where(missing, 0, values), np.int64)
        return f"getvariable('probe_texts')[{quoted} + 1]"
    arrays[name] = np.ascontiguousarray(values)
    expression = quoted
    flagged = [("null", missing, "NULL")]
    if kind == "DOUBLE":
        flagged.insert(0, ("nan", np.isnan(values), "'NaN'::DOUBLE"))
    for suffix, flags, meaning in flagged:
        if flags.any():
            arrays[f"{name} {suffix}"] = flags
            expression = f'CASE WHEN "{name} {suffix}" THEN {meaning} ELSE {expression} END'
    return f"CAST({expression} AS {kind})"


def quoted_name(text: str) -> str:
    """A name as SQL writes it."""
    return '"' + text.replace('"', '""') + '"'


def full_name(table: Table) -> str:
    """A table's schema and name as SQL writes them."""
    return f"{quoted_name(table.schema)}.{quoted_name(table.name)}"
