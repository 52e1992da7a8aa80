"""Shipping: every sealed row of a recording is in the archive once, whoever is killed, and no secret is."""

from __future__ import annotations

import json
import math
import random
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import duckdb
import pytest

from archive.reading import read
from harness import Place, run_probe
from probe.archive import archive_state, dataset, shipped
from probe.archive.catalog import Catalog
from probe.archive.shipping import Shipper
from probe.archive.store import FolderStore, Listed, Store
from probe.archive.throttle import Pace
from probe.base.settings import Settings
from probe.recording import places
from probe.recording.recording import Meta
from probe.recording.tables import TABLES, columns_of
from probe.server.recordings import archiver
from probe.server.recordings.archiver import Archiver
from probe.server.recordings.gathered_facts import fact
from probe.server.recordings.registry import Registry
from probe.server.recordings.server_journal import note_rows
from server.beside import Beside, Writer, until

FAST = {
    "PROBE_SEAL_INTERVAL_S": "0.1", "PROBE_ARCHIVE_INTERVAL_S": "0.2", "PROBE_ARCHIVE_CPU": "100%",
}


def complete(writer: Writer, url: str) -> bool:
    """Whether everything of an ended process is in the archive."""
    return shipped.read(writer.folder, url).complete


def as_json(value: Any) -> Any:
    """A value as an answer has it: JSON has no NaN."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else f"{'-' if value < 0 else ''}Infinity"
    return value


def check_rows(beside: Beside, writer: Writer, store: Store) -> int:
    """The archive has the rows that a query has, in every table; returns how many."""
    total = 0
    tables = [table for table in TABLES if table.source != "live" and table.sealed]
    counts = " UNION ALL ".join(f"SELECT '{one.full_name}', count(*) FROM {one.full_name}" for one in tables)
    asked: dict[str, int] = dict(beside.rows(writer.pid, counts))
    for table in tables:
        if not asked[table.full_name]:
            assert read(store, table.full_name, "*") == [], table.full_name
            continue
        names = ", ".join(f'"{column.name}"' for column in columns_of(table))
        told = beside.rows(writer.pid, f"SELECT {names} FROM {table.full_name}", limit=100_000)
        found = read(store, table.full_name, names)
        archived = sorted(repr(list(map(as_json, row))) for row in found)
        assert archived == sorted(map(repr, told)), table.full_name
        total += len(found)
    return total


@pytest.mark.parametrize("kills", [1, pytest.param(4, marks=pytest.mark.campaign)])
def test_every_sealed_row_is_there_once_while_the_server_is_killed_again_and_again(
    beside: Beside, record: Callable[..., Writer], tmp_path: Path, kills: int
) -> None:
    store = FolderStore(tmp_path / "archive")
    beside.set(PROBE_ARCHIVE=store.url, **FAST)
    writer = record(job="gpt", run="evil run")
    kill = random.Random(7)
    for _ in range(kills):
        beside.start()
        sealed = len(writer.segments("python.steps"))
        writer.tell("run 1000 300")
        until(lambda sealed=sealed: len(writer.segments("python.steps")) > sealed, "another segment")
        put = len(list(store.list()))
        until(lambda put=put: len(list(store.list())) > put, "another object")
        time.sleep(kill.random() * 0.05)
        beside.kill()
    writer.tell("halt")
    beside.start()
    writer.tell("strange")
    until(lambda: beside.rows(writer.pid, "SELECT * FROM probe.facts"), "the server's facts")
    writer.exit()
    until(lambda: complete(writer, store.url), "everything is shipped")
    assert check_rows(beside, writer, store) > 300 * kills
    [row] = Catalog(store).processes()
    assert (row["job"], row["state"], row["complete"], row["pid"]) == ("gpt", "finished", True, writer.pid)
    last = beside.rows(writer.pid, "SELECT max(step) FROM python.steps")[0][0]
    assert row["steps"] == last + 1 and row["last_t_ns"] is not None
    tables = [table for table in Catalog(store).tables() if table != dataset.PROCESSES.full_name]
    assert row["rows"] == sum(len(read(store, table)) for table in tables)
    meta = Meta.read(writer.folder)
    names = {one.name.rpartition("/")[2] for one in store.list(dataset.files_folder(meta))}
    assert names >= {"meta.json", "end.json", "journal.bin", "watch.bin"}
    assert all(path.is_relative_to(store.folder) for path in tmp_path.rglob("*evil*"))
    assert archive_state.read(beside.directory)[store.url].error == ""
    files = f"'{store.folder}/table*/**/*.parquet'"
    parts = duckdb.execute(
        f"SELECT DISTINCT decode(key), decode(value) FROM parquet_kv_metadata({files})"
    ).fetchall()
    assert (dataset.SCHEMA_KEY, str(dataset.SCHEMA)) in parts
    # A rank of the archive may be pruned now, and not before.
    assert beside.call("POST", "/v1/prune", {"keep": 0, "dry_run": True})["left"] == []
    (writer.folder / shipped.FILE).unlink()
    assert "archive" in beside.call("POST", "/v1/prune", {"keep": 0, "dry_run": True})["left"][0]["why"]


def test_what_is_noted_of_a_process_after_its_end_is_shipped_too(
    beside: Beside, record: Callable[..., Writer], tmp_path: Path
) -> None:
    store = FolderStore(tmp_path / "archive")
    beside.start(PROBE_ARCHIVE=store.url, **FAST)
    writer = record()
    writer.tell("write 10")
    until(lambda: beside.rows(writer.pid, "SELECT * FROM probe.facts"), "the server's facts")
    writer.exit()

    def names() -> set[str]:
        return {name for (name,) in read(store, "probe.facts", "name")}

    for late, restart in (("in time", False), ("after a restart", True)):
        until(lambda: complete(writer, store.url), "everything is shipped")
        if restart:
            beside.kill()
        assert note_rows(writer.folder, "probe.facts", [fact("package", late, "1")])
        assert not complete(writer, store.url)
        if restart:
            beside.start()
        until(lambda late=late: late in names(), "the late fact is shipped")
    until(lambda: complete(writer, store.url), "everything is shipped")
    check_rows(beside, writer, store)


class Watched(FolderStore):
    """Notes what is asked of it."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.listed: list[str] = []
        self.written: list[str] = []

    def list(self, prefix: str = "") -> Iterator[Listed]:
        self.listed.append(prefix)
        return super().list(prefix)

    def put(self, name: str, data: bytes | Path) -> None:
        self.written.append(name)
        super().put(name, data)


