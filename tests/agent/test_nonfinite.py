"""A NaN or an infinity is traced to where it was planted, and nothing of the training is touched by that.

On the CPU in a fork; on a device (`emulated_device`) in the job itself, once the step is lost."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from agent.nursery import Nursery, forked
from harness import Job, Place
from probe.base.isolation import Isolation, capture
from probe.job.instruments.loop.forward import RootCall
from probe.job.instruments.nan import held_trace
from probe.job.instruments.nan.nan_trace import Scene
from probe.recording.journal import read_journal
from ranks import free_port, rank_environment

needs_a_device = pytest.mark.skipif(
    not hasattr(torch._C, "_acc"), reason="this torch has no hooks for a device written in Python"
)
EXPECTED: dict[str, dict[str, Any]] = {
    "data": {"cause": "data"},
    "log_of_zero": {"op": "log", "cause": "log of zero"},
    "division": {"op": "div", "cause": "division by zero"},
    "half_overflow": {"op": "mul", "cause": "overflow"},
    "masked_rows": {"op": "_softmax"},
    "loss": {"op": "LogBackward0", "cause": "log of zero"},
    "nothing_counted": {"op": "NllLossBackward0", "cause": "division by zero"},
    "sqrt_at_zero": {"op": "SqrtBackward0", "cause": "infinite derivative"},
    "own_function": {"op": "BreaksBackwardBackward"},
    "loss_sqrt": {"op": "SqrtBackward0", "cause": "infinite derivative"},
    "eps_zero": {"cause": "division by zero"},
    "bad_weight": {"cause": "bad weight"},
    "lr_infinite": {"cause": "learning rate"},
}
"""What a fault's row says beside direction, step, module, parameter and batch, which the program tells."""
DAILY = (
    ("data", "--workers", "2", "--accumulate", "2"), ("log_of_zero", "--accumulate", "4", "--at", "6"),
    ("sqrt_at_zero",), ("eps_zero",), ("bad_weight",), ("none",),
)
LATER = {"eps_zero", "lr_infinite"}
"""Seen by the loss of the next step."""


def rows_of(folder: Path, table: str = "python.nonfinite") -> list[dict[str, Any]]:
    """Rows of a table in the journals below a folder."""
    found = []
    for journal in sorted(folder.rglob("journal*")):
        for record in read_journal(journal):
            assert record.get("event") != "failure", record
            found += record["rows"] if record.get("table") == table else []
    return found


def folder_of(place: Place, job: Job) -> Path:
    """The recording of a process."""
    [folder] = [one for one in place.directory.rglob("process=*") if one.name.endswith(f"-{job.pid}")]
    return folder


def check(fault: str, planted: dict[str, Any], rows: list[dict[str, Any]], accumulate: int = 1) -> None:
    """One row, which says what was planted."""
    assert len(rows) == 1, (fault, rows)
    row = rows[0]
    seen = (fault, row["evidence"], row)
    assert row["direction"] == planted["direction"], seen
    assert row["step"] == planted["step"], seen
    assert row["seen_step"] == planted["step"] + (1 if fault in LATER else 0), seen
    if fault in LATER:
        assert set(planted["indices"]) <= set(json.loads(row["indices"])), seen
    else:
        assert row["micro_step"] == planted["micro_step"], seen
        assert json.loads(row["indices"]) == planted["indices"], seen
    if fault == "data":
        assert json.loads(row["bad_samples"]) == [planted["bad_sample"]], seen
    places = {name: planted[name] for name in ("module", "param") if name in planted}
    expected = {**places, **EXPECTED[fault]}
    assert {name: row[name] for name in expected} == expected, seen


def run_all(
    nursery: Nursery, place: Place, commands: list[tuple[str, ...]]
) -> list[tuple[Any, list[Any]]]:
    """Each command's own result and the rows it left."""
    wanted = [("nonfinite_faults", "--fault", *command, "--steps", "20") for command in commands]
    with forked(nursery, place, *wanted) as jobs:
        results = [job.result() for job in jobs]
        for job in jobs:
            assert job.let_go() == 0, job.errors()
            assert not job.errors().strip(), job.errors()
        return [(result, rows_of(folder_of(place, job))) for job, result in zip(jobs, results, strict=True)]


