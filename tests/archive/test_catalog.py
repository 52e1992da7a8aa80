"""What is visible in an archive: every row once, whatever compaction left, and what was asked for."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from archive.made import META, put_process, put_rows
from probe.archive import catalog, dataset
from probe.archive.catalog import Catalog, Index
from probe.archive.store import FolderStore
from probe.base.errors import ArchiveInvalid

STEPS = "python.steps"
GROUP = dataset.group_of(META, STEPS)
A, B = META, replace(META, rank=1, pid=8, host="node2")


@pytest.fixture
def store(tmp_path: Path) -> FolderStore:
    return FolderStore(tmp_path / "archive")


def names(store: FolderStore, **filters: object) -> set[str]:
    return {one.name for one in Catalog(store).files(STEPS, **filters)}  # type: ignore[arg-type]


def put_index(
    store: FolderStore, generation: int, files: Iterable[str], held: dict[str, list[list[int]]]
) -> None:
    store.put(GROUP.index_name(generation), json.dumps({"files": list(files), "holds": held}).encode())


def put_merger(store: FolderStore, generation: int, checksum: int = 1) -> str:
    name = dataset.merger_of(GROUP, generation, 30, checksum).name
    store.put(name, b"rows")
    return name


def test_a_merger_counts_once_its_index_is_there_and_what_it_replaced_no_more(
    store: FolderStore, tmp_path: Path
) -> None:
    old = {put_rows(store, tmp_path, A, STEPS, 1, 10), put_rows(store, tmp_path, B, STEPS, 1, 20)}
    merger = put_merger(store, 1)
    assert names(store) == old
    put_index(store, 1, [merger], {dataset.process_id(A): [[1, 10]], dataset.process_id(B): [[1, 20]]})
    assert names(store) == {merger}
    later = put_rows(store, tmp_path, A, STEPS, 11, 15)
    assert names(store) == {merger, later}
    again = put_rows(store, tmp_path, A, STEPS, 3, 9)  # written twice, by a writer that was late
    assert names(store) == {merger, later}
    store.delete([*old, again, later])
    assert names(store) == {merger}
    second, lost = put_merger(store, 2), put_merger(store, 2, checksum=2)  # of two writers one has committed
    put_index(store, 2, [second], {dataset.process_id(A): [[1, 15]], dataset.process_id(B): [[1, 20]]})
    assert names(store) == {second}
    store.delete([merger, lost])
    assert names(store) == {second}


def test_rows_that_were_written_twice_are_read_once(store: FolderStore, tmp_path: Path) -> None:
    put_rows(store, tmp_path, A, STEPS, 1, 10)
    put_rows(store, tmp_path, A, STEPS, 11, 20)
    larger = put_rows(store, tmp_path, A, STEPS, 1, 20)
    other = put_rows(store, tmp_path, B, STEPS, 1, 10)
    assert names(store) == {larger, other}
    held, size = Catalog(store).held(GROUP)
    assert held == {dataset.process_id(A): [(1, 20)], dataset.process_id(B): [(1, 10)]} and size > 0


def test_files_are_chosen_by_job_run_rank_host_and_time(store: FolderStore, tmp_path: Path) -> None:
    other = replace(META, run="r2", job="eval", pid=9, host="node3")
    ended = {"ended_ns": META.started_ns + 10**12, "complete": True, "last_t_ns": META.started_ns + 10**11}
    put_process(store, tmp_path, A, 1, state="running", ended_ns=0, complete=False, last_t_ns=0)
    put_process(store, tmp_path, A, 2, state="finished", **ended)
    put_process(store, tmp_path, B, 1, state="dead", how="SIGKILL", **ended)
    put_process(store, tmp_path, other, 5, state="running")
    of_a, of_b = (put_rows(store, tmp_path, one, STEPS, 1, 3) for one in (A, B))
    of_other = put_rows(store, tmp_path, other, STEPS, 1, 3)
    assert names(store) == {of_a, of_b, of_other}
    assert names(store, jobs=["eval"]) == {of_other} == names(store, runs=["r2"])
    assert names(store, ranks=[1]) == {of_b} == names(store, hosts=["node2"])
    assert names(store, jobs=["train"], hosts=["node1", "node3"]) == {of_a}
    assert names(store, runs=["no such run"]) == set()
    assert names(store, since=META.started_ns + 2 * 10**12) == {of_other}
    found = Catalog(store).processes()
    assert {(row["run"], row["rank"], row["state"], row["how"]) for row in found} == {
        ("r1", 0, "finished", None), ("r1", 1, "dead", "SIGKILL"), ("r2", 0, "running", None),
    }
    assert Catalog(store).tables() == ["archive.processes", STEPS]


def test_a_merger_that_is_committed_while_files_are_listed_is_seen(
    store: FolderStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first listing has a file that the second merger replaced, and not yet that merger."""
    late = put_rows(store, tmp_path, A, STEPS, 11, 15)
    first = put_merger(store, 1)
    put_index(store, 1, [first], {dataset.process_id(A): [[1, 10]]})
    listed = store.list
    busy = True

    def list_late(prefix: str = "") -> object:
        nonlocal busy
        found = list(listed(prefix))
        if busy and prefix.startswith("table="):
            busy = False
            put_index(store, 2, [put_merger(store, 2)], {dataset.process_id(A): [[1, 15]]})
        return iter(found)

    with monkeypatch.context() as patched:
        patched.setattr(store, "list", list_late)
        [seen] = Catalog(store).files(STEPS)
    assert seen.file.generation == 2
    assert late in {one.name for one in store.list()}
    store.delete([seen.name])  # what is lost for good does not hide the rest
    assert names(store) == set()
    other = put_rows(store, tmp_path, B, STEPS, 1, 3)
    assert names(store) == {other}


def test_indexes_are_read_only_of_groups_that_are_being_merged(
    store: FolderStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_rows(store, tmp_path, A, STEPS, 1, 10)
    merger = dataset.merger_of(dataset.group_of(replace(META, run="r2"), STEPS), 3, 30, 1).name
    store.put(merger, b"rows")
    listed = store.list
    asked: list[str] = []
    monkeypatch.setattr(store, "list", lambda prefix="": asked.append(prefix) or listed(prefix))
    assert merger in names(store) and len(names(store)) == 2
    assert not [prefix for prefix in asked if prefix.startswith(dataset.INDEX)]


def test_a_damaged_index_is_said_and_strange_files_are_nothing(store: FolderStore, tmp_path: Path) -> None:
    put_rows(store, tmp_path, A, STEPS, 1, 10)
    store.put(f"table={STEPS}/date=2026-03-01/README", b"hello")
    store.put("index/README", b"hello")
    assert len(names(store)) == 1
    put_merger(store, 1)
    store.put(GROUP.index_name(1), b"[]")
    with pytest.raises(ArchiveInvalid, match="damaged"):
        names(store)


def test_ranges_are_added_and_subtracted() -> None:
    assert catalog.union([(5, 9), (1, 2), (3, 3), (8, 12)]) == [(1, 3), (5, 12)]
    assert catalog.missing([(1, 3), (5, 12)], 2, 20) == [(4, 4), (13, 20)]
    assert catalog.missing([], 2, 3) == [(2, 3)] and catalog.missing([(1, 9)], 2, 3) == []
    assert catalog.holds([(1, 3), (5, 12)], 5, 12) and not catalog.holds([(1, 3), (5, 12)], 3, 5)
    told = json.loads(catalog.as_json(Index(1, ["a"], {"p": [(1, 2)]})))
    assert told == {"files": ["a"], "holds": {"p": [[1, 2]]}}
