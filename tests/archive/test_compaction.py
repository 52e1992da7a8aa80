"""Compaction: readers see every row once while it runs, whoever is killed in it."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import pytest

from archive.made import META, parquet, put_process, put_rows
from archive.reading import read
from probe.archive import compaction, dataset, retention
from probe.archive.catalog import Catalog
from probe.archive.compaction import compact
from probe.archive.store import FolderStore

STEPS = "python.steps"
RANKS = [replace(META, rank=rank, pid=100 + rank, host=f"node{rank // 2}") for rank in range(4)]


@pytest.fixture
def store(tmp_path: Path) -> FolderStore:
    return FolderStore(tmp_path / "archive")


def wanted(up_to: int) -> list[tuple[int, int]]:
    """(rank, number) of all rows."""
    return sorted((meta.rank, number) for meta in RANKS for number in range(1, up_to + 1))


def seen(store: FolderStore) -> list[tuple[int, int]]:
    return sorted(read(store, STEPS, f"rank, {dataset.NUMBER}"))


def test_readers_see_every_row_once_while_files_are_merged_and_deleted(
    store: FolderStore, tmp_path: Path
) -> None:
    for meta in RANKS:
        put_process(store, tmp_path, meta, 1, state="running")
        put_rows(store, tmp_path, meta, STEPS, 1, 10)
    done = threading.Event()
    wrong: list[Any] = []
    reads = 0

    def look() -> None:
        nonlocal reads
        least = 10
        while not done.is_set():
            found = seen(store)
            once = len(set(found)) == len(found)
            ranks = {rank: [number for one, number in found if one == rank] for rank in range(4)}
            whole = all(numbers == list(range(1, len(numbers) + 1)) for numbers in ranks.values())
            if not once or not whole or min(map(len, ranks.values())) < least:
                wrong.append(found)
                return
            least = min(map(len, ranks.values()))
            reads += 1

    reader = threading.Thread(target=look)
    reader.start()
    for start in range(10, 60, 10):
        for meta in RANKS:
            put_rows(store, tmp_path, meta, STEPS, start + 1, start + 10)
        compact(store, grace_s=0)  # the worst for readers
        compact(store, grace_s=0)
    done.set()
    reader.join()
    assert not wrong and reads > 3
    assert seen(store) == wanted(60)
    files = [one.name for one in store.list(f"table={STEPS}/")]
    assert len(files) < 6 and any("rank=all" in name for name in files)
    assert {row["rank"] for row in Catalog(store).processes()} == {0, 1, 2, 3}
    [merged] = Catalog(store).files(dataset.PROCESSES.full_name)
    assert merged.file.merged
    put_process(store, tmp_path, RANKS[0], 2, state="finished")
    assert [row["state"] for row in Catalog(store).processes()].count("finished") == 1
    held, _ = Catalog(store).held(dataset.group_of(META, STEPS))
    assert held == {dataset.process_id(meta): [(1, 60)] for meta in RANKS}  # a shipper puts none again


def test_what_a_killed_compactor_left_counts_for_nobody_and_of_two_one_commits(
    store: FolderStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for meta in RANKS:
        put_rows(store, tmp_path, meta, STEPS, 1, 10)
    create = store.create
    with monkeypatch.context() as patched:  # another one commits just before
        def lost(name: str, data: bytes) -> bool:
            patched.setattr(store, "create", create)
            compact(store, grace_s=0)
            return create(name, data)

        patched.setattr(store, "create", lost)
        compact(store, grace_s=0)
    assert seen(store) == wanted(10)
    with monkeypatch.context() as patched:
        def killed(name: str, data: bytes) -> bool:
            raise KeyboardInterrupt

        for meta in RANKS:
            put_rows(store, tmp_path, meta, STEPS, 11, 20)
        patched.setattr(store, "create", killed)
        with pytest.raises(KeyboardInterrupt):
            compact(store, grace_s=0)
    assert seen(store) == wanted(20)
    monkeypatch.setattr(compaction, "_LOST_S", 0.0)
    for _ in range(3):
        compact(store, grace_s=0)
    assert seen(store) == wanted(20)
    assert len(list(store.list(f"table={STEPS}/"))) == 1
    assert len(list(store.list("index/"))) == 1


def test_rows_of_two_versions_are_one_table_and_what_cannot_be_merged_is_left(
    store: FolderStore, tmp_path: Path
) -> None:
    put_rows(store, tmp_path, RANKS[0], STEPS, 1, 3)
    identity = f"1::BIGINT AS rank, 'train' AS job, 'r1' AS run, '{dataset.process_id(RANKS[1])}' AS process"
    newer = parquet(
        tmp_path / "x.parquet",
        f"SELECT i AS step, 0.5 AS new_column, {identity}, i AS _number FROM range(1, 4) AS rows(i)",
    )
    store.put(dataset.file_of(RANKS[1], STEPS, 1, 3, 9).name, newer)
    before = sorted(read(store, STEPS, "rank, step, new_column"), key=repr)
    assert {row[2] for row in before if row[0] == 0} == {None} and len(before) == 6
    assert compact(store).merged == 2
    assert sorted(read(store, STEPS, "rank, step, new_column"), key=repr) == before
    [file] = Catalog(store).files(STEPS)
    told = duckdb.execute(f"SELECT decode(key) FROM parquet_kv_metadata('{file.path}')").fetchall()
    assert {(dataset.SCHEMA_KEY,), (dataset.VERSION_KEY,)} <= set(told)
    store.put(dataset.file_of(RANKS[2], STEPS, 1, 3, 9).name, b"no parquet")
    store.put(dataset.file_of(RANKS[3], STEPS, 1, 3, 9).name, newer)
    done = compact(store)
    assert done.merged == 0 and "left as they are" in done.notes[0]


def test_processes_of_many_runs_are_few_files_and_those_of_deleted_runs_are_not_in_them(
    store: FolderStore, tmp_path: Path
) -> None:
    metas = [replace(META, run=f"r{number}", pid=number) for number in range(6)]
    for meta in metas:
        put_rows(store, tmp_path, meta, STEPS, 1, 2)
        put_process(store, tmp_path, meta, 1, last_t_ns=META.started_ns + meta.pid, ended_ns=1)
    assert compact(store, grace_s=0).merged == 6
    put_process(store, tmp_path, metas[5], 2, last_t_ns=META.started_ns + 9, ended_ns=1)
    compact(store, grace_s=0)
    assert len(Catalog(store).files(dataset.PROCESSES.full_name)) < 3
    found = retention.runs(store)
    assert [run.run for run in found] == ["r0", "r1", "r2", "r3", "r4", "r5"]
    retention.delete(store, [found[1], found[5]])
    assert [run.run for run in retention.runs(store)] == ["r0", "r2", "r3", "r4"]
    assert {one.file.group.run for one in Catalog(store).files(STEPS)} == {"r0", "r2", "r3", "r4"}
    compact(store, grace_s=0)
    assert len(list(store.list(f"table={dataset.PROCESSES.full_name}/"))) == 1
    retention.delete(store, retention.runs(store))
    compact(store, grace_s=0)
    assert not retention.runs(store) and not list(store.list(f"table={STEPS}/"))


def test_very_many_files_are_merged_some_at_a_time(
    store: FolderStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compaction, "MOST_FILES", 3)
    for first in range(1, 11):
        for meta in RANKS[:2]:
            put_rows(store, tmp_path, meta, STEPS, first, first)
    done = compact(store)
    assert done.made > 6
    assert len(Catalog(store).files(STEPS)) < 4
    assert seen(store) == [(rank, number) for rank in (0, 1) for number in range(1, 11)]
