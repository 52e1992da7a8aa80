"""The tables of a query: sealed segments and unsealed ring rows of the chosen processes, and live rows.

Only tables that the SQL's text mentions are read; a name that is not in the text cannot be reached (where SQL
can build a name from pieces, everything is read). Segments are listed before rings are read: a row that is
sealed in between is then read once, from its ring. Runs in the query worker; may import duckdb.
"""

from __future__ import annotations

import functools
import re
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import duckdb

from probe.archive import typed_rows
from probe.base.errors import RecordingError
from probe.bundle import moment
from probe.diagnose.recipes.local_query import make_tables
from probe.recording import checked, declared, places, segments
from probe.recording.journal import Hole, read_payloads, record_of
from probe.recording.reader import NUMBER, RingFile
from probe.recording.tables import COMMON, RINGS, TABLES, Column, Table, columns_of
from probe.server.sql.plan import OLDEST_PART, Plan, Recent
from probe.server.sql.remote_rows import NOT_CARRIED, RemoteRows, full_name, quoted_name, wanted_columns
from probe.server.sql.ring_rows import RingRows, Source

_TAILS = "ring_tails"
_NUMBER = Column(NUMBER, "BIGINT", "", "")
"""Number of a row within its table and process, as an archive counts it; added where the SQL names it."""
_TABLE_OF = re.compile(rb'\{"table":"([\w.]+)"')
"""The beginning of a record of rows (`recording.journal` writes no spaces, and `table` first)."""
_MOST_HOLES = 4
"""Damaged parts of a journal that notes mention."""
_NAME_BUILDERS = ("query", "u&")
"""Only with these words can SQL name a table that its text does not contain."""
_CATALOG = re.compile(
    r"duckdb_|information_schema|pg_|pragma|sqlite_|\b(?:show|describe)\b|" + "|".join(_NAME_BUILDERS)
)
"""Only with one of these, or `_DESC`, can SQL see which tables exist: then all are created."""
_COMMENT, _DESC = re.compile(r"--[^\n]*"), re.compile(r"(?:^|\(|\*/)\s*desc\b")


def mentioned(sql: str, own: Iterable[Table] = ()) -> Sequence[Table]:
    """The tables that `sql` may read, built in or the job's `own`: a superset, found without parsing."""
    ours, theirs = _mentioned_of_ours(sql), tuple(own)
    if not theirs:
        return ours
    text = sql.lower()
    named = (table for table in theirs if ours is TABLES or (table.name in text and table.schema in text))
    return (*ours, *named)


@functools.lru_cache(maxsize=256)  # the recipes' statements come again and again
def _mentioned_of_ours(sql: str) -> tuple[Table, ...]:
    text = sql.lower()
    if any(word in text for word in _NAME_BUILDERS):
        return TABLES
    return tuple(table for table in TABLES if table.name in text and table.schema in text)


def prepare(connection: duckdb.DuckDBPyConnection) -> None:
    """Create the schemas that every query needs, in a new connection, before a query arrives."""
    connection.execute(f"CREATE SCHEMA {quoted_name(declared.SCHEMA)}")
    connection.execute(f"CREATE SCHEMA {_TAILS}")


@functools.lru_cache(maxsize=64)
def _sees_catalog(sql: str) -> bool:
    text = sql.lower()  # DESC may follow a comment; in one pattern, "-- -- --" would take its square in time
    return _CATALOG.search(text) is not None or _DESC.search(_COMMENT.sub("(", text)) is not None


def _make_tables(
    connection: duckdb.DuckDBPyConnection, plan: Plan, sql: str, tables: Sequence[Table]
) -> None:
    """Create the tables that `sql` can see, empty, except those of rings, which `_ring_table` creates.
    Creating all tables would take longer than most queries."""
    seen = TABLES if plan.every_table or _sees_catalog(sql) else tables
    rings = {table.full_name for table in tables if table.source == "ring"}
    make_tables(connection, [table for table in seen if table.full_name not in rings])
    for schema in sorted({table.schema for table in tables}):
        connection.execute(f"CREATE SCHEMA IF NOT EXISTS {quoted_name(schema)}")


