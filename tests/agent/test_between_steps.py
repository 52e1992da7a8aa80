"""What a training thread does between its steps is an interval of its own, and in no step's figures."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from agent.asking import query, tell
from agent.nursery import Forked
from diagnose.hung import recorded_of
from harness import Place, run_probe
from probe.diagnose.process.progress import History, interval_under_way

SHAPES = (
    "in the epoch", "after the epoch", "one batch", "without a loader", "saves",
    "the loader of the training", "with gradients", "with gradients in training mode",
    "a pass without the model", "one backward for a pass", "a metric in each step",
    "two loaders and a teacher", "stays in eval mode", "without eval mode",
    "without a loader in train mode", "a sample in train mode", "dropout sampled",
)
RARELY = (
    "after the epoch", "one batch", "the loader of the training", "with gradients in training mode",
    "two loaders and a teacher", "without a loader in train mode",
)
"""In the campaign: each is told as a shape beside it is."""
STEPS = 18


@pytest.mark.parametrize(
    "shape", [pytest.param(one, marks=pytest.mark.campaign) if one in RARELY else one for one in SHAPES]
)
def test_only_batches_trained_on_are_the_steps_and_the_rest_are_intervals(
    place: Place, fork: Callable[..., Forked], shape: str
) -> None:
    job = fork("between_steps", "--shape", shape, "--steps", str(STEPS), "--hold")
    result = job.result()
    sql = "SELECT kind, batches, samples FROM python.intervals ORDER BY t_ns"
    assert query(place, job.pid, sql) == result["intervals"]
    of_train_mode = "SELECT recognised_by FROM python.intervals WHERE recognised_by LIKE '%in train mode%'"
    said = query(place, job.pid, of_train_mode)
    in_train_mode = shape in ("without eval mode", "without a loader in train mode", "dropout sampled")
    assert bool(said) is in_train_mode, "only of calls without gradients is it certain"
    if said:
        again = all(one.endswith("repeatedly on the same input") for [one] in said)
        assert again is (shape != "without eval mode")
    if shape == "without a loader":
        looked = query(place, job.pid, "SELECT DISTINCT gradless FROM python.model_inputs WHERE name = '0'")
        assert [True] in looked, "what it was evaluated on"
    steps = query(
        place, job.pid,
        "SELECT samples, wall_s, coalesce(eval_s, 0) + coalesce(checkpoint_s, 0), coalesce(data_s, 0) + "
        "coalesce(forward_s, 0) + coalesce(backward_s, 0) + coalesce(optimizer_s, 0) + other_s, "
        "training_mode FROM python.steps WHERE other_s IS NOT NULL ORDER BY step",
    )
    assert sum(row[0] for row in steps) == result["trained"]
    [[between_s]] = query(
        place, job.pid, f"SELECT coalesce(sum(duration_s), 0) FROM python.intervals WHERE step < {STEPS}"
    )
    assert sum(row[2] for row in steps) == pytest.approx(between_s)
    for _, wall_s, apart_s, phases_s, _ in steps:
        assert apart_s + phases_s == pytest.approx(wall_s)
    modes = {row[4] for row in steps} - {None}
    assert modes == ({True, False} if shape == "stays in eval mode" else {True})


def test_an_evaluation_under_way_is_seen_and_is_no_usual_step(
    place: Place, fork: Callable[..., Forked]
) -> None:
    job = fork("between_steps", "--shape", "in the epoch", "--steps", str(STEPS), "--pause", "--hold")
    job.wait_for("EVALUATING")
    meta = recorded_of(place, job.pid).meta
    found = interval_under_way(meta)
    assert found is not None and found[0] == "evaluation"
    progress = History(meta).read()
    assert progress is not None and progress.interval == "evaluation" and progress.step == 1
    assert_shown(place, job.pid, "evaluating")
    assert job._process.stdin is not None
    job._process.stdin.write(b"\n")
    job._process.stdin.flush()
    job.result()
    assert interval_under_way(meta) is None
    [[usual_s]] = query(
        place, job.pid,
        "SELECT median(wall_s - coalesce(eval_s, 0)) FROM python.steps WHERE NOT sampled",
    )
    progress = History(meta).read()
    assert progress is not None and progress.usual_step_s == pytest.approx(usual_s)


def test_saving_is_shown_while_it_lasts(place: Place, fork: Callable[..., Forked]) -> None:
    job = fork("between_steps", "--shape", "saves", "--steps", "3", "--pause", "--hold")
    job.wait_for("SAVING")
    assert_shown(place, job.pid, "saving")
    tell(job)
    job.result()
    assert "saving" not in run_probe(place, "ps").stdout


def assert_shown(place: Place, pid: int, doing: str) -> None:
    """`ps` and `health` say since when the job does that."""
    for words in ((), (str(pid),)):
        shown = run_probe(place, *words, "health" if words else "ps")
        assert re.search(rf"running: {doing} for \d+ s", shown.stdout), shown
