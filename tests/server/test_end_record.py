"""How a process ended is written once, by who notices it; asking for it writes nothing."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from harness import Place
from probe.recording import checked, places
from probe.recording.journal import read_journal
from probe.recording.recording import Meta
from probe.server.recordings import end_record, server_journal
from probe.server.recordings.registry import Registry
from probe.server.watch.exit_watch import ExitWatch
from server.beside import Beside, Writer, until
from server.test_damage import sealed_by
from server.test_ends import CRASH

VERDICTS = "SELECT state, what FROM probe.verdicts"
CRASHES = "SELECT DISTINCT capture_id FROM python.stacks WHERE reason = 'crash'"
FRAMES = "SELECT count(*) FROM python.stacks WHERE reason = 'crash'"


def contents(directory: Path) -> dict[str, tuple[bytes, int]]:
    """Every file below a folder, and every folder: what it holds and when that was changed."""
    return {
        str(path): (path.read_bytes() if path.is_file() else b"", path.stat().st_mtime_ns)
        for path in (directory, *directory.rglob("*"))
    }


def crashed(writer: Writer) -> None:
    """Kill it with the stacks of a fatal signal left behind."""
    places.crash_file(writer.folder).write_text(CRASH)
    writer.kill()


@contextlib.contextmanager
def watching(registry: Registry) -> Iterator[ExitWatch]:
    """An exit watch whose thread does not run: the test decides when an end is written down."""
    exits = ExitWatch(registry)
    for recorded in registry.live():
        exits.hold(recorded)
    try:
        yield exits
    finally:
        exits.stop(wait_s=0.0)


@pytest.mark.parametrize("way", ["kill", "crash", "exit"])
def test_asking_how_a_process_is_that_has_just_died_changes_no_file(
    place: Place, record: Callable[..., Writer], way: str
) -> None:
    writer = record()
    writer.tell("write 20")
    registry = Registry(place.directory)
    with watching(registry) as exits:
        [recorded] = registry.processes()
        {"kill": writer.kill, "crash": lambda: crashed(writer), "exit": writer.exit}[way]()
        before = contents(place.directory), contents(writer.rings())
        first = registry.status(recorded)
        assert registry.status(recorded) == first and not registry.lives(recorded)
        assert first.state == ("finished" if way == "exit" else "dead") and first.step == 19
        assert first.why and registry.damage_notes(recorded) == []
        assert (contents(place.directory), contents(writer.rings())) == before
        exits.record_end(recorded)
        assert Registry(place.directory).status(recorded) == first, "what was answered is what is written"


def test_an_end_is_sealed_only_when_what_follows_from_it_is_written(
    place: Place, record: Callable[..., Writer]
) -> None:
    writer = record()
    writer.tell("write 20")
    registry, sealer = sealed_by(place)
    with watching(registry) as exits:
        sealer.record_end = exits.record_end
        crashed(writer)
        sealer.round()
    assert writer.sealed() and not writer.rings().exists()
    noted = rows_in_journal(writer.folder)
    assert [name for name, _ in noted].count("probe.verdicts") == 1
    assert {row["capture_id"] for _, row in noted} == {noted[0][1]["capture_id"]}


def rows_in_journal(folder: Path) -> list[tuple[str, dict[str, Any]]]:
    """Table and row of what the server noted beside a recording."""
    found = read_journal(places.journals(folder)[1])
    return [(record["table"], row) for record in found for row in record.get("rows", ())]


@pytest.mark.parametrize("part", [
    pytest.param(0.0, marks=pytest.mark.campaign), 0.3, pytest.param(0.95, marks=pytest.mark.campaign), 1.0,
])
def test_a_server_killed_between_noticing_an_end_and_sealing_leaves_nothing_out_and_nothing_twice(
    beside: Beside, record: Callable[..., Writer], part: float
) -> None:
    """Its second half is cut off where a kill might have: after the end record, inside the stacks or the
    verdict, after both."""
    beside.start(PROBE_DRAIN_INTERVAL_S="3600")
    writer = record()
    writer.tell("write 123")
    until(lambda: beside.states() == {writer.pid: "running"}, "it is seen")
    crashed(writer)
    until(lambda: beside.rows(writer.pid, VERDICTS), "the end is noticed")
    beside.kill()
    assert not writer.sealed() and writer.rings().exists()
    end = end_record.read(writer.folder, Meta.read(writer.folder))
    assert (end["state"], end["how"], end["exit_status"]) == ("dead", "SIGKILL", -9)
    journal = places.journals(writer.folder)[1]
    os.truncate(journal, int(journal.stat().st_size * part))
    beside.start(PROBE_DRAIN_INTERVAL_S="0.1")
    until(lambda: writer.sealed() and not writer.rings().exists(), "sealed")
    beside.kill()
    beside.start()
    after = end_record.read(writer.folder, Meta.read(writer.folder))
    assert all(after[name] == value for name, value in end.items() if name != "sealed")
    [[state, what]] = beside.rows(writer.pid, VERDICTS)
    assert state == "dead" and "died of SIGKILL" in what
    assert len(beside.rows(writer.pid, CRASHES)) == 1 and beside.rows(writer.pid, FRAMES) == [[4]]
    assert beside.rows(writer.pid, "SELECT count(*), count(DISTINCT step) FROM python.steps") == [[123, 123]]
    [row] = beside.call("GET", "/v1/processes?all=1")["processes"]
    assert (row["state"], row["how"], row["exit_status"]) == ("dead", "SIGKILL", -9)


@pytest.mark.parametrize("sealed", [False, True])
def test_what_versions_before_wrote_of_an_end_is_read(
    place: Place, record: Callable[..., Writer], sealed: bool
) -> None:
    """A record `end` in watch.bin when it was noticed, and end.json, without why, when all was sealed."""
    writer = record()
    writer.tell("write 4")
    writer.kill()
    server_journal.note(writer.folder, {
        "event": "end", "state": "dead", "how": "SIGKILL", "exit_status": -9, "ended_ns": 17, "why": ["seen"],
    })
    if sealed:
        sealed_by(place)[1].round()
        facts = checked.read_sealed(writer.folder / "end.json")
        old = {name: value for name, value in facts.items() if name not in ("why", "sealed")}
        (writer.folder / "end.json").write_bytes(checked.sealed("end.json", {**old, "version": 2}))
    registry = Registry(place.directory)
    with watching(registry) as exits:
        [recorded] = registry.processes()
        status = registry.status(recorded)
        assert status[0] == "dead" and status[4:] == (17, "SIGKILL", -9, ("seen",)) and status.step == 3
        before = contents(writer.folder)
        exits.record_end(recorded)
        assert (contents(writer.folder) == before) is sealed
        assert Registry(place.directory).status(recorded) == status
    assert registry.damage_notes(recorded) == [] and writer.sealed() is sealed
    assert json.loads((writer.folder / "end.json").read_bytes())["how"] == "SIGKILL"
