"""Jobs that were started without probe, attached to and left while they train.

A second run of the same program that nobody touches says what it should have computed.
"""

from __future__ import annotations

import math
import os
import time
from pathlib import Path

import pytest

from agent.asking import accepts, listed, query, states, tell, without_times
from agent.nursery import Nursery, forked
from harness import PATIENCE_S, Job, Place, probe_process, run_probe
from probe.outside.processes.tasks import tasks

COMMANDS = (
    ("dataloader_workers", "--steps", "12", "--workers", "2", "--pause"),
)
RARELY = (
    ("one_millisecond_step", "--steps", "5000"),
    ("gpt_in_main", "--size", "tiny", "--steps", "12", "--pause"),
    ("accumulation_amp_schedule", "--steps", "20", "--pause"),
    ("gan_two_optimizers", "--steps", "40", "--pause"),
    ("lbfgs_closure", "--steps", "12", "--pause"),
    ("activation_checkpointing", "--steps", "40", "--pause"),
)
"""Those that pause are attached to while they wait inside a step, the first of these while it trains."""


def probe(place: Place, *words: object, installed: bool = False) -> str:
    done = (probe_process if installed else run_probe)(place, *(str(word) for word in words))
    assert done.returncode == 0, f"{words}\n{done.stdout}{done.stderr}"
    return done.stdout


@pytest.mark.parametrize(
    "command", [*COMMANDS, *(pytest.param(one, marks=pytest.mark.campaign) for one in RARELY)],
    ids=lambda command: command[0],
)
def test_an_attached_job_computes_the_same_and_is_recorded_from_the_next_step_on(
    nursery: Nursery, place: Place, command: tuple[str, ...]
) -> None:
    with forked(nursery, place, (*command, "--hold"), command, watched=False) as [job, plain]:
        job.wait_for("READY")
        assert f"pid {job.pid}" in probe(place, job.pid, "attach", installed=True)
        if "--pause" in command:
            tell(job)
            tell(plain)
        result, expected = without_times(job.result()), without_times(plain.result())
        assert result == expected
        losses = [float.fromhex(loss) for loss in result["losses"]]
        found = query(place, job.pid, "SELECT loss FROM python.losses ORDER BY t_ns")
        assert len(found) > 1, "it ended before anything was recorded"
        recorded = [math.nan if loss is None else loss for [loss] in found]
        assert recorded == losses[len(losses) - len(recorded) :]
        [[steps, first]] = query(place, job.pid, "SELECT count(*), min(step) FROM python.steps")
        assert first == 0 and 0 < steps < result["steps"]
        assert plain.let_go() == 0 and (job.let_go(), job.errors()) == (0, "")
    assert states(place) == {job.pid: "finished"}


def wait_for_rows(place: Place, pid: int, source: str, least: int) -> None:
    """Until a query finds as many rows."""
    for _ in range(600):
        [[count]] = query(place, pid, f"SELECT count(*) FROM {source}")
        if count >= least:
            return
        time.sleep(0.05)
    raise AssertionError(f"{source} has {count} rows")


def check_every_instrument(place: Place, job: Job) -> None:
    """In a job that was attached to as `late`."""
    wait_for_rows(place, job.pid, "python.steps", 4)
    wait_for_rows(place, job.pid, "python.torch_trace WHERE stage = 'forward' AND module LIKE '%.%'", 1)
    for table in ("python.losses", "python.batches", "process.memory"):
        wait_for_rows(place, job.pid, table, 1)
    columns = "count(forward_s), count(backward_s), count(data_s), count(loss), count(lr)"
    rows = query(place, "late", f"SELECT {columns} FROM python.steps WHERE step > 0 AND NOT shadow")
    assert all(count > 0 for count in rows[0])
    assert probe(place, job.pid, "eval", "type(optimizer).__name__").strip().startswith("'Adam")
    assert "from agent" in probe(place, job.pid, "backtrace")


@pytest.mark.parametrize("rounds", [4, pytest.param(50, marks=pytest.mark.campaign)])
def test_every_instrument_works_and_attaching_again_and_again_leaves_no_growth(
    nursery: Nursery, place: Place, rounds: int
) -> None:
    with forked(nursery, place, ("gpt_in_main", "--size", "tiny", "--forever"), watched=False) as [job]:
        job.wait_for("READY")
        early: dict[str, int] = {}
        warm = min(4, rounds // 2 - 1)
        for number in range(rounds):
            probe(place, job.pid, "attach", *(() if number else ("--name", "late")))
            if number == 0:
                check_every_instrument(place, job)
            if number < 2:
                assert "already has an agent" in probe(place, job.pid, "attach")
                wait_for_rows(place, job.pid, "python.steps", 5)
                assert [one["state"] for one in listed(place)].count("running") == 1
            said = probe(place, job.pid, "detach")
            assert "detached" in said and not accepts(place, job.pid)
            if number < 2:  # what was recorded before stays, a run for each time
                assert threads_of_ours(job) == []
                runs = query(place, place.directory / "recordings", "SELECT DISTINCT run FROM python.steps")
                assert len(runs) == number + 1
            if number == warm:
                early = holdings(job.pid)
        deadline = time.monotonic() + PATIENCE_S  # a thread that has answered ends a moment later
        while (late := holdings(job.pid))["threads"] > early["threads"] and time.monotonic() < deadline:
            time.sleep(0.05)
        for name, found in late.items():
            said = f"{name}: {early[name]} after {warm + 1} rounds, {found} after {rounds}"
            assert found <= early[name], said


def threads_of_ours(job: Job) -> list[str]:
    """Names the kernel has for threads that only an agent starts."""
    return [task.name for task in tasks(job.pid) if task.name.startswith("probe")]


def holdings(pid: int) -> dict[str, int]:
    return {
        "threads": len(os.listdir(f"/proc/{pid}/task")),
        "descriptors": len(os.listdir(f"/proc/{pid}/fd")),
        "rings": Path(f"/proc/{pid}/maps").read_text().count(".ring"),
        "boot": Path(f"/proc/{pid}/maps").read_text().count("boot-"),
    }
