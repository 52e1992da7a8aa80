"""Reads native stacks of another process: C and C++ frames between Python frames, and threads without Python.

pystack stops the process with ptrace while it reads (0.1–0.4 s with torch). It runs in a child process
(`native_process`) with a time limit; if it leaves the process stopped, the process is continued. Runs in the
command and in the server, on any thread. Standard library only.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from typing import Any

from probe.outside.processes import tasks
from probe.outside.processes.tasks import Task
from probe.outside.stacks import pyspy

LONGEST_S = 10.0
"""A read that takes longer counts as hung. With torch 0.3–0.9 s were measured."""
_SHORTEST_S = 0.3
"""With less time left no read is started: killing one half-way disturbs the process more."""


class NativeUnavailable(Exception):
    """Native stacks could not be read; the message says why."""


def read(
    pid: int, kernel: Mapping[int, Task], *, all_threads: bool, locals: bool, timeout_s: float,
    notes: list[str],
) -> list[dict[str, Any]]:
    """The threads as `native_process` prints them, frames innermost first.

    Adds to `notes` how long the process was stopped at most, and whether it had to be continued. Raises
    `NativeUnavailable` when they cannot be read, or trying would hang."""
    why = _why_not(pid, kernel)
    if why is not None:
        raise NativeUnavailable(why)
    limit_s = min(LONGEST_S, timeout_s)
    if limit_s < _SHORTEST_S:
        raise NativeUnavailable("no time was left")
    words = [sys.executable, "-m", "probe.outside.stacks.native_process", str(pid)]
    words += ["--all-threads"] * all_threads + ["--locals"] * locals
    was_stopped = any(task.state == "stopped" for task in kernel.values())
    code, out, said = pyspy.run(words, limit_s, pid, was_stopped, notes, _environment())
    if code is None:
        raise NativeUnavailable(f"pystack did not answer within {limit_s:.1f} s")
    found = _answer(out, f"pystack ended with code {code}: {said.strip().rpartition(chr(10))[2]}")
    if not was_stopped:
        notes.append(f"the process was stopped for up to {found['stopped_ms']} ms to read native frames")
    threads: list[dict[str, Any]] = found["threads"]
    return threads


def _answer(out: bytes, otherwise: str) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(out.strip().rpartition(b"\n")[2])
    except ValueError:
        raise NativeUnavailable(otherwise) from None
    if "error" in found:
        raise NativeUnavailable(f"pystack: {found['error']}")
    return found


def _why_not(pid: int, kernel: Mapping[int, Task]) -> str | None:
    """Why no read is tried; None when it may work."""
    stuck = tasks.stuck(pid, kernel.values())
    if stuck:
        return f"thread {stuck[0].tid} is in an uninterruptible call and cannot be stopped until it returns"
    tracer = tasks.tracer(pid)
    if tracer:
        return f"process {tracer} ({tasks.name_of(tracer) or 'hidden'}) traces it already"
    if tasks.in_other_namespace(pid, "mnt"):
        return "it runs in a container with other library files"
    return None


def _environment() -> dict[str, str]:
    """Variables to add to the environment: the folders that probe is imported from, never the working
    directory.

    No debug information is fetched from the network, because the job is stopped during the read."""
    from probe.boot.launch import import_paths  # most reads do not need it

    found = [*import_paths(("probe", "pystack")), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    return {
        "PYTHONPATH": os.pathsep.join(filter(None, found)), "PYTHONSAFEPATH": "1", "DEBUGINFOD_URLS": "",
    }
