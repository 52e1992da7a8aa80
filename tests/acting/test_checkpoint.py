"""A checkpoint of a live job: a run that continues from it is the run that was never interrupted."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

import probe
from agent.asking import ask, query, tell
from agent.nursery import Forked
from harness import PATIENCE_S, Place
from probe.base.errors import ActionError, ActionFailed, ActionRefused, BadRequest, NoBoundary, NotUndoable
from probe.checkpoint.file import read_checkpoint

STEPS = 60
AT = 14
"""Steps that are over where the checkpoint is taken: in the second epoch of ten batches."""
Fork = Callable[..., Forked]


def act(place: Place, pid: int, arguments: dict[str, Any], **more: Any) -> dict[str, Any]:
    """The agent's answer to a checkpoint."""
    body = {"action": "checkpoint", "arguments": arguments, **more}
    answer: dict[str, Any] = ask(place, pid, "POST", "/v1/act", body)
    return answer


def saved_at(place: Place, job: Forked, path: Path) -> dict[str, Any]:
    """A checkpoint at the end of the step in which the job waits; the job then goes on."""
    job.wait_for("WAITING")
    with ThreadPoolExecutor(1) as pool:
        answer: Future[dict[str, Any]] = pool.submit(act, place, job.pid, {"path": str(path)})
        deadline = time.monotonic() + PATIENCE_S
        while not ask(place, job.pid, "GET", "/v1/actions")["waiting"]:
            assert time.monotonic() < deadline and not answer.done(), "it was never put in line"
            time.sleep(0.01)
        tell(job)
        return answer.result()


WAIT = ("--wait-at", str(AT - 1))
LOOPS = {
    "loader": (),
    "workers": ("--workers", "2", "--schedule", "cosine"),
    "drawn": ("--data", "drawn"),
    "scaler": ("--scaler",),
}


def test_a_run_that_was_killed_and_continued_is_the_run_that_was_never_touched(
    fork: Fork, place: Place
) -> None:
    path = place.directory / "rescue.pt"
    steps = ("--steps", str(STEPS))
    plain = fork("resumable", *steps, watched=False)
    watched = fork("resumable", *steps, *WAIT)
    answer = saved_at(place, watched, path)
    watched.kill()
    assert answer["details"]["step"] == answer["step"] == AT
    continued = fork("resumable", *steps, "--resume", str(path), watched=False).result()
    whole = plain.result()
    assert continued["losses"] == whole["losses"][AT:]
    assert continued["parameters_sha256"] == whole["parameters_sha256"]


@pytest.mark.parametrize("loop", ["loader", "ahead"])
def test_a_run_that_was_saved_between_two_passes_over_its_data_goes_on_bit_for_bit(
    fork: Fork, place: Place, loop: str
) -> None:
    path = place.directory / "rescue.pt"
    options = ("--steps", str(STEPS), "--data", loop)
    plain = fork("resumable", *options, watched=False)
    watched = fork("resumable", *options, "--wait-at", "19")  # the last batch of the second pass
    answer = saved_at(place, watched, path)
    assert answer["details"]["step"] == 20 and answer["details"]["boundary"] == "data"
    assert "position in the data" not in answer["details"]["not_found"]
    continued = fork("resumable", *options, "--resume", str(path), watched=False).result()
    whole = plain.result()
    assert watched.result()["losses"] == whole["losses"]
    assert continued["losses"] == whole["losses"][20:]
    assert continued["parameters_sha256"] == whole["parameters_sha256"]


@pytest.mark.parametrize("loop", ["workers", pytest.param("drawn", marks=pytest.mark.campaign), "scaler"])
def test_every_loop_goes_on_bit_for_bit_and_is_not_changed_by_being_saved(
    fork: Fork, place: Place, loop: str
) -> None:
    path = place.directory / "rescue.pt"
    options = ("--steps", str(STEPS), *LOOPS[loop])
    plain = fork("resumable", *options, watched=False)
    watched = fork("resumable", *options, *WAIT)
    answer = saved_at(place, watched, path)
    assert answer["details"]["boundary"] == ("forward" if loop == "drawn" else "data")
    assert answer["details"]["epoch"] == 1
    continued = fork("resumable", *options, "--resume", str(path), watched=False).result()
    whole, saved = plain.result(), watched.result()
    assert saved["losses"] == whole["losses"]
    assert saved["parameters_sha256"] == whole["parameters_sha256"]
    assert continued["losses"] == whole["losses"][AT:]
    assert continued["parameters_sha256"] == whole["parameters_sha256"]


