"""Ranks on several hosts change before the same step or not at all, whichever host is asked."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import uuid
from collections.abc import Iterator

import pytest

from cluster.several import Node, nodes
from harness import Job
from probe.base.errors import NotTogether, ProbeError
from probe.boot.startup import run_environment
from ranks import free_port, rank_environment
from together.all_ranks import Asked, act, first_steps, last_states, post, until

pytestmark = [pytest.mark.alone, pytest.mark.campaign]
JOB = "spread"


@contextlib.contextmanager
def spread(hosts: list[Node], *options: str) -> Iterator[list[Job]]:
    """One rank on each host."""
    port, run_id = free_port(), uuid.uuid4().hex
    jobs: list[Job] = []
    try:
        for rank, node in enumerate(hosts):
            node.start()
            where = rank_environment(rank, len(hosts), port, run_id, JOB)
            environ = run_environment({**node.environ, **where}, sys.executable)
            jobs.append(Job("parallel", *options, environ=environ, folder=node.place.directory))
        for job in jobs:
            job.wait_for("READY")
        yield jobs
    finally:
        for job in jobs:
            job.kill()


def test_ranks_of_two_hosts_act_before_the_same_step_or_not_at_all() -> None:
    environ = {"PROBE_ALLOW_EVAL": "1", "PROBE_RANK_HOLD_S": "4"}
    with nodes(2, **environ) as hosts, spread(
        hosts, "--way", "reduce", "--forever", "--pace-ms", "20"
    ) as jobs:
        here, there = hosts[0].place, hosts[1].place
        for number, asked in enumerate((here, there)):
            answer = act(asked, JOB, "lr", scale=0.5)
            assert [one["rank"] for one in answer["answers"]] == [0, 1]
            step = answer["step"]
            assert first_steps(here, JOB)[0.01 * 0.5 ** (number + 1)] == {0: step, 1: step}
        seen = post(here, "/v1/eval", endpoint=JOB, code="rank, world_size")
        assert [one["answer"]["value"] for one in seen["answers"]] == ["(0, 2)", "(1, 2)"]
        changed = post(there, "/v1/eval", endpoint=JOB, code="optimizer.param_groups[0]['note'] = 1")
        assert {one["answer"]["step"] for one in changed["answers"]} == {changed["step"]}

        # What fails on the other host at the very step is put back on this one.
        breaks = "import probe.job.actions.interventions.clip as one; one.Clip.begin = lambda self: 1 / 0"
        post(there, "/v1/eval", endpoint=str(jobs[1].pid), code=breaks, when="now")
        with pytest.raises(NotTogether, match="ZeroDivisionError"):
            act(here, JOB, "clip", max_norm=1.0)
        assert {rank: state for rank, (state, _) in last_states(here, JOB).items()} == {
            0: "cancelled", 1: "failed",
        }

        # The other host's server dies while it is agreed upon: nobody has it.
        pid = there.server_pid()
        assert pid is not None
        asked_now = Asked(lambda: act(here, JOB, "lr", wait_s=10.0, scale=0.5))
        until(lambda: any((one / "members").is_symlink() for one in (here.directory / "ballots").iterdir()),
              "all are appointed")
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(ProbeError):
            asked_now.outcome()
        hosts[1].start()
        until(lambda: set(first_steps(here, JOB)[0.01]) == {0, 1}, "the other host is known again")
        rates = {rate: set(steps) for rate, steps in first_steps(here, JOB).items()}
        assert all(steps == {0, 1} for steps in rates.values()), "on both or on none"
