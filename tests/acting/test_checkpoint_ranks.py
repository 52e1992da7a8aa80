"""A checkpoint of all ranks of a live job: ranks that continue from it are the job that was never touched."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import nn

import probe
from agent.asking import tell
from agent.nursery import Forked
from harness import Place, run_probe
from ranks import free_port, rank_environment

Fork = Callable[..., Forked]
STEPS = ("--steps", "80")


def ranks_of(
    fork: Fork, world_size: int, *options: str, name: str = "", watched: bool = True
) -> list[Forked]:
    """All ranks of tests/programs/resumable_ranks.py."""
    port, run = free_port(), uuid.uuid4().hex
    return [
        fork("resumable_ranks", *options, watched=watched,
             **rank_environment(rank, world_size, port, run, name))
        for rank in range(world_size)
    ]


def checkpoint(place: Place, name: str, folder: Path, *options: str) -> dict[str, Any]:
    """What `probe JOB checkpoint DIR` answers."""
    done = run_probe(place, name, "checkpoint", str(folder), "--format", "json", *options)
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def kill(jobs: list[Forked]) -> None:
    for job in jobs:
        job.kill()


def results(jobs: list[Forked]) -> list[dict[str, Any]]:
    return [job.result() for job in jobs]


@pytest.mark.parametrize("way", ["ddp", "fsdp"])
def test_ranks_that_continue_are_the_job_that_was_never_touched(
    fork: Fork, place: Place, way: str
) -> None:
    folder = place.directory / "kept"
    options = ("--way", way, *STEPS)
    jobs = ranks_of(fork, 2, *options, "--pace-ms", "40", "--wait-at", "5", name=way)
    plain = ranks_of(fork, 2, *options, watched=False)
    for job in jobs:
        job.wait_for("WAITING")
    check_a_job_that_hangs(place, way)
    tell(jobs[0])
    answer = checkpoint(place, way, folder)
    if way == "ddp":
        kill(jobs)
    step = answer["step"]
    assert answer["what"].startswith(f"step {step} of all 2 ranks is saved in {folder}/step-")
    assert [one["rank"] for one in answer["answers"]] == [0, 1] and answer["notes"] == []
    whole = results(plain)
    if way == "fsdp":  # it goes on as if it had not been saved, twice, with no collective more
        for one, other in zip(whole, results(jobs), strict=True):
            same = ("losses", "parameters_sha256", "collectives")
            # The one that waited in step 5 did so in a barrier.
            assert [one[name] for name in same] == [*(other[name] for name in same[:2]), other[same[2]] - 1]
    continued = results(ranks_of(fork, 2, *options, "--resume", str(folder), watched=False))
    for one, other in zip(whole, continued, strict=True):
        assert other["resumed_at"] == step
        assert other["losses"] == one["losses"][step:]
        assert other["parameters_sha256"] == one["parameters_sha256"]
    if way == "fsdp":
        check_the_whole_model(folder)


def check_a_job_that_hangs(place: Place, way: str) -> None:
    """Saved where its ranks are, in step 5: one in a read, the other in a barrier."""
    folder = place.directory / "hung"
    answer = checkpoint(place, way, folder, "--now")
    assert "step 5 of all 2 ranks is saved in" in answer["what"], answer
    notes = [note for one in answer["answers"] for note in one["answer"]["notes"]]
    assert sum("taken while the training thread was in" in note for note in notes) == 2
    assert (folder / "step-00000005" / "rank-00001.pt").exists()


def check_the_whole_model(folder: Path) -> None:
    """In one process without shards, by us and by torch.distributed.checkpoint."""
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

    def made() -> tuple[nn.Module, torch.optim.Optimizer]:
        model = nn.Sequential(nn.Linear(16, 33), nn.ReLU(), nn.Dropout(0.2), nn.Linear(33, 1))
        return model, torch.optim.AdamW(model.parameters(), lr=0.01)

    (ours, our_optimizer), (theirs, their_optimizer) = made(), made()
    state = probe.load_checkpoint(folder, strict=False, model=ours, optimizer=our_optimizer)
    assert state.data is None
    model_state, optimizer_state = get_state_dict(theirs, their_optimizer)
    whole = {"model": model_state, "optimizer": optimizer_state}
    dcp.load(whole, checkpoint_id=state.path)
    set_state_dict(theirs, their_optimizer, model_state_dict=model_state, optim_state_dict=optimizer_state)
    assert all(map(torch.equal, ours.parameters(), theirs.parameters()))
    for one, other in zip(our_optimizer.state.values(), their_optimizer.state.values(), strict=True):
        assert torch.equal(one["exp_avg_sq"], other["exp_avg_sq"]) and one["step"] == other["step"]
    assert our_optimizer.param_groups[0]["lr"] == their_optimizer.param_groups[0]["lr"]
