"""Damaged files: what is read is checked, one bad recording is one sentence, no value is wrong unnoticed."""

from __future__ import annotations

import json
import math
import os
import threading
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pytest

from harness import PATIENCE_S, Place, run_probe
from probe.base.errors import CheckpointInvalid, RecordingError
from probe.base.settings import Settings
from probe.checkpoint.all_ranks import FORMAT, MANIFEST, VERSION, read_manifest
from probe.recording import announcement, checked, layout, places, segments
from probe.recording.crash import parse_crash
from probe.recording.journal import Journal, read_journal, read_payloads
from probe.recording.reader import NUMBER, RingFile, adler32, with_texts
from probe.recording.recording import Meta
from probe.recording.ring import Ring
from probe.recording.strings import DAMAGED, Strings, read_strings
from probe.recording.tables import BY_NAME
from probe.server.alerts.destinations import Destination, Store
from probe.server.recordings.registry import Registry
from probe.server.recordings.sealer import Sealer
from probe.server.runtime import supervision
from server.beside import Beside, Writer, until

STEPS = BY_NAME["python.losses"]


NOT_THERE = (1 << 22, 8)
"""The owner of a ring: no process has such a pid."""


def flip(path: Path, offset: int, bit: int = 1) -> None:
    with open(path, "r+b") as file:
        file.seek(offset)
        [byte] = file.read(1)
        file.seek(offset)
        file.write(bytes([byte ^ bit]))


# meta.json and its like ---------------------------------------------------------------


def test_a_meta_of_wrong_types_is_one_sentence(record: Callable[..., Writer], place: Place) -> None:
    whole, damaged = record(job="whole"), record(job="damaged")
    facts = damaged.meta()
    for name, value in (
        ("world_size", "x"), ("world_size", 10**15), ("rank", -1), ("pid", 10**30), ("pid", True),
        ("started_ns", 1.5), ("started_ns", float("nan")), ("argv", "train.py"), ("argv", [1]),
        ("settings", {"stall_s": 4}), ("job", None), ("rings", "relative"), ("socket", "/tmp/a\0b"),
    ):
        (damaged.folder / "meta.json").write_bytes(checked.sealed("meta.json", {**facts, name: value}))
        registry = Registry(place.directory)
        assert [one.meta.pid for one in registry.processes()] == [whole.pid], (name, value)
        assert [damaged.folder.name in what for what in registry.unreadable.values()] == [True], (name, value)
    damaged.kill()


def test_a_bit_of_a_meta_is_noticed_and_an_older_one_is_read(record: Callable[..., Writer]) -> None:
    writer = record(job="gpt")
    path = writer.folder / "meta.json"
    whole, facts = path.read_bytes(), writer.meta()
    flip(path, whole.index(b'"gpt"') + 1)
    with pytest.raises(RecordingError, match="its checksum does not match"):
        Meta.read(writer.folder)
    path.write_text(json.dumps({**facts, "version": 1}))
    assert Meta.read(writer.folder).job == "gpt"
    path.write_text(json.dumps(facts))
    with pytest.raises(RecordingError, match="its checksum does not match"):
        Meta.read(writer.folder)
    path.write_bytes(whole)
    assert Meta.read(writer.folder.rename(writer.folder.with_name("copied"))).job == "gpt"
    writer.folder.with_name("copied").rename(writer.folder)


def test_the_meta_of_another_process_is_refused(record: Callable[..., Writer]) -> None:
    first, second = record(run="a"), record(run="b")
    (first.folder / "meta.json").write_bytes((second.folder / "meta.json").read_bytes())
    with pytest.raises(RecordingError, match="belongs to another process"):
        Meta.read(first.folder)


def test_texts_that_cannot_be_encoded_are_written_out(tmp_path: Path) -> None:
    path = tmp_path / "facts.json"
    path.write_bytes(checked.sealed(path.name, {"argv": ["caf\udce9"], "\ud800": 1}))
    assert checked.read_sealed(path) == {"argv": ["caf\\udce9"], "\\ud800": 1}