def test_a_planted_nan_is_traced_to_its_module_direction_step_and_batch(
    nursery: Nursery, place: Place
) -> None:
    for (fault, *_), (result, rows) in zip(DAILY, run_all(nursery, place, list(DAILY)), strict=True):
        if fault == "none":
            assert rows == []
        else:
            check(fault, result["planted"], rows)
    inputs = rows_of(place.directory, "python.inputs")
    assert {row["reason"] for row in inputs} == {"event"}
    assert sum(row["nan_count"] or 0 for row in inputs) == 1, "only the planted sample is not finite"


def test_looking_for_an_origin_changes_no_bit_of_the_training_after_it(
    nursery: Nursery, place: Place
) -> None:
    command = ("nonfinite_faults", "--fault", "log_of_zero", "--protected", "--steps", "40")
    with forked(nursery, place, command) as [job]:
        watched = job.result()
        assert len(rows_of(folder_of(place, job))) <= 1
    with forked(nursery, place, command, watched=False) as [job]:
        plain = job.result()
    assert watched["losses"] == plain["losses"]
    assert watched["parameters_sha256"] == plain["parameters_sha256"]


@needs_a_device
def test_on_a_device_the_step_is_repeated_in_the_job_and_only_a_lost_one_waits(
    nursery: Nursery, place: Place
) -> None:
    """With a device that is a part of a step behind, and one that is not."""
    commands = [
        ("nonfinite_faults", "--fault", fault, "--behind", behind, "--steps", "16")
        for fault, behind in (("log_of_zero", "12"), ("sqrt_at_zero", "0"), ("none", "12"))
    ]
    with forked(nursery, place, *commands[:1], watched=False) as [job]:
        plain = job.result()
    with forked(nursery, place, *commands) as jobs:
        results = [job.result() for job in jobs]
        assert [job.let_go() for job in jobs] == [0] * 3, jobs[0].errors()
        rows = [rows_of(folder_of(place, job)) for job in jobs]
    for fault, result, found in zip(("log_of_zero", "sqrt_at_zero"), results, rows, strict=False):
        check(fault, result["planted"], found)
        assert "examined in the training process, held for" in found[0]["evidence"]
    assert rows[2] == [] and results[2]["waits"] == plain["waits"] == [], "a healthy step waits for nothing"
    assert {thread for _, thread, _ in results[0]["waits"]} == {"MainThread"}, "it was held"
    same = ("losses", "parameters_sha256", "random")
    assert [results[0][name] for name in same] == [plain[name] for name in same]


def two_ranks(nursery: Nursery, place: Place, *options: str) -> tuple[list[Any], list[list[Any]]]:
    """Results and rows of both ranks of a DDP job."""
    port = free_port()
    with contextlib.ExitStack() as stack:
        jobs = [
            stack.enter_context(
                forked(
                    nursery, place, ("nonfinite_faults", *options, "--accumulate", "2"),
                    **rank_environment(rank, 2, port, "of-two"),
                )
            )[0]
            for rank in range(2)
        ]
        results = [job.result() for job in jobs]
        assert [job.let_go() for job in jobs] == [0, 0]
        return results, [rows_of(folder_of(place, job)) for job in jobs]


def test_the_rank_with_the_bad_data_says_so_and_the_others_that_it_came_to_them(
    nursery: Nursery, place: Place
) -> None:
    results, rows = two_ranks(nursery, place, "--fault", "data", "--steps", "8")
    check("data", results[1]["planted"], rows[1])
    [other] = rows[0]
    assert (other["cause"], other["step"], other["direction"]) == (
        "from another rank", results[1]["planted"]["step"], "backward",
    ), other["evidence"]


def test_what_a_fork_does_reaches_neither_memory_nor_files_nor_random_numbers_of_the_job(
    nursery: Nursery, place: Place
) -> None:
    with forked(nursery, place, ("frozen_looks",), watched=False) as [job]:
        found = job.result()
    looks = [found[name] for name in ("shared", "own", "files", "outside", "hangs", "computes")]
    assert all(look["gone"] for look in looks), "a fork is buried, however it ended"
    assert found["shared"]["read"] == 0.0
    assert "whole" not in found["shared"], "writing to shared memory ends it"
    assert found["own"]["sum"] == 56.0
    assert "error" in found["files"] and "PermissionError" in found["outside"]["error"]
    assert found["hangs"]["begun"] and "whole" not in found["hangs"]
    assert found["computes"]["finite"] is True
    assert found["after"] == {"shared": 0.0, "own": 8.0} and found["kept"] == "before"
    assert (found["batches"], found["received"], found["same_random"]) == (16, 0, True)