def hung_parameters(steps: int) -> list[torch.Tensor]:
    """What tests/programs/stall_hangs.py has trained after so many steps."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(steps):
        x = torch.full((4, 16), float(step)).sin()
        optimizer.zero_grad()
        functional.mse_loss(model(x), x.sum(dim=1, keepdim=True)).backward()
        optimizer.step()
    return [one.detach() for one in model.parameters()]


def test_a_job_that_hangs_is_saved_at_once_when_asked_and_only_then(fork: Fork, place: Place) -> None:
    path = place.directory / "rescue.pt"
    job = fork("stall_hangs", "--way", "event")
    job.wait_for("READY")
    tell(job)
    job.wait_for("HANGING")
    with pytest.raises(NoBoundary, match="no step ended within"):
        act(place, job.pid, {"path": str(path)}, wait_s=0.3)
    assert not path.exists()
    answer = act(place, job.pid, {"path": str(path)}, now=True)
    assert answer["details"]["boundary"].startswith("now, in ")
    assert "taken while the training thread was in" in answer["notes"][0]
    content = read_checkpoint(str(path))
    assert content["step"] == content["probe"]["steps_counted"] == 5
    expected = hung_parameters(5)
    assert len(content["model"]) == len(expected)
    assert all(map(torch.equal, content["model"].values(), expected))


def test_two_models_and_two_optimizers_are_saved_by_name_and_every_change_is_on_record(
    fork: Fork, place: Place
) -> None:
    path = place.directory / "gan.pt"
    job = fork("gan_two_optimizers", "--forever")
    job.wait_for("READY")
    answer = act(place, job.pid, {"path": str(path)})
    assert {name: one["kind"] for name, one in answer["details"]["contains"].items()} == {
        "generator": "module", "discriminator": "module",
        "generator_optimizer": "optimizer", "discriminator_optimizer": "optimizer",
    }
    inner = (nn.ReLU(), nn.Linear(128, 128), nn.ReLU())
    generator = nn.Sequential(nn.Linear(16, 128), *inner, nn.Linear(128, 8))
    state = probe.load_checkpoint(path, rng=False, strict=False, generator=generator)
    assert state.step == answer["step"]
    with pytest.raises(NotUndoable, match="nothing to undo"):
        ask(place, job.pid, "POST", "/v1/undo", {"id": answer["id"]})
    folder = place.directory
    refused: list[tuple[dict[str, Any], type[ActionError] | type[BadRequest], str]] = [
        ({"path": str(folder / "missing" / "a.pt")}, ActionRefused, "there is no folder"),
        ({"path": str(path)}, ActionRefused, "exists already"),
        ({"path": str(folder)}, ActionRefused, "is a folder"),
        ({"path": "a.pt", "folder": "b"}, BadRequest, "`path`, a file, or `folder`"),
        ({"path": "a.pt", "owerwrite": True}, BadRequest, "owerwrite"),
    ]
    for arguments, error, said in refused:
        with pytest.raises(error, match=said):
            act(place, job.pid, arguments)
    before = path.read_bytes()
    act(place, job.pid, {"path": str(path), "overwrite": True})
    assert read_checkpoint(str(path))["step"] > answer["step"] and path.read_bytes() != before
    rows = query(place, job.pid, f"SELECT state FROM probe.actions WHERE action_id = '{answer['id']}'")
    assert [state for (state,) in rows] == ["asked", "done", "undoing", "done"]


def test_automatic_checkpoints_come_until_they_are_undone_and_the_training_is_unchanged(
    fork: Fork, place: Place
) -> None:
    folder = place.directory / "kept"
    folder.mkdir()
    steps = ("--steps", "400")
    plain = fork("resumable", *steps, watched=False)
    job = fork("resumable", *steps, "--pace-ms", "5")
    job.wait_for("READY")
    answer = act(place, job.pid, {"folder": str(folder), "every": 10, "keep": 2})
    assert answer["state"] == "standing"
    deadline = time.monotonic() + PATIENCE_S
    while len(there := sorted(folder.glob("step-*.pt"))) < 2 or there[-1].name < "step-00000040.pt":
        assert time.monotonic() < deadline  # a slow machine may see a later one first
        time.sleep(0.01)
    undone = ask(place, job.pid, "POST", "/v1/undo", {"id": answer["id"]})
    assert "no more checkpoints are made" in undone["what"]
    watched, whole = job.result(), plain.result()
    assert watched["losses"] == whole["losses"]
    assert watched["parameters_sha256"] == whole["parameters_sha256"]
    left = sorted(one.name for one in folder.iterdir())
    assert len(left) == 2 and all(name.startswith("step-000000") for name in left), left
    newest = folder / left[-1]
    continued = fork("resumable", *steps, "--resume", str(newest), watched=False).result()
    assert continued["losses"] == whole["losses"][continued["resumed_at"] :]


def test_a_job_whose_model_went_nan_does_not_overwrite_its_last_good_checkpoint(
    fork: Fork, place: Place
) -> None:
    good, bad = place.directory / "good.pt", place.directory / "bad.pt"
    job = fork("resumable", "--forever", "--steps", "100000", *WAIT, "--spoil-at", str(AT))
    saved_at(place, job, good)
    before = good.read_bytes()
    with pytest.raises(ActionRefused, match=r"NaN or infinite, in model\..*was not replaced"):
        act(place, job.pid, {"path": str(good), "overwrite": True})
    assert good.read_bytes() == before
    answer = act(place, job.pid, {"path": str(bad)})
    assert answer["details"]["verified"] and "NaN or infinite" in answer["notes"][0]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts a disk to fill")
def test_a_full_disk_costs_the_checkpoint_and_not_the_training(fork: Fork, place: Place) -> None:
    disk = place.directory / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=16k", "probe-test", str(disk)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("nothing can be mounted here")
    try:
        plain = fork("resumable", "--steps", "200", watched=False)
        job = fork("resumable", "--steps", "200", "--pace-ms", "5")
        job.wait_for("READY")
        with pytest.raises((ActionRefused, ActionFailed), match=r"16\.4 kB free and the checkpoint needs"):
            act(place, job.pid, {"path": str(disk / "a.pt")})
        assert list(disk.iterdir()) == []
        assert job.result()["losses"] == plain.result()["losses"]
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_a_job_that_ends_while_its_checkpoint_is_written_ends_as_ever(fork: Fork, place: Place) -> None:
    path = place.directory / "late.pt"
    job = fork("resumable", "--steps", str(AT + 1), *WAIT, "--ballast-mb", "64")
    try:
        saved_at(place, job, path)
    except ActionFailed as error:
        assert "the process ends" in error.message
    assert job.result()["steps"] == AT + 1
    assert (job.let_go(), job.errors()) == (0, "")
    left = [one.name for one in place.directory.iterdir() if ".pt" in one.name]
    assert left in ([], ["late.pt"]), left
    if left:
        assert read_checkpoint(str(path))["step"] == AT