def build(
    connection: duckdb.DuckDBPyConnection, plan: Plan, sql: str, tables: Sequence[Table], copied: bool = False
) -> list[str]:
    """Fill the tables that `sql` mentions; returns notes for the user, and sets `plan.sealed`. `copied`: read
    the segments now, once for many statements; afterwards no file is needed."""
    plan.sealed.clear()
    plan.texts.clear()
    _make_tables(connection, plan, sql, tables)
    notes: list[str] = []
    numbered = NUMBER in sql
    journals = {table.full_name for table in tables if table.source == "journal"}
    rare = (_numbered_rows if numbered else _journal_rows)(plan, journals, notes)
    for table in tables:
        if table.source == "ring":
            _ring_table(connection, table, plan, sql, notes, copied)
            continue
        if table.source == "journal":
            if numbered:
                connection.execute(f"ALTER TABLE {full_name(table)} ADD COLUMN {NUMBER} BIGINT")
            _insert(connection, table, rare.pop(table.full_name, []), [_NUMBER] if numbered else [])
        elif table.full_name == "probe.rings":
            _insert(connection, table, _rings_rows(connection, plan, notes))
        elif table.full_name == "probe.tables":
            _insert(connection, table, _description([*TABLES, *plan.own_tables.values()]))
        else:
            _insert(connection, table, plan.live.get(table.full_name, []))
        if plan.remote is not None:
            _add_remote(connection, table, plan.remote, sql)
    return notes


def _add_remote(
    connection: duckdb.DuckDBPyConnection, table: Table, remote: RemoteRows, sql: str
) -> None:
    """Add the rows of other hosts to a table, and drop columns that they did not send: NULL would be
    wrong."""
    if table.full_name in NOT_CARRIED:
        return
    remote.insert(connection, table, full_name(table))
    kept = wanted_columns(table, sql)
    for column in columns_of(table):
        if column.name not in kept:
            connection.execute(f"ALTER TABLE {full_name(table)} DROP COLUMN {quoted_name(column.name)}")


def _ring_table(
    connection: duckdb.DuckDBPyConnection, table: Table, plan: Plan, sql: str, notes: list[str], copied: bool
) -> None:
    """A view of segments and of a table with the rows of rings; or, `copied`, one table with all that `sql`
    may read: statements bind to a table a quarter faster than to a view of one."""
    direct = copied and plan.remote is None
    wanted = {*wanted_columns(table, sql), *re.findall(r"\w+", table.hidden)}
    columns = [column for column in columns_of(table) if not direct or column.name in wanted]
    columns += [_NUMBER] if NUMBER in sql else []
    target = full_name(table) if direct else f"{_TAILS}.{quoted_name(table.full_name)}"
    described = ", ".join(f"{quoted_name(column.name)} {column.type}" for column in columns)
    connection.execute(f"CREATE TABLE {target} ({described})")
    files: dict[tuple[str, ...], list[str]] = {}
    """The segments, by the columns that they have."""
    kept = {column.name for column in columns}
    tails = RingRows(connection, table, kept, target, plan.texts)
    for source in plan.sources:
        own = plan.made.get(source.folder, {}).get(table.full_name) if table.on_demand else table
        if own is None:
            continue
        if not declared.fits(own, table):
            notes.append(f"{table.full_name} of pid {source.pid} has columns of other types: left out")
            continue
        try:
            before = len(notes)
            read = _add_source(table, tails, source, plan.recent, notes)
            have = tuple(one.name for one in (*columns_of(own), _NUMBER) if one.name in kept)
            files.setdefault(have, []).extend(file for file in read.files if file not in plan.skip_files)
            # Skipped if notes report damage already, only recent rows are read, or the table is never sealed.
            if table.sealed and len(notes) == before and (plan.recent is None or read.ring_lost):
                notes += _lost(connection, table, source, read)
        except (RecordingError, OSError) as error:
            notes.append(f"{table.full_name} of pid {source.pid} could not be read: {error}")
    sealed = {have: found for have, found in files.items() if found}
    if sealed:
        plan.sealed[table.full_name] = [file for found in sealed.values() for file in found]
    if direct:

        def insert(by_name: bool) -> None:
            for have in list(left):
                chosen = _select(connection, have, left[have], by_name)
                connection.execute(f"INSERT INTO {target} BY NAME {chosen}")
                del left[have]

        left = dict(sealed)
        _with_names(plan, insert)
        tails.flush()
        if table.hidden:
            connection.execute(f"DELETE FROM {target} WHERE {table.hidden}")
        return
    tails.flush()
    if plan.remote is not None:
        plan.remote.insert(connection, table, target)
    names = ", ".join(quoted_name(column.name) for column in columns)
    where = f" WHERE ({table.hidden}) IS NOT TRUE" if table.hidden else ""
    chosen = copied or plan.remote is not None
    shown = ", ".join(map(quoted_name, wanted_columns(table, sql))) if chosen else names

    def create(by_name: bool) -> None:
        parts = [_select(connection, have, found, by_name) for have, found in sealed.items()]
        parts.append(f"SELECT {names} FROM {target}")
        connection.execute(
            f"CREATE {'TABLE' if copied else 'VIEW'} {full_name(table)} AS "
            f"SELECT {shown} FROM ({' UNION ALL BY NAME '.join(parts)}){where}"
        )

    _with_names(plan, create)


