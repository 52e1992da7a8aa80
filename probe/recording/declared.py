"""Declared tables: tables that a job makes while it runs, described by `tables.json` in its recording.

`user.NAME` comes from a dataclass of the job (`probe.table`), python.spans and python.events from their first
use. The file is written once per table, by the thread that declares it, and checked wherever it is read:
names become files and SQL. Standard library only; any thread, never the hot path.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from probe.base.errors import RecordingError, UsageError
from probe.recording import checked, layout, places
from probe.recording.tables import BY_NAME, COMMON, Column, Table
from probe.recording.tables.declaration import STEP, T_NS

SCHEMA = "user"
FILE = "tables.json"
MOST_TABLES = 16
"""Tables that a job can declare …"""
MOST_COLUMNS = 40
"""… each with at most this many columns of its own."""
RING_BYTES, MOST_ROWS = 1 << 20, 16384
"""Size of the ring of a declared table: the smaller of both."""
LONGEST_DOC = 500
_TABLE_NAME = re.compile(r"[a-z][a-z0-9_]{0,39}")
_COLUMN_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,39}")
_TYPES = ("BIGINT", "DOUBLE", "BOOLEAN", "VARCHAR")
_TAKEN = frozenset({STEP.name, T_NS.name, "table", *(column.name for column in COMMON)})
"""Columns that probe fills in, and the key of the folder that segments are in."""


def user_table(name: str, doc: str, columns: Sequence[Column]) -> Table:
    """The table `user.NAME` with these columns beside step and t_ns. Raises `UsageError`."""
    if not _TABLE_NAME.fullmatch(name):
        raise UsageError(
            f"{name[:60]!r} cannot be the name of a table",
            hint="Use at most 40 of a-z, 0-9 and _, a letter first: @probe.table(name=\"rewards\")",
        )
    if not 0 < len(columns) <= MOST_COLUMNS:
        raise UsageError(f"{SCHEMA}.{name} has {len(columns)} columns, it needs 1 to {MOST_COLUMNS}")
    seen: set[str] = set()
    for column in columns:
        lower = column.name.lower()
        if lower in _TAKEN:
            hint = f"Use another name in {SCHEMA}.{name}"
            raise UsageError(f"probe fills in {column.name!r} itself", hint=hint)
        if not _COLUMN_NAME.fullmatch(column.name) or lower in seen:
            raise UsageError(
                f"{column.name[:60]!r} cannot be a column of {SCHEMA}.{name}",
                hint="Use at most 40 letters of a-z, digits and _, a letter first, each name once",
            )
        if column.type not in _TYPES:
            raise UsageError(f"a column of {SCHEMA}.{name} cannot be {column.type[:40]!r}")
        seen.add(lower)
    names = ", ".join(f'"{column.name}"' for column in columns[:3])
    table = Table(
        SCHEMA, name, doc[:LONGEST_DOC], "ring",
        (STEP, T_NS, *(one._replace(unit=one.unit[:20], doc=one.doc[:LONGEST_DOC]) for one in columns)),
        f"SELECT step, {names} FROM {SCHEMA}.{name} ORDER BY t_ns DESC LIMIT 10", on_demand=True,
    )
    row_bytes = layout.row_bytes(layout.stored_columns(table))
    return table._replace(rows=min(MOST_ROWS, RING_BYTES // row_bytes))


def write(process: Path, tables: Iterable[Table]) -> None:
    """Write the tables that the job has made so far into its recording. Raises `OSError`."""
    places.write_whole(process / FILE, checked.sealed(FILE, {"tables": as_json(tables)}))


def read(process: Path) -> list[Table]:
    """The tables that the recorded process has made; none without the file. Raises `RecordingError`."""
    try:
        return of_json(checked.read_sealed(process / FILE, older=_never).get("tables"))
    except FileNotFoundError:
        return []
    except OSError as error:
        raise RecordingError(f"{process / FILE} cannot be read: {error.strerror or error}") from None
    except ValueError as error:
        raise RecordingError(f"{process / FILE} cannot be used: {error}") from None


def as_json(tables: Iterable[Table]) -> list[dict[str, Any]]:
    """Tables as JSON for `of_json`, which may run on another host."""
    return [
        {"name": table.name, "doc": table.doc, "columns": [list(column) for column in table.columns[2:]]}
        if table.schema == SCHEMA else {"known": table.full_name}
        for table in tables
    ]


def of_json(described: Any) -> list[Table]:
    """Tables from untrusted JSON; raises `ValueError`."""
    if not isinstance(described, list) or len(described) > MOST_TABLES + len(BY_NAME):
        raise ValueError("its tables are not a list")
    found: dict[str, Table] = {}
    for one in described:
        if not isinstance(one, dict):
            raise ValueError("a table is not an object")
        table = _of_one(one)
        if found.setdefault(table.full_name, table) != table:
            raise ValueError(f"it has {table.full_name} twice")
    return list(found.values())


def _of_one(one: dict[str, Any]) -> Table:
    known = BY_NAME.get(str(one.get("known")))
    if known is not None and known.on_demand:
        return known
    name, doc, columns = one.get("name"), one.get("doc"), one.get("columns")
    if type(name) is not str or type(doc) is not str or not isinstance(columns, list):
        raise ValueError("a table lacks its name, doc or columns")
    for column in columns:
        if not isinstance(column, list) or [type(part) for part in column] != [str] * 4:
            raise ValueError(f"a column of {name[:60]!r} is not four texts")
    try:
        return user_table(name, doc, [Column(*column) for column in columns])
    except UsageError as error:
        raise ValueError(error.message) from None


def merged(tables: Iterable[Table]) -> dict[str, Table]:
    """One table for each name, with the columns of all tables of that name: ranks and runs may declare
    different ones. If a column has two types, the first counts; see `fits`."""
    found: dict[str, Table] = {}
    for table in tables:
        known = found.get(table.full_name)
        if known is None:
            found[table.full_name] = table
        elif known != table:
            have = {column.name.lower() for column in known.columns}
            more = tuple(column for column in table.columns if column.name.lower() not in have)
            found[table.full_name] = known._replace(columns=(*known.columns, *more))
    return found


def fits(table: Table, whole: Table) -> bool:
    """Whether rows of `table` can be read as rows of `whole`, which `merged` made of it and others."""
    kinds = {column.name: column.type for column in whole.columns}
    return all(kinds.get(column.name) == column.type for column in table.columns)


def _never(_facts: dict[str, Any]) -> bool:
    return False
