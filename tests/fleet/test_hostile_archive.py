"""Hostile SQL and hostile files through an archive: a refusal that says why, and nothing else harmed."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest

from fleet.written_archive import STEPS, Simulated, write
from probe.archive import catalog, dataset
from probe.archive.store import FolderStore
from probe.base.errors import ArchiveInvalid, ProbeError, QueryOutOfMemory, QueryTimeout, QueryWorkerDied
from probe.fleet import fleet_runs
from probe.fleet.fleet_runs import Fleet, Limits
from probe.fleet.worker_process import WorkerProcess

GOOD, BOMB = Simulated("good", "good-1"), Simulated("bomb", "../../bomb", day=1)
LIMITS = Limits(5.0, 256 << 20, 1)
BOMB_ROWS, BOMB_TEXT_BYTES = 100_000, 10_000
COUNT = "SELECT count(*) FROM python.steps WHERE run = 'good-1'"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs; of one the steps are a small file of very many long texts."""
    made = tmp_path_factory.mktemp("archive")
    write(made, [GOOD, BOMB], 20)
    [path] = made.glob(f"table={STEPS}/*/job=bomb/**/*.parquet")
    duckdb.execute(
        f"COPY (SELECT 'bomb' AS job, '../../bomb' AS run, 0 AS attempt, 0 AS rank, 'node1' AS host,"
        f" 1 AS pid, '0' AS process, i AS step, repeat('x', {BOMB_TEXT_BYTES}) AS boundary"
        f" FROM range({BOMB_ROWS}) t(i)) TO '{path}' (FORMAT parquet, COMPRESSION zstd)"
    )
    assert path.stat().st_size < 2 << 20
    assert 3 * LIMITS.memory_bytes < BOMB_ROWS * BOMB_TEXT_BYTES
    return made


@pytest.fixture(scope="module")
def fleet(folder: Path) -> Iterator[Fleet]:
    with Fleet(FolderStore(folder), limits=LIMITS) as found:
        yield found


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM read_text('/etc/passwd')",
        "SELECT * FROM read_parquet('{folder}/../*.parquet')",
        "SELECT * FROM read_csv('/proc/self/environ')",
        "COPY (SELECT 1) TO '{folder}/written.csv'",
        "ATTACH '{folder}/written.db'",
        "INSTALL httpfs",
        "SET lock_configuration = false",
        "SELECT 1; SELECT 2",
        "DROP VIEW python.steps",
        "EXPLAIN ANALYZE COPY (SELECT 1) TO '{folder}/written.csv'",
        "CREATE TABLE t AS SELECT 1",
        "SELECT getenv('HOME')",
        "SELECT '\ud800'",
    ],
)
def test_sql_that_does_more_than_read_the_archive_is_refused(fleet: Fleet, folder: Path, sql: str) -> None:
    before = sorted(os.listdir(folder))
    with pytest.raises(ProbeError):
        fleet.query(sql.replace("{folder}", str(folder)))
    assert sorted(os.listdir(folder)) == before
    assert fleet.query(COUNT).body["rows"] == [[40]]


def test_files_of_the_archive_that_are_no_rows_are_not_read(fleet: Fleet, folder: Path) -> None:
    (folder / "files").mkdir(exist_ok=True)
    (folder / "files" / "meta.json").write_text('{"argv": ["secret"]}')
    with pytest.raises(ProbeError):
        fleet.query(f"SELECT * FROM read_text('{folder}/files/meta.json')")


def test_a_bomb_ends_its_own_question(fleet: Fleet) -> None:
    with pytest.raises((QueryOutOfMemory, QueryWorkerDied, QueryTimeout)):
        fleet.query("SELECT list(boundary || step) FROM python.steps WHERE job = 'bomb'")
    assert fleet.query(COUNT).body["rows"] == [[40]]


def test_a_statement_without_an_end_is_stopped_at_its_deadline(folder: Path) -> None:
    with Fleet(FolderStore(folder), limits=Limits(3.0, 512 << 20, 1)) as fleet:
        assert fleet.query(COUNT).body["rows"] == [[40]]
        with pytest.raises(QueryTimeout):
            fleet.query("SELECT sum(a.range * b.range % 7) FROM range(1000000) a, range(1000000) b")
        assert fleet.query(COUNT).body["rows"] == [[40]]


def test_a_worker_that_is_killed_costs_its_own_question_alone(fleet: Fleet) -> None:
    assert fleet.query(COUNT).body["rows"] == [[40]]
    worker: WorkerProcess = fleet._worker
    assert worker._process is not None
    os.kill(worker._process.pid, signal.SIGKILL)
    with pytest.raises(QueryWorkerDied):
        fleet.query(COUNT)
    assert fleet.query(COUNT).body["rows"] == [[40]]


def test_more_files_than_can_be_opened_are_to_be_merged_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, [GOOD], 20, merged=False, portions=4)
    monkeypatch.setattr(fleet_runs, "MOST_FILES", 7)
    with Fleet(FolderStore(tmp_path)) as fleet:
        with pytest.raises(ArchiveInvalid, match="would open 8 files, at most 7") as refused:
            fleet.query(COUNT)
        assert "probe archive --compact" in refused.value.hint
        monkeypatch.setattr(catalog, "MOST_PROCESS_FILES", 1)
        with pytest.raises(ArchiveInvalid, match=r"2 files of archive\.processes, at most"):
            fleet.runs()
        assert fleet.query("SELECT count(*) FROM python.steps WHERE rank = 1").body["rows"] == [[20]]


def test_names_that_are_none_of_the_archive_are_not_read(folder: Path, tmp_path: Path) -> None:
    """A link out of the archive, a file of another name, a folder that only looks like a run."""
    write(tmp_path, [GOOD], 20)
    outside = next(folder.glob(f"table={STEPS}/*/job=good/**/*.parquet"))
    place = next(tmp_path.glob(f"table={STEPS}/*/job=good/run=good-1/attempt=0/rank=all"))
    (place / f"{'0' * 15}2-{1:012d}-{9:012d}-00000000.parquet").symlink_to(outside)
    (place / "rows.parquet").write_bytes(b"nothing")
    odd = tmp_path / f"table={STEPS}" / "date=2026-01-01" / "job=.." / "run=%2e%2e" / "attempt=0" / "rank=0"
    odd.mkdir(parents=True)
    name = dataset.file_of(GOOD.meta(0), STEPS, 1, 20, 0).name.rpartition("/")[2]
    (odd / name).write_bytes(b"nothing")
    with Fleet(FolderStore(tmp_path), limits=Limits(20.0, 512 << 20, 1)) as fleet:
        assert fleet.query("SELECT count(*) FROM python.steps").body["rows"] == [[40]]