class Model(nn.Module):
    """Its forward changes what a forward may, and what it must not while it is only repeated."""

    def __init__(self, *, writes: bool = False, interrupted: bool = False) -> None:
        super().__init__()
        self.norm, self.drop, self.last = nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 1)
        self.cache = [torch.zeros(4)]
        self.calls, self.seen = 0, [0]
        self.writes, self.interrupted = writes, interrupted

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.seen.append(self.calls)
        hidden = self.drop(self.norm(x))
        hidden.mul_(2)
        if self.interrupted and self.calls > 1:
            raise KeyboardInterrupt
        if self.writes:
            self.cache[0].add_(hidden.detach().mean(0))
        return torch.log(torch.relu(self.last(hidden)) * 0)


def everything_of(model: Model) -> list[Any]:
    """What has to be the same, as values."""
    states = [one.clone() for one in model.state_dict().values()] + [model.cache[0].clone()]
    gradients = [None if one.grad is None else one.grad.clone() for one in model.parameters()]
    return [*states, *gradients, torch.get_rng_state(), torch.tensor([model.calls, *model.seen])]


def held(model: Model, seen_by: str = "loss") -> tuple[dict[str, Any], BaseException | None]:
    """What is found where the thread is held after a step of this model, of which nothing changes by that."""
    x, state = torch.randn(8, 4), torch.get_rng_state()
    root = model(x).mean()
    root.backward()
    before, version = everything_of(model), model.last.weight._version
    call = RootCall(model, (x,), {}, None, state, None)
    scene = Scene(seen_by, root, call, None, [model], [], lambda module: None, held_trace.not_ours)
    found, error = capture(lambda: held_trace.trace(scene, Isolation(), 60.0))
    after = everything_of(model)
    assert len(before) == len(after) and model.last.weight._version == version
    for one, other in zip(before, after, strict=True):
        assert one is other or torch.equal(torch.nan_to_num(one), torch.nan_to_num(other))
    module = nn.modules.module
    assert not module._global_forward_hooks and not module._global_forward_pre_hooks
    return found, error


def test_a_held_trace_puts_back_what_a_forward_changes_and_refuses_the_rest() -> None:
    found, error = held(Model())
    assert error is None and found["forward"]["birth"]["op"] == "log", found
    found, error = held(Model(), "gradient")
    assert error is None and found["backward"]["origin"]["op"] == "LogBackward0", found
    found, error = held(Model(writes=True))
    assert "writes to a tensor of the job's" in found["forward"]["stopped"], found
    _, error = held(Model(interrupted=True))
    assert isinstance(error, KeyboardInterrupt), "a signal's exception reaches the training"


@needs_a_device
@pytest.mark.campaign
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("behind", "mode"), [("0", "on"), ("12", "wait")])
def test_every_fault_is_traced_on_a_device_that_is_asked_in_time(
    nursery: Nursery, place: Place, seed: int, behind: str, mode: str
) -> None:
    for fault in EXPECTED:
        command = ("nonfinite_faults", "--fault", fault, "--behind", behind, "--seed", str(seed))
        with forked(nursery, place, (*command, "--steps", "20"), PROBE_NAN_TRACE=mode) as [job]:
            result = job.result()
            assert job.let_go() == 0, job.errors()
            check(fault, result["planted"], rows_of(folder_of(place, job)))


@pytest.mark.campaign
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    "more", [(), ("--accumulate", "4", "--at", "5"), ("--workers", "2")],
    ids=["plain", "accumulated", "workers"],
)
def test_every_fault_is_traced_with_every_seed(
    nursery: Nursery, place: Place, seed: int, more: tuple[str, ...]
) -> None:
    for first in range(0, len(EXPECTED), 4):
        faults = list(EXPECTED)[first : first + 4]
        commands = [(fault, "--seed", str(seed), *more) for fault in faults]
        for fault, (result, rows) in zip(faults, run_all(nursery, place, commands), strict=True):
            check(fault, result["planted"], rows)


@pytest.mark.campaign
@pytest.mark.parametrize("fault", ["log_of_zero", "sqrt_at_zero", "own_function", "loss_sqrt"])
def test_under_ddp_the_rank_of_the_fault_names_it(nursery: Nursery, place: Place, fault: str) -> None:
    results, rows = two_ranks(nursery, place, "--fault", fault, "--steps", "10", "--at", "6")
    check(fault, results[1]["planted"], rows[1])
    assert [row["cause"] for row in rows[0]] == ["from another rank"], rows[0]
