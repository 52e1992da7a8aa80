"""Three hosts that train and ship to one object store, while a host dies, a link is cut and requests fail.

What they have sealed is read from their disks, file by file, and compared with the archive, row by row."""

from __future__ import annotations

import io
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import duckdb
import pytest

from archive.object_store import BUCKET, Proxy, s3_server
from archive.test_shipping import FAST
from cluster import network
from cluster.network import Host
from harness import Job
from probe.archive import dataset, shipped
from probe.archive.catalog import Catalog
from probe.archive.compaction import compact
from probe.archive.store import Store, open_store
from probe.bundle import cleaning
from probe.recording import places
from probe.recording.journal import read_journal
from probe.recording.recording import Meta
from probe.recording.tables import BY_NAME
from probe_cli.main import run as run_command
from server.beside import until

pytest.importorskip("obstore")
pytest.importorskip("moto")
WHY_NOT = network.why_not()
pytestmark = [pytest.mark.campaign, pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)]
URL = f"s3://{BUCKET}/fleet"
KEYS = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_REGION": "us-east-1"}
STEPS = "python.steps"


class Archived(NamedTuple):
    """Three hosts whose jobs are over and shipped, the archive, and the environment in which to reach it."""

    hosts: list[Host]
    store: Store
    environ: dict[str, str]


@pytest.fixture(scope="module")
def archived() -> Iterator[Archived]:
    """Host 2 is cut off for a while, host 3 dies in the middle of a request and starts again, and the archive
    is compacted meanwhile."""
    with s3_server() as port, network.hosts(3) as hosts, pytest.MonkeyPatch.context() as patch:
        for name, value in KEYS.items():
            patch.setenv(name, value)  # obstore takes them from this process's own
        proxy = Proxy(port, network.address_of_this_machine(hosts))
        for host in hosts:
            endpoint = f"http://{proxy.address}:{proxy.port}"
            host.shared.update(PROBE_ARCHIVE=URL, AWS_ENDPOINT_URL=endpoint, **KEYS, **FAST)
        environ = {**KEYS, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}"}
        store = open_store(URL, environ)
        try:
            jobs = [start(host, rank, 0) for rank, host in enumerate(hosts)]
            for job in jobs:
                job.wait_for("READY")
            for rank in range(3):
                until(lambda rank=rank: shipped_steps(store, rank, 0), f"steps of rank {rank}")
            proxy.faults, proxy.latency_s = 15, 0.02

            _, cut_off, dies = hosts
            cut_off.cut()
            sealed = highest(cut_off)
            until(lambda: dies.address in proxy.serving, "a request of host 3")
            dies.die()
            until(lambda: highest(cut_off) > sealed, "rows are sealed behind the cut")
            assert compact(store, grace_s=0).merged > 0
            jobs.append(start(dies, 2, 1))
            jobs[-1].wait_for("READY")
            cut_off.mend()
            until(lambda: shipped_steps(store, 2, 1), "steps of the next attempt")
            for job in jobs:
                job.kill()
            for host in hosts:
                for process in processes(host):
                    until(lambda process=process: shipped.read(process, URL).complete, f"all of {process}")
            assert sum(proxy.failed.values()) >= 3, proxy.failed
            yield Archived(hosts, store, environ)
        finally:
            proxy.close()


def start(host: Host, rank: int, attempt: int) -> Job:
    """One rank of the job, which trains by itself: a cut link does not stop it."""
    return host.start_rank(
        "gpt_with_schedule", "--forever", RANK=str(rank), WORLD_SIZE="3", LOCAL_RANK="0",
        LOCAL_WORLD_SIZE="1", GROUP_RANK=str(rank), TORCHELASTIC_RUN_ID="night",
        TORCHELASTIC_RESTART_COUNT=str(attempt), OMP_NUM_THREADS="1", PROBE_NAME="gpt",
    )


def processes(host: Host) -> list[Path]:
    """The recordings on a host's disk."""
    return places.process_folders(host.place.directory)


def shipped_steps(store: Store, rank: int, attempt: int) -> list[str]:
    """The files of steps of one rank."""
    names = [one.name for one in store.list(f"table={STEPS}/")]
    return [name for name in names if f"/attempt={attempt}/rank={rank}/" in name]


def files_of(process: Path, meta: Meta, table: str) -> list[str]:
    """All segments of a table, those that others have replaced, too."""
    return sorted(map(str, places.segments_folder(process, table, meta.rank).glob(f"{meta.pid}-*.parquet")))


def highest(host: Host) -> int:
    """The highest number of a sealed step, from the names of the files."""
    [process] = processes(host)
    return max(int(Path(file).name.split("-")[2]) for file in files_of(process, Meta.read(process), STEPS))


class Found(NamedTuple):
    """Rows in order, each with its number where it has one, and the names of their columns."""

    columns: list[str]
    rows: list[tuple[Any, ...]]


def read(files: list[str], condition: str, columns: str = "*") -> Found:
    """Rows of files by number, each number once if the files are segments."""
    source = f"read_parquet({files}, hive_partitioning = false, union_by_name = true)"
    found = duckdb.sql(f"SELECT {columns} FROM {source} WHERE {condition} ORDER BY {dataset.NUMBER}")
    return Found(list(found.columns), found.fetchall())


