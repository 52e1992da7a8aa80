"""In real frameworks: only batches trained on are in the steps; evaluations and checkpoints are intervals."""

from __future__ import annotations

import pytest

from agent.asking import query
from harness import Place, run_program, running

KINDS = (
    "SELECT kind, count(*), sum(samples) FROM python.intervals WHERE state = 'done' "
    "GROUP BY ALL ORDER BY ALL"
)
TRAINED = "SELECT sum(samples), max(samples), count(*), bool_and(training_mode) FROM python.steps"


def test_hf_trainer(place: Place) -> None:
    pytest.importorskip("transformers")
    plain, _ = run_program(place, "frameworks/hf_evaluates", "--steps", "9", watched=False)
    with running(place, "frameworks/hf_evaluates", "--steps", "9", "--hold") as job:
        result = job.result()
        kinds = {row[0]: tuple(row[1:]) for row in query(place, job.pid, KINDS)}
        [[samples, most, steps, training]] = query(place, job.pid, TRAINED)
        modes = query(place, job.pid, "SELECT DISTINCT recognised_by FROM python.intervals ORDER BY 1")
    assert (result["losses"], result["parameters_sha256"]) == (plain["losses"], plain["parameters_sha256"])
    assert kinds["evaluation"] == (result["evaluations"], 60 * result["evaluations"])
    assert kinds["prediction"] == (1, 40) and kinds["checkpoint"][0] >= 2
    assert [row[0] for row in modes] == ["Trainer._save_checkpoint", "Trainer.evaluate", "Trainer.predict"]
    # Accelerate asks for one batch ahead.
    assert steps == 9 and samples == 9 * 8 + 4 and most <= 12 and training is True


@pytest.mark.parametrize("way", ["automatic", "accumulating", "manual"])
def test_lightning(place: Place, way: str) -> None:
    pytest.importorskip("lightning")
    options = {"automatic": (), "accumulating": ("--accumulate", "2"), "manual": ("--manual",)}[way]
    wanted = ("frameworks/lightning_evaluates", "--steps", "16", *options)
    plain, _ = run_program(place, *wanted, watched=False)
    with running(place, *wanted, "--hold") as job:
        result = job.result()
        kinds = {row[0]: tuple(row[1:]) for row in query(place, job.pid, KINDS)}
        [[samples, most, steps, training]] = query(place, job.pid, TRAINED)
    assert (result["losses"], result["parameters_sha256"]) == (plain["losses"], plain["parameters_sha256"])
    assert kinds["evaluation"] == (result["evaluations"], result["validated"])
    assert kinds["checkpoint"][0] == result["evaluations"] - 1  # not after the sanity check
    batch = 8 if way == "accumulating" else 4
    assert (steps, samples, most, training) == (result["steps"], result["steps"] * batch, batch, True)


def test_accelerate(place: Place) -> None:
    pytest.importorskip("accelerate")
    plain, _ = run_program(place, "frameworks/accelerate_evaluates", "--steps", "15", watched=False)
    with running(place, "frameworks/accelerate_evaluates", "--steps", "15", "--hold") as job:
        result = job.result()
        kinds = {row[0]: tuple(row[1:]) for row in query(place, job.pid, KINDS)}
        [[samples, _, steps, training]] = query(place, job.pid, TRAINED)
    assert (result["losses"], result["parameters_sha256"]) == (plain["losses"], plain["parameters_sha256"])
    assert kinds["evaluation"] == (result["evaluations"], 24 * result["evaluations"])
    assert kinds["checkpoint"][0] == result["evaluations"]
    assert (steps, samples, training) == (15, 15 * 8, True)
