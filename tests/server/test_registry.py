"""What the registry says of processes, and what an endpoint means."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from harness import Place
from probe.base.errors import AgentMissing, EndpointAmbiguous, EndpointUnknown, NotYours
from probe.recording import checked
from probe.recording.journal import Journal
from probe.server.recordings.listing import process_rows
from probe.server.recordings.registry import Registry
from server.beside import Writer


@pytest.fixture
def registry(place: Place) -> Registry:
    return Registry(place.directory)


def state_of(registry: Registry, writer: Writer) -> str:
    return next(
        registry.status(one).state for one in registry.processes() if one.meta.pid == writer.pid
    )


def test_states_follow_a_process_through_its_life(registry: Registry, record: Callable[..., Writer]) -> None:
    writer = record()
    assert state_of(registry, writer) == "starting"
    writer.tell("write 3")
    (recorded,) = registry.processes()
    status = registry.status(recorded)
    assert (status.state, status.step, status.ended_ns) == ("running", 2, None)
    assert status.last_step_ns is not None and status.last_seen_ns is not None
    rings = writer.rings()
    writer.exit()
    status = registry.status(recorded)
    assert status.state == "finished" and status.step == 2
    assert status.ended_ns is not None and status.ended_ns >= (status.last_step_ns or 0)
    for path in rings.iterdir():
        path.unlink()


def test_a_killed_process_is_dead_and_a_zombie_is_too(
    registry: Registry, record: Callable[..., Writer], place: Place
) -> None:
    writer = record()
    writer.tell("write 3")
    writer.process.kill()
    os.waitid(os.P_PID, writer.pid, os.WEXITED | os.WNOWAIT)  # dead, and not yet reaped
    assert state_of(registry, writer) == "dead"
    for path in writer.rings().iterdir():
        path.unlink()


def test_an_agent_that_was_stopped_and_started_again_lives_once(
    registry: Registry, record: Callable[..., Writer]
) -> None:
    writer = record(run="first")
    writer.tell("write 3")
    meta = writer.meta()
    again = writer.folder.parents[1].with_name("run=second") / "attempt=0" / writer.folder.name
    again.mkdir(parents=True)
    later = {**meta, "run": "second", "started_ns": meta["started_ns"] + 10**9}
    (again / "meta.json").write_bytes(checked.sealed("meta.json", later))
    Journal(writer.folder / "journal.bin").append({"event": "stop", "t_ns": meta["started_ns"] + 10**8})
    states = {one.meta.run: registry.status(one).state for one in registry.processes()}
    assert states == {"first": "finished", "second": "starting"}, "the rings are the first one's"
    assert registry.one(str(writer.pid)).meta.run == "second"
    _end(writer)


def test_a_reused_pid_is_not_the_process_that_was_recorded(
    registry: Registry, record: Callable[..., Writer]
) -> None:
    writer = record()
    writer.tell("write 3")
    meta = writer.meta()
    for name, other in (("start_ticks", meta["start_ticks"] - 1), ("boot_id", "another boot")):
        (writer.folder / "meta.json").write_bytes(checked.sealed("meta.json", {**meta, name: other}))
        assert state_of(registry, writer) == "dead", name
    (writer.folder / "meta.json").write_bytes(checked.sealed("meta.json", meta))
    assert state_of(registry, writer) == "running"
    writer.kill()
    for path in writer.rings().iterdir():
        path.unlink()


def test_an_endpoint_is_a_pid_a_job_a_rank_a_folder_or_nothing(
    registry: Registry, record: Callable[..., Writer], place: Place
) -> None:
    first = record(job="gpt", run="a", rank=0, world_size=2)
    second = record(job="gpt", run="a", rank=1, world_size=2)

    def pids(endpoint: str) -> list[int]:
        return [recorded.meta.pid for recorded in registry.resolve(endpoint)]

    assert pids(str(first.pid)) == [first.pid]
    assert pids("gpt") == pids("") == pids(" gpt ") == pids("a") == [first.pid, second.pid]
    assert pids("gpt/1") == [second.pid]
    assert pids(str(second.folder)) == [second.pid]
    for folder in (second.folder.parent, second.folder.parent.parent, place.directory):
        assert pids(str(folder)) == [first.pid, second.pid]
    with pytest.raises(EndpointAmbiguous, match=r"gpt/0, gpt/1"):
        registry.one("gpt")
    with pytest.raises(EndpointUnknown, match="rank"):
        registry.resolve("gpt/7")
    _end(first, second)


def _end(*writers: Writer) -> None:
    """Kill the writers and remove their rings: no server does it here."""
    for writer in writers:
        rings = writer.rings()
        writer.kill()
        for path in rings.iterdir():
            path.unlink()


def test_a_job_is_its_newest_run_and_attempt(registry: Registry, record: Callable[..., Writer]) -> None:
    old = record(job="gpt", run="old")
    old.kill()
    failed = record(job="gpt", run="new", attempt=0)
    failed.kill()
    now = record(job="gpt", run="new", attempt=1)
    assert [recorded.meta.pid for recorded in registry.resolve("gpt")] == [now.pid]
    assert [recorded.meta.pid for recorded in registry.resolve("old")] == [old.pid]
    now.kill()
    assert [recorded.meta.pid for recorded in registry.resolve("gpt")] == [now.pid]
    _end(old, failed, now)


def test_jobs_of_two_folders_with_one_script_name_are_told_apart(
    registry: Registry, record: Callable[..., Writer]
) -> None:
    vae = record(job="main", run="v", cwd="/x/vae")
    gpt = record(job="main", run="g", cwd="/x/gpt")
    rows, _ = process_rows(registry, lambda _folder: None, False)
    assert {row["pid"]: row["name"] for row in rows} == {vae.pid: "main@vae", gpt.pid: "main@gpt"}
    choices = rf"main matches 2 {{}} jobs: main@vae \(pid {vae.pid}\), main@gpt \(pid {gpt.pid}\)"
    with pytest.raises(EndpointAmbiguous, match=choices.format("running")):
        registry.resolve("main")
    assert [one.meta.pid for one in registry.resolve("main@vae")] == [vae.pid]
    assert [one.meta.pid for one in registry.resolve("main@gpt/0")] == [gpt.pid]
    gpt.kill()
    assert [one.meta.pid for one in registry.resolve("main")] == [vae.pid], "only one runs"
    vae.kill()
    with pytest.raises(EndpointAmbiguous, match=choices.format("ended")):
        registry.resolve("main")
    _end(vae, gpt)


def test_two_runs_of_one_script_are_ambiguous_while_both_run(
    registry: Registry, record: Callable[..., Writer]
) -> None:
    first = record(job="main", run="main-1")
    second = record(job="main", run="main-2")
    rows, _ = process_rows(registry, lambda _folder: None, False)
    assert {row["name"] for row in rows} == {"main"}
    with pytest.raises(EndpointAmbiguous, match=rf"main-1 \(pid {first.pid}\), main-2"):
        registry.resolve("main")
    assert [one.meta.pid for one in registry.resolve("main-2")] == [second.pid]
    first.kill()
    assert [one.meta.pid for one in registry.resolve("main")] == [second.pid]
    second.kill()
    assert [one.meta.pid for one in registry.resolve("main")] == [second.pid]
    _end(first, second)


def test_two_jobs_without_a_name_are_ambiguous(registry: Registry, record: Callable[..., Writer]) -> None:
    writers = record(job="a"), record(job="b")
    with pytest.raises(EndpointAmbiguous, match=r"a/0 .*b/0"):
        registry.resolve("")
    _end(*writers)


def test_each_way_not_to_find_a_process_says_what_to_do(
    registry: Registry, record: Callable[..., Writer], tmp_path: Path
) -> None:
    with pytest.raises(EndpointUnknown) as nothing:
        registry.resolve("")
    assert "PROBE=1" in nothing.value.hint
    writer = record(job="gpt-small")
    with pytest.raises(EndpointUnknown, match="no job 'gpt-smal'") as unknown:
        registry.resolve("gpt-smal")
    assert "gpt-small" in unknown.value.hint
    with pytest.raises(EndpointUnknown, match="no process 4194999"):
        registry.resolve("4194999")
    with pytest.raises(EndpointUnknown):
        registry.resolve("9" * 40)
    with pytest.raises(AgentMissing) as missing:
        registry.resolve(str(os.getpid()))
    assert "PROBE=1" in missing.value.hint
    with pytest.raises(EndpointUnknown, match="cannot be read"):
        registry.resolve(str(tmp_path / "nothing"))
    with pytest.raises(EndpointUnknown, match="holds no recording"):
        registry.resolve(str(tmp_path))
    _end(writer)


def test_another_users_process_is_named_as_such(registry: Registry) -> None:
    if os.getuid() != 0:
        with pytest.raises(NotYours):
            registry.resolve("1")
        return
    other = subprocess.Popen(
        [sys.executable, "-c", "import os, sys; os.setuid(65534); print(flush=True); sys.stdin.read()"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )
    try:
        assert other.stdout is not None and other.stdout.readline()
        with pytest.raises(NotYours):
            registry.resolve(str(other.pid))
    finally:
        other.communicate(b"")


def test_damaged_recordings_are_left_out_and_do_not_hide_others(
    registry: Registry, record: Callable[..., Writer], place: Place
) -> None:
    writer = record()
    for content in ("", "{", "[]", '{"version": 99}', '{"version": 1}'):
        folder = writer.folder.parent / "process=9-9"
        folder.mkdir(exist_ok=True)
        (folder / "meta.json").write_text(content)
        assert [recorded.meta.pid for recorded in registry.processes()] == [writer.pid], content
    (writer.folder / "end.json").write_text("not JSON")
    assert state_of(registry, writer) == "starting"
    _end(writer)
