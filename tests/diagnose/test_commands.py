"""What a person does with a job that hangs, by the installed command: diagnose, backtrace, ps, detach."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from typing import Any

from agent.asking import accepts, jobs, query, tell
from agent.nursery import Nursery, ready
from harness import PATIENCE_S, SERVER, Job, Place, run_probe


def hang(job: Job) -> None:
    """Let the program of stall_hangs.py go into its hang."""
    tell(job)
    job.wait_for("HANGING")


def asked(place: Place, *words: object) -> dict[str, Any]:
    """The JSON of a command."""
    done = run_probe(place, *(str(word) for word in words))
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_a_job_that_holds_the_gil_is_read_from_outside_and_what_was_seen_outlives_it(
    nursery: Nursery, place: Place
) -> None:
    with ready(nursery, place, "stall_hangs", "--way", "gil", PROBE_STALL_S="1", **SERVER) as job:
        inside = asked(place, job.pid, "backtrace", "--json")
        assert inside["source"] == "agent"
        hang(job)
        seen = asked(place, job.pid, "backtrace", "--json")
        assert (seen["source"], seen["tool"]) == ("outside", "py-spy")
        assert any("did not answer" in note for note in seen["notes"])
        assert seen["step"] == 5, "the rings still say which step it is"
        [thread] = [thread for thread in seen["threads"] if thread["training"]]
        assert thread["owns_gil"] and thread["frames"][0]["func"] == "hang_with_gil"
        said = run_probe(place, str(job.pid), "backtrace")
        assert "from outside (py-spy)" in said.stdout and "holds the GIL" in said.stdout

        verdict = asked(place, job.pid, "diagnose", "--format", "json")
        assert (verdict["state"], verdict["severity"]) == ("holds the GIL", "alarm")
        assert any("hang_with_gil" in line for line in verdict["why"]) and verdict["next"]
        rows = query(place, job.pid, "SELECT func FROM python.backtrace WHERE depth = 0")
        assert rows == [["hang_with_gil"]]
        wait_for_state(place, job.pid, "stalled")
        job.kill()
        ended = asked(place, job.pid, "diagnose", "--format", "json")
        assert ended["state"] == "dead" and "SIGKILL" in ended["what"]
        kept = asked(place, job.pid, "backtrace", "--json")
        assert kept["source"] == "recording" and any("SIGKILL" in note for note in kept["notes"])
        assert kept["threads"][0]["frames"][0]["func"] == "hang_with_gil"
        reasons = query(place, job.pid, "SELECT DISTINCT reason FROM python.stacks ORDER BY reason")
        assert reasons == [["external"], ["request"], ["stall"]]


def wait_for_state(place: Place, pid: int, state: str) -> dict[str, Any]:
    """The process's line of `probe ps`, once it says `state`."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        [found] = [one for one in asked(place, "ps", "--format", "json")["processes"] if one["pid"] == pid]
        if found["state"] == state:
            return found
        assert time.monotonic() < deadline, found
        time.sleep(0.05)


def test_ps_says_stopped_and_then_running_again(
    nursery: Nursery, place: Place
) -> None:
    with ready(nursery, place, "one_millisecond_step", "--forever") as job:
        job.signal(signal.SIGSTOP)
        wait_for_state(place, job.pid, "stopped")
        verdict = asked(place, job.pid, "diagnose", "--format", "json")
        assert verdict["state"] == "stopped" and f"kill -CONT {job.pid}" in verdict["next"]
        job.signal(signal.SIGCONT)
        wait_for_state(place, job.pid, "running")


def test_any_python_process_is_looked_at_without_an_agent(place: Place) -> None:
    with jobs(place, ("stall_hangs", "--way", "deadlock"), watched=False) as [job]:
        job.wait_for("READY")
        hang(job)
        seen = asked(place, job.pid, "backtrace", "--all-threads", "--native", "--locals", "--json")
        assert seen["source"] == "outside" and any("attach" in note for note in seen["notes"])
        kinds = {frame["frame_type"] for thread in seen["threads"] for frame in thread["frames"]}
        assert kinds == {"Python", "Native"}
        frames = [frame for thread in seen["threads"] for frame in thread["frames"]]
        names = {one["name"] for frame in frames for one in frame.get("locals") or ()}
        assert "ledger" in names
        verdict = asked(place, job.pid, "diagnose", "--format", "json")
        assert verdict["state"] == "deadlock suspected" and verdict["evidence"]["progress"] is None
        refused = run_probe(place, str(job.pid), "detach")
        assert refused.returncode == 3 and "without an agent" in refused.stderr


def test_detaching_from_a_job_that_cannot_run_says_so_and_happens_when_it_can(
    nursery: Nursery, place: Place
) -> None:
    with ready(nursery, place, "stall_hangs", "--way", "none") as job:
        job.signal(signal.SIGSTOP)
        refused = run_probe(place, str(job.pid), "detach")
        assert refused.returncode == 3 and "was told to detach" in refused.stderr
        job.signal(signal.SIGCONT)
        deadline = time.monotonic() + PATIENCE_S
        while accepts(place, job.pid):
            assert time.monotonic() < deadline, "it never left"
        assert wait_for_state(place, job.pid, "finished")["how"] == "recording stopped"


def test_workers_of_a_loader_are_shown_with_their_stacks(
    nursery: Nursery, place: Place
) -> None:
    with ready(nursery, place, "dataloader_workers", "--workers", "2", "--persistent", "--forever") as job:
        seen = asked(place, job.pid, "backtrace", "--workers", "--json")
        roles = [one["role"] for one in seen["processes"]]
        assert roles.count("DataLoader worker") == 2
        workers = {thread["process_id"] for thread in seen["threads"]} - {job.pid}
        assert len(workers) >= 2
        said = run_probe(place, str(job.pid), "backtrace", "--workers").stdout
        assert said.count("DataLoader worker") == 2


def test_what_is_not_python_or_not_there_is_said(place: Place) -> None:
    with subprocess.Popen(["sleep", "600"]) as sleeper:
        try:
            refused = run_probe(place, str(sleeper.pid), "backtrace")
            assert refused.returncode == 3 and "not a Python process" in refused.stderr
        finally:
            sleeper.kill()
    gone = run_probe(place, "999999999", "diagnose")
    assert gone.returncode == 3 and "999999999" in gone.stderr
