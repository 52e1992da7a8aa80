"""Trainings that follow each other in one process are told apart by their optimizers and models."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from agent.asking import query
from agent.nursery import Forked, Nursery
from harness import PATIENCE_S, Place
from probe.base.isolation import Isolation
from probe.job.instruments.loop.optimizers import MOST_REMEMBERED, Optimizers

FOLD_STEPS = 300
FOLDS = f"""
import gc
import time
import torch
from torch import nn

def fold(steps):
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    optimizer = torch.optim.Adam(net.parameters(), lr=0.001)
    for _ in range(steps):
        optimizer.zero_grad()
        net(torch.randn(8, 4)).square().mean().backward()
        optimizer.step()
        time.sleep(0.005)

fold({FOLD_STEPS})
gc.collect()
print("SECOND", flush=True)
fold(10**9)
"""


def test_the_optimizer_of_a_second_training_is_known_to_be_new_and_to_hold_the_second_model(
    nursery: Nursery, place: Place, tmp_path: Path
) -> None:
    (tmp_path / "folds.py").write_text(FOLDS)
    environ = place.watched(PROBE_NAME="folds")
    job = Forked(nursery, str(tmp_path / "folds"), environ=environ, folder=place.directory)
    try:
        job.wait_for("SECOND")
        place.start_server()
        both = "SELECT (SELECT count(DISTINCT made_step) FROM python.optimizers), " \
            "(SELECT count(DISTINCT number) FROM python.weights)"
        deadline_s = time.monotonic() + PATIENCE_S
        while (found := query(place, job.pid, both)) != [[2, 2]]:
            assert time.monotonic() < deadline_s, found
            time.sleep(1)  # queries beyond a tenth of a core get low priority
        made = query(place, job.pid, "SELECT DISTINCT made_step FROM python.optimizers ORDER BY 1")
        models = query(place, job.pid, "SELECT DISTINCT number, optimizer FROM python.weights ORDER BY 1")
        assert made == [[0], [FOLD_STEPS]]
        assert models == [[0, "Adam"], [1, "Adam"]]
        # The parameters chosen for the next sample are gone with the first model: others are chosen.
        sampled = f"SELECT COUNT(*) > 0 FROM python.updates WHERE step > {FOLD_STEPS} AND optimizer = 'Adam'"
        while query(place, job.pid, sampled) != [[True]]:
            assert time.monotonic() < deadline_s, "no update of the second training was sampled"
            time.sleep(1)
        walked = query(place, job.pid, f"SELECT COUNT(*) FROM python.graphs WHERE step > {FOLD_STEPS}")
        steps = query(place, job.pid, f"SELECT MAX(step) - {FOLD_STEPS} FROM python.steps")
        assert 4 * walked[0][0] < steps[0][0], "a graph is walked on sampled steps only"
        # It is written down when it takes the lead: it need not wait for a sample of its state.
        ask = "SELECT BOOL_OR(state_steps IS NULL) FROM python.optimizers GROUP BY made_step"
        assert query(place, job.pid, ask) == [[True], [True]]
    finally:
        job.kill()


def test_the_step_before_which_a_living_optimizer_was_made_is_not_forgotten_however_many_there_are() -> None:
    recorder: Any = SimpleNamespace(step=0)
    optimizers = Optimizers(recorder, Isolation(lambda *_: None))
    population = []
    for step in range(2 * MOST_REMEMBERED):
        recorder.step = step
        population.append(torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], lr=0.1))
        optimizers._created(population[-1])
    assert [optimizers.made_step(one) for one in population] == list(range(2 * MOST_REMEMBERED))
    del population[:-1]
    optimizers._created(torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], lr=0.1))
    assert len(optimizers._made_steps) == 2
