"""`save-batch` writes the batch that a NaN came with, as the model saw it."""

from __future__ import annotations

import json
from pathlib import Path

import torch

from agent.nursery import Nursery, ready
from harness import Place, run_probe


def test_the_batch_of_a_nan_is_saved_and_then_dropped(
    nursery: Nursery, place: Place, tmp_path: Path
) -> None:
    options = ("--fault", "data", "--steps", "12", "--hold", "--protected")
    with ready(nursery, place, "nonfinite_faults", *options) as job:
        planted = job.result()["planted"]
        path = tmp_path / "batch.pt"
        saved = run_probe(place, str(job.pid), "save-batch", str(path), "--drop")
        assert saved.returncode == 0, saved.stderr
        assert f"batch of step {planted['step']}, micro step 0" in saved.stdout
        content = torch.load(path, weights_only=True)
        assert content["indices"] == planted["indices"]
        x, _ = content["batch"]
        bad = (~torch.isfinite(x)).any(dim=1).nonzero().flatten().tolist()
        assert [planted["indices"][place] for place in bad] == [planted["bad_sample"]]
        sql = "SELECT content_hash, direction FROM python.nonfinite"
        rows = json.loads(run_probe(place, str(job.pid), "query", "--format", "json", sql).stdout)["rows"]
        assert rows == [[content["event"]["content_hash"], "data"]]
        again = run_probe(place, str(job.pid), "save-batch", str(path), "--overwrite")
        assert again.returncode == 0 and "this is the latest batch" in again.stdout, again.stderr