def _with_names(plan: Plan, read: Callable[[bool], object]) -> None:
    """Read segments as if all had this version's columns; if some lack a column, read again `by_name`."""
    try:
        read(plan.by_name)
    except (duckdb.BinderException, duckdb.InvalidInputException):
        if plan.by_name:
            raise
        read(True)


def _select(
    connection: duckdb.DuckDBPyConnection, columns: Sequence[str], files: Sequence[str], by_name: bool
) -> str:
    """A SELECT of columns of segments. `by_name`: the columns that any file has, with NULL where a file lacks
    one; this takes a millisecond per file."""
    types = ", ".join(f"'{column.name}': {column.type}" for column in COMMON if column.name != "pid")
    options = f"hive_partitioning = true, hive_types = {{{types}}}"
    options += ", union_by_name = true" if by_name else ""
    read = f"read_parquet([{', '.join(map(_quoted, files))}], {options})"
    if by_name:
        have = {str(row[0]) for row in connection.execute(f"DESCRIBE SELECT * FROM {read}").fetchall()}
        columns = [name for name in columns if name in have]
    return f"SELECT {', '.join(map(quoted_name, columns))} FROM {read}"


class _Read(NamedTuple):
    """One table of one process: its segments, the number of the last row written, how many rows were copied
    from the ring, and whether the ring was deleted before it was sealed."""

    files: list[str]
    written: int
    tail_rows: int
    ring_lost: bool = False


def _add_source(
    table: Table, tails: RingRows, source: Source, recent: Recent | None, notes: list[str]
) -> _Read:
    """Copy the unsealed rows of one process."""
    folder = places.segments_folder(source.folder, table.full_name, source.rank)
    found = segments.listing(folder, source.pid)
    sealed = segments.watermark(segments.visible(found))
    written, tail_rows, lost = sealed, 0, False
    try:
        written, tail_rows = tails.read(source, sealed, notes)
    except FileNotFoundError:
        # Rings are removed only after everything in them is sealed.
        found = segments.listing(folder, source.pid)
        written = max(segments.watermark(segments.visible(found)), _rows_at_end(source, table))
        lost = _rings_lost(source)
    except (RecordingError, OSError) as error:
        notes.append(f"{table.full_name} of pid {source.pid}: rows that are not sealed are left out: {error}")
    kept = _intact(found, table, recent, notes)
    return _Read([str(segment.path) for segment in kept], written, tail_rows, lost)


def _intact(
    found: Sequence[segments.Segment], table: Table, recent: Recent | None, notes: list[str]
) -> list[segments.Segment]:
    """The segments to read, all or the newest; notes report damaged ones."""
    damaged: list[segments.Segment] = []
    kept = segments.visible(found)
    if recent is not None:
        kept = _newest(kept, recent.rows)
    if not all(map(segments.intact, kept)):
        kept, damaged = segments.readable(found)
        kept = kept if recent is None else _newest(kept, recent.rows)
    for one in damaged:
        notes.append(
            f"{table.full_name}: rows {one.first} to {one.last} of pid {one.pid} are left out: "
            f"{one.path.name} fails its checksum"
        )
    return kept


