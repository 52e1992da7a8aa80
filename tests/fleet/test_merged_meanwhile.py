"""Files that compaction deletes after their listing and before they are read: the answer is whole."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import pytest

from fleet.written_archive import Simulated, write
from probe.archive.compaction import compact
from probe.archive.store import FolderStore, Listed, Store
from probe.diagnose.recipes.library import installed
from probe.fleet import per_run, ray_tasks
from probe.fleet.fleet_runs import Fleet, Limits
from probe.fleet.run_checks import judge

RUNS = [Simulated("gpt", "gpt-1"), Simulated("gpt", "gpt-2", day=1)]
SQL = "SELECT run, count(*), max(step) FROM python.steps GROUP BY run ORDER BY run"
ROWS = [["gpt-1", 40, 19], ["gpt-2", 40, 19]]


class Elsewhere:
    """A folder as an object store: its objects are no files here. `before` is called before each get."""

    folder = None

    def __init__(self, store: FolderStore, before: Callable[[str], object]) -> None:
        self._store, self._before = store, before
        self.url = store.url

    def list(self, prefix: str = "") -> Iterator[Listed]:
        return self._store.list(prefix)

    def folders(self, prefix: str = "") -> Sequence[str]:
        return self._store.folders(prefix)

    def get(self, name: str, first: int = 0, length: int | None = None) -> bytes:
        self._before(name)
        return self._store.get(name, first, length)

    def put(self, name: str, data: bytes | Path) -> None:
        self._store.put(name, data)

    def create(self, name: str, data: bytes) -> bool:
        return self._store.create(name, data)

    def delete(self, names: Iterable[str]) -> None:
        self._store.delete(names)


@pytest.fixture(params=["folder", "object store"])
def merging(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Store, Callable[[], object]]:
    """An archive, and what merges its files and deletes what was merged: of an object store also at the
    first read of rows."""
    folder = FolderStore(tmp_path / "archive")
    write(folder.folder, RUNS, 20, merged=False, portions=2)

    def merge() -> None:
        compact(folder, grace_s=0)
        compact(folder, grace_s=0)

    def at_first_read(name: str) -> None:
        if "python.steps" in name and "rank=all" not in name:
            merge()

    return (folder if request.param == "folder" else Elsewhere(folder, at_first_read)), merge


@pytest.mark.parametrize("ask", ["query", "recipe of a fleet", "part of each run", "recipes of each run"])
def test_an_answer_is_whole_though_files_are_merged_and_deleted_after_their_listing(
    merging: tuple[Store, Callable[[], object]], ask: str
) -> None:
    store, merge = merging
    with Fleet(store, limits=Limits(60.0, 512 << 20, 1)) as fleet:
        if ask == "query":
            fleet.plan(SQL)
            merge()
            assert fleet.query(SQL).body["rows"] == ROWS
        elif ask == "recipe of a fleet":
            fleet.plan(SQL)
            merge()
            assert fleet.rows(SQL, {}, 10)["rows"] == ROWS
        elif ask == "part of each run":
            asks = per_run.asks_about(fleet, fleet.runs(), "SELECT count(*) AS n FROM python.steps")
            merge()
            found = dict(per_run.Workers(fleet).each(asks))
            content = per_run.together(fleet.runs(), [found[place].body for place in (0, 1)])
            assert fleet.query("SELECT n FROM per_run", content).body["rows"] == [[40], [40]]
        else:

            class Late(per_run.Workers):
                def each(self, asks: Sequence[per_run.Ask]) -> Iterator[tuple[int, per_run.Answer]]:
                    merge()
                    return super().each(asks)

            judged = list(judge(fleet, fleet.runs(), [installed("")["throughput-drop"]], Late(fleet)))
            assert len(judged) == 2 and not any(check.failed for one in judged for check in one.checks)


def test_a_task_lists_again_what_was_merged_before_it_began(tmp_path: Path) -> None:
    store = FolderStore(tmp_path / "archive")
    write(store.folder, RUNS, 20, merged=False, portions=2)
    with Fleet(store, limits=Limits(60.0, 512 << 20, 1)) as fleet:
        asks = per_run.asks_about(fleet, fleet.runs(), SQL)
    for _ in range(2):
        compact(store, grace_s=0)
    try:
        told = [ray_tasks.answered(store.url, one.request, one.files, 60.0) for one in asks]
    finally:
        local, worker = ray_tasks._here(store.url)
        worker.close()
        local.close()
        ray_tasks._here.cache_clear()
    assert not any("error" in head for head, _ in told), json.dumps([head for head, _ in told])
