"""`health` and `compare` on real runs: of several ranks, dead ones, one that lost its loader's workers; and
the real TensorBoard, W&B and MLflow."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from agent.test_known_runs import STAND_INS, ask, wait_for
from harness import Job, Place, run_probe
from ranks import running_ranks

pytestmark = pytest.mark.campaign


def write_stand_ins(folder: Path) -> str:
    for name, text in STAND_INS.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return str(folder)


def finished(place: Place, folder: str, *options: str, steps: int = 150, **environ: str) -> Job:
    """A run that has ended after so many steps."""
    quiet = place.watched(OMP_NUM_THREADS="1", **environ)
    job = Job("known_run", folder, *options, environ=quiet, folder=place.directory)
    job.wait_for("READY")
    wait_for(place, job, "SELECT 1 FROM probe.facts WHERE name = 'loader.num_workers'")
    wait_for(place, job, f"SELECT 1 FROM python.steps WHERE step = {steps}")
    assert job.let_go() == 0, job.errors()
    return job


def asked(place: Place, *words: str) -> dict[str, Any]:
    done = run_probe(place, *words, "--format", "json")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_a_run_that_lost_its_workers_is_slower_because_of_them_and_dead_runs_answer(
    place: Place, tmp_path: Path
) -> None:
    folder = write_stand_ins(tmp_path)
    slow = ("--slow-batch-ms", "200")
    jobs = [finished(place, folder, *slow, "--workers", workers, steps=60) for workers in ("4", "0")]
    folders = [str(next((place.directory / "recordings").glob(f"*/*/process=0-{job.pid}"))) for job in jobs]
    said = asked(place, str(jobs[0].pid), "compare", str(jobs[1].pid))
    assert "slower" in said["conclusion"] or "times as slow" in said["conclusion"], said["conclusion"]
    assert "data_s" in said["conclusion"], said["conclusion"]
    assert "loader.num_workers 4 → 0" in said["conclusion"], said["conclusion"]
    by_folder = asked(place, folders[0], "compare", folders[1])
    assert by_folder["conclusion"].partition(" is ")[2] == said["conclusion"].partition(" is ")[2]
    back = asked(place, str(jobs[1].pid), "compare", str(jobs[0].pid))
    assert "faster" in back["conclusion"], back["conclusion"]
    text = run_probe(place, folders[1], "health")
    assert text.returncode == 0 and "finished" in text.stdout and "data" in text.stdout, text


def test_a_rate_that_differs_is_named_where_the_loss_differs(place: Place, tmp_path: Path) -> None:
    folder = write_stand_ins(tmp_path)
    jobs = [finished(place, folder, "--learning-rate", rate) for rate in ("0.02", "0.0000001")]
    said = asked(place, str(jobs[0].pid), "compare", str(jobs[1].pid))
    names = {one["name"] for one in said["differences"] if one["section"] == "configuration"}
    assert {"args.learning_rate", "optimizer.lr"} <= names, said
    assert "model.parameters" not in names
    assert not [one for one in said["differences"] if one["section"] == "environment"], said


def test_of_several_ranks_the_spread_is_shown(place: Place) -> None:
    ways = ("--way", "ddp", "--forever", "--pace-ms", "20")
    with running_ranks(place, 2, "parallel", *ways, name="pair") as ranks:
        wait_for(place, ranks[0], "SELECT 1 FROM python.steps WHERE step = 30")
        found = asked(place, "pair", "health")
        assert found["whole"] and [one["rank"] for one in found["ranks"]] == [0, 1]
        shown = run_probe(place, "pair", "health").stdout
        assert "ranks" in shown and "2: " in shown, shown
        one = asked(place, "pair/1", "health")
        assert one["rank"] == 1 and len(one["ranks"]) == 1


def test_the_real_libraries_calls_are_recorded(place: Place, tmp_path: Path) -> None:
    made = subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "real")], check=False)
    wanted = ("tensorboard", "tensorboardX", "wandb", "mlflow-skinny")
    pip = [str(tmp_path / "real/bin/python"), "-m", "pip", "install", "-q", *wanted]
    done = subprocess.run(pip, capture_output=True, text=True, check=False)
    if made.returncode or done.returncode:
        pytest.skip(f"{', '.join(wanted)} cannot be installed here: {done.stderr.strip()[-300:]}")
    (site,) = (tmp_path / "real/lib").glob("python*/site-packages")
    writes = tmp_path / "writes"
    writes.mkdir()
    environ = place.watched(
        WANDB_MODE="offline", WANDB_SILENT="true", MLFLOW_TRACKING_URI=f"file:{writes}/mlruns",
        MLFLOW_ALLOW_FILE_STORE="true",
    )
    options = ("--folder", str(writes), "--real")
    job = Job("known_run", str(site), *options, environ=environ, folder=place.directory)
    try:
        job.wait_for("READY")
        wait_for(place, job, "SELECT 1 FROM python.scalars WHERE source = 'mlflow' HAVING count(*) > 6")
        rows = ask(place, job, "SELECT source, name, any_value(value), max(logged_step) > 0, count(*) = "
                               "count(DISTINCT t_ns) FROM python.scalars WHERE name <> 'train/loss' "
                               "GROUP BY ALL ORDER BY ALL")
        assert rows == [
            ["mlflow", "f1", 0.25, True, True], ["mlflow", "recall", 1.0, None, True],
            ["probe", "mine", 3.0, None, True], ["tensorboard", "norms/a", 1.5, True, True],
            ["wandb", "val.acc", 0.5, True, True],
        ]
        # tensorboardX's writer and torch's own.
        twice = (
            "SELECT count(*) = 2 * count(DISTINCT logged_step) FROM python.scalars WHERE name = 'train/loss' "
            "AND logged_step < (SELECT max(logged_step) FROM python.scalars)"
        )
        assert ask(place, job, twice) == [[True]]
    finally:
        job.kill()
