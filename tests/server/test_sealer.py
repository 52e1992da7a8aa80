"""Rings become segments, and nothing is lost or doubled on the way, whoever dies when."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import duckdb
import pytest

from harness import Place
from probe.base.settings import Settings
from probe.recording import checked, places, segments
from probe.recording.reader import RingFile, Tail
from probe.server.recordings.registry import Registry
from probe.server.recordings.sealer import LATEST, Sealer
from probe.server.watch.stall_watch import Watch
from server.beside import Beside, Writer, until

ALL_ONCE = "SELECT count(*), count(DISTINCT step), min(step), max(step) FROM python.steps"


def sealed_steps(writer: Writer) -> list[int]:
    """Steps in segments alone, as any tool would read them."""
    files = [str(segment.path) for segment in segments.visible(writer.segments("python.steps"))]
    if not files:
        return []
    found = duckdb.execute(f"SELECT step FROM read_parquet({files}) ORDER BY _number").fetchall()
    return [row[0] for row in found]


def in_process(place: Place, **environ: str) -> tuple[Registry, Sealer]:
    """A sealer whose rounds the test makes itself."""
    settings = Settings(place.environ(**environ))
    registry = Registry(place.directory)
    return registry, Sealer(registry, settings)


@pytest.mark.parametrize("kills", [2, pytest.param(10, marks=pytest.mark.campaign)])
def test_every_row_is_there_once_while_the_server_is_killed_again_and_again(
    beside: Beside, record: Callable[..., Writer], kills: int
) -> None:
    writer = record({"PROBE_RINGS_BYTES": "6M"})
    kill = random.Random(3)
    for _ in range(kills):
        beside.start(PROBE_SEAL_INTERVAL_S="0.1")
        sealed = len(writer.segments("python.steps"))
        # The next segment has all rows of the round before: so none is overwritten, however slow a server is.
        writer.tell("run 1000 700")
        until(lambda sealed=sealed: len(writer.segments("python.steps")) > sealed, "another segment")
        time.sleep(kill.random() * 0.05)  # anywhere in a round
        beside.kill()
    writer.tell("halt")
    steps = writer.steps()
    beside.start()
    assert beside.rows(writer.pid, ALL_ONCE) == [[steps, steps, 0, steps - 1]]
    writer.exit()
    until(lambda: beside.states()[writer.pid] == "finished" and not writer.rings().exists(), "the end")
    assert sealed_steps(writer) == list(range(steps))
    assert beside.rows(writer.pid, ALL_ONCE) == [[steps, steps, 0, steps - 1]]
    assert beside.rows(
        writer.pid,
        "SELECT rows_written, rows_sealed, rows_dropped FROM probe.rings WHERE table_name = 'python.steps'",
    ) == [[steps, steps, 0]]


def test_a_killed_job_keeps_every_row_and_its_memory_is_given_back(
    beside: Beside, record: Callable[..., Writer]
) -> None:
    writer = record()
    writer.tell("write 123")
    writer.tell("fetch")
    rings = writer.rings()
    writer.kill()
    beside.start()
    until(lambda: not rings.exists(), "the rings are removed")
    assert beside.rows(writer.pid, ALL_ONCE) == [[123, 123, 0, 122]]
    assert beside.rows(writer.pid, "SELECT state, count(*) FROM python.batches GROUP BY 1 ORDER BY 1") == [
        ["done", 123], ["pending", 1],
    ]
    ended = json.loads((writer.folder / "end.json").read_bytes())
    assert ended["state"] == "dead" and ended["step"] == 122
    assert beside.states() == {writer.pid: "dead"}
    assert not Path(writer.meta()["socket"]).exists()


def test_a_pending_row_is_not_sealed_before_it_is_complete(
    place: Place, record: Callable[..., Writer]
) -> None:
    writer = record()
    _, sealer = in_process(place, PROBE_SEAL_INTERVAL_S="0.000001")
    writer.tell("write 5")
    writer.tell("fetch")
    writer.tell("write 5")
    sealer.round()
    sealer.round()
    assert segments.watermark(writer.segments("python.batches")) == 5
    assert segments.watermark(writer.segments("python.steps")) == 10
    writer.tell("got")
    sealer.round()
    found = writer.segments("python.batches")
    assert segments.watermark(found) == 11
    files = [str(segment.path) for segment in found]
    states = duckdb.execute(f"SELECT DISTINCT state FROM read_parquet({files})").fetchall()
    assert states == [("done",)]
    _finish(sealer, writer)


def _finish(sealer: Sealer, writer: Writer) -> None:
    """End the writer and its rings."""
    rings = writer.rings()
    writer.exit()
    sealer.round()
    assert not rings.exists()


def test_a_ring_a_third_full_is_sealed_before_it_is_old(place: Place, record: Callable[..., Writer]) -> None:
    writer = record({"PROBE_RINGS_BYTES": "2M"})
    _, sealer = in_process(place, PROBE_SEAL_INTERVAL_S="3600")
    writer.tell("write 10")
    sealer.round()
    assert writer.segments("python.steps") == []
    writer.tell("write 600")
    sealer.round()
    assert segments.watermark(writer.segments("python.steps")) == 610
    _finish(sealer, writer)


def test_old_rows_wait_for_processor_time_but_only_so_long(
    place: Place, record: Callable[..., Writer]
) -> None:
    writer = record()
    _, sealer = in_process(place, PROBE_SEAL_INTERVAL_S="3600")
    writer.tell("write 5")
    sealer.round()

    def aged(by_s: float, credit_s: float) -> list[int]:
        [rings] = sealer._rings.values()
        for backlog in rings.backlogs.values():
            backlog.waiting_since = None if backlog.waiting_since is None else backlog.waiting_since - by_s
        sealer._credit_s = credit_s
        sealer.round()
        return sealed_steps(writer)

    assert aged(3601, -1.0) == []
    assert aged(0, 1.0) == list(range(5))
    writer.tell("write 5")
    sealer.round()
    assert aged(LATEST * 3600 - 60, -1.0) == list(range(5))
    assert aged(61, -1.0) == list(range(10)), "whatever it costs"
    _finish(sealer, writer)


def test_rings_that_are_kept_open_hold_no_memory_once_they_are_removed(
    place: Place, record: Callable[..., Writer]
) -> None:
    writer = record()
    _, sealer = in_process(place, PROBE_SEAL_INTERVAL_S="3600")
    writer.tell("write 5")
    rings = writer.rings()

    def kept() -> list[str]:
        numbers = (f"/proc/self/fd/{number}" for number in os.listdir("/proc/self/fd"))
        found = [os.readlink(number) for number in numbers if os.path.islink(number)]
        return [path for path in found if path.startswith(str(rings))]

    sealer.round()
    sealer.round()
    assert len(kept()) > 10
    may_keep = sealer._may_keep
    shutil.rmtree(rings)
    sealer.round()
    assert kept() == [] and sealer._may_keep > may_keep
    assert writer.folder in sealer.failures
    writer.kill()


def test_a_job_that_makes_steps_is_watched_through_one_ring(
    place: Place, record: Callable[..., Writer], monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = record()
    registry, sealer = in_process(place)
    watch = Watch(registry)
    writer.tell("write 40")
    watch.round()
    read: list[str] = []
    method = Tail.read

    def noted(tail: Tail) -> bool:
        read.append(tail._path.name)
        return method(tail)

    monkeypatch.setattr(Tail, "read", noted)
    [tracked] = watch._tracked.values()
    watch.round()
    assert read == [], "it cannot be late yet"
    tracked.look_s = 0.0
    writer.tell("write 1")
    watch.round()
    assert read == ["python.steps.ring"] and tracked.steps == 41
    tracked.look_s = 0.0
    watch.round()
    assert "python.losses.ring" in read, "no step: any row may be a sign of training"
    monkeypatch.undo()
    _finish(sealer, writer)


def test_an_idle_recording_costs_no_read_of_its_rows(
    place: Place, record: Callable[..., Writer], monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = record()
    registry, sealer = in_process(place, PROBE_SEAL_INTERVAL_S="3600")
    watch = Watch(registry)
    writer.tell("write 40")
    [recorded] = registry.processes()

    def rounds() -> int:
        for _ in range(3):
            sealer.round()
            for tracked in watch._tracked.values():
                tracked.look_s = 0.0
            watch.round()
            assert registry.status(recorded).state == "running"
        return watch._tracked[recorded.folder].steps

    assert rounds() == 40
    calls: Counter[str] = Counter()
    for name in ("read", "highest", "_header"):
        method = getattr(RingFile, name)

        def counted(*arguments: object, name: str = name, method: Callable[..., object] = method) -> object:
            calls[name] += 1
            return method(*arguments)

        monkeypatch.setattr(RingFile, name, counted)
    assert rounds() == 40
    assert calls == {}
    writer.tell("write 1")
    assert rounds() == 41
    # A few new rows are found without the reader for many; many rows are not.
    assert calls["read"] == 0
    writer.tell("write 200")
    assert rounds() == 241
    assert calls["read"] > 0
    monkeypatch.undo()
    _finish(sealer, writer)


def test_many_small_segments_become_few(place: Place, record: Callable[..., Writer]) -> None:
    writer = record()
    _, sealer = in_process(place, PROBE_SEAL_INTERVAL_S="0.000001")
    for _ in range(40):
        writer.tell("write 3")
        sealer.round()
        sealer.round()
    found = writer.segments("python.steps")
    assert len(segments.visible(found)) < 20
    assert sealed_steps(writer) == list(range(120))
    _finish(sealer, writer)


def test_a_damaged_recording_does_not_stop_the_others(place: Place, record: Callable[..., Writer]) -> None:
    first, second, third = record(job="a"), record(job="b"), record(job="c")
    for writer in (first, second, third):
        writer.tell("write 50")
    with open(first.rings() / "python.losses.ring", "r+b") as file:
        file.write(b"not a ring at all")
    (second.folder / "meta.json").write_text("{")
    for writer in (first, second, third):
        writer.kill()
    _, sealer = in_process(place)
    sealer.round()
    assert sealed_steps(third) == list(range(50))
    assert sealed_steps(first) == list(range(50)), "the damaged ring's neighbours"
    assert "not a ring" in sealer.failures[first.folder]
    assert (Path(first.meta()["rings"]) / "python.losses.ring").exists(), "set aside, not deleted"
    shutil.rmtree(place.rings)
    place.rings.mkdir()


def test_only_rings_are_deleted_whatever_a_damaged_meta_names(
    place: Place, record: Callable[..., Writer], tmp_path: Path
) -> None:
    writer = record()
    writer.tell("write 5")
    rings = writer.rings()
    writer.kill()
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "model.pt").write_bytes(b"weights")
    meta = writer.meta()
    meta["rings"] = str(precious)
    (writer.folder / "meta.json").write_bytes(checked.sealed("meta.json", meta))
    _, sealer = in_process(place)
    sealer.round()
    assert (precious / "model.pt").read_bytes() == b"weights"
    shutil.rmtree(rings)


def test_retention_deletes_the_oldest_and_keeps_what_is_written_now(
    place: Place, record: Callable[..., Writer]
) -> None:
    old = record(job="old")
    old.tell("write 2000")
    _, sealer = in_process(place, PROBE_SEAL_INTERVAL_S="0.000001")
    _finish(sealer, old)
    new = record(job="new")
    for _ in range(3):
        new.tell("write 50")
        sealer.round()
        sealer.round()
    newest = new.segments("python.steps")[-1]
    _, tight = in_process(place, PROBE_RETENTION_BYTES="20K")
    tight.round()
    tight.round()
    assert not old.folder.exists(), "nothing is left of it, so it goes"
    assert segments.watermark(new.segments("python.steps")) == newest.last == 150
    everything = list(places.recordings(place.directory).rglob("*.parquet"))
    # Of each table that is still written the newest stays, whatever its size.
    assert len(everything) <= 4 or sum(path.stat().st_size for path in everything) <= 20 << 10
    _finish(tight, new)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1M,mode=700", "tmpfs", str(folder)],
        capture_output=True, text=True, check=False,
    )
    if mounted.returncode != 0:
        pytest.skip(f"cannot mount a small tmpfs here: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_on_a_full_disk_rows_stay_in_the_ring_and_are_sealed_later(
    place: Place, record: Callable[..., Writer], small_disk: Path
) -> None:
    place.remove()
    place.directory, place.rings = small_disk / "dir", place.rings
    place.directory.mkdir(mode=0o700)
    place.rings.mkdir()
    writer = record()
    writer.tell("write 300")
    ballast = small_disk / "ballast"
    with open(ballast, "wb", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(bytes(4096)):
            pass
    registry, sealer = in_process(place, PROBE_SEAL_INTERVAL_S="0.000001")
    sealer.round()
    sealer.round()
    assert writer.folder in sealer.failures
    assert sealed_steps(writer) == []
    assert not list(places.recordings(place.directory).rglob(".sealing-*"))
    (recorded,) = registry.processes()
    assert registry.status(recorded).step == 299, "still readable"
    ballast.unlink()
    sealer.round()
    sealer.round()
    assert sealer.failures == {}
    assert sealed_steps(writer) == list(range(300))
    _finish(sealer, writer)
    assert sealed_steps(writer) == list(range(300))


def test_a_stopped_server_does_not_stop_the_writer_and_every_lost_row_is_counted(
    beside: Beside, record: Callable[..., Writer]
) -> None:
    writer = record({"PROBE_RINGS_BYTES": "2M"})
    pid = beside.start(PROBE_SEAL_INTERVAL_S="0.1")
    writer.tell("write 100")
    until(lambda: sealed_steps(writer) == list(range(100)), "sealed")
    os.kill(pid, signal.SIGSTOP)
    try:
        writer.tell("write 20000")
        steps = writer.steps()
        assert steps == 20100
    finally:
        os.kill(pid, signal.SIGCONT)
    writer.exit()
    until(lambda: not writer.rings().exists(), "drained")
    ((written, sealed, dropped),) = beside.rows(
        writer.pid,
        "SELECT rows_written, rows_sealed, rows_dropped FROM probe.rings WHERE table_name = 'python.steps'",
    )
    assert written == steps and dropped > 0 and written == sealed + dropped
    assert beside.rows(writer.pid, "SELECT count(*) FROM python.steps") == [[sealed]]