def _lost(connection: duckdb.DuckDBPyConnection, table: Table, source: Source, read: _Read) -> list[str]:
    """A note for the user if rows that were written are lost."""
    written = read.written
    if read.ring_lost:
        return [
            f"the rings of pid {source.pid} were deleted before they were sealed: rows of {table.full_name} "
            f"after row {written:,} are lost"
        ]
    try:
        lost = written - read.tail_rows - sum(_rows_of(connection, file) for file in read.files)
    except duckdb.Error:  # damaged, or just removed: reported where they are read
        return []
    if lost <= 0:
        return []
    left_out = "left out of the bundle, " if (source.folder / moment.FILE).exists() else ""
    return [
        f"{lost:,} of {written:,} rows of {table.full_name} (pid {source.pid}) are missing: {left_out}"
        "overwritten in memory before they were sealed, or deleted for PROBE_RETENTION_BYTES"
    ]


_sealed_counts: dict[str, int] = {}
"""Rows of segments by path: a segment never changes, and opening it takes a millisecond."""
_MOST_COUNTS = 65536


def _rows_of(connection: duckdb.DuckDBPyConnection, file: str) -> int:
    known = _sealed_counts.get(file)
    if known is None:
        if len(_sealed_counts) >= _MOST_COUNTS:
            _sealed_counts.clear()
        known = _sealed_counts[file] = _sealed_rows(connection, [file])
    return known


def _newest(sealed: Sequence[segments.Segment], rows: int) -> list[segments.Segment]:
    kept: list[segments.Segment] = []
    for segment in reversed(sealed):
        if rows <= 0:
            break
        kept.append(segment)
        rows -= segment.last - segment.first + 1
    return kept[::-1]


def _journal_rows(plan: Plan, tables: set[str], notes: list[str]) -> dict[str, list[dict[str, Any]]]:
    """Rows of the tables by name; each journal is read once, and only the needed records are decoded."""
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in tables}
    for source in plan.sources if tables else []:
        common = {"rank": source.rank, "run": source.run, "attempt": source.attempt, "pid": source.pid}
        for path in places.journals(source.folder):
            try:
                payloads, holes = _payloads(path)
            except OSError as error:
                notes.append(f"pid {source.pid}: {path.name} cannot be read: {error.strerror}")
                continue
            notes += [f"pid {source.pid}: {hole.said_of(path)}" for hole in holes[:_MOST_HOLES]]
            for name, payload in _chosen(payloads, tables, plan.recent):
                record = record_of(payload) or {}
                found[name] += [{**row, **common} for row in record.get("rows", ())]
    return found


def _numbered_rows(plan: Plan, tables: set[str], notes: list[str]) -> dict[str, list[dict[str, Any]]]:
    """As `_journal_rows`, each row with its number in an archive."""
    from probe.archive import rows

    found: dict[str, list[dict[str, Any]]] = {name: [] for name in tables}
    for source in plan.sources if tables else []:
        common = {"rank": source.rank, "run": source.run, "attempt": source.attempt, "pid": source.pid}
        try:
            written, _ = rows.entries(source.folder)
        except OSError as error:
            notes.append(f"pid {source.pid}: its journals cannot be read: {error.strerror}")
            continue
        for one in written:
            if one.table.full_name in tables:
                found[one.table.full_name] += [
                    {**row, **common, NUMBER: one.first | place} for place, row in enumerate(one.rows)
                ]
    return found


def _payloads(path: Path) -> tuple[list[bytes], list[Hole]]:
    """The records of a journal, and its holes; waits for a record that is just being written."""
    payloads, holes = read_payloads(path)
    for wait_s in (0.005, 0.02):
        if not holes or not holes[-1].torn:
            break
        time.sleep(wait_s)
        payloads, holes = read_payloads(path)
    return payloads, holes


