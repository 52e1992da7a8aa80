"""Compaction: merges the small files of a table and a run into few large ones, all ranks together; those of
archive.processes of a month, all runs together.

A merger is put under a name that no reader counts, then the group's next index is created, which names it and
the rows that it holds: that is the commit, and of several compactors one creates it. What was replaced is
deleted by a later compaction, `GRACE_S` after the commit: readers that listed it before may still open it.
Killed anywhere, it leaves what the next one finishes or removes. Runs in `probe archive --compact`; duckdb in
functions.
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
"""What was replaced is deleted so long after."""
LEAST_FILES = 2
LARGEST_BYTES = 256 << 20
"""Of the files that become one; larger ones are left alone."""
MOST_FILES = 500
"""That become one at a time: the engine may hold all of them open, and a process may often open 1,024."""
_MOST_LISTED = 10_000_000
"""Files of one group: there are more than may be listed for a question because they were never merged."""
_MEMORY = "2GB"
_SORT = f"rank, process, {dataset.NUMBER}"
_PROCESSES = dataset.PROCESSES.full_name


class Compacted(NamedTuple):
    """What was done: files merged, the mergers made of them, files deleted, files that wait to be deleted;
    and notes about groups that were left alone."""

    merged: int
    made: int
    deleted: int
    waiting: int
    notes: list[str]


def compact(store: Store, *, grace_s: float = GRACE_S, told: Callable[[str], object] = str) -> Compacted:
    """Merge what can be merged, and delete what was replaced long enough ago; `told` is called with each
    table. Raises `ArchiveUnavailable`, `ArchiveInvalid` or `OSError`."""
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
    """The files of a table by group; listed by date, as there may be very many."""
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
    index = found.index(group)  # before the listing: what is committed after it makes the next commit fail
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
    """Put a file of so many rows, and create the index that names it for those `replaced`; None if another
    compactor has committed: then it counts for nobody, and is removed later. Raises `ArchiveInvalid`."""
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
    """Remove the rows of some processes from a group of many runs (`dataset.processes_of`). Killed meanwhile,
    it leaves them or removes them, and can be repeated. Raises `ArchiveUnavailable` or `ArchiveInvalid`."""
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
    """The files to merge: the smallest ones, as many as fit. A merger is merged again when what came later is
    a quarter of it, so that each row is written a few times at most."""
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
    """Delete what the index of a group has replaced; returns how many files that were, and how many wait."""
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
"""A merger that was put so long ago and is in no index belongs to a compactor that was killed."""


def _remove_old_indexes(store: Store, found: Catalog, group: Group) -> int:
    """Delete the indexes of a group before the one that counts: each says all that those before it said."""
    listed = [one.name for one in store.list(group.index_folder) if dataset.read_index(one.name)]
    old = sorted(listed)[:-1]
    if old:
        store.delete(old)
    return len(old)
