"""`probe export`: what is recorded, read back from the files of the tools that it is written for."""

from __future__ import annotations

import csv
import json
import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness import PATIENCE_S, Job, Place, probe_process, run_probe

READ_EVENTS = """
import json, sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
found = EventAccumulator(sys.argv[1], size_guidance={"scalars": 0, "tensors": 0, "histograms": 0})
found.Reload()
tags = found.Tags()
scalars = {tag: [(one.step, one.value) for one in found.Scalars(tag)] for tag in tags["scalars"]}
print(json.dumps({"scalars": scalars, "histograms": tags["histograms"], "texts": tags["tensors"]}))
"""
READ_MLFLOW = """
import json, sys
from mlflow.tracking import MlflowClient
client = MlflowClient(tracking_uri=sys.argv[1])
[run] = client.search_runs([client.get_experiment_by_name("probe").experiment_id])
losses = client.get_metric_history(run.info.run_id, "train/loss")
print(json.dumps({"scalars": {"train/loss": sorted((one.step, one.value) for one in losses)}}))
"""


def installed(package: str, folder: Path) -> str:
    """A folder with the package, as PYTHONPATH names it; skips where it cannot be installed."""
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(folder), package]
    done = subprocess.run(pip, capture_output=True, text=True, timeout=600, check=False)
    if done.returncode != 0:
        pytest.skip(f"{package} cannot be installed here: {done.stderr.strip()[-300:]}")
    return str(folder)


def read_with(path: str, program: str, *arguments: str) -> dict[str, Any]:
    """What a small program of the tool's own reads."""
    environ = {"PYTHONPATH": path, "PATH": "/usr/bin", "HOME": "/tmp", "MLFLOW_ALLOW_FILE_STORE": "true"}
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments], env=environ,
        capture_output=True, text=True, timeout=PATIENCE_S, check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def recorded(place: Place, pid: int) -> list[tuple[int, float]]:
    """Step and loss as `query` has them."""
    sql = "SELECT step, loss FROM python.steps WHERE loss IS NOT NULL ORDER BY step"
    done = run_probe(place, str(pid), "query", sql, "--format", "json")
    return [(step, float(loss)) for step, loss in json.loads(done.stdout)["rows"]]


@pytest.fixture
def finished(place: Place, start: Callable[..., Job]) -> Job:
    """A job that is done with its steps and waits."""
    job = start("gpt_with_schedule", "--size", "tiny", "--hold")
    job.result()
    return job


def same(found: list[list[float]], wanted: list[tuple[int, float]]) -> None:
    assert [int(step) for step, _ in found] == [step for step, _ in wanted]
    for (_, one), (_, other) in zip(found, wanted, strict=True):
        assert math.isclose(one, other, rel_tol=1e-6)


@pytest.mark.campaign
def test_what_tensorboard_reads_back_is_what_was_recorded_also_when_it_is_exported_twice(
    place: Place, finished: Job, tmp_path: Path
) -> None:
    path = installed("tensorboard", tmp_path / "packages")
    for _ in range(2):
        done = probe_process(
            place, str(finished.pid), "export", "--tensorboard", str(tmp_path / "curves"), PYTHONPATH=path
        )
        assert done.returncode == 0, done.stderr
    [folder] = (tmp_path / "curves").iterdir()
    assert folder.name.endswith("-rank0") and len(list(folder.iterdir())) == 1
    found = read_with(path, READ_EVENTS, str(folder))
    same(found["scalars"]["train/loss"], recorded(place, finished.pid))
    assert "train/lr" in found["scalars"] and "train/allocated_bytes" not in found["scalars"], "no device"


@pytest.mark.campaign
def test_wandb_is_written_offline(place: Place, finished: Job, tmp_path: Path) -> None:
    path = installed("wandb", tmp_path / "packages")
    done = probe_process(
        place, str(finished.pid), "export", "--wandb", "curves", PYTHONPATH=path, WANDB_MODE="offline",
        WANDB_DIR=str(tmp_path), WANDB_SILENT="true",
    )
    assert done.returncode == 0, done.stderr
    assert "of rank 0 written to" in done.stdout
    [data] = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
    assert b"train/loss" in data.read_bytes()


@pytest.mark.campaign
def test_mlflow_reads_back_what_was_recorded_also_when_it_is_exported_twice(
    place: Place, finished: Job, tmp_path: Path
) -> None:
    path = installed("mlflow-skinny", tmp_path / "packages")
    uri = f"file://{tmp_path}/runs"
    refused = probe_process(place, str(finished.pid), "export", "--mlflow", "nosuch://x", PYTHONPATH=path)
    assert refused.returncode == 2 and "Traceback" not in refused.stderr
    for _ in range(2):
        words = (str(finished.pid), "export", "--mlflow", uri)
        done = probe_process(place, *words, PYTHONPATH=path, MLFLOW_ALLOW_FILE_STORE="true")
        assert done.returncode == 0, done.stderr
    same(read_with(path, READ_MLFLOW, uri)["scalars"]["train/loss"], recorded(place, finished.pid))


def test_a_table_holds_what_was_recorded_and_a_tool_that_is_not_installed_is_named(
    place: Place, finished: Job, tmp_path: Path
) -> None:
    done = run_probe(place, str(finished.pid), "export", "--csv", str(tmp_path / "curves"))
    assert done.returncode == 0, done.stderr
    [table] = (tmp_path / "curves").iterdir()
    with table.open(newline="") as file:
        rows = list(csv.DictReader(file))
    losses = [[float(row["step"]), float(row["value"])] for row in rows if row["tag"] == "train/loss"]
    same(losses, recorded(place, finished.pid))
    assert {row["tag"] for row in rows} >= {"train/lr", "train/wall_s"}
    assert not [row for row in rows if row["tag"] == "train/allocated_bytes"], "no device"
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    for name in ("tensorboard", "wandb", "mlflow"):
        (hidden / f"{name}.py").write_text("raise ImportError(__name__)\n")
        done = probe_process(place, str(finished.pid), "export", f"--{name}", "x", PYTHONPATH=str(hidden))
        assert done.returncode == 2 and f"pip install {name}" in done.stderr, done.stderr
    assert run_probe(place, str(finished.pid), "export").returncode == 2
