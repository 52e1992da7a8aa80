"""Stacks of a job that hung in a test, and of its children: they explain a hang that does not come again."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

LONGEST_S = 30.0


def stacks_of_all(pid: int) -> str:
    """The stacks of a process and of its descendants, with native frames, and where each thread waits in the
    kernel."""
    return "\n".join(_stacks(one) for one in (pid, *_descendants(pid)))


def _descendants(pid: int) -> list[int]:
    found: list[int] = []
    for file in Path("/proc").glob(f"{pid}/task/*/children"):
        for child in map(int, _text(file).split()):
            found += [child, *_descendants(child)]
    return found


def _stacks(pid: int) -> str:
    py_spy = shutil.which("py-spy") or str(Path(sys.executable).with_name("py-spy"))
    command = [py_spy, "dump", "--native", "--pid", str(pid)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LONGEST_S, check=False)
        said = done.stdout or done.stderr
    except (OSError, subprocess.TimeoutExpired) as error:
        said = repr(error)
    waits = [f"{task.name} {_text(task / 'wchan')}" for task in sorted(Path(f"/proc/{pid}/task").glob("*"))]
    return f"process {pid}, waiting in {', '.join(waits)}:\n{said}"


def _text(file: Path) -> str:
    try:
        return file.read_text()
    except OSError:
        return ""
