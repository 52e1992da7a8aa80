"""Catalog: which files of an archive currently hold its rows, and which processes are in it.

Files that a merger replaced stay for a while, and a merger without an index does not count: `files` returns
files that together hold every row once. The files are listed first. A group without a merger has never been
compacted, and a group of one merger needs no index. For other groups the index is read; if it names a file
that was put after the listing, the files are listed again. A file that is gone when it is opened has been
merged: list again (`ObjectMissing`). Runs in any process; duckdb in functions.
"""

from __future__ import annotations

import itertools
import json
import re
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from probe.archive import dataset
from probe.archive.dataset import DataFile, Group
from probe.archive.store import Listed, Store
from probe.base.errors import ArchiveInvalid, ObjectMissing

if TYPE_CHECKING:
    import duckdb

MOST_FILES = 300_000
"""Files of one listing: three times as many as a statement may open. With more, compact the archive first."""
MOST_PROCESS_FILES = 20_000
"""Files of archive.processes: each takes 0.4 ms of a core; after merging there are a few for each month."""
_TRIES = 8
_LISTINGS = 3
"""How often the files are listed to find one that an index names; then it is considered lost."""
_AT_ONCE = 32
"""Objects that are read at the same time."""
_NARROW = 64
"""Up to this many groups are listed one by one; for more, the whole table is listed."""
LARGEST_INDEX_BYTES = 64 << 20
"""The index of archive.processes has 40 bytes for each process of a month."""
_T = TypeVar("_T")
_R = TypeVar("_R")

Ranges = list[tuple[int, int]]
"""Row numbers, inclusive, in order and not overlapping."""


class ArchivedFile(NamedTuple):
    """One file with rows: their process and numbers, and its place. `name` is its name in the store."""

    name: str
    size_bytes: int
    file: DataFile
    folder: Path | None
    """The archive's folder; None if it is an object store."""

    @property
    def path(self) -> Path | None:
        """Its path; None unless the archive is a folder."""
        return None if self.folder is None else self.folder / self.name

    @property
    def place(self) -> str:
        """Its path as text, which is faster; empty unless the archive is a folder."""
        return "" if self.folder is None else f"{self.folder}/{self.name}"


class Index(NamedTuple):
    """The state of a group after its mergers: their names, and which rows of each process they hold."""

    generation: int
    files: list[str]
    holds: dict[str, Ranges]


