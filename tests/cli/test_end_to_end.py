"""The command against a real job and the real server; each kind of answer once by a process of its own."""

from __future__ import annotations

import csv
import io
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

import duckdb
import pytest

from harness import SERVER, Job, Place, probe_process, run_probe

STEPS = 12
ENDLESS = "SELECT count(*) FROM range(10000000000) a, range(1000000) b"
SQL = "SELECT step, loss FROM python.steps ORDER BY step"


@pytest.fixture
def job(place: Place, start: Callable[..., Job]) -> Job:
    """A GPT that has trained its steps and waits."""
    place.start_server()  # it sees every end
    options = ("--size", "tiny", "--steps", str(STEPS), "--hold")
    return start("gpt_in_main", *options, PROBE_NAME="gpt-small", **SERVER)


def test_a_job_is_listed_asked_and_evaluated_by_any_of_its_names(
    place: Place, job: Job, tmp_path: Path
) -> None:
    result = job.result()
    losses = [float.fromhex(loss) for loss in result["losses"]]

    listed = probe_process(place, "ps")
    assert listed.stdout.split()[:7] == ["JOB", "RANK", "PID", "STEP", "LAST", "STEP", "STATE"]
    assert listed.stdout.split()[7:11] == ["gpt-small", "0", str(job.pid), str(STEPS - 1)]
    assert listed.stdout.rstrip().endswith("running") and listed.stderr == ""
    [process] = json.loads(run_probe(place, "ps", "--format", "json").stdout)["processes"]

    socket = f"{place.directory}/agents/{job.pid}.sock"
    for endpoint in (str(job.pid), "gpt-small", "gpt-small/0", process["folder"], socket):
        asked = run_probe(place, endpoint, "query", SQL, "--format", "json")
        answer = json.loads(asked.stdout)
        assert set(answer) == {"columns", "rows", "truncated", "elapsed_ms"}, asked.stderr
        assert answer["columns"] == [{"name": "step", "type": "BIGINT"}, {"name": "loss", "type": "DOUBLE"}]
        assert answer["rows"] == [[step, pytest.approx(loss)] for step, loss in enumerate(losses)]

    rows = list(csv.reader(io.StringIO(probe_process(place, "query", "--format", "csv", stdin=SQL).stdout)))
    assert rows[0] == ["step", "loss"] and len(rows) == STEPS + 1
    path = tmp_path / "steps.parquet"
    assert probe_process(place, "query", SQL, "--format", "parquet", "-o", str(path)).returncode == 0
    with duckdb.connect(":memory:") as connection:
        found = connection.execute(f"SELECT count(*), max(step) FROM '{path}'").fetchone()
    assert found == (STEPS, STEPS - 1)

    shown = probe_process(place, "gpt-small", "backtrace")
    assert "gpt_in_main.py" in shown.stdout and "  main" in shown.stdout, shown.stderr
    assert "probe-agent" in run_probe(place, "gpt-small", "backtrace", "--all-threads").stdout

    snippet = "print('step', trainer.current_step)\ntrainer.grad_clip"
    assert probe_process(place, "gpt-small", "eval", snippet).stdout == f"step {STEPS}\n1.0\n"
    raised = run_probe(place, "gpt-small", "eval", "1 / 0")
    assert (raised.returncode, raised.stdout) == (1, "") and "ZeroDivisionError" in raised.stderr
    tables = run_probe(place, "gpt-small", "tables", "python.steps")
    assert tables.stdout.startswith("python.steps  one row per ") and tables.returncode == 0
    assert "running: pid" in run_probe(place, "doctor").stdout


def test_what_is_wrong_is_said_in_a_sentence_with_its_exit_code(place: Place, job: Job) -> None:
    for words, code, said in (
        (("999999999", "query", "SELECT 1"), 3, "999999999"),
        (("gpt-smal", "query", "SELECT 1"), 3, "gpt-small"),
        ((str(os.getpid()), "eval", "1"), 3, "attach"),
        (("gpt-small", "query", "SELECT los FROM python.steps"), 2, "loss"),
        (("gpt-small", "query", "SELECT 1; SELECT 2"), 2, "next:"),
        (("gpt-small", "query", "COPY (SELECT 1) TO '/tmp/x'"), 2, "COPY"),
        (("gpt-small", "query", "--timeout", "0.3", ENDLESS), 5, "next:"),
        (("gpt-small", "eval", "def"), 1, "SyntaxError"),
    ):
        done = run_probe(place, *words)
        assert (done.returncode, done.stdout) == (code, ""), done
        assert said in done.stderr and "Traceback (most recent call last)" not in done.stderr, done
    many = probe_process(place, "query", "--limit", "3", "--format", "csv", "SELECT * FROM range(1000000000)")
    assert many.stdout == "range\n0\n1\n2\n" and "truncated" in many.stderr


def test_a_killed_job_is_dead_and_its_recording_answers(place: Place, job: Job) -> None:
    job.result()
    job.signal(signal.SIGKILL)
    job.wait()
    assert probe_process(place, "ps").stdout.rstrip().endswith("dead: SIGKILL")
    answer = json.loads(probe_process(place, str(job.pid), "query", SQL, "--format", "json").stdout)
    assert [step for step, _ in answer["rows"]] == list(range(STEPS))
    refused = probe_process(place, str(job.pid), "backtrace")
    assert refused.returncode == 3 and "next:" in refused.stderr


def test_the_next_command_after_the_servers_death_works(place: Place, job: Job) -> None:
    job.result()
    first = probe_process(place, "query", SQL, "--format", "csv").stdout
    before = place.server_pid()
    assert before is not None
    os.kill(before, signal.SIGKILL)
    again = probe_process(place, "query", SQL, "--format", "csv")
    assert again.stdout == first, again.stderr
    after = place.server_pid()
    assert after is not None and after != before
