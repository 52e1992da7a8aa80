"""Segments: sealed rows as Parquet files whose names are the only state.

`PID-FIRST-LAST-CHECKSUM.parquet` holds the rows numbered FIRST to LAST. A table's watermark is the highest
LAST, so a server that was killed continues where the files end. A file whose range lies inside another's is
a leftover of compaction and does not count. The checksum (CRC-32) covers the file's bytes, name and folder;
it is verified when a process first opens the file (`readable`). Written by the server's drain thread, read
by the query worker and by `last_rows`; may import duckdb and numpy.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import stat
import zlib
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import duckdb
import numpy as np
import numpy.typing as npt

from probe.base.errors import RecordingError
from probe.recording import layout, places
from probe.recording.reader import NUMBER, Rows, open_ring, spelled, texts_of, with_texts
from probe.recording.recording import Meta

_NAME = re.compile(r"(\d+)-(\d+)-(\d+)(?:-([0-9a-f]{8}))?\.parquet")
_TEMPORARY = ".sealing-"
_BLOCK_BYTES = 256 << 10
COMPACT_FILES = 16
"""This many neighbours of one size class are merged."""
_CLASSES_BYTES = (128 << 10, 2 << 20, 32 << 20)
"""Upper bounds of the size classes; larger files are not merged."""


class Segment(NamedTuple):
    """One sealed file. `first` and `last` are row numbers, inclusive; `checksum` is from its name, None in
    files of an older version."""

    path: Path
    pid: int
    first: int
    last: int
    size_bytes: int
    checksum: int | None = None


def listing(folder: Path, pid: int) -> list[Segment]:
    """Segments of process `pid` in `folder`, oldest first, including leftovers of compaction."""
    found: list[Segment] = []
    with contextlib.suppress(FileNotFoundError, NotADirectoryError), os.scandir(folder) as entries:
        for entry in entries:
            match = _NAME.fullmatch(entry.name)
            if match and int(match[1]) == pid:
                with contextlib.suppress(FileNotFoundError):
                    size = entry.stat(follow_symlinks=False).st_size if entry.is_file() else 0
                    check = None if match[4] is None else int(match[4], 16)
                    found.append(Segment(Path(entry.path), pid, int(match[2]), int(match[3]), size, check))
    return sorted(found, key=lambda segment: (segment.first, -segment.last))


def visible(segments: Iterable[Segment]) -> list[Segment]:
    """The segments that are not inside another's range."""
    kept: list[Segment] = []
    for segment in sorted(segments, key=lambda segment: (segment.first, -segment.last)):
        if not kept or segment.last > kept[-1].last:
            kept.append(segment)
    return kept


def readable(segments: Sequence[Segment]) -> tuple[list[Segment], list[Segment]]:
    """The intact segments to read, oldest first, and the damaged ones. Files merged into a damaged one are
    used again while they exist."""
    damaged: list[Segment] = []
    while True:
        kept = visible(one for one in segments if one not in damaged)
        found = [one for one in kept if not intact(one)]
        if not found:
            return kept, damaged
        damaged += found


_INTACT: dict[tuple[Path, int, int, int], bool] = {}
"""Results of `intact` by path, inode, size and change time: a file is read once."""
_MOST_REMEMBERED = 1 << 16


def intact(segment: Segment) -> bool:
    """Whether a segment matches the checksum in its name; True also if it has none or is gone."""
    if segment.checksum is None:
        return True
    try:
        found = os.stat(segment.path)
        key = segment.path, found.st_ino, found.st_size, found.st_ctime_ns
        if not stat.S_ISREG(found.st_mode):
            return False
        if key not in _INTACT:
            if len(_INTACT) >= _MOST_REMEMBERED:
                _INTACT.clear()
            check = _checksum(segment.path, segment.path.parent, segment.pid, segment.first, segment.last)
            _INTACT[key] = check == segment.checksum
        return _INTACT[key]
    except FileNotFoundError:
        return True
    except OSError:
        return False


def _checksum(file: Path, folder: Path, pid: int, first: int, last: int) -> int:
    """Checksum of `file` as the segment of these rows in `folder` (`table=T/rank=R`)."""
    found = zlib.crc32(f"{folder.parent.name}/{folder.name}/{pid}-{first}-{last}".encode())
    with open(file, "rb", buffering=0) as content:
        while block := content.read(_BLOCK_BYTES):
            found = zlib.crc32(block, found)
    return found


def watermark(segments: Iterable[Segment]) -> int:
    """Highest sealed row number; 0 without segments."""
    return max((segment.last for segment in segments), default=0)


