"""A job in a pid namespace of its own is attached to by its pid outside, and recorded under it."""

from __future__ import annotations

import json
import subprocess
from functools import partial
from pathlib import Path

import pytest

from harness import Job, Place, probe_process, run_probe
from server.beside import until

NAMESPACE = ("unshare", "--pid", "--fork", "--kill-child")


def test_a_job_in_its_own_pid_namespace_is_attached_to_recorded_and_left(place: Place) -> None:
    tried = subprocess.run([*NAMESPACE, "true"], capture_output=True, text=True, check=False)
    if tried.returncode:
        pytest.skip(f"no pid namespace can be made here: {tried.stderr.strip()}")
    job = Job(
        "one_millisecond_step", "--forever", environ=place.environ(), folder=place.directory, before=NAMESPACE
    )
    try:
        job.wait_for("READY")
        [pid] = Path(f"/proc/{job.pid}/task/{job.pid}/children").read_text().split()
        attached = probe_process(place, pid, "attach")
        assert f"(pid {pid})" in attached.stdout, attached.stderr
        ps = partial(run_probe, place, "ps", "--format", "json")
        until(lambda: json.loads(ps().stdout)["processes"][0]["state"] == "running", "its first step")
        [found] = json.loads(ps().stdout)["processes"]
        assert (found["pid"], found["state"]) == (int(pid), "running")
        counted = run_probe(place, pid, "query", "--format", "csv", "SELECT count(*) > 0 FROM python.steps")
        assert counted.stdout.split()[-1] == "true", counted.stderr
        left = run_probe(place, pid, "detach")
        assert left.stdout.startswith("detached from"), left.stderr
        assert list((place.directory / "agents").iterdir()) == []
    finally:
        job.kill()
