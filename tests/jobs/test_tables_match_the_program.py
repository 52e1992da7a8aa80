"""The tables of a job say what the job itself counted, and recording changes nothing in it."""

from __future__ import annotations

import functools
import json
import re
import statistics
from collections.abc import Iterator
from typing import Any

import pytest

from agent.asking import tell, wait_for_names
from agent.nursery import Nursery, forked, ready
from harness import Place, run_probe, running

JOBS = {
    "gpt_in_main": ("gpt_in_main", "--steps", "15"),
    "gpt_at_module_level": ("gpt_at_module_level", "--steps", "15"),
    "accumulation_amp_schedule": ("accumulation_amp_schedule", "--steps", "20"),
    "gan": ("gan_two_optimizers", "--steps", "60"),
    "lbfgs": ("lbfgs_closure", "--steps", "20"),
    "inference": ("inference_without_optimizer", "--steps", "2000"),
    "workers_none": ("dataloader_workers", "--workers", "0", "--steps", "40"),
    "workers_fork": ("dataloader_workers", "--workers", "2", "--steps", "40"),
    "workers_fork_persistent": ("dataloader_workers", "--workers", "4", "--persistent", "--steps", "40"),
    "workers_spawn": ("dataloader_workers", "--workers", "2", "--start", "spawn", "--steps", "10"),
    "checkpointing": ("activation_checkpointing", "--steps", "60"),
    "checkpointing_reentrant": ("activation_checkpointing", "--reentrant", "--steps", "60"),
    "compiled": ("compiled_model", "--backend", "eager", "--steps", "15"),
    "compiled_whole": ("compiled_model", "--steps", "15"),
    "compiled_in_place": ("compiled_model", "--form", "in-place", "--steps", "15"),
    "compiled_function": ("compiled_model", "--form", "function", "--steps", "15"),
    "compiled_optimizer": ("compiled_model", "--form", "optimizer", "--steps", "15"),
    "compiled_step": ("compiled_model", "--form", "step", "--steps", "15"),
    "two_thousand_modules": ("two_thousand_modules", "--steps", "30"),
    "one_millisecond_step": ("one_millisecond_step", "--steps", "200"),
    "odd_outputs": ("odd_outputs", "--steps", "60"),
}


RARELY = {
    "compiled_whole", "compiled_in_place", "compiled_function", "compiled_optimizer", "compiled_step",
    "checkpointing_reentrant", "two_thousand_modules", "odd_outputs",
    "gpt_at_module_level", "gpt_in_main", "lbfgs", "checkpointing",
    "workers_none", "workers_fork_persistent", "workers_spawn",
}
"""Variants that take long and share most with another job here: in the campaign."""

QUICK = {"gan", "accumulation_amp_schedule", "workers_fork"}

MODULES = {"PROBE_MODULES_INTERVAL": "5"}

UNSEEN_STEPS = {"compiled_step"}
"""The optimizer's step is inside a graph there: nothing outside can see it."""


class Watched:
    """A job that has ended its training and waits, so that it can be asked."""

    def __init__(self, place: Place, pid: int, result: dict[str, Any], plain: dict[str, Any]) -> None:
        self.place = place
        self.pid = pid
        self.result = result
        self.plain = plain

    @functools.cached_property
    def steps(self) -> list[dict[str, Any]]:
        """All rows of python.steps."""
        return self._rows("SELECT * FROM python.steps ORDER BY step")

    @functools.cached_property
    def losses(self) -> list[dict[str, Any]]:
        """All rows of python.losses, in the order written."""
        return self._rows("SELECT * FROM python.losses ORDER BY t_ns")

    @functools.cached_property
    def trace(self) -> list[dict[str, Any]]:
        """All rows of python.torch_trace."""
        return self._rows("SELECT * FROM python.torch_trace")

    def _rows(self, sql: str) -> list[dict[str, Any]]:
        """Rows of a query, asked with the command."""
        done = run_probe(self.place, str(self.pid), "query", "--format", "json", "--limit", "1000000", sql)
        assert done.returncode == 0, done.stderr
        answer = json.loads(done.stdout)
        assert not answer["truncated"]
        names = [column["name"] for column in answer["columns"]]
        return [dict(zip(names, row, strict=True)) for row in answer["rows"]]

    def batches(self) -> int:
        """Batches that arrived."""
        (row,) = self._rows("SELECT COUNT(*) AS batches FROM python.batches WHERE state = 'done'")
        return int(row["batches"])


def figureless(text: str) -> str:
    """Warnings of torch carry times and pids, and paths that depend on the process's import path."""
    return re.sub(r"\d+", "#", re.sub(r"\S*site-packages/", "", text))


