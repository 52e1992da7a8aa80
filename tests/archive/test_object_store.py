"""An archive in an object store that is slow, answers 503 and cuts connections: every sealed row once."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from archive.object_store import BUCKET, Proxy, s3_server
from archive.test_shipping import FAST, check_rows, complete
from probe.archive import archive_state
from probe.archive.catalog import Catalog
from probe.archive.compaction import compact
from probe.archive.store import Store, open_store
from probe.base.errors import ArchiveUnavailable, ObjectMissing
from probe.fleet.fleet_runs import Fleet, Limits
from server.beside import Beside, Writer, until

pytestmark = pytest.mark.campaign
pytest.importorskip("obstore")
pytest.importorskip("moto")
URL = f"s3://{BUCKET}/team/probe"
NO_KEYS = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_REGION": "us-east-1"}


@pytest.fixture(scope="module")
def s3_port() -> Iterator[int]:
    with s3_server() as port:
        yield port


@pytest.fixture
def proxy(s3_port: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    proxy = Proxy(s3_port)
    for name, value in NO_KEYS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{proxy.port}")
    yield proxy
    proxy.close()


def direct(port: int, url: str = URL) -> Store:
    """The same store without the proxy."""
    return open_store(url, {**NO_KEYS, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}"})


def test_an_object_store_does_what_a_folder_does(proxy: Proxy, tmp_path: Path) -> None:
    store = open_store(f"s3://{BUCKET}/other")
    assert list(store.list()) == []
    store.put("a/b=1/x", b"0123456789")
    large = tmp_path / "large"
    large.write_bytes(b"y" * (17 << 20))
    store.put("a/b=2/y%2F", large)
    found = sorted((one.name, one.size_bytes) for one in store.list("a/"))
    assert found == [("a/b=1/x", 10), ("a/b=2/y%2F", 17 << 20)]
    assert store.folders("a/") == ["b=1/", "b=2/"] and store.folders() == ["a/"]
    assert store.get("a/b=1/x", 3, 4) == b"3456" and store.get("a/b=1/x", 8) == b"89"
    assert store.create("lock", b"1") and not store.create("lock", b"2") and store.get("lock") == b"1"
    store.delete(["a/b=1/x", "a/no", "a/b=2/y%2F", "lock"])
    assert list(store.list()) == [] and store.folder is None
    with pytest.raises(ObjectMissing):
        store.get("a/b=1/x")
    with pytest.raises(ArchiveUnavailable, match="NoSuchBucket"):
        open_store("s3://nobody/x").put("x", b"")


def test_every_sealed_row_is_there_once_through_faults_and_kills(
    beside: Beside, record: Callable[..., Writer], proxy: Proxy, s3_port: int
) -> None:
    beside.set(PROBE_ARCHIVE=URL, **FAST)
    writer = record(job="gpt")
    store = direct(s3_port)
    kill = random.Random(5)
    proxy.latency_s = 0.002
    for turn in range(4):
        proxy.faults = 0 if turn == 0 else 15
        beside.start()
        put = len(list(store.list()))
        writer.tell("run 1000 300")
        until(lambda put=put: len(list(store.list())) > put, "more objects")
        time.sleep(kill.random() * 0.1)
        beside.kill()
    writer.tell("halt")
    proxy.down = True
    beside.start()
    known = archive_state.State()
    until(lambda: archive_state.read(beside.directory).get(URL, known).error, "the cut link is told of")
    writer.exit()
    until(writer.sealed, "rows are sealed while the archive is out of reach")
    proxy.down, proxy.faults = False, 15
    until(lambda: complete(writer, URL), "everything is shipped")
    assert sum(proxy.failed.values()) >= 3, proxy.failed
    assert check_rows(beside, writer, store) > 1000
    assert compact(store, grace_s=0).merged > 0
    compact(store, grace_s=0)
    assert check_rows(beside, writer, store) > 1000
    [row] = Catalog(store).processes()
    assert row["state"] == "finished" and row["complete"]
    assert archive_state.read(beside.directory)[URL].error == ""


def test_readers_see_each_row_once_while_a_server_ships_and_files_are_merged_and_deleted(
    beside: Beside, record: Callable[..., Writer], proxy: Proxy, s3_port: int
) -> None:
    url = f"s3://{BUCKET}/merged/probe"
    store = direct(s3_port, url)
    beside.set(PROBE_ARCHIVE=url, **FAST)
    writer = record(job="gpt")
    sql = "SELECT count(*), count(DISTINCT step), max(step) - min(step) + 1, min(step) FROM python.steps"
    told: list[list[int]] = []
    refused: list[str] = []
    over = threading.Event()

    def read_on() -> None:
        """Ask as a new command does each time; without an answer it must say why."""
        while not over.is_set():
            try:
                with Fleet(open_store(url), limits=Limits(60.0, 512 << 20, 1)) as fleet:
                    answered = fleet.query(sql)
                assert not answered.body["notes"], answered.body["notes"]
                told.append(answered.body["rows"][0])
            except ArchiveUnavailable as error:
                refused.append(str(error))

    reader = threading.Thread(target=read_on, name="reader")
    beside.start()
    writer.tell("run 50")
    until(lambda: any("python.steps" in one.name for one in store.list()), "rows are shipped")
    proxy.latency_s, proxy.faults = 0.002, 15
    reader.start()
    merged = deleted = 0
    try:

        def enough() -> bool:
            """Merge, and delete at once what the last merger replaced: readers have no grace."""
            nonlocal merged, deleted
            with contextlib.suppress(ArchiveUnavailable):
                done = compact(open_store(url), grace_s=0)
                merged, deleted = merged + done.merged, deleted + done.deleted
            return (len(told) >= 8 and merged > 20 and deleted > 20) or not reader.is_alive()

        until(enough, "answers, mergers and deletions")
    finally:
        over.set()
        reader.join()
        writer.tell("halt")
    assert len(told) >= 8 and min(proxy.failed.values()) >= 1, (len(told), refused, proxy.failed)
    for count, different, spanned, first in told:
        assert count == different == spanned and first == told[0][3], told
    assert told == sorted(told), told
    proxy.faults = 0
    writer.exit()
    until(lambda: complete(writer, url), "everything is shipped")
    assert check_rows(beside, writer, store) > told[-1][0] > told[0][0]