class Catalog:
    """The contents of one archive."""

    def __init__(self, store: Store, most_files: int = MOST_FILES) -> None:
        self.store = store
        self._most_files = most_files
        self._indexes: dict[str, Index] = {}
        """By name; an index never changes."""

    def tables(self) -> list[str]:
        """The tables that have files, `archive.processes` among them, sorted."""
        return sorted(filter(None, map(dataset.table_in, self.store.folders())))

    def files(
        self, table: str, *, jobs: Collection[str] | None = None, runs: Collection[str] | None = None,
        ranks: Collection[int] | None = None, hosts: Collection[str] | None = None, since: int | None = None,
    ) -> list[ArchivedFile]:
        """The files that hold the rows of a table once, sorted by name. None means no filter.

        The filters apply to files, not to rows: a merger holds all ranks and hosts of a run. `since` (wall
        time, ns) leaves out processes that are known to have ended before."""
        if table == dataset.PROCESSES.full_name:  # each has rows of many runs
            return self.listing(table)
        if hosts is None and since is None and runs is None:
            found = self.listing(table, jobs=jobs)
            known: dict[str, dict[str, Any]] | None = None
        else:
            fitting = [row for row in self.processes() if _fits(row, jobs, runs, hosts, since)]
            known = {str(row["process"]): row for row in fitting}
            found = self._of_groups(table, {_group_of(row, table) for row in known.values()})
        groups = None if known is None else {_group_of(row, table).folder for row in known.values()}
        wanted_jobs = None if jobs is None else {dataset.encoded(job) for job in jobs}
        wanted_runs = None if runs is None else {dataset.encoded(run) for run in runs}
        kept = []
        for one in found:
            group = one.file.group
            if wanted_jobs is not None and dataset.encoded(group.job) not in wanted_jobs:
                continue
            if wanted_runs is not None and dataset.encoded(group.run) not in wanted_runs:
                continue
            if groups is not None and group.folder not in groups:
                continue
            if not one.file.merged:
                if ranks is not None and one.file.rank is not None and one.file.rank not in ranks:
                    continue
                if known is not None and one.file.process not in known:
                    continue
            kept.append(one)
        return kept

    def _of_groups(self, table: str, groups: Collection[Group]) -> list[ArchivedFile]:
        if len(groups) > _NARROW:
            return self.listing(table)
        return sorted(one for group in groups for one in self.listing(table, group=group))

    def listing(
        self, table: str, *, jobs: Collection[str] | None = None, group: Group | None = None
    ) -> list[ArchivedFile]:
        """The visible files of a table, or of one group of it, sorted by name."""
        top = f"table={dataset.encoded(table)}/"
        for tries in range(_TRIES):
            if group is not None:
                prefixes = [group.folder]
            else:
                prefixes = [top + date for date in self.store.folders(top)]
                if jobs is not None:
                    prefixes = [f"{date}job={dataset.encoded(job)}/" for date in prefixes for job in jobs]
            listed = [
                ArchivedFile(one.name, one.size_bytes, file, self.store.folder)
                for one in self._listed(prefixes)
                if (file := dataset.read_file(one.name)) is not None and file.group.table == table
            ]
            try:
                return sorted(self._visible(listed, prefixes, patient=tries < _LISTINGS))
            except ObjectMissing:  # merged since, or an index that a later one has replaced
                continue
        raise ArchiveInvalid(f"{self.store.url}: its files change too fast to be listed", hint="Try again.")

    def held(self, group: Group) -> tuple[dict[str, Ranges], int]:
        """Which rows of each process are in a group, visible or merged; and the bytes of its files."""
        found: dict[str, Ranges] = {}
        size = 0
        index = self.index(group)
        if index is not None:
            found = {process: list(ranges) for process, ranges in index.holds.items()}
        for one in self.store.list(group.folder):
            file = dataset.read_file(one.name)
            if file is not None and not file.merged:
                found[file.process] = union([*found.get(file.process, ()), (file.first, file.last)])
            size += one.size_bytes
        return found, size

    def rows_in(self, files: Iterable[ArchivedFile]) -> dict[str, Ranges]:
        """Which rows of each process these files of one listing hold. Raises `ObjectMissing` if they were
        merged since: then the listing is out of date."""
        found: dict[str, Ranges] = {}
        merged: dict[Group, int] = {}
        for one in files:
            if one.file.merged:
                merged[one.file.group] = max(merged.get(one.file.group, 0), one.file.generation)
            else:
                found.setdefault(one.file.process, []).append((one.file.first, one.file.last))
        for group, generation in merged.items():
            for process, ranges in self._read_index(group.index_name(generation)).holds.items():
                found.setdefault(process, []).extend(ranges)
        return {process: union(ranges) for process, ranges in found.items()}

    def index(self, group: Group) -> Index | None:
        """The index of a group in force, its newest; None without one."""
        for _ in range(_TRIES):
            found = [dataset.read_index(one.name) for one in self.store.list(group.index_folder)]
            generation = max((one[1] for one in found if one is not None and one[0] == group), default=0)
            if not generation:
                return None
            try:
                return self._read_index(group.index_name(generation))
            except ObjectMissing:
                continue
        raise ArchiveInvalid(f"{self.store.url}: its indexes change too fast to be read", hint="Try again.")

    def processes(self) -> list[dict[str, Any]]:
        """The newest row of archive.processes of every process, oldest process first."""
        name = dataset.PROCESSES.full_name
        for _ in range(_TRIES):
            files = _newest_of_each(self.listing(name))
            if len(files) > MOST_PROCESS_FILES:
                raise ArchiveInvalid(
                    f"{self.store.url} has {len(files):,} files of {name}, at most {MOST_PROCESS_FILES:,} are"
                    " read",
                    hint="`probe archive --compact URL` merges them.",
                )
            try:
                rows = self._rows(files)
            except ObjectMissing:
                continue
            newest: dict[str, dict[str, Any]] = {}
            for row in rows:
                known = newest.get(str(row["process"]))
                if known is None or row[dataset.NUMBER] > known[dataset.NUMBER]:
                    newest[str(row["process"])] = row
            return sorted(newest.values(), key=lambda row: (row["started_ns"] or 0, str(row["process"])))
        raise ArchiveInvalid(f"{self.store.url}: its files change too fast to be read", hint="Try again.")

    # Indexes ----------------------------------------------------------------

    def _index_names(self, prefixes: Iterable[str]) -> dict[Group, int]:
        """The highest generation of each group."""
        newest: dict[Group, int] = {}
        for one in self._listed([dataset.INDEX + prefix for prefix in prefixes]):
            found = dataset.read_index(one.name)
            if found is not None:
                newest[found[0]] = max(newest.get(found[0], 0), found[1])
        return newest

    def _visible(
        self, listed: Sequence[ArchivedFile], prefixes: Sequence[str], *, patient: bool
    ) -> list[ArchivedFile]:
        """The files that count. Raises `ObjectMissing` if an index names a file that was not listed; if not
        `patient`, that file is considered lost."""
        groups: dict[Group, list[ArchivedFile]] = {}
        for one in listed:
            groups.setdefault(one.file.group, []).append(one)
        merged = {one.file.group for one in listed if one.file.merged}
        unclear = [group for group in merged if len(groups[group]) > 1]
        narrow = [group.folder for group in unclear] if len(unclear) <= _NARROW else prefixes
        newest = self._index_names(narrow)
        named = {group: group.index_name(newest[group]) for group in unclear if group in newest}
        indexes = dict(zip(named, in_parallel(self._read_index, list(named.values())), strict=True))
        found: list[ArchivedFile] = []
        for group, members in groups.items():
            index = indexes.get(group)
            if patient and index is not None and not {one.name for one in members}.issuperset(index.files):
                raise ObjectMissing(f"{group.folder} was merged while it was listed")
            found += members if len(members) == 1 else _chosen(members, index)
        return found

    def _read_index(self, name: str) -> Index:
        known = self._indexes.get(name)
        if known is None:
            found = dataset.read_index(name)
            data = self.store.get(name, 0, LARGEST_INDEX_BYTES)
            try:
                told = json.loads(data)
                known = Index(
                    found[1] if found else 0, [str(one) for one in told["files"]],
                    {
                        str(process): union((int(first), int(last)) for first, last in ranges)
                        for process, ranges in told["holds"].items()
                    },
                )
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
                raise ArchiveInvalid(
                    f"{name} of {self.store.url} is damaged",
                    hint="This index lists the files that a merge replaced. Restore it, or delete it "
                    "together with the files of its folder and ship the recordings again.",
                ) from None
            self._indexes[name] = known
        return known

    def _listed(self, prefixes: Sequence[str]) -> Iterator[Listed]:
        """All objects with these prefixes, listed in parallel: a store's latency is high."""
        numbers = itertools.count(1)

        def listed(prefix: str) -> list[Listed]:
            found = []
            for one in self.store.list(prefix):
                if next(numbers) > self._most_files:
                    top = prefix.partition("/")[0]
                    raise ArchiveInvalid(
                        f"{self.store.url} has more than {self._most_files:,} files below {top}/",
                        hint="`probe archive --compact URL` merges them.",
                    )
                found.append(one)
            return found

        return itertools.chain.from_iterable(in_parallel(listed, prefixes))

    # Rows of archive.processes ----------------------------------------------

    def _rows(self, files: Sequence[ArchivedFile]) -> list[dict[str, Any]]:
        if not files:
            return []
        paths = [file.path for file in files]
        if None not in paths:
            return _read_rows([str(path) for path in paths])
        with tempfile.TemporaryDirectory(prefix="probe-archive-") as folder:
            copies = [Path(folder, f"{number}.parquet") for number in range(len(files))]

            def fetch(one: tuple[ArchivedFile, Path]) -> None:
                one[1].write_bytes(self.store.get(one[0].name))

            in_parallel(fetch, list(zip(files, copies, strict=True)))
            return _read_rows(list(map(str, copies)))


