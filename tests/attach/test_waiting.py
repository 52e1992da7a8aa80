"""An attach to a job without torch waits for it: that is said, and can be withdrawn."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.asking import tell
from harness import Job, Place, probe_process, run_probe
from probe.recording.waiting import all_waiting, waiting


@pytest.fixture
def job(place: Place, tmp_path: Path) -> Iterator[Job]:
    """One that has not imported torch yet; a line on stdin has it do so."""
    (tmp_path / "torch.py").write_text("__version__ = '2.9.0'\n")
    found = Job("imports_torch_late", str(tmp_path), environ=place.environ(), folder=place.directory)
    try:
        found.wait_for("READY")
        yield found
    finally:
        found.kill()


def said(place: Place, *words: str) -> str:
    run = probe_process if "attach" in words else run_probe
    done = run(place, *words)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_an_attach_that_waits_for_torch_is_shown_and_can_be_withdrawn(place: Place, job: Job) -> None:
    pid = str(job.pid)
    assert "has not imported torch" in said(place, pid, "attach")
    assert "waiting for torch" in said(place, "ps") and pid in said(place, "ps")
    assert "already attached" in said(place, pid, "attach")
    refused = run_probe(place, pid, "query", "SELECT 1")
    assert refused.returncode != 0 and "has not imported torch" in refused.stderr
    assert said(place, pid, "detach").startswith(f"cancelled for {pid}")
    assert said(place, "ps") == ""
    again = run_probe(place, pid, "detach")
    assert again.returncode != 0 and "runs without an agent" in again.stderr
    tell(job, "stand-in")
    result = job.result()
    assert (result["threads"], result["child"]) == (["MainThread"], ["MainThread"])
    assert "TorchWatch" not in result["finders"]
    assert (job.let_go(), job.errors()) == (0, "")


def test_what_was_withdrawn_can_be_asked_for_again_and_is_for_the_process_itself(
    place: Place, job: Job
) -> None:
    pid = str(job.pid)
    said(place, pid, "attach")
    said(place, pid, "detach")
    said(place, pid, "attach", "--name", "second")
    tell(job)
    result = job.result()
    assert "probe-agent" in result["threads"] and result["child"] == ["MainThread"]
    assert all_waiting(place.directory) == []
    assert "second" in said(place, "ps")
    assert said(place, pid, "detach").startswith("detached from second/0")
    assert (job.let_go(), job.errors()) == (0, "")


def test_a_note_is_about_one_life_of_a_pid_and_one_program(place: Place, job: Job) -> None:
    said(place, str(job.pid), "attach")
    found = waiting(place.directory, job.pid)
    assert found is not None
    text = found.note.read_text()
    ours = found.note.with_name(f"{os.getpid()}.waiting")
    ours.write_text(text)
    assert waiting(place.directory, os.getpid()) is None
    start_ticks, stack, namespace = text.split()
    found.note.write_text(f"{start_ticks} {int(stack) - 4096} {namespace}")  # as before an exec
    assert waiting(place.directory, job.pid) is None
    found.note.write_text("")
    assert all_waiting(place.directory) == []
    found.note.write_text(text)
    job.kill()
    assert all_waiting(place.directory) == [] and not found.note.exists()
