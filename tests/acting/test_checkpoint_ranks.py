"""A checkpoint of all ranks of a live job: ranks that continue from it are the job that was never touched."""

from __future__ import annotations

import json
import os
import subprocess
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import probe
from agent.asking import tell
from agent.nursery import Forked
from harness import PATIENCE_S, Place, run_probe
from probe.base.errors import CheckpointInvalid
from probe.checkpoint.all_ranks import RanksFolder
from ranks import free_port, rank_environment

Fork = Callable[..., Forked]
STEPS = ("--steps", "48")


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


@pytest.mark.parametrize("way", [pytest.param("ddp", marks=pytest.mark.campaign), "fsdp"])
def test_ranks_that_continue_are_the_job_that_was_never_touched(
    fork: Fork, place: Place, way: str
) -> None:
    folder = place.directory / "kept"
    options = ("--way", way, *STEPS)
    jobs = ranks_of(fork, 2, *options, "--pace-ms", "70", "--wait-at", "5", name=way)
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
    import torch.distributed.checkpoint as dcp  # a second's worth of imports, which only this needs
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


@pytest.mark.campaign
@pytest.mark.parametrize("seed", range(4))
def test_a_rank_killed_while_all_are_saved_leaves_the_earlier_checkpoint_the_newest(
    fork: Fork, place: Place, seed: int
) -> None:
    folder = place.directory / "kept"
    options = ("--way", "ddp", "--forever", "--pace-ms", "20", "--ballast-mb", "64")
    jobs = ranks_of(fork, 2, *options, name="killed")
    for job in jobs:
        job.wait_for("READY")
    first = checkpoint(place, "killed", folder)
    before = sorted(one.name for one in folder.iterdir())
    victim, late_s = jobs[seed % 2], 0.3 * seed
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(run_probe, place, "killed", "checkpoint", str(folder), "--format", "json")
        deadline = time.monotonic() + PATIENCE_S
        while not list(folder.glob(".*.tmp/.rank-0000*.tmp")) and time.monotonic() < deadline:
            time.sleep(0.005)
        time.sleep(late_s)
        victim.kill()
        done = asked.result()
    newest = RanksFolder(str(folder))
    newest.content()  # whole, whichever it is
    if done.returncode != 0 and newest.manifest["step"] == first["step"]:
        assert f"rank {seed % 2}" in done.stderr, done.stderr
        names = sorted(one.name for one in folder.iterdir() if not one.name.startswith("."))
        assert names == before


@pytest.mark.campaign
@pytest.mark.parametrize("way", ["fsdp1", "flat", "drift"])
def test_other_ways_to_share_the_work_go_on_bit_for_bit_too(fork: Fork, place: Place, way: str) -> None:
    folder = place.directory / "kept"
    options = ("--way", way, *STEPS)
    jobs = ranks_of(fork, 2, *options, "--pace-ms", "100", "--wait-at", "5", name=way)
    plain = ranks_of(fork, 2, *options, watched=False)
    for job in jobs:
        job.wait_for("WAITING")
    checkpoint(place, way, place.directory / "hung", "--now")
    tell(jobs[0])
    step = checkpoint(place, way, folder)["step"]
    whole, saved = results(plain), results(jobs)
    continued = results(ranks_of(fork, 2, *options, "--resume", str(folder), watched=False))
    for one, same, other in zip(whole, saved, continued, strict=True):
        assert same["losses"] == one["losses"] and same["collectives"] == one["collectives"] + 1
        assert other["losses"] == one["losses"][step:]
        assert other["parameters_sha256"] == one["parameters_sha256"] == same["parameters_sha256"]
    with pytest.raises(CheckpointInvalid, match="different models, and this job has 1"):
        probe.load_checkpoint(folder, model=nn.Linear(1, 1))


@pytest.mark.campaign
def test_replicas_of_shards_on_four_ranks_go_on_on_four_ranks_and_on_two(fork: Fork, place: Place) -> None:
    folder = place.directory / "kept"
    options = ("--way", "hsdp", *STEPS)
    jobs = ranks_of(fork, 4, *options, "--pace-ms", "100", name="four")
    plain = ranks_of(fork, 4, *options, watched=False)
    for job in jobs:
        job.wait_for("READY")
    step = checkpoint(place, "four", folder)["step"]
    kill(jobs)
    whole = results(plain)
    continued = results(ranks_of(fork, 4, *options, "--resume", str(folder), watched=False))
    assert [one["losses"] for one in continued] == [one["losses"][step:] for one in whole]
    written = sorted(one.name for one in folder.glob("step-*/*.distcp"))
    assert written == ["__0_0.distcp", "__1_0.distcp"]  # the other replica has the same
    fewer = results(ranks_of(fork, 2, "--way", "fsdp", *STEPS, "--resume", str(folder), watched=False))
    assert [one["resumed_at"] for one in fewer] == [step, step]


@pytest.mark.campaign
@pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts a disk to fill")
def test_a_disk_that_is_full_costs_the_checkpoint_of_all_ranks_and_not_their_training(
    fork: Fork, place: Place
) -> None:
    disk = place.directory / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=2600k", "probe-test", str(disk)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("nothing can be mounted here")
    try:
        plain = ranks_of(fork, 2, "--way", "fsdp", *STEPS, watched=False)
        jobs = ranks_of(fork, 2, "--way", "fsdp", *STEPS, "--pace-ms", "100", name="full")
        for job in jobs:
            job.wait_for("READY")
        first = checkpoint(place, "full", disk)
        (disk / "filler").write_bytes(bytes(2_400_000 - sum(one.stat().st_size for one in disk.rglob("*"))))
        done = run_probe(place, "full", "checkpoint", str(disk))
        assert done.returncode != 0 and ("free and the checkpoint needs" in done.stderr or
                                         "No space left" in done.stderr), done.stderr
        assert RanksFolder(str(disk)).manifest["step"] == first["step"]
        assert sorted(one.name for one in disk.iterdir())[:2] == ["filler", "latest"]
        assert [one["losses"] for one in results(jobs)] == [one["losses"] for one in results(plain)]
    finally:
        subprocess.run(["umount", str(disk)], check=True)
