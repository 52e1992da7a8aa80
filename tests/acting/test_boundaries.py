"""Between two steps: in loops of every shape, nothing of the next step has begun, and nothing is changed."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from agent.asking import ask, evaluate, query, tell, without_times
from agent.nursery import Forked
from harness import Place, run_probe
from probe.base.errors import NoBoundary

SNIPPETS = 6
HERE = (
    "from probe.job.agent.lifecycle import agent_here\n"
    "begun = agent_here().instruments.recorder.saw_forward\n"
    "found = agent_here()._to_act().safepoint.boundary, stage, begun\n"
    "agent_here().last_boundary = found\n"
    "found"
)
WHERE = {
    "loader": "('data', 'between', False)",
    "drawn": "('forward', 'forward', False)",
    "functional": "('step end', 'optimizer', False)",
    "prefetches": "('step end', 'optimizer', False)",
    "evaluates": "('data', 'between', False)",
    "accumulates": "('data', 'between', False)",
    "two_loaders": "('data', 'between', False)",
}
RARELY = ("prefetches", "evaluates", "accumulates")
"""In the campaign: each has its place in common with another shape."""
STEPS = "120"


def visits(place: Place, job: Forked) -> list[str]:
    """Where snippets found the training thread."""
    found = []
    for _ in range(SNIPPETS):
        answer = evaluate(place, job.pid, HERE)
        assert answer["error"] is None, answer
        assert answer["where"] == "step boundary", answer
        found.append(answer["value"])
    return found


@pytest.mark.parametrize(
    "shape", [pytest.param(one, marks=pytest.mark.campaign) if one in RARELY else one for one in WHERE]
)
def test_a_snippet_that_changes_something_runs_between_two_steps(
    fork: Callable[..., Forked], place: Place, shape: str
) -> None:
    plain = fork("loop_shapes", shape, "--steps", STEPS, watched=False)
    watched = fork("loop_shapes", shape, "--steps", STEPS, "--rest-s", "0.02")
    watched.wait_for("READY")
    assert set(visits(place, watched)) == {WHERE[shape]}
    assert without_times(watched.result()) == without_times(plain.result())


def test_what_waits_is_told_where_the_training_thread_is_when_no_step_ends(
    fork: Callable[..., Forked], place: Place
) -> None:
    job = fork("loop_shapes", "loader", "--pause")
    job.wait_for("READY")
    where = r"no step ended within 0\.2 s: .* in (Ledger\.)?step \(ledger\.py:\d+\), in step 3"
    with pytest.raises(NoBoundary, match=where) as caught:
        ask(place, job.pid, "POST", "/v1/act", {"action": "pause", "wait_s": 0.2})
    assert "--now" in caught.value.hint
    tell(job)
    job.result()


def test_detaching_ends_what_stands_and_says_so(fork: Callable[..., Forked], place: Place) -> None:
    plain = fork("loop_shapes", "loader", "--steps", STEPS, watched=False)
    job = fork("loop_shapes", "loader", "--steps", STEPS, "--rest-s", "0.02")
    job.wait_for("READY")
    paused = ask(place, job.pid, "POST", "/v1/act", {"action": "pause", "arguments": {"for_s": 600}})
    done = run_probe(place, str(job.pid), "detach")
    assert (done.returncode, f"pause ({paused['id']}) ended" in done.stdout) == (0, True), done.stdout
    assert without_times(job.result()) == without_times(plain.result())
    states = query(place, job.pid, "SELECT state FROM probe.actions ORDER BY t_ns")
    assert states == [["asked"], ["standing"], ["ended"]]
