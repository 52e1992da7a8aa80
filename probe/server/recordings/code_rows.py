"""Rows of python.code: mistakes in a program's source, found by a child process with a deadline.

The child reads files and prints rows. It imports and runs nothing of the program, and limits its own memory
and processor time; a file that crashes Python's parser ends only the child. Blocks; thread `probe-facts`.
Standard library only.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from probe.base import clock
from probe.diagnose.code import __main__ as child
from probe.recording.recording import Meta

DEADLINE_S = 30.0
LARGEST_BYTES = 1 << 20
"""Size of the child's answer; a longer one is dropped."""
SLACK_NS = 20_000_000
"""A process's start is known to 10 ms, a file's modification time to a kernel tick."""


def code_rows(script: Path, started_ns: int, folder: str, paths: Sequence[str]) -> list[dict[str, Any]]:
    """The rows of the program that starts with `script` in the working directory `folder` and imports from
    `paths` (empty: unknown). A file that changed after `started_ns` is not the code that runs, and is only
    named. Without an answer in time, one row that says so."""
    words = [str(script), str(started_ns), folder, *(path for path in paths if "\0" not in path)]
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-B", child.__file__, *words], cwd="/", env={}, check=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=DEADLINE_S,
            start_new_session=True,
        )
        rows = json.loads(done.stdout) if len(done.stdout) <= LARGEST_BYTES else []
    except subprocess.TimeoutExpired:
        rows = [_not_read(script, "reading it took too long")]
    except (OSError, subprocess.CalledProcessError, ValueError):
        rows = [_not_read(script, "the process that reads it failed")]
    now = clock.wall_ns()
    return [{"t_ns": now, **row} for row in rows]


def began_ns(meta: Meta) -> int:
    """When the process started: before its recording began, and long before if it was attached to. It may
    have read a file that changed later in either version."""
    if not meta.start_ticks:
        return meta.started_ns
    age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - meta.start_ticks / os.sysconf("SC_CLK_TCK")
    return min(meta.started_ns, clock.wall_ns() - int(age_s * 1e9) + SLACK_NS)


def _not_read(script: Path, why: str) -> dict[str, Any]:
    return {"file": str(script), "state": "not read", "said": why}