class Copies:
    """The visible files of an archive, on disk."""

    def __init__(self, store: Store, folder: Path) -> None:
        self.files: dict[str, list[str]] = {}
        for table in Catalog(store).tables():
            for number, one in enumerate(Catalog(store).files(table)):
                path = folder / f"{table}-{number}.parquet"
                path.write_bytes(store.get(one.name))
                self.files.setdefault(table, []).append(str(path))

    def of(self, table: str, process: str, columns: str = "*") -> list[tuple[Any, ...]]:
        """The rows of one process."""
        return read(self.files[table], f"process = '{process}'", columns).rows if table in self.files else []


def test_every_sealed_row_of_each_host_is_in_the_archive_once(archived: Archived) -> None:
    total: dict[str, int] = {}
    told = {str(row["process"]): row for row in Catalog(archived.store).processes()}
    with tempfile.TemporaryDirectory() as folder:
        copies = Copies(archived.store, Path(folder))
        for host in archived.hosts:
            for process in processes(host):
                meta = Meta.read(process)
                key = dataset.process_id(meta)
                count = 0
                for place in process.parent.glob(f"table=*/rank={meta.rank}"):
                    table = place.parent.name.removeprefix("table=")
                    count += check_segments(process, meta, table, copies)
                count += check_journals(process, key, copies)
                archive_count = sum(
                    len(copies.of(table, key, dataset.NUMBER)) for table in copies.files
                    if table != dataset.PROCESSES.full_name
                )
                row = told.pop(key)
                assert (row["host"], row["attempt"]) == (meta.host, meta.attempt)
                assert row["rows"] == archive_count == count, (meta.host, meta.attempt, row)
                assert row["complete"] and row["state"] == "dead"
                total[f"{meta.host} attempt {meta.attempt}"] = count
        assert not told and sorted(total) == [
            "node1 attempt 0", "node2 attempt 0", "node3 attempt 0", "node3 attempt 1",
        ]
    print(total)


def check_segments(process: Path, meta: Meta, table: str, copies: Copies) -> int:
    """The sealed rows of a table are in the archive, each once and the same; how many there are."""
    files = files_of(process, meta, table)
    if not files:
        return 0
    declared = BY_NAME.get(table)
    hidden = f"({declared.hidden}) IS NOT TRUE" if declared and declared.hidden else "true"
    sealed = read(files, f"{hidden} QUALIFY row_number() OVER (PARTITION BY {dataset.NUMBER}) = 1")
    columns = ", ".join(f'"{name}"' for name in sealed.columns)
    found = copies.of(table, dataset.process_id(meta), columns)
    assert list(map(repr, found)) == list(map(repr, sealed.rows)), (meta.host, table)
    return len(found)


def check_journals(process: Path, key: str, copies: Copies) -> int:
    """The rows of both journals are in the archive in their order, as far as JSON and Parquet have the same
    types; how many there are."""
    expected: dict[str, list[dict[str, Any]]] = {}
    for path in places.journals(process):
        for record in read_journal(path):
            table = BY_NAME.get(str(record.get("table")))
            if table is not None and table.source == "journal":
                expected.setdefault(table.full_name, []).extend(record["rows"])
    for name, rows in expected.items():
        columns = [column.name for column in BY_NAME[name].columns if column.name not in ("rank", "pid")]
        found = copies.of(name, key, ", ".join(f'"{column}"' for column in columns))
        assert len(found) == len(rows), (process, name)
        for row, archived in zip(rows, found, strict=True):
            clean = cleaning.plain(row)
            for column, value in zip(columns, archived, strict=True):
                if isinstance(clean.get(column), (str, int, float)):
                    assert value == clean[column], (name, column)
    return sum(map(len, expected.values()))


def test_the_command_asks_the_object_store_about_all_three(archived: Archived) -> None:
    def asked(*words: str) -> Any:
        out, err = io.StringIO(), io.StringIO()
        asks = ("fleet", URL, *words, "--format", "json")
        code = run_command(asks, archived.environ, out, err, io.StringIO())
        assert code == 0, err.getvalue()
        return json.loads(out.getvalue())

    sql = f"SELECT host, attempt, count(*) FROM {STEPS} GROUP BY ALL ORDER BY ALL"
    with tempfile.TemporaryDirectory() as folder:
        copies = Copies(archived.store, Path(folder))
        steps = [
            [meta.host, meta.attempt, len(copies.of(STEPS, dataset.process_id(meta)))]
            for host in archived.hosts for meta in map(Meta.read, processes(host))
        ]
    assert asked("query", sql)["rows"] == sorted(steps)
    one = asked("query", f"SELECT DISTINCT host FROM {STEPS} WHERE rank = 1")
    assert one["rows"] == [["node2"]]
    assert {tuple(row[:3]) for row in asked("runs")["rows"]} == {
        ("gpt", "gpt-night", attempt) for attempt in (0, 1)
    }
    explained = asked("query", sql, "--host", "node1")
    assert [row[0] for row in explained["rows"]] == ["node1"]
