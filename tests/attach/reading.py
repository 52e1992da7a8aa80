"""What tests of reading from outside share: programs in a state, and what is picked from a look at them."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness import PATIENCE_S, PROGRAMS, Job
from probe.outside.processes import tasks
from probe.outside.stacks import outside_view

PYTHONS = sorted(Path.home().glob(".pyenv/versions/3.1[023].*/bin/python"))
OLDEST_AND_NEWEST = [
    python if python in (PYTHONS[0], PYTHONS[-1]) else pytest.param(python, marks=pytest.mark.campaign)
    for python in PYTHONS
]
Start = Callable[..., Job]


class Bare(Job):
    """A program without probe, in any Python."""

    def __init__(self, program: str, *options: str, folder: Path, python: str = sys.executable) -> None:
        quiet = {name: value for name, value in os.environ.items() if not name.startswith("PROBE")}
        with tempfile.NamedTemporaryFile("w", dir=folder, prefix="stderr-", delete=False) as errors:
            self._errors = Path(errors.name)
            self._process = subprocess.Popen(
                [python, str(PROGRAMS / f"{program}.py"), *options], env=quiet, stdin=subprocess.PIPE,
                stdout=subprocess.PIPE, stderr=errors, start_new_session=True,
            )
        self.pid = self._process.pid
        self._unread = b""


def until(seen: Callable[[dict[str, Any]], bool], pid: int, **wanted: Any) -> dict[str, Any]:
    """The first look that shows it: a program says READY just before it gets where it hangs."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        found = outside_view.read_stacks(pid, **wanted)
        if seen(found):
            return found
        assert time.monotonic() < deadline, f"never seen; last: {found}"
        time.sleep(0.05)


def in_function(*names: str) -> Callable[[dict[str, Any]], bool]:
    """Whether the innermost Python frame of some thread is in one of these functions."""
    return lambda found: any(innermost(thread)["func"] in names for thread in found["threads"])


def innermost(thread: dict[str, Any], kind: str = "Python") -> dict[str, Any]:
    empty: dict[str, Any] = {"func": None, "lineno": None}
    return next((frame for frame in thread["frames"] if frame["frame_type"] == kind), empty)


def named(found: dict[str, Any], name: str) -> dict[str, Any]:
    (thread,) = [thread for thread in found["threads"] if thread["thread_name"] == name]
    return thread


def functions(thread: dict[str, Any]) -> list[str]:
    return [frame["func"] for frame in thread["frames"]]


def line_of(program: str, text: str) -> int:
    lines = (PROGRAMS / f"{program}.py").read_text().splitlines()
    (number,) = [number for number, line in enumerate(lines, 1) if text in line]
    return number


def states(pid: int) -> set[str]:
    return {task.state for task in tasks.tasks(pid)}


def stuck_in_the_kernel(bare: Start, pipe: Path) -> Job:
    """A process in state D, until somebody opens the pipe for writing."""
    job = bare("outside_states", "is_stuck_in_the_kernel", str(pipe))
    while states(job.pid) != {"uninterruptible"}:
        assert tasks.tasks(job.pid), job.errors()
    return job


def set_free(job: Job, pipe: Path) -> None:
    """Ends the state D, and sees to it that the process goes on."""
    os.close(os.open(pipe, os.O_WRONLY))
    job.wait_for("FREE")
