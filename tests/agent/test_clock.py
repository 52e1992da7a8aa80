"""A wall clock that jumps reorders nothing and makes no duration negative."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable

import pytest

from agent.asking import ask, evaluate, query, states, tell, without_times
from agent.nursery import Forked
from harness import PATIENCE_S, PROGRAMS, Place

STEPS = 60
DURATIONS = """
SELECT (SELECT min(least(wall_s, data_s, forward_s, backward_s, optimizer_s, other_s)) FROM python.steps),
       (SELECT min(fetch_s) FROM python.batches),
       (SELECT min(least(duration, time_offset)) FROM python.torch_trace),
       (SELECT min(duration_s) FROM probe.evals)
"""
TIMES = """
SELECT (SELECT list(t_ns ORDER BY step) FROM python.steps),
       (SELECT list(t_ns ORDER BY step) FROM python.losses),
       (SELECT list(t_ns ORDER BY step) FROM python.batches),
       (SELECT list(t_ns ORDER BY seq) FROM python.torch_trace WHERE stage = 'forward' AND module = '1'),
       (SELECT list(t_ns ORDER BY eval_id, outcome DESC) FROM probe.evals)
"""


def test_a_clock_set_back_and_ahead_changes_no_order(fork: Callable[..., Forked], place: Place) -> None:
    command = ("clock_set_back", "--steps", str(STEPS))
    before = time.time_ns()
    plain = fork(*command, watched=False)
    job = fork(*command, "--hold", PROBE_MODULES_INTERVAL="2", PROBE_MEMORY_INTERVAL_S="0.01")
    for number, moment in enumerate((20, 40)):
        plain.wait_for(f"CLOCK {moment}")
        job.wait_for(f"CLOCK {moment}")
        assert evaluate(place, job.pid, f"{number}")["elapsed_ms"] >= 0
        assert ask(place, job.pid, "GET", "/v1/health")["uptime_s"] >= 0
        tell(plain)
        tell(job)
    assert without_times(job.result()) == without_times(plain.result())
    [durations] = query(place, job.pid, DURATIONS)
    assert all(shortest is not None and shortest >= 0 for shortest in durations), durations
    [times] = query(place, job.pid, TIMES)
    now = time.time_ns()
    for moments in times:
        assert len(moments) > 3 and moments == sorted(moments)
        assert before <= moments[0] and moments[-1] <= now
    [[samples]] = query(place, job.pid, "SELECT list(t_ns ORDER BY step, t_ns) FROM process.memory")
    assert samples == sorted(samples) and samples[-1] <= time.time_ns()
    assert (job.let_go(), job.errors()) == (0, "")


@pytest.mark.campaign
def test_a_job_whose_monotonic_clock_is_another_is_recorded_like_any(place: Place) -> None:
    """As in a container that was moved: its monotonic clock is hours ahead of the server's."""
    ahead = ["unshare", "--time", "--monotonic", "7200", "--fork", "--kill-child"]
    if subprocess.run([*ahead, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this user may not make a time namespace")
    environ = place.watched(PROBE_NAME="elsewhen")
    before = time.time_ns()
    done = subprocess.run(
        [*ahead, sys.executable, str(PROGRAMS / "one_millisecond_step.py"), "--steps", "50"],
        env=environ, capture_output=True, text=True, timeout=PATIENCE_S, check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    [[first, last, steps, shortest]] = query(
        place, "elsewhen", "SELECT min(t_ns), max(t_ns), count(*), min(wall_s) FROM python.steps"
    )
    assert before <= first < last <= time.time_ns()
    assert (steps, shortest > 0) == (50, True)
    assert set(states(place).values()) == {"finished"}
