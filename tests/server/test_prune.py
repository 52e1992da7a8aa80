"""Prune deletes what was asked for, whole, and nothing that lives, goes on or is being sealed."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness import Place, end_process, probe_process, run_probe
from probe.base.errors import BadRequest
from probe.base.settings import Settings
from probe.recording.recording import Meta
from probe.server.recordings import end_record
from probe.server.recordings.pruner import Pruner
from probe.server.recordings.registry import Registry
from probe.server.recordings.sealer import Sealer
from probe.server.runtime.request_bodies import PruneBody
from server.beside import Beside, Writer, until
from server.test_tcp import Tcp

ALL = {"keep": 0}


def ended(beside: Beside, record: Callable[..., Writer], **wanted: Any) -> Writer:
    """A recording of 50 steps whose process has ended, sealed."""
    writer = record(**wanted)
    writer.tell("write 50")
    writer.exit()
    until(writer.sealed, "sealed")
    return writer


def files(place: Place) -> list[str]:
    """Everything that is left of recordings, hidden things too."""
    top = place.directory / "recordings"
    return sorted(str(path.relative_to(top)) for path in top.rglob("*"))


def test_nothing_is_deleted_without_a_criterion_and_a_dry_run_deletes_nothing(
    beside: Beside, record: Callable[..., Writer], place: Place
) -> None:
    beside.start()
    writer = ended(beside, record)
    with pytest.raises(BadRequest):
        beside.call("POST", "/v1/prune", {})
    assert run_probe(place, "prune").returncode == 2
    before = files(place)
    would = beside.call("POST", "/v1/prune", {**ALL, "dry_run": True})
    assert [row["pid"] for row in would["deleted"]] == [writer.pid] and would["bytes"] > 0
    assert files(place) == before
    does = beside.call("POST", "/v1/prune", ALL)
    assert does["bytes"] == would["bytes"] and does["deleted"] == would["deleted"]
    assert files(place) == []
    assert beside.states() == {}


def test_over_tcp_nothing_is_deleted(beside: Beside, record: Callable[..., Writer]) -> None:
    tcp = Tcp(beside)
    writer = ended(beside, record)
    status, answer = tcp.ask("POST", "/v1/prune", tcp.good(), ALL)
    assert (status, answer["error"]["code"]) == (403, "forbidden")
    assert set(beside.states()) == {writer.pid}


def test_the_living_and_what_ended_beside_them_in_their_run_stay(
    beside: Beside, record: Callable[..., Writer], place: Place
) -> None:
    beside.start()
    first = ended(beside, record, job="gpt", run="one")
    beside_it = ended(beside, record, job="gpt", run="two", rank=1)
    living = record(job="gpt", run="two", rank=0)
    living.tell("write 5")
    answer = beside.call("POST", "/v1/prune", ALL)
    assert [row["pid"] for row in answer["deleted"]] == [first.pid]
    assert {row["pid"]: row["why"].split(":")[0] for row in answer["left"]} == {
        beside_it.pid: "its run continues", living.pid: "it is being recorded",
    }
    assert set(beside.states()) == {beside_it.pid, living.pid}
    living.tell("write 5")
    assert beside.rows(living.pid, "SELECT count(*) FROM python.steps") == [[10]]


def test_each_criterion_narrows_the_choice(
    beside: Beside, record: Callable[..., Writer], place: Place
) -> None:
    beside.start()
    gpt = [ended(beside, record, job="gpt", run=f"gpt-{number}") for number in range(3)]
    other = ended(beside, record, job="other")

    def chosen(**criteria: Any) -> list[int]:
        answer = beside.call("POST", "/v1/prune", {**criteria, "dry_run": True})
        return [row["pid"] for row in answer["deleted"]]

    everything = [*(writer.pid for writer in gpt), other.pid]
    assert chosen(job="gpt") == everything[:3]
    assert chosen(keep=1) == everything[:2]
    assert chosen(keep=2, job="other") == []
    assert chosen(older_than_s=0) == everything
    assert chosen(older_than_s=3600) == []
    assert chosen(job="none") == []
    done = probe_process(place, "prune", "--job", "gpt", "--keep", "1")
    assert done.returncode == 0 and done.stdout.count("deleted: gpt/0") == 2
    assert done.stdout.splitlines()[-1].startswith("freed: 2 recordings, ")
    assert set(beside.states()) == {gpt[2].pid, other.pid}


def test_what_is_not_sealed_yet_is_left_for_the_next_time(
    place: Place, record: Callable[..., Writer]
) -> None:
    registry = Registry(place.directory)
    sealer = Sealer(registry, Settings(place.environ()))
    pruner = Pruner(registry, sealer)
    wanted = PruneBody(keep=0)
    writer = record()
    writer.tell("write 50")
    writer.kill()
    answer = pruner.prune(wanted)
    assert answer["deleted"] == [] and "sealed" in answer["left"][0]["why"]
    assert writer.rings().exists()
    sealer.round()
    assert [row["pid"] for row in pruner.prune(wanted)["deleted"]] == [writer.pid]
    assert files(place) == [] and place.ring_files() == []
    sealer.round()  # which has not forgotten it yet
    assert files(place) == [] and sealer.failures == {}


def test_what_a_killed_server_half_deleted_is_no_recording_and_goes_with_the_next_request(
    beside: Beside, record: Callable[..., Writer], place: Place
) -> None:
    beside.start()
    half, whole = ended(beside, record, run="half"), ended(beside, record, run="whole")
    os.rename(half.folder, half.folder.with_name(f".pruned-{half.folder.name}"))
    assert set(beside.states()) == {whole.pid}
    assert beside.call("POST", "/v1/prune", {"job": "nothing is called that"})["deleted"] == []
    assert {Path(name).parts[0] for name in files(place)} == {"run=whole"}
    assert beside.rows(whole.pid, "SELECT count(*) FROM python.steps") == [[50]]


def test_a_copy_of_a_recording_answers_the_same_and_its_server_leaves_the_original_alone(
    beside: Beside, record: Callable[..., Writer], place: Place, tmp_path: Path
) -> None:
    sealed, unsealed = record(run="sealed"), record(run="unsealed")
    sealed.tell("write 50")
    beside.start()
    sealed.exit()
    until(sealed.sealed, "sealed")
    beside.kill()
    unsealed.tell("write 70")
    unsealed.kill()
    copy = tmp_path / "copy"
    shutil.copytree(place.directory, copy, ignore=shutil.ignore_patterns("*.sock", "server.*", "agents"))
    copy.chmod(0o700)
    sql = "SELECT pid, count(*), max(step), sum(loss) FROM python.losses GROUP BY pid ORDER BY pid"

    def asked(directory: Path, *words: str) -> str:
        done = run_probe(place, *words, PROBE_DIR=str(directory), PROBE_DRAIN_INTERVAL_S="0.1")
        assert done.returncode == 0, done.stderr
        return done.stdout

    try:
        rings = unsealed.rings()
        from_copy = asked(copy, str(copy), "query", sql, "--format", "csv")
        assert "70" in from_copy
        folder = copy / unsealed.folder.relative_to(place.directory)
        until(lambda: end_record.is_sealed(folder, Meta.read(folder)), "the copy is sealed")
        assert rings.exists(), "a copy's server took the original's rings"
        assert asked(copy, str(copy), "query", sql, "--format", "csv") == from_copy
        assert "unsealed" in asked(copy, "ps", "--all", "--format", "json")
    finally:
        end_server(copy)
    assert asked(place.directory, str(copy), "query", sql, "--format", "csv") == from_copy
    assert asked(place.directory, str(place.directory), "query", sql, "--format", "csv") == from_copy


def test_a_recording_that_was_moved_with_its_rings_answers_from_where_it_is(
    place: Place, record: Callable[..., Writer], tmp_path: Path
) -> None:
    writer = record({"PROBE_RINGS_DIR": "/proc"})  # no room there: the rings are beside the recording
    assert writer.rings().is_relative_to(writer.folder)
    writer.tell("write 70")
    writer.kill()
    moved = tmp_path / "moved"
    shutil.copytree(place.directory, moved, ignore=shutil.ignore_patterns("*.sock", "server.*", "agents"))
    shutil.rmtree(place.directory / "recordings")
    moved.chmod(0o700)
    folder = moved / writer.folder.relative_to(place.directory)
    sql = "SELECT count(*), max(step) FROM python.losses"
    try:
        for endpoint in (str(folder), str(moved), str(writer.pid)):
            done = run_probe(place, endpoint, "query", sql, "--format", "csv", PROBE_DIR=str(moved))
            assert done.returncode == 0 and done.stdout.splitlines()[1] == "70,69", (endpoint, done.stderr)
        until(lambda: not (folder / "rings").exists(), "sealed there")
        done = run_probe(place, str(moved), "query", sql, "--format", "csv", PROBE_DIR=str(moved))
        assert done.stdout.splitlines()[1] == "70,69"
    finally:
        end_server(moved)


def end_server(directory: Path) -> None:
    """End the server of another folder."""
    end_process(int(json.loads((directory / "server.json").read_bytes())["pid"]))