def _chosen(
    payloads: Sequence[bytes], tables: set[str], recent: Recent | None
) -> list[tuple[str, bytes]]:
    """The records of these tables in their order: all, or the newest and a few of the oldest."""
    named = [(match[1].decode(), payload) for payload in payloads if (match := _TABLE_OF.match(payload))]
    named = [one for one in named if one[0] in tables]
    if recent is None:
        return named
    newest = _first_of_each(named[::-1], recent.journal_bytes)[::-1]
    oldest = _first_of_each(named, recent.journal_bytes // OLDEST_PART)
    kept = {id(payload) for _, payload in newest}
    return [one for one in oldest if id(one[1]) not in kept] + newest


def _first_of_each(records: Sequence[tuple[str, bytes]], size: int) -> list[tuple[str, bytes]]:
    """Of each table the first records, until they are larger than `size`."""
    chosen: list[tuple[str, bytes]] = []
    sizes: dict[str, int] = {}
    for name, payload in records:
        if sizes.get(name, 0) < size:
            sizes[name] = sizes.get(name, 0) + len(payload)
            chosen.append((name, payload))
    return chosen


def _rings_rows(
    connection: duckdb.DuckDBPyConnection, plan: Plan, notes: list[str]
) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for source in plan.sources:
        for table in (*RINGS, *plan.made.get(source.folder, {}).values()):
            folder = places.segments_folder(source.folder, table.full_name, source.rank)
            files = segments.listing(folder, source.pid)
            kept = _intact(files, table, None, notes)
            sealed = _sealed_rows(connection, [str(segment.path) for segment in kept])
            watermark = segments.watermark(files)
            tail, highest, capacity = 0, watermark, None
            try:
                with RingFile(source.rings / f"{table.full_name}.ring", source.owner) as ring:
                    highest = max(ring.highest(watermark), watermark)
                    tail, capacity = len(ring.read(watermark, highest)), ring.rows
            except (RecordingError, OSError):
                highest = max(highest, _rows_at_end(source, table))
            found.append(
                {
                    "rank": source.rank, "run": source.run, "attempt": source.attempt, "pid": source.pid,
                    "table_name": table.full_name, "rows_written": highest, "rows_sealed": sealed,
                    "rows_dropped": highest - sealed - tail, "capacity_rows": capacity,
                }
            )
    return found


def _rows_at_end(source: Source, table: Table) -> int:
    """How many rows had been written when the process ended, according to its end record."""
    try:
        ended = checked.read_sealed(source.folder / "end.json")
        return int(ended["rows_written"][table.full_name])
    except (OSError, ValueError, KeyError, TypeError):
        return 0


def _rings_lost(source: Source) -> bool:
    """Whether rings that are gone were deleted before the server had sealed them."""
    try:
        ended = checked.read_sealed(source.folder / "end.json")
        return ended.get("rings_found") is False or ended.get("sealed") is False
    except FileNotFoundError:  # it is written before rings are removed
        return True
    except (OSError, ValueError):
        return False


def _sealed_rows(connection: duckdb.DuckDBPyConnection, files: list[str]) -> int:
    if not files:
        return 0
    found = connection.execute(
        f"SELECT sum(num_rows)::BIGINT FROM parquet_file_metadata([{', '.join(map(_quoted, files))}])"
    ).fetchall()
    return int(found[0][0] or 0)


def _description(tables: Iterable[Table]) -> list[dict[str, Any]]:
    return [
        {
            "table_name": table.full_name, "column_name": column.name, "type": column.type,
            "unit": column.unit, "meaning": column.doc,
        }
        for table in tables
        for column in columns_of(table)
    ]


def _insert(
    connection: duckdb.DuckDBPyConnection, table: Table, rows: list[dict[str, Any]],
    more: Sequence[Column] = (),
) -> None:
    """Insert dictionaries; a value that does not fit its column becomes NULL. `more`: columns that the table
    has behind its own."""
    if not rows:
        return
    columns = [*columns_of(table), *more]
    connection.execute(
        f"INSERT INTO {full_name(table)} {typed_rows.query(columns)}", [typed_rows.parameter(columns, rows)]
    )


def damaged(connection: duckdb.DuckDBPyConnection, files: Iterable[str]) -> list[str]:
    """The `files` that exist and cannot be read completely."""
    found: list[str] = []
    for file in files:
        try:
            connection.execute(
                f"SELECT max(hash(row)) FROM read_parquet({_quoted(file)}, hive_partitioning = false) row"
            ).fetchall()
        except duckdb.Error:
            if Path(file).exists():
                found.append(file)
    return found


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
