"""Which gradients count as left over from an earlier step."""

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
def test_gradients_that_are_cleared_before_the_critics_own_backward_are_not_left_over(
    place: Place, forgets: bool, stale: bool
) -> None:
    arguments = ["--steps", "200", *(["--forgets"] if forgets else [])]
    with running(place, "delayed_actor", *arguments, **SERVER) as job:
        sql = (
            "SELECT bool_or(stale_gradients), bool_and(stale_gradients), count(stale_gradients) >= 20"
            " FROM python.steps WHERE step > 1"
        )
        asked = run_probe(place, str(job.pid), "query", sql, "--format", "json")
        assert asked.returncode == 0, asked.stderr
        assert json.loads(asked.stdout)["rows"] == [[stale, stale, True]]


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
