"""Gradients: what is recorded is what the job worked out itself, and the job does not notice."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from agent.asking import evaluate, query, without_times
from agent.nursery import Forked
from harness import Place, run_probe
from ranks import running_ranks

Fork = Callable[..., Forked]
KINDS = ("scaled_clip", "gan", "closure", "sparse")
LATER = ("plain", "scaled", "clip", "accumulate")
STEPS = "12"
FACTOR_KNOWN = 8
"""Steps of the program after which it is known whether clipped gradients have the scaler's factor."""
COLUMNS = "norm, mean, std, abs_max, zero_ratio, weight_norm, update_norm"
NAMES = {"0.weight", "0.bias", "2.weight", "2.bias"}


def assert_close(found: list[Any], wanted: list[float]) -> None:
    """Within 1e-5 of the scale of the data: the largest gradient, and the whole parameter."""
    norm, mean, std, largest, zeros, weight, update = found
    assert norm == pytest.approx(wanted[0], rel=1e-5)
    for value, reference in ((mean, wanted[1]), (std, wanted[2]), (largest, wanted[3])):
        assert abs(value - reference) <= 1e-5 * wanted[3]
    assert zeros == pytest.approx(wanted[4])
    assert weight == pytest.approx(wanted[5], rel=1e-5)
    assert abs(update - wanted[6]) <= 1e-5 * max(wanted[5], wanted[6])


@pytest.mark.parametrize(
    "kinds", [KINDS, pytest.param(LATER, marks=pytest.mark.campaign)], ids=("most", "others")
)
def test_gradients_and_their_norm_are_what_the_job_worked_out(
    fork: Fork, place: Place, kinds: tuple[str, ...]
) -> None:
    commands = {kind: ("measured_gradients", "--kind", kind, "--steps", STEPS) for kind in kinds}
    plain = {kind: fork(*command, watched=False) for kind, command in commands.items()}
    jobs = {kind: fork(*command, "--hold") for kind, command in commands.items()}
    for kind, job in jobs.items():
        result = job.result()
        assert without_times(result) == without_times(plain[kind].result()), f"{kind}: trained another way"
        check(place, job, kind, result)


def check(place: Place, job: Forked, kind: str, result: dict[str, Any]) -> None:
    """The tables of one job against what it worked out."""
    sql = f"SELECT step, param, update_kind, {COLUMNS} FROM python.gradients ORDER BY step, place"
    rows = query(place, job.pid, sql)
    assert {row[2] for row in rows} == {"measured"}, kind
    critics = [row for row in rows if row[1].removeprefix("Linear.") in ("weight", "bias")]
    named = [row for row in rows if row not in critics]
    assert len({row[0] for row in named}) >= 6, f"{kind}: hardly a step was sampled"
    for step, param, _, *found in named:
        assert_close(found, result["reference"][str(step)][param])
    assert bool(critics) == (kind == "gan"), kind
    for step, param, _, *found in critics:
        assert_close(found, result["critics"][str(step)][param.removeprefix("Linear.")])
    norms = query(place, job.pid, "SELECT step, grad_norm FROM python.steps ORDER BY step")
    known = [(step, norm) for step, norm in norms if norm is not None]
    unknown = FACTOR_KNOWN if kind == "scaled_clip" else 1
    assert len(known) >= int(STEPS) - unknown, kind
    for step, norm in known:
        assert norm == pytest.approx(result["norms"][str(step)], rel=1e-5), kind


def test_a_deep_watch_leaves_rows_and_then_no_hook(fork: Fork, place: Place) -> None:
    job = fork("looked_at", "--forever", "--rest-s", "0.005")
    job.wait_for("READY")
    kinds = ("--gradients", "--histograms", "--activations", "--updates")
    watch = run_probe(place, str(job.pid), "watch", *kinds, "--steps", "3")
    assert watch.returncode == 0, watch.stderr
    for word in ("PARAMETER", "MODULE", "KURTOSIS", "rows of python.gradients"):
        assert word in watch.stdout + watch.stderr
    rows = query(
        place, job.pid,
        "SELECT step, count(*), bool_and(update_kind = 'measured') FROM python.gradients"
        " WHERE reason = 'asked' GROUP BY step ORDER BY step",
    )
    steps = [step for step, *_ in rows]
    assert len({count for _, count, _ in rows}) == 1, "not all parameters were looked at"
    assert steps == list(range(steps[0], steps[0] + 3))
    assert all(measured for *_, measured in rows)
    sql = "SELECT DISTINCT step FROM python.activations ORDER BY step"
    assert [step for (step,) in query(place, job.pid, sql)] == steps
    kept = query(place, job.pid, "SELECT kind, count(DISTINCT step) FROM python.histograms GROUP BY kind")
    assert dict(kept) == {"gradient": 3, "weight": 3, "activation": 3}
    (counted,) = query(
        place, job.pid,
        "SELECT bool_and(list_sum(CAST(counts AS BIGINT[])) = numel AND min <= p1 AND p1 <= p50"
        " AND p50 <= p99 AND p99 <= max) FROM python.histograms",
    )
    assert counted == [True]
    hooks = "import torch.nn.modules.module as m\nlen(m._global_forward_hooks)"
    assert evaluate(place, job.pid, hooks)["value"] == "0"
    refused = run_probe(place, str(job.pid), "watch", "--histograms", "--steps", "51")
    assert refused.returncode == 2
    assert "at most 50 steps" in refused.stderr


def test_without_anything_to_watch_it_says_what_there_is(place: Place) -> None:
    refused = run_probe(place, "1", "watch")
    assert refused.returncode == 2
    assert "watch --gradients" in refused.stderr


@pytest.mark.parametrize("way", [pytest.param("ddp", marks=pytest.mark.campaign), "fsdp"])
def test_of_sharded_parameters_the_shard_is_told_and_no_global_norm(place: Place, way: str) -> None:
    """Replicas have the norm of the averaged gradients; of shards nobody knows it without communicating."""
    if way == "fsdp" and not hasattr(torch.cpu.Stream, "record_event"):
        pytest.skip("fully_shard of this torch needs a GPU: its streams of the CPU record no events")
    with running_ranks(
        place, 2, "parallel", "--way", way, "--steps", "120", "--hold", PROBE_BUDGET="100%"
    ) as ranks:
        results = [job.result() for job in ranks.jobs]
        assert all(one["steps"] == 120 for one in results)
        sql = (  # the first row of each parameter: a sample without time for all goes on at the next one
            "SELECT rank, param, sharded, numel, norm FROM python.gradients"
            " QUALIFY row_number() OVER (PARTITION BY rank, param ORDER BY step) = 1 ORDER BY rank, place"
        )
        rows = query(place, ranks.name, sql)
        assert {row[0] for row in rows} == {0, 1}
        assert {row[1] for row in rows} == NAMES
        sql = "SELECT step, grad_norm FROM python.steps WHERE grad_norm IS NOT NULL"
        norms = query(place, ranks.name, sql)
        by_step: dict[int, set[float]] = {}
        for step, norm in norms:
            by_step.setdefault(step, set()).add(norm)
        if way == "fsdp":
            assert all(row[2] for row in rows)
            assert sum(row[3] for row in rows) == 16 * 64 + 64 + 64 + 1
            assert not norms
        else:
            assert not any(row[2] for row in rows)
            assert by_step
            assert all(len(values) == 1 for values in by_step.values())
        assert all(row[4] is not None and math.isfinite(row[4]) for row in rows if row[3])
        for job in ranks.jobs:
            job.let_go()