@pytest.fixture(
    scope="module",
    params=[pytest.param(name, marks=pytest.mark.campaign) if name in RARELY else name for name in JOBS],
)
def watched(request: pytest.FixtureRequest, nursery: Nursery) -> Iterator[tuple[str, Watched]]:
    """Each job twice: plain to its end, and under probe held at its end."""
    name = str(request.param)
    place = Place()
    try:
        with forked(nursery, place, JOBS[name], watched=False) as [alone]:
            plain = alone.result()
            assert alone.let_go() == 0
            plain_errors = alone.errors()
        # Steps are sampled once the modules' names are known: a short job is over before, on a quick machine.
        command = (*JOBS[name], "--hold", *(["--pause"] if name in QUICK else []))
        # Some in an interpreter of their own, which costs two seconds of processor time more.
        started = running(place, *command, **MODULES) if name in RARELY else ready(
            nursery, place, *command, **MODULES
        )
        with started as job:
            if "--pause" in command:
                wait_for_names(place, job.pid)
                tell(job)
            found = Watched(place, job.pid, job.result(), plain)
            yield name, found
            assert figureless(job.errors()) == figureless(plain_errors), "it says something else"
            assert job.let_go() == 0
        left = place.close()
        assert not any(left.values()), left
    finally:
        place.remove()


def test_losses_and_parameters_are_those_of_the_job_without_probe(watched: tuple[str, Watched]) -> None:
    _, found = watched
    timed = {"wall_s", "step_wall_s", "step_phases_s"}
    assert set(found.plain) == set(found.result)
    for key in set(found.plain) - timed - {"compiled_frames"}:  # also a compiled job's graphs and breaks
        assert found.result[key] == found.plain[key], key
    assert found.result.get("compiled_frames", 0) <= found.plain.get("compiled_frames", 0)


def test_every_step_is_recorded_with_its_micro_steps(watched: tuple[str, Watched]) -> None:
    name, found = watched
    rows = [(row["step"], row["micro_steps"]) for row in found.steps]
    if name in UNSEEN_STEPS:
        assert rows == []
    elif name == "inference":  # the last batch is still in hand
        assert [step for step, _ in rows] == list(range(found.result["steps"] - 1))
    else:
        assert rows == list(enumerate(found.result["micro_steps_by_step"]))


def test_every_loss_is_recorded_bit_for_bit(watched: tuple[str, Watched]) -> None:
    _, found = watched
    assert [float(row["loss"]).hex() for row in found.losses] == found.result["losses"]


def test_every_batch_is_recorded(watched: tuple[str, Watched]) -> None:
    _, found = watched
    assert found.batches() == sum(found.result["batches"].values())


def test_the_parts_of_a_step_add_up_to_its_wall_time(watched: tuple[str, Watched]) -> None:
    name, found = watched
    told_apart = 0
    for row in found.steps:
        phases = ("data_s", "forward_s", "backward_s", "optimizer_s", "other_s")
        named = (*phases, "held_s", "eval_s", "checkpoint_s")
        parts = [row[part] for part in named]
        total = sum(part for part in parts if part is not None)
        assert all(part is None or part >= 0 for part in parts)
        if row["other_s"] is None:  # a shadow step: forward is not told from the rest
            assert row["shadow"]
            assert total <= row["wall_s"]
        else:
            told_apart += 1
            assert total == pytest.approx(row["wall_s"], rel=1e-6, abs=1e-7)
    assert bool(told_apart) == (name not in UNSEEN_STEPS)


def test_the_steps_take_as_long_as_the_program_says(watched: tuple[str, Watched]) -> None:
    name, found = watched
    walls = [row["wall_s"] for row in found.steps[1:]]
    assert bool(walls) == (name not in UNSEEN_STEPS)
    said = found.result["step_wall_s"][1 : len(walls) + 1]
    # Both ends of the sum may have waited for a core, between the program's clock and ours.
    assert sum(walls) == pytest.approx(sum(said), rel=0.1, abs=0.02)
    if walls:
        ratios = [one / other for one, other in zip(walls, said, strict=True)]
        assert statistics.median(ratios) == pytest.approx(1.0, rel=0.1)


def test_skipped_updates_are_marked(watched: tuple[str, Watched]) -> None:
    _, found = watched
    assert [row["step"] for row in found.steps if row["skipped"]] == found.result["skipped_steps"]


def test_sampled_steps_show_modules_in_their_stages(watched: tuple[str, Watched]) -> None:
    name, found = watched
    expected = {
        "inference": {"forward"}, "compiled": {"forward", "step"}, "compiled_whole": {"forward", "step"},
        "compiled_in_place": {"step"}, "compiled_function": {"step"}, "compiled_optimizer": {"step"},
        "compiled_step": set(),
    }.get(name, {"forward", "backward", "step"})
    assert {row["stage"] for row in found.trace} == expected


def test_a_module_takes_no_longer_than_its_step(watched: tuple[str, Watched]) -> None:
    _, found = watched
    walls = {row["step"]: row["wall_s"] for row in found.steps}
    for row in found.trace:
        if row["duration"] is not None and row["step"] in walls:
            assert row["time_offset"] >= 0
            assert row["time_offset"] + row["duration"] <= walls[row["step"]] * 1.001 + 1e-4


def test_the_second_forward_of_a_checkpoint_is_marked(watched: tuple[str, Watched]) -> None:
    name, found = watched
    if not name.startswith("checkpointing"):
        assert not any(row["recompute"] for row in found.trace)
        return
    inner = [row for row in found.trace if row["stage"] == "forward" and row["module"].endswith(".inner")]
    sampled = {row["step"] for row in inner}
    assert sampled
    for step in sampled:
        again = [row["recompute"] for row in inner if row["step"] == step]
        assert (again.count(False), again.count(True)) == (3, 3)
