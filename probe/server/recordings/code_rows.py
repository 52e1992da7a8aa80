"""Rows of python.code: mistakes in a program's source, found by a child process with a deadline.

The child reads files and prints rows; it imports and runs nothing of the program, and a file that Python's
parser cannot survive ends the child alone. Blocks; thread `probe-facts`. Standard library only.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from probe.base import clock

DEADLINE_S = 20.0
LARGEST_BYTES = 1 << 20
"""Size of the child's answer; a longer one is not taken."""
PACKAGE = Path(__file__).parents[3]
"""The folder that holds the package `probe`."""


def code_rows(script: Path, started_ns: int, folder: str) -> list[dict[str, Any]]:
    """The rows of the program that starts with `script` in the working directory `folder`. A file that
    changed after `started_ns` is not what runs, and is only named. Without an answer in time, one row that
    says so."""
    command = [
        sys.executable, "-S", "-m", "probe.diagnose.code", str(script), str(started_ns),
        *([folder] if folder else []),
    ]
    variables = {"PYTHONPATH": str(PACKAGE), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(
            command, cwd="/", env=variables, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, timeout=DEADLINE_S, check=True, start_new_session=True,
        )
        rows = json.loads(done.stdout) if len(done.stdout) <= LARGEST_BYTES else []
    except subprocess.TimeoutExpired:
        rows = [_not_read(script, "reading it took too long")]
    except (OSError, subprocess.CalledProcessError, ValueError):
        rows = [_not_read(script, "the process that reads it failed")]
    now = clock.wall_ns()
    return [{"t_ns": now, **row} for row in rows]


def _not_read(script: Path, why: str) -> dict[str, Any]:
    return {"file": str(script), "state": "not read", "said": why}