def test_a_shipment_touches_only_what_is_new_since_the_last_one(
    beside: Beside, record: Callable[..., Writer], tmp_path: Path
) -> None:
    store = Watched(tmp_path / "archive")
    shipper = Shipper(beside.directory, store, Pace(0, 1.0, threading.Event()))
    writer = record(job="gpt")

    def more() -> None:
        """More steps, sealed by a server that is gone then."""
        sealed = len(writer.segments("python.steps"))
        beside.start(PROBE_SEAL_INTERVAL_S="0.1")
        writer.tell("write 50")
        until(lambda: len(writer.segments("python.steps")) > sealed, "another segment")
        beside.kill()

    def asked() -> tuple[list[str], list[str]]:
        """What the next shipment lists, and the tables that it writes."""
        store.listed, store.written = [], []
        shipper.ship(writer.folder)
        return store.listed, [name.partition("/")[0] for name in store.written]

    more()
    listed, tables = asked()
    assert listed and tables.count("table=python.steps") == tables.count("table=archive.processes") == 1
    assert asked() == ([], [])
    more()
    listed, tables = asked()
    assert tables.count("table=python.steps") == tables.count("table=archive.processes") == 1
    assert not any("python.steps" in prefix or "archive.processes" in prefix for prefix in listed)
    (beside.directory / "archive.lock").write_text("another process")
    listed, tables = asked()  # what is in the archive now is not known any more
    assert listed and "table=python.steps" not in tables
    [row] = Catalog(store).processes()
    counted = row["rows"]
    (writer.folder / shipped.FILE).unlink()  # as if the server had been killed in its first shipment
    asked()
    [row] = Catalog(store).processes()
    assert row["rows"] == counted == sum(
        len(read(store, table)) for table in Catalog(store).tables() if table != dataset.PROCESSES.full_name
    )
    beside.start()
    writer.exit()


