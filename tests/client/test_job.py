"""`probe.connect` on a real job: the same answers and the same errors as the command."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import probe
from agent.asking import listed, tell
from harness import PATIENCE_S, SERVER, Job, Place
from probe.base.errors import (
    ActionUnknown,
    EndpointUnknown,
    SqlInvalid,
    UsageError,
)
from probe.client.answer import Answer
from probe.client.job import SnippetRaised

LOSSES = "SELECT step, loss FROM python.steps WHERE loss IS NOT NULL ORDER BY step LIMIT 5"


@pytest.fixture
def training(place: Place, fork: Callable[..., Job], monkeypatch: pytest.MonkeyPatch) -> Job:
    """A job that trains until it is told, and the environment of somebody who asks it."""
    monkeypatch.setenv("PROBE_DIR", str(place.directory))
    place.start_server()
    job = fork("scheduled", "none", "--until-told", PROBE_NAME="small", PATIENT_REST_S="0.05", **SERVER)
    job.wait_for("READY")
    deadline = time.monotonic() + PATIENCE_S
    while len(probe.connect("small").query(LOSSES)) < 5:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return job


def test_a_job_is_asked_and_told_from_python(place: Place, training: Job) -> None:
    [process] = listed(place)
    for endpoint in (training.pid, str(training.pid), "small", "small/0", "", Path(process["folder"])):
        job = probe.connect(endpoint)
        assert [rank["pid"] for rank in job.ranks()] == [training.pid]
    answer = job.query(LOSSES)
    assert len(answer) == 5 and [step for step, _ in answer] == [0, 1, 2, 3, 4]
    assert answer.columns == [("step", "BIGINT"), ("loss", "DOUBLE")]
    assert answer.records()[0] == {"step": 0, "loss": answer.rows[0][1]}
    assert job.query(LOSSES, limit=2).truncated
    assert "python.steps" in {table for table, _ in job.tables()}
    assert job.diagnose()["state"]
    assert "loss" in {check["check_name"].partition("-")[0] for check in job.diagnose("loss")["checks"]}
    assert any("scheduled.py" in str(frame["file"]) for frame in job.backtrace()["threads"][0]["frames"])
    before = float(job.eval("optimizer.param_groups[0]['lr']")["value"])
    done = job.act("lr", scale=0.5)
    assert done["undoable"] and done["action"] == "lr"
    assert float(job.eval("optimizer.param_groups[0]['lr']")["value"]) == pytest.approx(before / 2)
    job.undo(done["id"])
    assert float(job.eval("optimizer.param_groups[0]['lr']")["value"]) == pytest.approx(before)
    for kind, what in (
        (SqlInvalid, lambda: job.query("SELECT los FROM python.steps")),
        (ActionUnknown, lambda: job.act("explode")),
        (EndpointUnknown, lambda: probe.connect("smal")),
        (EndpointUnknown, lambda: probe.connect(Path("smal"))),
        (UsageError, lambda: probe.connect(True)),
        (UsageError, lambda: next(job.follow(LOSSES, every_s=0))),
    ):
        with pytest.raises(kind) as caught:
            what()
        assert caught.value.hint
    with pytest.raises(SnippetRaised, match="ZeroDivisionError") as raised:
        job.eval("1 / 0")
    assert "line 1" in raised.value.traceback


def test_rows_are_followed_until_the_job_has_ended(training: Job) -> None:
    job = probe.connect(training.pid)
    rows = job.follow("SELECT step FROM python.steps ORDER BY step DESC LIMIT 50", every_s=0.05)
    first = next(rows)["step"]
    tell(training)
    training.result()
    assert training.let_go() == 0
    seen = [row["step"] for row in rows]
    assert max(seen) > first and len(seen) == len(set(seen))
    assert probe.connect(training.pid).query("SELECT count(*) FROM python.steps").rows[0][0] > max(seen)


def test_coroutines_ask_side_by_side(training: Job) -> None:
    async def ask() -> tuple[Answer, str, set[str], list[int]]:
        job = await probe.connect_async("small")
        answer, snippet, tables = await asyncio.gather(
            job.query(LOSSES), job.eval("1 + 1"), job.tables()
        )
        steps = []
        async for row in job.follow("SELECT step FROM python.steps ORDER BY step DESC LIMIT 5", every_s=0.01):
            steps.append(row["step"])
            if len(steps) > 5:
                break
        return answer, snippet["value"], {name for name, _ in tables}, steps

    answer, value, tables, steps = asyncio.run(ask())
    assert (len(answer), value) == (5, "2") and "python.losses" in tables and len(steps) == 6


def test_importing_probe_to_connect_imports_no_torch_and_no_server() -> None:
    heavy = ["torch", "numpy", "duckdb", "fastapi", "typer", "httpx"]
    code = f"import probe, sys; probe.connect; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True,
                          env={name: value for name, value in os.environ.items() if name != "PROBE"})
    assert done.stdout == "[]\n"