@pytest.mark.parametrize(
    "content", [b"[" * 200_000, b'{"a": NaN}', b'{"a": 1e999}', b'{"a": 1' + b"0" * 30 + b"}", b"[]", b"\xff"]
)
def test_json_that_would_fail_later_fails_where_it_is_read(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "facts.json"
    path.write_bytes(content)
    with pytest.raises(ValueError):
        checked.read_sealed(path)


def test_a_pipe_in_the_place_of_a_file_is_not_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "journal.bin"
    os.mkfifo(path)
    assert list(read_journal(path)) == []
    for read in (checked.read_sealed, read_strings, read_payloads):
        with pytest.raises(OSError, match="not a regular file"):
            read(path)  # type: ignore[operator]
    with pytest.raises((OSError, RecordingError)):
        RingFile(path)
    assert not segments.intact(segments.Segment(path, 1, 1, 1, 0, 7))


def test_other_files_with_a_checksum_count_as_not_there_when_damaged(tmp_path: Path) -> None:
    places.write_whole(tmp_path / "server.json", checked.sealed("server.json", {"pid": 4711, "url": "http://a:1"}))
    announcement.write(tmp_path, announcement.Peers(["a line"], [("there", "MASTER_ADDR")]))
    files = [{"name": "rank-00000.pt", "bytes": 7, "sha256": "ab"}]
    manifest = {"format": FORMAT, "version": VERSION, "world_size": 2, "own_parameters": False}
    manifest["files"] = files
    (tmp_path / MANIFEST).write_text(json.dumps(checked.signed(MANIFEST, manifest)))
    assert checked.read_sealed(tmp_path / "server.json")["pid"] == 4711
    assert read_manifest(tmp_path)["world_size"] == 2
    assert announcement.read(tmp_path).lines == ["a line"]
    for name in ("server.json", announcement.FILE, MANIFEST):
        path = tmp_path / name
        flip(path, max(path.read_bytes().find(text) for text in (b"4711", b"a line", b'": 2')) + 3)
    assert announcement.read(tmp_path) == announcement.Peers([], [])
    with pytest.raises(ValueError):
        checked.read_sealed(tmp_path / "server.json")
    with pytest.raises(CheckpointInvalid, match="its checksum does not match"):
        read_manifest(tmp_path)
    for facts in ({"world_size": "2"}, {"files": [{"name": "../x", "bytes": 1, "sha256": ""}]}):
        (tmp_path / MANIFEST).write_text(json.dumps({**manifest, **facts}))
        with pytest.raises(CheckpointInvalid, match="is damaged"):
            read_manifest(tmp_path)


def test_destinations_that_cannot_be_read_are_told_of_and_kept(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.config.destinations = [Destination("json://127.0.0.1:9/alerts")]
    store.write()
    assert Store(tmp_path).config.destinations == store.config.destinations and not Store(tmp_path).problem
    path = tmp_path / "monitor.json"
    flip(path, path.read_bytes().index(b"alerts"))
    damaged = Store(tmp_path)
    assert not damaged.config.destinations and "monitor.json cannot be used" in damaged.problem
    damaged.write()
    assert b"127.0.0.1" in (tmp_path / "monitor.json.damaged").read_bytes() and not Store(tmp_path).problem


def test_numbers_in_a_crash_file_have_an_end() -> None:
    text = "Fatal Python error: Aborted\n\nCurrent thread 0x1 (most recent call first):\n"
    found = parse_crash(text + f'  File "a.py", line {"9" * 5000} in f\n  File "b.py", line 7 in g\n')
    assert found is not None and [frame["lineno"] for frame in found.threads[0].frames] == [7]


# Rings and texts ------------------------------------------------------------------------


def test_every_changed_byte_of_a_row_costs_the_row_and_is_told(tmp_path: Path) -> None:
    ring = Ring(tmp_path / "python.losses.ring", STEPS, 64, NOT_THERE)
    for step in range(40):
        ring.append(step, 0, 10**18 + step, math.nan if step == 20 else step / 7, 1, 1.0)
    whole = ring.path.read_bytes()
    size = layout.row_bytes(layout.stored_columns(STEPS))
    with RingFile(ring.path, NOT_THERE) as reader:
        truth = reader.read(0).tobytes()
        assert len(reader.read(0)) == 40 and not reader.left_out()
    for offset in range(size):
        ring.path.write_bytes(whole)
        flip(ring.path, layout.HEADER_BYTES + 21 * size + offset, 1 << offset % 8)
        with RingFile(ring.path) as reader:
            rows = reader.read(0)
            assert [int(number) for number in rows[NUMBER]] == [n for n in range(1, 41) if n != 21], offset
            assert reader.left_out().startswith("1 row of python.losses left out (number 21)")
            assert all(bytes(row) in truth for row in rows)


def test_the_newest_row_is_missed_when_it_is_damaged(tmp_path: Path) -> None:
    ring = Ring(tmp_path / "python.losses.ring", STEPS, 64)
    for step in range(100):
        ring.append(step, 0, step, 0.5, 1, 1.0)
    size = layout.row_bytes(layout.stored_columns(STEPS))
    flip(ring.path, layout.HEADER_BYTES + (100 % 64 + 1) * size - layout.CHECK_BYTES - 8)
    with RingFile(ring.path) as reader:
        assert int(reader.read(0)[NUMBER][-1]) == 99 and "number 100" in reader.left_out()


def test_a_row_rewritten_from_a_column_on_keeps_its_checksum(tmp_path: Path) -> None:
    ring = Ring(tmp_path / "python.losses.ring", STEPS, 64)
    [*_, (name, _)] = layout.stored_columns(STEPS)
    rest = ring.rest(name)
    for step in range(10):
        ring.append(step, 0, step, 0.5, 0, 0.0)
    rest(4, 1)
    with RingFile(ring.path) as reader:
        rows = reader.read(0)
        assert len(rows) == 10 and rows[name].tolist() == [0, 0, 0, 1, 0, 0, 0, 0, 0, 0]


def test_the_header_of_a_ring_is_checked_and_so_is_whose_it_is(tmp_path: Path) -> None:
    ring = Ring(tmp_path / "python.losses.ring", STEPS, 64, NOT_THERE)
    whole = ring.path.read_bytes()
    with pytest.raises(RecordingError, match="belongs to another process"):
        RingFile(ring.path, (7, 9))
    flip(ring.path, whole.index(b"loss"))
    with pytest.raises(RecordingError, match="header is damaged"):
        RingFile(ring.path)
    other = tmp_path / "python.steps.ring"
    other.write_bytes(whole)
    with pytest.raises(RecordingError, match=r"it holds python\.losses"):
        RingFile(other)
    ring.path.write_bytes(whole[:8] + b"\x03" + whole[9:])
    with pytest.raises(RecordingError, match="read it with the version"):
        RingFile(ring.path)


def test_the_checksums_of_many_rows_are_those_of_zlib() -> None:
    for size in (9, 197, 400):
        rows = np.frombuffer(os.urandom(5000 * size), np.dtype([("all", f"V{size}")]))
        assert adler32(rows, size).tolist() == [zlib.adler32(row.tobytes()) for row in rows]
    full = np.frombuffer(b"\xff" * 361, np.dtype([("all", "V361")]))
    assert adler32(full, 361).tolist() == [zlib.adler32(b"\xff" * 361)]


def test_a_damaged_text_is_marked_and_the_others_stay(tmp_path: Path) -> None:
    strings = Strings(tmp_path / "strings", 1 << 16, (7, 8))
    texts = [f"transformer.h.{place}" for place in range(50)]
    assert [strings.intern(text) for text in texts] == list(range(1, 51))
    whole = strings.path.read_bytes()
    assert read_strings(strings.path, (7, 8)) == [None, *texts]
    flip(strings.path, whole.index(b"h.17") + 2)
    expected = [DAMAGED if text.endswith(".17") else text for text in texts]
    assert read_strings(strings.path) == [None, *expected]
    strings.path.write_bytes(whole)
    flip(strings.path, whole.index(b"transformer.h.30") - 8, 64)  # its length: what follows is not found
    assert read_strings(strings.path)[:31] == [None, *texts[:30]]
    dtype = np.dtype([("name", "<u4"), (NUMBER, "<i8")])
    rows = np.array([(3, 1), (30, 2), (45, 3), (0, 4)], dtype)
    found, known, damaged = with_texts(rows, (("name", "VARCHAR"),), read_strings(strings.path))
    assert [known[number] for number in found["name"]] == [texts[2], texts[29], DAMAGED, None]
    assert damaged == 1
    strings.path.write_bytes(bytes(len(whole)))
    with pytest.raises(RecordingError, match="not a string table"):
        read_strings(strings.path)
    strings.path.write_bytes(whole)
    with pytest.raises(RecordingError, match="another process"):
        read_strings(strings.path, (9, 8))


# Journals -----------------------------------------------------------------------------------


def test_a_record_counts_only_in_its_own_journal_and_holes_are_seen(tmp_path: Path) -> None:
    own, other = tmp_path / "process=0-17" / "journal.bin", tmp_path / "process=0-18" / "journal.bin"
    for path in (own, other):
        path.parent.mkdir()
        journal = Journal(path)
        for number in range(3):
            journal.append({"event": "e", "n": number})
        journal.close()
    assert [record["n"] for record in read_journal(own)] == [0, 1, 2] and read_payloads(own)[1] == []
    whole = own.read_bytes()
    flip(own, whole.index(b'"n":1'))
    assert [record["n"] for record in read_journal(own)] == [0, 2]
    [hole] = read_payloads(own)[1]
    assert "not a record" in hole.said_of(own) and not hole.torn
    own.write_bytes(whole[:-3])
    assert [hole.torn for hole in read_payloads(own)[1]] == [True]
    own.write_bytes(other.read_bytes())
    assert list(read_journal(own)) == [] and read_payloads(own)[1][0].size_bytes == len(whole)


# Segments -----------------------------------------------------------------------------------


def sealed_by(place: Place) -> tuple[Registry, Sealer]:
    registry = Registry(place.directory)
    return registry, Sealer(registry, Settings({"PROBE_SEAL_INTERVAL_S": "0.001"}))


def test_a_flipped_bit_of_a_segment_costs_the_segment_and_is_named_in_every_answer(
    beside: Beside, record: Callable[..., Writer]
) -> None:
    writer = record(job="gpt")
    writer.tell("write 50")
    writer.exit()
    beside.start()
    until(writer.sealed, "sealed")
    [segment] = writer.segments("python.losses")
    content = segment.path.read_bytes()
    wrong = 0
    for offset in range(4, len(content) - 8, max(1, len(content) // 12)):
        segment.path.write_bytes(content)
        flip(segment.path, offset)
        answer = beside.query("gpt", "SELECT step, loss FROM python.losses")
        assert answer["rows"] == [] and any(segment.path.name in note for note in answer["notes"]), offset
        wrong += 1
    assert wrong > 8
    [steps] = writer.segments("python.steps")
    flip(steps.path, 40)
    for answer in (beside.call("GET", "/v1/summary?endpoint=gpt"), beside.query("gpt", "FROM probe.rings")):
        assert any(steps.path.name in note for note in answer["notes"])
    segment.path.write_bytes(content)
    assert len(beside.rows("gpt", "SELECT step FROM python.losses")) == 50
    plain = segment.path.with_name(segment.path.name[:-len("-00000000.parquet")] + ".parquet")
    segment.path.rename(plain)  # as an older version named it
    assert len(beside.rows("gpt", "SELECT step FROM python.losses")) == 50


def test_damaged_segments_are_not_merged_nor_deleted(tmp_path: Path) -> None:
    folder = tmp_path / "table=python.losses" / "rank=0"
    engine = segments.engine()
    rows = np.zeros(160, np.dtype([("step", "<i8"), (NUMBER, "<i8")]))
    rows["step"], rows[NUMBER] = range(160), range(1, 161)
    for start in range(0, 160, 5):
        segments.write(engine, folder, 7, rows[start : start + 5], (("step", "BIGINT"),))
    listed = segments.listing(folder, 7)
    flip(listed[3].path, 40)
    merged = segments.compact(engine, folder, listed)
    assert merged is not None and (merged.first, merged.last) == (21, 160)
    kept, damaged = segments.readable(segments.listing(folder, 7))
    assert [one.path for one in damaged] == [listed[3].path] and kept[-1] == merged
    flip(merged.path, 40)
    kept, damaged = segments.readable(segments.listing(folder, 7))
    assert len(damaged) == 2 and len(kept) == 31, "what was merged counts again"
    assert segments.leftovers(segments.listing(folder, 7), 0.0, time.time() + 60) == []


# The server -----------------------------------------------------------------------------------


def test_one_damaged_recording_is_a_sentence_and_the_server_stays(
    beside: Beside, record: Callable[..., Writer], place: Place
) -> None:
    pid = beside.start()
    good, bad, odd = record(job="good"), record(job="bad"), record(job="odd")
    for writer in (good, bad, odd):
        writer.tell("write 5")
    until(lambda: len(beside.states()) == 3, "three jobs")
    whole = (bad.folder / "meta.json").read_bytes()
    (bad.folder / "meta.json").write_bytes(checked.sealed("meta.json", {**bad.meta(), "world_size": "x"}))
    strange = {**odd.meta(), "argv": ["\ud800"], "job": "o\udcff"}
    (odd.folder / "meta.json").write_bytes(checked.sealed("meta.json", strange))
    until(lambda: len(beside.states()) == 2, "two jobs")
    answer = beside.call("GET", "/v1/processes")
    assert {row["job"] for row in answer["processes"]} == {"good", "o\\udcff"}
    [note] = answer["notes"]
    assert "world_size is 'x'" in note and bad.folder.name in note
    shown = run_probe(place, "ps")
    assert shown.returncode == 0 and "good" in shown.stdout and "world_size is 'x'" in shown.stderr
    assert beside.rows("good", "SELECT count(*) FROM python.steps") == [[5]]
    health = beside.call("GET", "/v1/health")
    assert (health["pid"], health["unreadable"], health["failures"]) == (pid, 1, [])
    (bad.folder / "meta.json").write_bytes(whole)
    until(lambda: len(beside.states()) == 3, "all of them again")


def test_damage_of_rings_is_told_and_sealed_without_wrong_values(
    place: Place, record: Callable[..., Writer]
) -> None:
    writer = record(job="gpt")
    writer.tell("write 40")
    path = writer.rings() / "python.losses.ring"
    size = layout.row_bytes(layout.stored_columns(STEPS))
    flip(path, layout.HEADER_BYTES + 9 * size + 20)
    writer.exit()
    registry, sealer = sealed_by(place)
    sealer.round()
    [recorded] = registry.processes()
    [segment] = writer.segments("python.losses")
    found = duckdb.execute(f"SELECT step FROM '{segment.path}' ORDER BY 1").fetchall()
    assert [step for [step] in found] == [step for step in range(40) if step != 8]
    assert any("row of python.losses left out (number 9)" in what for what in registry.damage_notes(recorded))
    with open(writer.folder / "journal.bin", "r+b") as file:
        file.truncate(os.fstat(file.fileno()).st_size - 10)
    assert any("shorter than when its process ended" in what for what in registry.damage_notes(recorded))


def test_an_end_that_is_damaged_or_another_ones_is_not_believed(
    place: Place, record: Callable[..., Writer]
) -> None:
    writers = [record(run=name) for name in ("a", "b")]
    for writer in writers:
        writer.tell("write 4")
        writer.exit()
    registry, sealer = sealed_by(place)
    sealer.round()
    first, second = ((writer.folder / "end.json") for writer in writers)
    whole = first.read_bytes()
    for damaged in (second.read_bytes(), whole.replace(b'"step": 3', b'"step": 9'), b"{}", b"null"):
        first.write_bytes(damaged)
        registry = Registry(place.directory)
        [recorded] = [one for one in registry.processes() if one.meta.run == "a"]
        assert registry.status(recorded).step != 9
        assert any("end.json cannot be used" in what for what in registry.damage_notes(recorded)), damaged


def test_a_thread_that_fails_is_noted_and_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervision, "FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr(threading, "excepthook", supervision.quiet_end)
    stopping, went_on = threading.Event(), threading.Event()
    turns: list[int] = []

    def run() -> None:
        turns.append(1)
        if len(turns) < 3:
            raise ZeroDivisionError(f"turn {len(turns)}")
        went_on.set()
        stopping.wait(PATIENCE_S)

    thread = supervision.Supervised("probe-test", run, stopping)
    thread.start()
    assert went_on.wait(PATIENCE_S)
    [noted] = [one for one in supervision.failures() if one["thread"] == "probe-test"]
    assert (noted["times"], noted["last"]) == (2, "ZeroDivisionError: turn 2")
    assert thread.stop(PATIENCE_S)


def test_every_thread_of_the_server_is_supervised() -> None:
    own: dict[str, Any] = {}
    for path in Path(supervision.__file__).parents[1].rglob("*.py"):
        if "threading.Thread(" in path.read_text() and path.name not in ("supervision.py",):
            own[path.name] = path
    assert own.keys() == {"worker.py", "batch.py"}, "these run in query workers, which are replaced"


def test_a_ring_that_ends_before_its_process_closed_it_is_told_of(
    place: Place, record: Callable[..., Writer]
) -> None:
    writer = record(job="gpt")
    writer.tell("write 10")
    path = writer.rings() / "python.losses.ring"
    earlier = path.read_bytes()
    writer.tell("write 10")
    writer.exit()
    registry = Registry(place.directory)
    [recorded] = registry.processes()
    assert registry.damage_notes(recorded) == []
    path.write_bytes(earlier)
    registry = Registry(place.directory)
    assert registry.damage_notes(recorded) == ["the last 10 rows of python.losses are missing"]
    sealed_by(place)[1].round()


def test_a_recording_without_its_texts_still_has_its_numbers(
    beside: Beside, record: Callable[..., Writer]
) -> None:
    beside.start(PROBE_SEAL_INTERVAL_S="3600")
    writer = record(job="gpt")
    writer.tell("write 10")
    texts = writer.rings() / "strings"
    texts.rename(texts.with_name("kept"))
    answer = beside.query("gpt", "SELECT count(*) FROM python.steps")
    assert answer["rows"] == [[10]] and any("are gone" in note for note in answer["notes"])
    assert beside.rows("gpt", "SELECT DISTINCT phase FROM python.pulse") == [[DAMAGED]]
    assert beside.rows("gpt", "SELECT count(*) FROM python.losses") == [[10]]
    texts.with_name("kept").rename(texts)
    assert beside.rows("gpt", "SELECT count(*) FROM python.steps") == [[10]]


def test_a_meta_and_an_end_that_were_removed_are_missed(
    place: Place, record: Callable[..., Writer]
) -> None:
    writer = record(job="gpt")
    writer.tell("write 4")
    writer.exit()
    registry, sealer = sealed_by(place)
    sealer.round()
    [recorded] = registry.processes()
    (writer.folder / "end.json").unlink()
    assert registry.damage_notes(recorded) == [
        "its rings were deleted before they were completely sealed, and it has no end.json"
    ]
    (writer.folder / "meta.json").unlink()
    os.utime(writer.folder / "journal.bin", (1, 1))
    assert registry.processes() == []
    assert [what.endswith("has no meta.json any more") for what in registry.unreadable.values()] == [True]
