"""SIGKILL of the job or of the server: what was recorded stays, once each, and the other one goes on."""

from __future__ import annotations

import random
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from agent.asking import kill_server, query, states, tell, wait_for_names, without_times
from agent.nursery import Forked, Nursery, forked
from harness import SERVER, Job, Place, wait_for_end

STEPS, MANY = 7, 2000
QUICK = {**SERVER, "PROBE_SEAL_INTERVAL_S": "0.05", "PROBE_DRAIN_INTERVAL_S": "0.02"}
"""Rows travel from the rings into segments all the time."""
PHASES = ("data", "forward", "backward", "optimizer")


def noted(file: Path) -> list[list[object]]:
    """Steps and losses that the program noted itself; a line that was cut short does not count."""
    lines = file.read_text().splitlines(keepends=True) if file.exists() else []
    words = [line.split() for line in lines if line.endswith("\n")]
    return [[int(step), float.fromhex(loss)] for step, loss in words]


def test_a_job_killed_inside_a_step_is_dead_and_shows_every_finished_step(
    nursery: Nursery, place: Place
) -> None:
    commands = [("halts_inside_a_step", "--phase", phase, "--steps", str(STEPS)) for phase in PHASES]
    with forked(nursery, place, *commands, PROBE_MODULES_INTERVAL="1") as started:
        for job in started:
            job.wait_for("READY")
            wait_for_names(place, job.pid)
            tell(job)
        for job in started:
            job.wait_for("INSIDE")
        for job in started:
            job.signal(signal.SIGKILL)
            job.wait()
        assert states(place) == {job.pid: "dead" for job in started}
        for phase, job in zip(PHASES, started, strict=True):
            check_tables(place, phase, job.pid)


def check_tables(place: Place, phase: str, pid: int) -> None:
    [[steps, losses, batches, traced, stages]] = query(
        place, pid,
        f"""SELECT (SELECT list(step ORDER BY step) FROM python.steps),
                   (SELECT list(step ORDER BY step) FROM python.losses),
                   (SELECT list([step::VARCHAR, state, (fetch_s IS NULL)::VARCHAR] ORDER BY step)
                    FROM python.batches),
                   (SELECT list(module ORDER BY seq) FROM python.torch_trace
                    WHERE step = {STEPS} AND stage = 'forward'),
                   (SELECT list(DISTINCT stage ORDER BY stage) FROM python.torch_trace)""",
    )
    assert steps == list(range(STEPS))
    assert losses == list(range(STEPS + (phase in ("backward", "optimizer")))), phase
    done = [[str(step), "done", "false"] for step in range(STEPS + (phase != "data"))]
    assert batches == done + [[str(STEPS), "pending", "true"]] * (phase == "data"), phase
    whole = ["0", "1", "2", "Sequential"]
    assert traced == {"data": None, "forward": whole[:2]}.get(phase, whole), phase
    assert stages == ["backward", "forward", "step"]


def test_the_death_of_the_server_costs_the_job_nothing_and_no_row(
    fork: Callable[..., Forked], place: Place, tmp_path: Path
) -> None:
    command = ("steps_on_file", "--steps", str(MANY), "--hold", "--file")
    file = tmp_path / "watched"
    plain = fork(*command, str(tmp_path / "plain"), watched=False)
    job = fork(*command, str(file), **QUICK)
    job.wait_for("READY")
    seen = kill_and_ask(place, job, 2)
    result = job.result()
    assert kill_and_ask(place, job, 1)[0] == len(noted(file)) == MANY
    assert sorted(seen) == seen
    assert query(place, job.pid, "SELECT step, loss FROM python.steps ORDER BY step") == noted(file)
    assert query(place, job.pid, "SELECT step, loss FROM python.losses ORDER BY step") == noted(file)
    assert without_times(result) == without_times(plain.result())
    assert (job.let_go(), job.errors()) == (0, "")


def kill_and_ask(place: Place, job: Job, times: int) -> list[int]:
    """How many steps the next query sees each time after the server was killed; all distinct."""
    seen = []
    for _ in range(times):
        [[steps]] = query(place, job.pid, "SELECT count(*) FROM python.steps")
        killed = kill_server(place)
        assert wait_for_end(killed, 20)
        [[after, distinct, highest]] = query(
            place, job.pid, "SELECT count(*), count(DISTINCT step), max(step) FROM python.steps"
        )
        assert after >= steps and after == distinct == highest + 1
        assert place.server_pid() != killed
        seen.append(after)
    return seen


@pytest.mark.campaign
def test_fifty_deaths_of_the_server_lose_and_double_nothing(
    fork: Callable[..., Forked], place: Place, tmp_path: Path
) -> None:
    file = tmp_path / "steps"
    job = fork("steps_on_file", "--forever", "--file", str(file), **QUICK)
    job.wait_for("READY")
    kill_and_ask(place, job, 50)
    job.kill()
    rows = query(place, job.pid, "SELECT step, loss FROM python.steps ORDER BY step")
    assert rows[: len(noted(file))] == noted(file)


@pytest.mark.campaign
@pytest.mark.parametrize("number", range(50))
def test_a_job_killed_at_any_moment_has_every_row_it_noted_itself(
    fork: Callable[..., Forked], place: Place, tmp_path: Path, number: int
) -> None:
    file = tmp_path / "steps"
    job = fork("steps_on_file", "--forever", "--file", str(file), **(QUICK if number % 2 else {}))
    job.wait_for("READY")
    threading.Event().wait(random.Random(number).uniform(0.0, 0.8))
    job.signal(signal.SIGKILL)
    job.wait()
    assert states(place) == {job.pid: "dead"}
    rows = query(place, job.pid, "SELECT step, loss FROM python.steps ORDER BY step")
    counted = noted(file)
    # The row is written inside optimizer.step(), the note after it: one row may be ahead.
    assert rows[: len(counted)] == counted and len(rows) - len(counted) in (0, 1)
    assert [step for step, _ in rows] == list(range(len(rows)))
