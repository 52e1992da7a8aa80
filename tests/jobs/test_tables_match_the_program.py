"""The tables of a job say what the job itself counted, and recording changes nothing in it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from harness import Place, run_probe, run_program, running

JOBS = {
    "gpt_in_main": ("gpt_in_main", "--steps", "15"),
    "gpt_at_module_level": ("gpt_at_module_level", "--steps", "15"),
    "accumulation_amp_schedule": ("accumulation_amp_schedule", "--steps", "20"),
    "gan": ("gan_two_optimizers", "--steps", "60"),
    "lbfgs": ("lbfgs_closure", "--steps", "20"),
    "inference": ("inference_without_optimizer", "--steps", "3000"),
    "workers_none": ("dataloader_workers", "--workers", "0", "--steps", "40"),
    "workers_fork": ("dataloader_workers", "--workers", "2", "--steps", "40"),
    "workers_fork_persistent": ("dataloader_workers", "--workers", "4", "--persistent", "--steps", "40"),
    "workers_spawn": ("dataloader_workers", "--workers", "2", "--start", "spawn", "--steps", "10"),
    "checkpointing": ("activation_checkpointing", "--steps", "60"),
    "checkpointing_reentrant": ("activation_checkpointing", "--reentrant", "--steps", "60"),
    "compiled": ("compiled_model", "--steps", "15"),
    "compiled_in_place": ("compiled_model", "--form", "in-place", "--steps", "15"),
    "compiled_function": ("compiled_model", "--form", "function", "--steps", "15"),
    "compiled_optimizer": ("compiled_model", "--form", "optimizer", "--steps", "15"),
    "compiled_step": ("compiled_model", "--form", "step", "--steps", "15"),
    "two_thousand_modules": ("two_thousand_modules", "--steps", "30"),
    "one_millisecond_step": ("one_millisecond_step", "--steps", "600"),
    "odd_outputs": ("odd_outputs", "--steps", "60"),
}


UNSEEN_STEPS = {"compiled_step"}
"""The optimizer's step is inside a graph there: nothing outside can see it."""


class Watched:
    """A job that has ended its training and waits, so that it can be asked."""

    def __init__(self, place: Place, pid: int, result: dict[str, Any], plain: dict[str, Any]) -> None:
        self.place = place
        self.pid = pid
        self.result = result
        self.plain = plain

    def query(self, sql: str) -> list[list[Any]]:
        """Rows of a query, asked with the command."""
        done = run_probe(self.place, str(self.pid), "query", "--format", "json", "--limit", "100000", sql)
        assert done.returncode == 0, done.stderr
        rows: list[list[Any]] = json.loads(done.stdout)["rows"]
        return rows


def figureless(text: str) -> str:
    """Warnings of torch carry times and pids."""
    return re.sub(r"\d+", "#", text)


def numbers(row: list[Any]) -> list[float]:
    """NULL counts as nothing in a sum."""
    return [0.0 if value is None else float(value) for value in row]


@pytest.fixture(scope="module", params=JOBS)
def watched(request: pytest.FixtureRequest) -> Iterator[tuple[str, Watched]]:
    """Each job twice: plain to its end, and under probe held at its end."""
    name = str(request.param)
    place = Place()
    try:
        plain, plain_errors = run_program(place, *JOBS[name], watched=False)
        with running(place, *JOBS[name], "--hold", PROBE_MODULES_INTERVAL="5") as job:
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
    rows = found.query("SELECT step, micro_steps FROM python.steps ORDER BY step")
    if name in UNSEEN_STEPS:
        assert rows == []
    elif name == "inference":  # the last batch is still in hand
        assert [step for step, _ in rows] == list(range(found.result["steps"] - 1))
    else:
        assert rows == [[step, micro] for step, micro in enumerate(found.result["micro_steps_by_step"])]


def test_every_loss_is_recorded_bit_for_bit(watched: tuple[str, Watched]) -> None:
    _, found = watched
    rows = found.query("SELECT loss FROM python.losses ORDER BY t_ns")
    assert [float(loss).hex() for (loss,) in rows] == found.result["losses"]


def test_every_batch_is_recorded(watched: tuple[str, Watched]) -> None:
    _, found = watched
    rows = found.query("SELECT COUNT(*) FROM python.batches WHERE state = 'done'")
    assert rows == [[sum(found.result["batches"].values())]]


def test_the_parts_of_a_step_add_up_to_its_wall_time(watched: tuple[str, Watched]) -> None:
    name, found = watched
    rows = found.query(
        "SELECT wall_s, data_s, forward_s, backward_s, optimizer_s, other_s FROM python.steps ORDER BY step"
    )
    assert any(parts[-1] is not None for _, *parts in rows) == (name not in UNSEEN_STEPS)
    for wall, *parts in rows:
        if parts[-1] is None:  # a shadow step: forward is not told from the rest
            assert sum(numbers(parts)) <= wall
            continue
        assert sum(numbers(parts)) == pytest.approx(wall, rel=1e-6, abs=1e-7)
        assert min(numbers(parts)) >= 0


def test_the_steps_take_as_long_as_the_program_says(watched: tuple[str, Watched]) -> None:
    name, found = watched
    rows = found.query("SELECT wall_s FROM python.steps WHERE step > 0 ORDER BY step")
    assert bool(rows) == (name not in UNSEEN_STEPS)
    counted = found.result["step_wall_s"][1 : len(rows) + 1]
    assert sum(wall for (wall,) in rows) == pytest.approx(sum(counted), rel=0.1)


def test_skipped_updates_are_marked(watched: tuple[str, Watched]) -> None:
    _, found = watched
    rows = found.query("SELECT step FROM python.steps WHERE skipped ORDER BY step")
    assert [step for (step,) in rows] == found.result["skipped_steps"]


def test_sampled_steps_show_modules_in_their_stages(watched: tuple[str, Watched]) -> None:
    name, found = watched
    stages = {stage for (stage,) in found.query("SELECT DISTINCT stage FROM python.torch_trace")}
    expected = {
        "inference": {"forward"}, "compiled": {"forward", "step"},
        "compiled_in_place": {"step"}, "compiled_function": {"step"}, "compiled_optimizer": {"step"},
        "compiled_step": set(),
    }.get(name, {"forward", "backward", "step"})
    assert stages == expected


def test_a_module_takes_no_longer_than_its_step(watched: tuple[str, Watched]) -> None:
    name, found = watched
    rows = found.query(
        "SELECT t.duration, t.time_offset, s.wall_s FROM python.torch_trace t"
        " JOIN python.steps s USING (step)"
    )
    assert bool(rows) == (name not in UNSEEN_STEPS)
    for duration, offset, wall in rows:
        if duration is not None:
            assert offset >= 0
            assert offset + duration <= wall * 1.001 + 1e-4


def test_the_second_forward_of_a_checkpoint_is_marked(watched: tuple[str, Watched]) -> None:
    name, found = watched
    expected = 3 if name.startswith("checkpointing") else 0
    rows = found.query(
        "SELECT step, COUNT(*) FILTER (WHERE NOT recompute), COUNT(*) FILTER (WHERE recompute)"
        " FROM python.torch_trace WHERE stage = 'forward' AND module LIKE 'blocks._.inner' GROUP BY step"
    )
    assert bool(rows) == bool(expected)
    assert all(first == again == expected for _, first, again in rows)
    if not expected:
        assert found.query("SELECT COUNT(*) FROM python.torch_trace WHERE recompute") == [[0]]
