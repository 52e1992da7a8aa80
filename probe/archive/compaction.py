"""Compaction: merges the small files of a table and a run into few large ones, all ranks together; for
archive.processes, those of a month and all runs.

A merger is put under a name that no reader counts yet. Then the group's next index is created, which names
the merger and the rows that it holds: that is the commit, and only one of several compactors can create it.
A later compaction deletes the replaced files, `GRACE_S` after the commit, because readers that listed them
before may still open them. A compaction that is killed is finished or cleaned up by the next one. Runs in
`probe archive --compact`; duckdb in functions.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from probe.archive import catalog, dataset, rows
from probe.archive.catalog import ArchivedFile, Catalog, Index, Ranges
from probe.archive.dataset import DataFile, Group
from probe.archive.store import Listed, Store
from probe.base.errors import ArchiveInvalid, ObjectMissing
from probe.recording import segments

GRACE_S = 600.0
"""Replaced files are deleted this long after the commit."""
LEAST_FILES = 2
LARGEST_BYTES = 256 << 20
"""Total size of the files that become one; larger files are left alone."""
MOST_FILES = 500
"""Files that become one at a time: the engine may keep all of them open, and the usual limit is 1,024."""
_MOST_LISTED = 10_000_000
"""Files of one group: before the first compaction there may be more than a query may list."""
_MEMORY = "2GB"
_SORT = f"rank, process, {dataset.NUMBER}"
_PROCESSES = dataset.PROCESSES.full_name


class Compacted(NamedTuple):
    """The result: files merged, mergers made of them, files deleted, files that wait to be deleted; and notes
    about groups that were left alone."""

    merged: int
    made: int
    deleted: int
    waiting: int
    notes: list[str]


def compact(store: Store, *, grace_s: float = GRACE_S, told: Callable[[str], object] = str) -> Compacted:
    """Merge files where possible, and delete files that were replaced long enough ago; `told` is called with
    the progress. Raises `ArchiveUnavailable`, `ArchiveInvalid` or `OSError`."""
    found = Catalog(store, most_files=_MOST_LISTED)
    merged = made = deleted = waiting = 0
    notes: list[str] = []
    for table in found.tables():
        for group, listed in _groups(store, table):
            if len(listed) == 1 and listed[0][1].merged:
                deleted += _remove_old_indexes(store, found, group)
                continue
            removed, left = _remove_replaced(store, found, group, listed, grace_s)
            deleted, waiting = deleted + removed, waiting + left
            try:
                for count in _merge(store, found, group):
                    merged, made, waiting = merged + count, made + 1, waiting + count
                    told(f"{table}, {merged:,} files merged")
            except ArchiveInvalid as error:
                notes.append(error.message)
    return Compacted(merged, made, deleted, waiting, notes)


def _groups(store: Store, table: str) -> Iterator[tuple[Group, list[tuple[Listed, DataFile]]]]:
    """The files of a table by group, listed date by date, because there may be very many."""
    top = f"table={dataset.encoded(table)}/"
    for date in store.folders(top):
        groups: dict[Group, list[tuple[Listed, DataFile]]] = {}
        for one in store.list(top + date):
            file = dataset.read_file(one.name)
            if file is not None and file.group.table == table:
                groups.setdefault(file.group, []).append((one, file))
        yield from groups.items()


def _merge(store: Store, found: Catalog, group: Group) -> Iterator[int]:
    """Merge the files of one group, some at a time; yields how many became one. Raises `ArchiveInvalid`."""
    index = found.index(group)  # before the listing: a commit by another after it makes ours fail
    files = found.listing(group.table, group=group)
    with contextlib.suppress(ObjectMissing):  # merged by another since it was listed
        while len(chosen := _smallest(files)) >= LEAST_FILES:
            held = {process: list(ranges) for process, ranges in (index.holds if index else {}).items()}
            for one in chosen:
                if not one.file.merged:
                    held.setdefault(one.file.process, []).append((one.file.first, one.file.last))
            held = {process: catalog.union(ranges) for process, ranges in held.items()}
            replaced = {one.name for one in chosen}
            with tempfile.TemporaryDirectory(prefix="probe-compact-") as folder:
                made = _merged(store, chosen, Path(folder), group.table)
                committed = _commit(store, group, index, replaced, held, made)
            if committed is None:
                return
            index, merger = committed
            files = [*(one for one in files if one.name not in replaced), merger]
            yield len(chosen)


def _commit(
    store: Store, group: Group, index: Index | None, replaced: Collection[str], held: dict[str, Ranges],
    made: tuple[Path, int],
) -> tuple[Index, ArchivedFile] | None:
    """Put a merged file, and create the index that names it instead of the `replaced` ones. None if another
    compactor has committed: then the file does not count, and is removed later. Raises `ArchiveInvalid`."""
    path, count = made
    generation = (index.generation if index else 0) + 1
    kept = [name for name in (index.files if index else []) if name not in replaced]
    merger = dataset.merger_of(group, generation, count, rows.checksum(path))
    after = Index(generation, [*kept, merger.name], held)
    state = catalog.as_json(after)
    if len(state) > catalog.LARGEST_INDEX_BYTES:
        raise ArchiveInvalid(f"the files of {group.folder} are left as they are: their index is too large")
    size = path.stat().st_size
    store.put(merger.name, path)
    if not store.create(group.index_name(generation), state):
        return None
    return after, ArchivedFile(merger.name, size, merger, store.folder)


def forget(store: Store, group: Group, processes: Collection[str]) -> None:
    """Remove the rows of some processes from a group of many runs (`dataset.processes_of`). If it is killed,
    it can be repeated. Raises `ArchiveUnavailable` or `ArchiveInvalid`."""
    listed = [(one.name, dataset.read_file(one.name)) for one in store.list(group.folder)]
    store.delete([name for name, file in listed if file is not None and file.process in processes])
    found = Catalog(store)
    for _ in range(_TRIES):
        index = found.index(group)
        if index is None or not index.holds.keys() & set(processes):
            return
        merged = [one for one in found.listing(group.table, group=group) if one.file.merged]
        held = {process: ranges for process, ranges in index.holds.items() if process not in processes}
        with tempfile.TemporaryDirectory(prefix="probe-compact-") as folder:
            try:
                made = _merged(store, merged, Path(folder), group.table, processes)
            except ObjectMissing:
                continue
            if _commit(store, group, index, {one.name for one in merged}, held, made):
                return
    raise ArchiveInvalid(f"{group.folder} changes too fast for rows to be removed", hint="Try again.")


_TRIES = 8


def _smallest(files: Sequence[ArchivedFile]) -> list[ArchivedFile]:
    """The files to merge: the smallest ones, as many as fit. A merger is merged again once the newer files
    are a quarter of its size, so that each row is written a few times at most."""
    chosen: list[ArchivedFile] = []
    size = 0
    for one in sorted(files, key=lambda one: (one.file.merged, one.size_bytes)):
        too_large = size + one.size_bytes > LARGEST_BYTES
        too_early = one.file.merged and chosen and 4 * size < one.size_bytes
        if len(chosen) == MOST_FILES or too_large or too_early:
            break
        chosen.append(one)
        size += one.size_bytes
    return chosen


def _merged(
    store: Store, files: Sequence[ArchivedFile], folder: Path, table: str, without: Collection[str] = ()
) -> tuple[Path, int]:
    """The rows of the files, each once, as one file; and their number. `without`: processes left out."""
    import duckdb

    paths = []
    for number, one in enumerate(files):
        path = one.path
        if path is None:
            path = folder / f"{number}.parquet"
            path.write_bytes(store.get(one.name))
        paths.append(str(path))
    target = folder / "merged.parquet"
    connection = segments.engine()
    try:
        connection.execute(f"SET memory_limit = '{_MEMORY}'")
        connection.execute("SET temp_directory = ?", [str(folder / "spill")])
        listed = ", ".join("'" + path.replace("'", "''") + "'" for path in paths)
        source = f"read_parquet([{listed}], hive_partitioning = false, union_by_name = true)"
        newest = f" QUALIFY {dataset.NUMBER} = max({dataset.NUMBER}) OVER (PARTITION BY process)"
        query = (
            f"SELECT * FROM {source} WHERE NOT list_contains(?::VARCHAR[], process)"
            f"{newest if table == _PROCESSES else ''} ORDER BY {_SORT}"
        )
        rows.copy(connection, query, target, [list(without)])
        row = connection.execute(f"SELECT count(*) FROM read_parquet('{target}')").fetchone()
    except duckdb.Error as error:
        for one in files:
            if one.path is not None and not one.path.exists():
                raise ObjectMissing(f"{one.name} is gone") from None
        text = str(error).partition("\n")[0]
        where = files[0].file.group.folder
        raise ArchiveInvalid(f"the files of {where} are left as they are: {text}") from None
    finally:
        connection.close()
        shutil.rmtree(folder / "spill", ignore_errors=True)
    return target, int(row[0]) if row else 0


def _remove_replaced(
    store: Store, found: Catalog, group: Group, listed: Sequence[tuple[Listed, DataFile]], grace_s: float
) -> tuple[int, int]:
    """Delete files that the index of a group has replaced; returns how many were deleted and how many
    wait."""
    index = found.index(group)
    if index is None:
        before_ns = int((time.time() - max(grace_s, _LOST_S)) * 1e9)
        lost = [one.name for one, file in listed if file.merged and one.written_ns < before_ns]
        store.delete(lost)  # never committed
        return len(lost), 0
    replaced = [
        one.name for one, file in listed
        if (one.name not in index.files and file.generation <= index.generation if file.merged
            else catalog.holds(index.holds.get(file.process, []), file.first, file.last))
    ]
    committed_ns = max(
        (one.written_ns for one in store.list(group.index_folder)), default=0
    )
    if not replaced or time.time() - committed_ns * 1e-9 < grace_s:
        return 0, len(replaced)
    store.delete(replaced)
    return len(replaced) + _remove_old_indexes(store, found, group), 0


_LOST_S = 3600.0
"""A merger that is older than this and in no index belongs to a compactor that was killed."""


def _remove_old_indexes(store: Store, found: Catalog, group: Group) -> int:
    """Delete the indexes of a group except the newest, which contains all that the older ones say."""
    listed = [one.name for one in store.list(group.index_folder) if dataset.read_index(one.name)]
    old = sorted(listed)[:-1]
    if old:
        store.delete(old)
    return len(old)
