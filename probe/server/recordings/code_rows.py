"""Rows of python.code: mistakes in a program's source, found by a child process with a deadline.

The child reads files and prints rows. It imports and runs nothing of the program, and limits its own memory
and processor time; a file that crashes Python's parser ends only the child. Thread `probe-facts`, which
waits for `WAIT_S` at most. Standard library only.
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
WAIT_S = 1.0
"""How long to wait for an answer each time: most programs take less, and other facts are due in between."""
LARGEST_BYTES = 1 << 20
"""Size of the child's answer; a longer one is dropped."""
SLACK_NS = 20_000_000
"""A process's start is known to 10 ms, a file's modification time to a kernel tick."""


class Reading:
    """A child process that reads the program that starts with `script` in the working directory `folder` and
    imports from `paths` (empty: unknown). A file that changed after `started_ns` is not the code that runs,
    and is only named. On a busy machine this takes many seconds, so `rows` is called until it has them."""

    def __init__(self, script: Path, started_ns: int, folder: str, paths: Sequence[str]) -> None:
        self._script = script
        self._ends_s = time.monotonic() + DEADLINE_S
        words = [str(script), str(started_ns), folder, *(path for path in paths if "\0" not in path)]
        self._child = subprocess.Popen(
            [sys.executable, "-I", "-S", "-B", child.__file__, *words], cwd="/", env={},
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self.pid = self._child.pid

    def rows(self) -> list[dict[str, Any]] | None:
        """What it found, after a wait of `WAIT_S` at most; None while it still reads. One row that says so if
        it fails or takes too long."""
        try:
            answer = self._child.communicate(timeout=WAIT_S)[0]
            rows = json.loads(answer) if len(answer) <= LARGEST_BYTES else []
        except subprocess.TimeoutExpired:
            if time.monotonic() < self._ends_s:
                return None
            self.end()
            return [not_read(self._script, "reading it took too long")]
        except ValueError:
            return [not_read(self._script, "the process that reads it failed")]
        now = clock.wall_ns()
        return [{"t_ns": now, **row} for row in rows]

    def end(self) -> None:
        """Stop it while it still reads."""
        self._child.kill()
        self._child.communicate()


def began_ns(meta: Meta) -> int:
    """When the process started: before its recording began, and long before if it was attached to. It may
    have read a file that changed later in either version."""
    if not meta.start_ticks:
        return meta.started_ns
    age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - meta.start_ticks / os.sysconf("SC_CLK_TCK")
    return min(meta.started_ns, clock.wall_ns() - int(age_s * 1e9) + SLACK_NS)


def not_read(script: Path, why: str) -> dict[str, Any]:
    """The row of a program that was not read."""
    return {"t_ns": clock.wall_ns(), "file": str(script), "state": "not read", "said": why}