def engine() -> duckdb.DuckDBPyConnection:
    """A private in-memory DuckDB with one thread and little memory."""
    connection = duckdb.connect(
        ":memory:",
        config={
            "threads": 1,
            "memory_limit": "256MB",
            "temp_directory": "",
            "autoload_known_extensions": False,
            "autoinstall_known_extensions": False,
            "python_enable_replacements": False,
        },
    )
    connection.execute("SET enable_progress_bar = false")
    return connection


def _not_a_number(values: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    return np.isnan(values) if values.dtype.kind == "f" else np.zeros(len(values), np.bool_)


def for_duckdb(rows: Rows, columns: tuple[tuple[str, str], ...]) -> tuple[dict[str, Any], list[str]]:
    """Arrays to register with DuckDB, and SQL expressions for the columns.

    The expressions use the string table as a list in the variable `probe_texts`. NULL stays NULL and NaN
    stays NaN by flags beside the values: DuckDB reads an array's NaN as NULL, and older releases ignore its
    mask.
    """
    arrays: dict[str, Any] = {NUMBER: np.ascontiguousarray(rows[NUMBER])}
    expressions: list[str] = []
    for name, kind in columns:
        values = np.ascontiguousarray(rows[name])
        quoted = '"' + name.replace('"', '""') + '"'
        expression = quoted
        if kind == "VARCHAR":
            expression = f"getvariable('probe_texts')[{quoted}::BIGINT + 1]"
        else:
            missing = values == layout.NULLS[kind]
            if kind == "BOOLEAN":
                values = values != 0
            flagged = (("nan", _not_a_number(values), "'NaN'::DOUBLE"), ("null", missing, "NULL"))
            for suffix, flags, meaning in flagged:
                if flags.any():
                    arrays[f"{name} {suffix}"] = flags
                    expression = f'CASE WHEN "{name} {suffix}" THEN {meaning} ELSE {expression} END'
        arrays[name] = values
        expressions.append(f"CAST({expression} AS {kind}) AS {quoted}")
    return arrays, expressions


def set_texts(connection: duckdb.DuckDBPyConnection, texts: Sequence[str | None]) -> None:
    """Set the variable with the string table that the expressions of `for_duckdb` use."""
    # As JSON: in an array of objects, DuckDB 1 checks each for pandas types, 40 µs per object.
    connection.execute("SET VARIABLE probe_texts = from_json(?, '[\"VARCHAR\"]')", [json.dumps(texts)])


def write(
    connection: duckdb.DuckDBPyConnection,
    folder: Path,
    pid: int,
    rows: Rows,
    columns: tuple[tuple[str, str], ...],
) -> Segment:
    """Seal `rows`: on return they are durably on disk under their final name.

    Call `set_texts` first. Raises `OSError` or `duckdb.Error` (a full disk) and then leaves no file.
    """
    arrays, expressions = for_duckdb(rows, columns)
    first, last = int(rows[NUMBER][0]), int(rows[NUMBER][-1])
    connection.register("probe_rows", arrays)
    try:
        query = (
            f"SELECT {', '.join(expressions)}, {int(pid)}::BIGINT AS pid, {NUMBER} FROM probe_rows"
        )
        return _copy(connection, query, folder, pid, first, last)
    finally:
        connection.unregister("probe_rows")


def rewrite(connection: duckdb.DuckDBPyConnection, query: str, folder: Path, segment: Segment) -> Segment:
    """Write the rows of a query over a segment as that segment in another folder: they are a subset of its
    rows, and the name still gives the range."""
    return _copy(connection, query, folder, segment.pid, segment.first, segment.last)


def compact(
    connection: duckdb.DuckDBPyConnection, folder: Path, segments: Sequence[Segment]
) -> Segment | None:
    """Merge enough small neighbours into one file, oldest first; None when there are too few.

    The new file's range contains theirs, so from its rename on they do not count; `leftovers` finds them for
    deletion. Damaged files are never merged, and files on both sides of one are not merged with each other:
    readers report it.
    """
    damaged: set[Path] = set()
    while True:
        chosen = neighbours(segments, damaged)
        if not chosen:
            return None
        bad = {segment.path for segment in chosen if not intact(segment)}
        if not bad:
            break
        damaged |= bad
    files = ", ".join(_quoted(str(segment.path)) for segment in chosen)
    query = f"SELECT * FROM read_parquet([{files}], hive_partitioning = false) ORDER BY {NUMBER}"
    return _copy(connection, query, folder, chosen[0].pid, chosen[0].first, chosen[-1].last)


def neighbours(segments: Sequence[Segment], damaged: Collection[Path] = ()) -> list[Segment]:
    """The oldest run of at least `COMPACT_FILES` visible, undamaged segments of one size class."""
    run: list[Segment] = []
    run_class = -1
    for segment in visible(segments):
        size_class = -1 if segment.path in damaged else _size_class(segment.size_bytes)
        if size_class != run_class:
            if len(run) >= COMPACT_FILES:
                break
            run, run_class = [], size_class
        if 0 <= size_class < len(_CLASSES_BYTES):
            run.append(segment)
    return run if len(run) >= COMPACT_FILES else []


def _size_class(size_bytes: int) -> int:
    return sum(size_bytes >= bound for bound in _CLASSES_BYTES)


def leftovers(segments: Sequence[Segment], older_than_s: float, now_s: float) -> list[Segment]:
    """Segments inside the range of another that is at least `older_than_s` old: no query that listed the
    files before the merge still reads them."""
    kept = visible(segments)
    names = {segment.path for segment in kept}
    found: list[Segment] = []
    for segment in segments:
        if segment.path in names:
            continue
        for larger in kept:
            if larger.first <= segment.first and segment.last <= larger.last:
                with contextlib.suppress(OSError):
                    if now_s - larger.path.stat().st_mtime >= older_than_s and intact(larger):
                        found.append(segment)
                break
    return found


def last_rows(process: Path, meta: Meta, table: str, count: int) -> list[dict[str, Any]]:
    """The last `count` rows of a table of a recorded process, oldest first, from its ring, else from its
    segments. NULL is None. Empty when neither can be read."""
    try:
        return _from_ring(meta, table, count)
    except (OSError, RecordingError):
        pass
    try:
        return _from_segments(places.segments_folder(process, table, meta.rank), meta.pid, count)
    except (OSError, duckdb.Error):
        return []


def _from_ring(meta: Meta, table: str, count: int) -> list[dict[str, Any]]:
    with open_ring(meta, table) as ring:
        highest = ring.highest()
        rows = ring.read(max(0, highest - count), highest)
        kinds = ring.columns
        texts: list[str | None] = [None]
        if any(kind == "VARCHAR" for _, kind in kinds):
            texts = texts_of(meta, ring)
    rows, kinds, texts = spelled(rows, kinds, texts)
    rows, texts, _ = with_texts(rows, kinds, texts)
    columns = {name: _values(rows[name].tolist(), kind, texts) for name, kind in kinds}
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def _values(values: list[Any], kind: str, texts: Sequence[str | None]) -> list[Any]:
    """Values of one column as Python objects."""
    if kind == "VARCHAR":
        return [texts[number] if number < len(texts) else None for number in values]
    null = layout.NULLS[kind]
    known = [None if value == null else value for value in values]
    return [None if value is None else bool(value) for value in known] if kind == "BOOLEAN" else known


def _from_segments(folder: Path, pid: int, count: int) -> list[dict[str, Any]]:
    files, rows = [], 0
    for segment in reversed(readable(listing(folder, pid))[0]):
        files.append(_quoted(str(segment.path)))
        rows += segment.last - segment.first + 1
        if rows >= count:
            break
    if not files:
        return []
    connection = engine()
    try:
        options = "hive_partitioning = false, union_by_name = true"
        found = connection.execute(
            f"SELECT * FROM read_parquet([{', '.join(files)}], {options}) "
            f"ORDER BY {NUMBER} DESC LIMIT {int(count)}"
        )
        names = [column[0] for column in found.description]
        return [dict(zip(names, row, strict=True)) for row in reversed(found.fetchall())]
    finally:
        connection.close()


def remove_temporaries(folder: Path) -> None:
    """Delete files that a killed server left half-written in `folder`."""
    for path in folder.glob(f"{_TEMPORARY}*"):
        path.unlink(missing_ok=True)


def _copy(
    connection: duckdb.DuckDBPyConnection, query: str, folder: Path, pid: int, first: int, last: int
) -> Segment:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    name = f"{pid}-{first:012d}-{last:012d}"
    temporary = folder / f"{_TEMPORARY}{name}.parquet"
    try:
        connection.execute(
            f"COPY ({query}) TO {_quoted(str(temporary))} "
            "(FORMAT parquet, COMPRESSION zstd, PARQUET_VERSION v2)"
        )
        with open(temporary, "rb") as file:
            os.fsync(file.fileno())
        checksum = _checksum(temporary, folder, pid, first, last)
        path = folder / f"{name}-{checksum:08x}.parquet"
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    _sync_folder(folder)
    return Segment(path, pid, first, last, path.stat().st_size, checksum)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
