"""A loop that updates its parameters itself has steps, although no optimizer tells where they end."""

from __future__ import annotations

from collections import Counter

import pytest

from agent.asking import query
from agent.nursery import Nursery, forked, ready
from harness import Place, run_probe

STEPS = 40


@pytest.mark.parametrize("shape", ["module", "loader", "accumulates", "clears", "tensors", "adam_later"])
def test_each_update_by_hand_ends_a_step_and_changes_nothing(
    shape: str, place: Place, nursery: Nursery
) -> None:
    command = ("updates_by_hand", shape, "--steps", str(STEPS))
    with forked(nursery, place, command, watched=False) as [alone]:
        plain = alone.result()
        alone.let_go()
    with ready(nursery, place, *command, "--hold", PROBE_MODULES_INTERVAL="5") as job:
        result = job.result()
        steps = query(
            place, job.pid, "SELECT step, boundary, micro_steps, samples FROM python.steps ORDER BY step"
        )
        losses = query(place, job.pid, "SELECT step, micro_step, loss FROM python.losses ORDER BY t_ns")
        errors = job.errors()
    for key in ("losses", "parameters_sha256"):
        assert result[key] == plain[key], key
    micro_steps = 2 if shape == "accumulates" else 1
    ended = STEPS if shape == "adam_later" else STEPS - 1  # the last update is not followed by anything
    assert [(step, micro) for step, _, micro, _ in steps] == [(step, micro_steps) for step in range(ended)]
    boundaries = Counter(boundary for _, boundary, _, _ in steps)
    if shape == "adam_later":
        assert set(boundaries) == {"update", "optimizer"}
    else:
        assert set(boundaries) == {"backward" if shape == "tensors" else "update"}
    assert [(step, micro) for step, micro, _ in losses] == [
        divmod(number, micro_steps) for number in range(STEPS * micro_steps)
    ]
    assert [float(loss).hex() for _, _, loss in losses] == result["losses"]
    if shape == "loader":
        assert {samples for *_, samples in steps} == {4}
    assert errors == ""


def test_a_job_that_only_calls_backward_is_said_to_have_no_step(place: Place, nursery: Nursery) -> None:
    with ready(nursery, place, "updates_by_hand", "never", "--steps", str(STEPS), "--hold") as job:
        job.result()
        listed = run_probe(place, "ps").stdout
        losses = query(place, job.pid, "SELECT step, micro_step FROM python.losses ORDER BY t_ns")
    assert f"running: {STEPS} backwards, no optimizer step seen" in listed
    assert losses == [[0, number] for number in range(STEPS)]


def test_a_graph_compiled_whole_may_clear_gradients(place: Place, nursery: Nursery) -> None:
    with ready(nursery, place, "clears_in_a_graph", "--steps", "4") as job:
        assert len(job.result()["losses"]) == 4