def as_json(index: Index) -> bytes:
    """The content of an index's object."""
    return json.dumps({"files": index.files, "holds": index.holds}, separators=(",", ":")).encode()


def union(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """The same row numbers in as few ranges as possible."""
    found: Ranges = []
    for first, last in sorted(ranges):
        if found and first <= found[-1][1] + 1:
            found[-1] = (found[-1][0], max(found[-1][1], last))
        else:
            found.append((first, last))
    return found


def holds(ranges: Ranges, first: int, last: int) -> bool:
    """Whether all these rows are in the ranges, which `union` made."""
    return any(low <= first and last <= high for low, high in ranges)


def missing(ranges: Ranges, first: int, last: int) -> Ranges:
    """The rows from `first` to `last` that are not in the ranges."""
    found: Ranges = []
    for low, high in ranges:
        if high < first or low > last:
            continue
        if first < low:
            found.append((first, low - 1))
        first = max(first, high + 1)
    if first <= last:
        found.append((first, last))
    return found


def in_parallel(function: Callable[[_T], _R], inputs: Sequence[_T]) -> list[_R]:
    """The results for all inputs, many in parallel: a store's latency is high."""
    if len(inputs) < 2:
        return [function(one) for one in inputs]
    with ThreadPoolExecutor(min(_AT_ONCE, len(inputs)), "probe-archive") as pool:
        return list(pool.map(function, inputs))


def _chosen(members: Sequence[ArchivedFile], index: Index | None) -> list[ArchivedFile]:
    """The members of one group that hold its rows once."""
    merged = set(index.files) if index else set()
    held = index.holds if index else {}
    kept = []
    processes: dict[str, list[ArchivedFile]] = {}
    for one in members:
        file = one.file
        if file.merged:
            if one.name in merged:
                kept.append(one)
        elif file.process not in held or not holds(held[file.process], file.first, file.last):
            processes.setdefault(file.process, []).append(one)
    for found in processes.values():
        reached = -1
        for one in sorted(found, key=lambda one: (one.file.first, -one.file.last, one.file.checksum)):
            if one.file.last > reached:  # else its rows are in another file: they were written twice
                kept.append(one)
                reached = one.file.last
    return kept


def _newest_of_each(files: Sequence[ArchivedFile]) -> list[ArchivedFile]:
    """Of the states of each process the newest, and all mergers."""
    newest: dict[str, ArchivedFile] = {}
    for one in files:
        if not one.file.merged:
            known = newest.get(one.file.process)
            if known is None or one.file.last > known.file.last:
                newest[one.file.process] = one
    return [*(one for one in files if one.file.merged), *newest.values()]


def _fits(
    row: dict[str, Any], jobs: Collection[str] | None, runs: Collection[str] | None,
    hosts: Collection[str] | None, since: int | None,
) -> bool:
    end = max(filter(None, (row["ended_ns"], row["last_t_ns"])), default=None)
    over = since is not None and bool(row["complete"]) and end is not None and end < since
    filters = (("job", jobs), ("run", runs), ("host", hosts))
    return not over and all(wanted is None or row[name] in wanted for name, wanted in filters)


def _group_of(row: dict[str, Any], table: str) -> Group:
    date = dataset.date_of(int(row["started_ns"] or 0))
    return Group(table, date, str(row["job"]), str(row["run"]), int(row["attempt"]))


def _read_rows(files: Sequence[str]) -> list[dict[str, Any]]:
    """The rows of archive.processes in files; columns that files of other versions lack are NULL."""
    import duckdb

    from probe.recording.segments import engine

    names = [*(column.name for column in dataset.PROCESSES.columns), dataset.NUMBER]
    connection = engine()
    try:
        connection.execute("SET VARIABLE probe_files = ?", [list(files)])
        try:
            rows = _selected(connection, names, by_name=False)
        except duckdb.Error as error:
            if "union_by_name" not in str(error):
                raise
            rows = _selected(connection, names, by_name=True)
    except duckdb.Error as error:
        text = str(error).partition("\n")[0]
        if re.search(r"No (?:such )?files? (?:or directory|found)", str(error)):
            raise ObjectMissing(text) from None
        raise ArchiveInvalid(f"the archive's processes cannot be read: {text}") from None
    finally:
        connection.close()
    return [dict(zip(names, row, strict=True)) for row in rows]


def _selected(
    connection: duckdb.DuckDBPyConnection, names: Sequence[str], *, by_name: bool
) -> list[tuple[Any, ...]]:
    """The columns with these names. All files are assumed to have the columns of the first; DuckDB raises if
    they do not. `by_name` compares all files, which opens each once more; used where the first lacks some."""
    union = f"union_by_name = {str(by_name).lower()}"
    files = "getvariable('probe_files')" if by_name else "getvariable('probe_files')[:1]"
    described = f"DESCRIBE SELECT * FROM read_parquet({files}, hive_partitioning = false, {union})"
    have = {str(row[0]) for row in connection.execute(described).fetchall()}
    if not by_name and not have.issuperset(names):
        return _selected(connection, names, by_name=True)
    chosen = ", ".join(f'"{name}"' if name in have else f'NULL AS "{name}"' for name in names)
    source = f"read_parquet(getvariable('probe_files'), hive_partitioning = false, {union})"
    return connection.execute(f"SELECT {chosen} FROM {source}").fetchall()