def test_rows_of_a_living_process_wait_together_until_something_is_noted_or_much_waits(
    beside: Beside, record: Callable[..., Writer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    day_ns = 86400 * 10**9
    writer = record(job="gpt")
    store = FolderStore(tmp_path / "archive")
    now_s, ran_ns = 0.0, 0
    started_ns = Meta.read(writer.folder).started_ns
    monkeypatch.setattr(archiver, "time", SimpleNamespace(monotonic=lambda: now_s))
    monkeypatch.setattr(archiver, "clock", SimpleNamespace(wall_ns=lambda: started_ns + ran_ns))
    settings = Settings({"PROBE_ARCHIVE": store.url, "PROBE_ARCHIVE_CPU": "100%"})
    sealer: Any = SimpleNamespace(is_done=lambda recorded: False)
    ships = Archiver(Registry(beside.directory), sealer, settings)

    shipments = []
    ship = Shipper.ship
    monkeypatch.setattr(Shipper, "ship", lambda *given: (shipments.append(now_s), ship(*given))[1])

    def shipped_after(seconds: float) -> bool:
        nonlocal now_s
        before, now_s = len(shipments), now_s + seconds
        ships.round()
        return len(shipments) > before

    assert not shipped_after(0) and shipped_after(31)
    ran_ns = 100 * 10**9
    assert shipped_after(31)  # it was young when it was shipped first
    assert not shipped_after(31) and shipped_after(70)  # as long as it has run
    ran_ns = day_ns
    assert shipped_after(101)
    assert not shipped_after(599) and not shipped_after(599)
    assert note_rows(writer.folder, "probe.facts", [fact("package", "late", "1")])
    assert shipped_after(601) and not shipped_after(599)
    segment = places.segments_folder(writer.folder, "python.steps", 0) / f"{writer.pid}-1-9-00000000.parquet"
    segment.parent.mkdir(parents=True, exist_ok=True)
    segment.write_bytes(b"much")
    assert not shipped_after(601)
    monkeypatch.setattr(archiver, "_MUCH_BYTES", 4)
    assert shipped_after(601)
    segment.unlink()
    monkeypatch.undo()
    beside.start()
    writer.exit()


def test_an_archive_out_of_reach_holds_nothing_up_and_is_told_of(
    beside: Beside, record: Callable[..., Writer], tmp_path: Path
) -> None:
    (tmp_path / "archive").write_text("no folder")
    url = str(tmp_path / "archive")
    beside.start(PROBE_ARCHIVE=url, **FAST)
    writer = record(job="gpt")
    writer.tell("write 200")
    state: Any = until(lambda: archive_state.read(beside.directory).get(url), "the failure is noted")
    assert "cannot be used" in state.error and state.failing_since_ns and state.used_ns is None
    until(lambda: writer.segments("python.steps"), "rows are sealed all the same")
    writer.exit()
    until(writer.sealed, "everything is sealed")
    assert "archive" in beside.call("POST", "/v1/prune", {"keep": 0, "dry_run": True})["left"][0]["why"]


def test_no_secret_is_shipped(beside: Beside, record: Callable[..., Writer], tmp_path: Path) -> None:
    secret = "ghp_abcdefghijklmnopqrstuvwxyz0123456789"
    store = FolderStore(tmp_path / "archive")
    beside.start(PROBE_ARCHIVE=store.url, **FAST)
    writer = record(job="gpt", cwd=f"/home/x?token={secret}")
    writer.tell("write 20")
    writer.tell(f"log {secret} 1.5")
    writer.tell(f"own notes note VARCHAR {secret}")
    writer.exit()
    until(lambda: complete(writer, store.url), "everything is shipped")
    texts = {value for (value,) in read(store, "python.scalars", "name")}
    assert texts and secret not in json.dumps(list(texts))
    assert read(store, "user.notes", "note, job, process")
    for table in Catalog(store).tables():
        assert secret not in repr(read(store, table)), table
    for one in store.list("files/"):
        assert secret.encode() not in store.get(one.name), one.name


def test_what_a_job_names_itself_is_shipped_where_the_job_says(
    place: Place, beside: Beside, record: Callable[..., Writer], tmp_path: Path
) -> None:
    """A server that was started without an archive ships a job that has one."""
    beside.start(**FAST)
    without, store = record(job="one"), FolderStore(tmp_path / "archive")
    with_one = record({"PROBE_ARCHIVE": store.url}, job="two")
    for writer in (without, with_one):
        writer.tell("write 5")
        writer.exit()
    until(lambda: complete(with_one, store.url), "it is shipped")
    assert {row["job"] for row in Catalog(store).processes()} == {"two"}
    assert not (without.folder / shipped.FILE).exists()


def test_the_command_ships_says_compacts_and_deletes(
    place: Place, beside: Beside, record: Callable[..., Writer], tmp_path: Path
) -> None:
    beside.start(PROBE_SEAL_INTERVAL_S="0.1")
    writer = record(job="gpt")
    writer.tell("write 50")
    until(lambda: writer.segments("python.steps"), "rows are sealed")
    until(lambda: beside.rows(writer.pid, "SELECT * FROM probe.facts"), "the server's facts")
    store = FolderStore(tmp_path / "archive")
    assert run_probe(place, "archive", "no-such-run", store.url).returncode == 3
    living = run_probe(place, "archive", "gpt", store.url)
    assert living.returncode == 0 and "have not ended" in living.stderr, living.stderr
    writer.tell("write 50")
    writer.exit()
    until(writer.sealed, "everything is sealed")
    waits = run_probe(place, "archive", "--status", store.url)
    assert "0 of 1 recordings" in waits.stdout and "sealed rows wait" in waits.stdout, waits.stdout
    for _ in range(2):
        assert run_probe(place, "archive", f"run-{writer.pid}", store.url).returncode == 0
    assert check_rows(beside, writer, store) > 100
    assert "1 of 1 recordings" in run_probe(place, "archive", "--status", store.url).stdout
    done = run_probe(place, "archive", "--compact", store.url)
    assert "files merged into" in done.stdout and "deletes them" in done.stderr, done.stderr
    assert check_rows(beside, writer, store) > 100
    dry = run_probe(place, "archive", "--older-than", "1h", store.url)
    assert "would delete: 0 runs" in dry.stdout, dry.stdout
    dry = run_probe(place, "archive", "--keep-bytes", "0", store.url)
    assert "would delete: 1 runs" in dry.stdout and "add --yes" in dry.stderr, dry.stdout
    assert Catalog(store).tables()
    assert "deleted: 1 runs" in run_probe(place, "archive", "--keep-bytes", "0", "--yes", store.url).stdout
    assert list(store.list()) == []
    assert run_probe(place, "archive", "--compact").returncode == 2
