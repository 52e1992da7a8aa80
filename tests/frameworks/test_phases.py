"""In real frameworks: a step's loss is the one that the job logs; a closure is not the optimizer's time."""

from __future__ import annotations

import pytest

from agent.asking import query
from harness import Place, running

LOGGING_S = 0.004
"""As in the Lightning program."""


@pytest.mark.parametrize(("program", "library"), [
    ("frameworks/hf_evaluates", "transformers"), ("frameworks/accelerate_evaluates", "accelerate"),
])
def test_under_accumulation_the_loss_of_a_step_is_the_one_that_is_logged(
    place: Place, program: str, library: str
) -> None:
    pytest.importorskip(library)
    with running(place, program, "--steps", "10", "--hold") as job:
        result = job.result()
        steps = query(place, job.pid, "SELECT loss FROM python.steps ORDER BY step")
        raw = query(place, job.pid, "SELECT loss FROM python.losses ORDER BY t_ns")
    assert [row[0] for row in steps] == pytest.approx(result["logged"], rel=1e-5)
    assert [float(row[0]).hex() for row in raw] == result["losses"]


def test_the_closure_that_lightning_passes_is_not_the_optimizers_time(place: Place) -> None:
    pytest.importorskip("lightning")
    with running(place, "frameworks/lightning_evaluates", "--steps", "16", "--hold") as job:
        job.result()
        [[optimizer_s, forward_s]] = query(
            place, job.pid,
            "SELECT median(optimizer_s), median(forward_s) FROM python.steps WHERE step > 0 AND NOT shadow",
        )
    assert optimizer_s < LOGGING_S <= forward_s
