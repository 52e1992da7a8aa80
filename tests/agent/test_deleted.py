"""Somebody deletes the recording of a job that trains: the job is left and says why, and trains on."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from agent.asking import accepts, recorded, tell
from agent.nursery import Forked
from diagnose.hung import until
from harness import Place, run_probe
from probe.recording import places


@pytest.mark.parametrize("what", ["recording", "rings"])
def test_a_recording_that_was_deleted_is_left_and_the_training_goes_on(
    fork: Callable[..., Forked], place: Place, tmp_path: Path, what: str
) -> None:
    job = fork("rates_on_file", "--forever", "--hold", "--pace-ms", "5", "--file", str(tmp_path / "steps"))
    job.wait_for("READY")
    [process] = places.process_folders(place.directory)
    [meta] = recorded(place)
    run_probe(place, "ps")
    shutil.rmtree(process if what == "recording" else meta.rings)
    said = until(job.errors, "a line on stderr")
    gone = process if what == "recording" else meta.rings
    assert said.startswith(f"probe: not recording any more: {gone} was deleted")
    until(lambda: not accepts(place, job.pid), "the agent has left")
    until(lambda: not Path(meta.rings).exists(), "its memory is given back")
    done = run_probe(place, str(job.pid), "query", "SELECT count(*) FROM python.steps")
    if what == "rings":
        assert "were deleted before they were sealed" in done.stderr
    else:
        assert "runs without an agent" in done.stderr
    tell(job)
    result = job.result()
    again = ("rates_on_file", "--replay", str(tmp_path / "steps"), "--file", str(tmp_path / "again"))
    assert fork(*again, watched=False).result()["losses"] == result["losses"]
    assert (job.let_go(), job.errors().count("\n")) == (0, 1)
