"""Steps with an actor's backward and a critic's: which gradients are left over, and which loss is read."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from harness import SERVER, Place, run_probe, running
from probe.job.instruments.nan.canaries import StaleGradients
from probe.recording.layout import NULL_BOOLEAN


@pytest.mark.parametrize(("forgets", "stale"), [(False, False), (True, True)])
def test_what_is_read_of_a_critic_is_that_of_its_own_backward_not_of_its_actors(
    place: Place, forgets: bool, stale: bool
) -> None:
    arguments = ["--steps", "200", "--hold", *(["--forgets"] if forgets else [])]
    with running(place, "delayed_actor", *arguments, **SERVER) as job:
        job.result()  # all of its steps are recorded
        sql = (
            "SELECT bool_or(stale_gradients), bool_and(stale_gradients), count(stale_gradients) >= 20"
            " FROM python.steps WHERE step > 1"
        )
        asked = run_probe(place, str(job.pid), "query", sql, "--format", "json")
        assert asked.returncode == 0, asked.stderr
        assert json.loads(asked.stdout)["rows"] == [[stale, stale, True]]
        sql = "SELECT function, count(*) >= 5 FROM python.loss_functions GROUP BY function"
        asked = run_probe(place, str(job.pid), "query", sql, "--format", "json")
        assert json.loads(asked.stdout)["rows"] == [["mse_loss", True]]  # the actor's backward comes first


def test_an_accumulated_gradient_is_that_of_its_step() -> None:
    recorder: Any = SimpleNamespace(step=5, stale_gradients=NULL_BOOLEAN)
    weight = torch.nn.Parameter(torch.ones(3))
    stale = StaleGradients(recorder)
    for _ in range(3):
        if stale.asks():
            stale.begins(weight)
        (2 * weight).sum().backward()
        stale.ends(weight.grad)
    assert recorder.stale_gradients == 0
