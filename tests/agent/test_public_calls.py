"""What a job calls of probe never raises into it, whatever it is given and whenever; one line says so."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from agent.nursery import Forked
from harness import NO_SERVER, PATIENCE_S, PROGRAMS, REAL_SERVER, ROOT, Place

NOBODY = 65534
FUNCTIONS = 3
"""That do something with what they are given: log, step, stop."""


def test_odd_calls_come_back_and_each_function_says_one_line(
    fork: Callable[..., Forked], place: Place
) -> None:
    place.failures_expected = True
    job = fork("calls_at_any_time", watched=False, **NO_SERVER)
    result = job.result()
    assert job.wait() == 0
    errors = job.errors()
    assert result["came_back"] >= 3 * result["calls"]
    lines = errors.splitlines()
    assert all(line.startswith("probe: ") for line in lines), errors
    words = sorted(line.split()[1] for line in lines)
    assert words == ["log", "probe.log", "probe.step", "probe.stop"], errors


def test_a_refused_folder_is_a_line_and_no_exception(
    fork: Callable[..., Forked], place: Place, tmp_path: Path
) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    os.chown(theirs, NOBODY, NOBODY)
    job = fork("calls_at_any_time", "--refused", watched=False, PROBE_DIR=str(theirs))
    assert job.result()["came_back"] == 3
    assert job.wait() == 0
    lines = job.errors().splitlines()
    assert len(lines) == 3 and all(line.startswith("probe: not recording: ") for line in lines), lines
    assert "belongs to user id" in lines[0] and "text, not int" in lines[1]


SQUATTED = """
set -e
mount --make-rprivate /
mount --bind "$sources" /mnt
mount -t tmpfs -o mode=1777 probe-test /tmp
case $sources in /tmp/*) mkdir -p "$sources"; mount --bind /mnt "$sources"; cd "$sources";; esac
usual=/tmp/probe-$(id -u)
mkdir "$usual" "$usual.1"
chown 65534 "$usual" "$usual.1"
ln -s /etc "$usual.2"
trap 'kill $(sed -n "s/.*\\"pid\\": \\([0-9]*\\).*/\\1/p" "$usual.3/server.json")' EXIT
"$@"
"$python" -m probe_cli ps --all
rm -r "$usual" "$usual.1" "$usual.2"
"$python" -m probe_cli ps --all
ls -d "$usual"*
"""


def test_a_name_that_somebody_took_first_hides_no_job_from_its_owner(place: Place) -> None:
    """/tmp/probe-UID and two names more are somebody else's: the job and the command meet at the next one,
    and the command goes there still when those have gone."""
    environ = {name: value for name, value in place.environ().items() if name != "PROBE_DIR"}
    environ |= {"PYTHONPATH": f"{ROOT}:{ROOT / 'cli'}", "python": sys.executable, "PROBE_NAME": "squatted",
                "sources": str(ROOT), **REAL_SERVER}
    command = [sys.executable, str(PROGRAMS / "calls_at_any_time.py")]
    done = subprocess.run(
        ["unshare", "--mount", "/bin/sh", "-c", SQUATTED, "sh", *command], env=environ, cwd=ROOT,
        capture_output=True, text=True, timeout=PATIENCE_S, check=False,
    )
    if "unshare" in done.stderr or "mount:" in done.stderr:
        pytest.skip(f"no namespace of its own can be made here: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    usual = f"/tmp/probe-{os.getuid()}"
    said = f"probe: {usual} belongs to user id {NOBODY}, not to {os.getuid()}, so {usual}.3 is used"
    assert [line for line in done.stderr.splitlines() if "is used" in line] == [
        f"{said}; the command `probe` finds it there. Set PROBE_DIR to use another folder"
    ]
    # Shown twice; the folder stays the one it was.
    assert done.stdout.count("squatted ") == 2 and done.stdout.splitlines()[-1] == f"{usual}.3"
