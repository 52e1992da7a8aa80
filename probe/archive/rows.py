"""Writes the rows of a recording as Parquet files for an archive, with their numbers and without secrets.

Rows of segments keep their numbers. The number of a journal's row is made from its place: the journal, the
end of its record, and its place in the record. `sealed_pieces` and `journal_pieces` yield rows that are not
yet in the archive; `make` makes the file of a piece. Runs on the thread that ships; duckdb in functions.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from probe import __version__
from probe.archive import catalog, dataset, typed_rows
from probe.archive.catalog import Ranges
from probe.bundle import cleaning
from probe.recording import declared, places, segments
from probe.recording.journal import read_ends
from probe.recording.recording import Meta
from probe.recording.tables import BY_NAME, RINGS, Column, Table, columns_of

if TYPE_CHECKING:
    import duckdb

_RECORD_BITS, _JOURNAL_BITS = 24, 52
"""Bits of a row's place in its record, and of that and the record's end together: numbers stay below 2^53, as
in JSON."""
_LARGEST_PIECE_BYTES = 64 << 20
"""Total size of the segments that become one file."""
_NUMBER = Column(dataset.NUMBER, "BIGINT", "", "")
_BLOCK_BYTES = 1 << 20
_FEW_BYTES = 256 << 10


class Piece(NamedTuple):
    """Rows of one table that become one file: those numbered `first` to `last`, from segments or as rows."""

    table: Table
    first: int
    last: int
    files: Sequence[Path] = ()
    rows: Sequence[dict[str, Any]] = ()


class Made(NamedTuple):
    """A file for the archive: the number of its rows, their last finished step and last time (None if they
    have none), its checksum."""

    path: Path
    rows: int
    last_step: int | None
    last_t_ns: int | None
    checksum: int


def tables_of(process: Path) -> list[Table]:
    """The tables of a recording that are in segments. Raises `RecordingError`."""
    return [table for table in (*RINGS, *declared.read(process)) if table.sealed]


def sealed_pieces(process: Path, meta: Meta, table: Table, held: Ranges) -> Iterator[Piece]:
    """The sealed rows of a table that are not in `held`. Damaged segments are left out: readers report
    them."""
    folder = places.segments_folder(process, table.full_name, meta.rank)
    files: list[Path] = []
    first = last = size = 0
    for one in segments.readable(segments.listing(folder, meta.pid))[0]:
        for low, high in catalog.missing(held, one.first, one.last):
            if files and (low != last + 1 or size + one.size_bytes > _LARGEST_PIECE_BYTES):
                yield Piece(table, first, last, files)
                files = []
            if not files:
                first, size = low, 0
            last, size = high, size + one.size_bytes
            if not files or files[-1] != one.path:
                files.append(one.path)
    if files:
        yield Piece(table, first, last, files)


class Entry(NamedTuple):
    """One record of rows of a journal table; `end` is the byte after it in the journal with that number."""

    table: Table
    rows: list[dict[str, Any]]
    journal: int
    end: int

    @property
    def first(self) -> int:
        """Number of its first row."""
        return self.journal << _JOURNAL_BITS | self.end << _RECORD_BITS


def entries(process: Path, after: Sequence[int] = (0, 0)) -> tuple[list[Entry], tuple[int, ...]]:
    """The rows in the journals of a recording, each from a given byte on, and the bytes to continue from.
    Raises `OSError`."""
    found = []
    reached = list(after)
    for number, path in enumerate(places.journals(process)):
        for record, end in read_ends(path, after[number]):
            reached[number] = end
            table = BY_NAME.get(str(record.get("table")))
            if table is not None and table.source == "journal" and record.get("rows"):
                found.append(Entry(table, record["rows"], number, end))
    return found, tuple(reached)


def journal_pieces(written: Sequence[Entry], held: dict[str, Ranges]) -> Iterator[Piece]:
    """The rows of journals that are not in `held`, by table and journal."""
    groups: dict[tuple[str, int], list[Entry]] = {}
    for one in written:
        groups.setdefault((one.table.full_name, one.journal), []).append(one)
    for (name, number), group in groups.items():
        start = number << _JOURNAL_BITS
        last = group[-1].first | (1 << _RECORD_BITS) - 1
        known = max((high for _, high in held.get(name, ()) if start < high <= last), default=start)
        new = [
            {**row, dataset.NUMBER: one.first | place}
            for one in group if one.first > known for place, row in enumerate(one.rows)
        ]
        if new:
            yield Piece(group[0].table, known + 1, last, rows=new)


class Counted(NamedTuple):
    """Rows that are in the archive already; see `Made` for the fields."""

    rows: int
    last_step: int | None
    last_t_ns: int | None


def counted(
    connection: duckdb.DuckDBPyConnection, process: Path, meta: Meta, table: Table, ranges: Ranges
) -> Counted | None:
    """The rows of a table in segments with these numbers, as `make` would ship them; None if not all of the
    segments are still there. Raises `duckdb.Error`."""
    if not ranges:
        return Counted(0, None, None)
    folder = places.segments_folder(process, table.full_name, meta.rank)
    listed = segments.readable(segments.listing(folder, meta.pid))[0]
    here = catalog.union((one.first, one.last) for one in listed)
    if not all(catalog.holds(here, *one) for one in ranges):
        return None
    names = {column.name for column in table.columns}
    told = _lasts(table.full_name, names)
    files = [one.path for one in listed if any(one.first <= high and low <= one.last for low, high in ranges)]
    numbers = " OR ".join(f"{dataset.NUMBER} BETWEEN {low:d} AND {high:d}" for low, high in ranges)
    row = connection.execute(
        f"SELECT count(*), {', '.join(told)} FROM {_segments_of(files)} WHERE ({numbers}){_shown(table)}"
    ).fetchone()
    assert row is not None
    return Counted(*row)


def counted_entries(written: Sequence[Entry], table: str, ranges: Ranges) -> Counted:
    """The rows of a table in journals with these numbers."""
    named = (one for one in written if one.table.full_name == table)
    found = [one for one in named if catalog.holds(ranges, one.first, one.first)]
    times = [row["t_ns"] for one in found for row in one.rows if type(row.get("t_ns")) is int]
    return Counted(sum(len(one.rows) for one in found), None, max(times, default=None))


def _segments_of(files: Sequence[Path]) -> str:
    listed = ", ".join(map(_quoted, map(str, files)))
    return f"read_parquet([{listed}], hive_partitioning = false, union_by_name = true)"


def _lasts(table: str, columns: Collection[str]) -> list[str]:
    """Expressions for the last finished step and the last time in rows of a table."""
    return [
        "max(step)::BIGINT" if table == "python.steps" else "NULL",
        "max(t_ns)::BIGINT" if "t_ns" in columns else "NULL",
    ]


def _shown(table: Table) -> str:
    return f" AND ({table.hidden}) IS NOT TRUE" if table.hidden else ""


def make(connection: duckdb.DuckDBPyConnection, folder: Path, meta: Meta, piece: Piece) -> Made:
    """Write the file of a piece into a folder. Raises `duckdb.Error` or `OSError`, and `FileNotFoundError`
    when a segment has been merged or deleted."""
    import duckdb

    names = {column.name for column in piece.table.columns}
    if not piece.files:
        columns = [column for column in columns_of(piece.table) if column.name in names]
        told = typed_rows.parameter([*columns, _NUMBER], map(cleaning.plain, piece.rows))
        source = f"({typed_rows.query([*columns, _NUMBER])})"
        return _write(connection, folder, source, [told], meta, piece.table.full_name, names)
    source = (  # the files are in order, and so are the rows of each: sorting them took a quarter of the time
        f"(SELECT * FROM {_segments_of(piece.files)}"
        f" WHERE {dataset.NUMBER} BETWEEN {int(piece.first)} AND {int(piece.last)}{_shown(piece.table)})"
    )
    try:
        return _write(connection, folder, source, [], meta, piece.table.full_name, {*names, "pid"})
    except duckdb.IOException:
        for file in piece.files:
            file.stat()  # raises FileNotFoundError
        raise


def _write(
    connection: duckdb.DuckDBPyConnection, folder: Path, source: str, parameters: Sequence[str], meta: Meta,
    table: str, own: Collection[str],
) -> Made:
    """Write the rows of a source, with the identity columns that are not among its `own`, as a file without
    secrets."""
    lower = {name.lower() for name in own}
    identity = (meta.job, meta.run, meta.attempt, meta.rank, meta.host, meta.pid, dataset.process_id(meta))
    added = {
        column.name: f"CAST({_quoted(str(value))} AS {column.type}) AS {column.name}"
        for column, value in zip(dataset.IDENTITY, identity, strict=True) if column.name not in lower
    }
    made, clean = folder / "made.parquet", folder / "clean.parquet"
    copy(connection, f"SELECT {', '.join(added.values())}, rows.* FROM {source} AS rows", made, parameters)
    # The added columns have no secrets. For a few rows, lists take half the time of DISTINCT.
    distinct = "list_distinct(list({}))" if made.stat().st_size < _FEW_BYTES else "list(DISTINCT {})"
    columns = [column for column in cleaning.text_columns(connection, made) if column not in added]
    names = (column.replace('"', '""') for column in columns)
    told = [*_lasts(table, own), *(distinct.format(f'"{name}"') for name in names)]
    source = f"read_parquet({_quoted(str(made))}, hive_partitioning = false)"
    row = connection.execute(f"SELECT count(*), {', '.join(told)} FROM {source}").fetchone()
    assert row is not None
    count, last_step, last_t_ns, *found = row
    texts = cleaning.changes(dict(zip(columns, found, strict=True)))
    if texts:
        copy(connection, cleaning.without(connection, made, texts, None), clean)
        made = clean
    return Made(made, int(count), last_step, last_t_ns, checksum(made))


def copy(
    connection: duckdb.DuckDBPyConnection, query: str, path: Path, parameters: Sequence[Any] = ()
) -> None:
    """Write a query's rows as a file of an archive."""
    metadata = {dataset.SCHEMA_KEY: str(dataset.SCHEMA), dataset.VERSION_KEY: __version__}
    told = ", ".join(f"{name}: {_quoted(value)}" for name, value in metadata.items())
    connection.execute(
        f"COPY ({query}) TO {_quoted(str(path))} (FORMAT parquet, COMPRESSION zstd, PARQUET_VERSION v2, "
        f"KV_METADATA {{{told}}})", list(parameters),
    )


def checksum(path: Path) -> int:
    """CRC-32 of a file."""
    found = 0
    with open(path, "rb", buffering=0) as file:
        while block := file.read(_BLOCK_BYTES):
            found = zlib.crc32(block, found)
    return found


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''").replace("\0", "") + "'"
