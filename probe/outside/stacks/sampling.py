"""Samples the Python stacks of processes over some seconds, for flame graphs.

One py-spy runs for each process, all at the same time, each in a session of its own and with a time limit.
Unless native frames are requested, py-spy only reads memory, a hundred times a second: no process is stopped,
so threads that a stop would hang are safe. Runs in the command, on any thread. Standard library only.
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from probe.base import package
from probe.outside.processes import tasks
from probe.outside.stacks import pyspy

Stack = tuple[str, ...]
"""Frames as `function (file:line)`, outermost first; the line is the function's first."""
START_S = 10.0
"""Time in addition to the sampling: py-spy reads the symbols of the process first, 0.2 s with torch."""
_THREAD = re.compile(r"thread \((0x[0-9A-Fa-f]+|\d+)\)(?:: ([^;]*))?;")
_ROOTS = ("<module>", "_bootstrap", "_run_module_as_main")


class Request(NamedTuple):
    """What to sample: a process, the kernel's id of one of its threads (None: its main thread), and whether
    to stop it at each sample for native frames."""

    pid: int
    thread: int | None
    native: bool


class Samples(NamedTuple):
    """How often each stack was seen, and why there are none or fewer."""

    stacks: Counter[Stack]
    notes: list[str]


@contextmanager
def sampling(requests: Sequence[Request], seconds: int, rate_hz: int) -> Iterator[Running]:
    """Sample all of them for `seconds`; `Running.results` waits for the end. At exit, no py-spy is left
    running and no process stopped. Raises `StacksUnavailable` when py-spy is not installed."""
    with tempfile.TemporaryDirectory(prefix="probe-flame-") as folder:
        running = Running(requests, Path(folder), seconds)
        try:
            running.start(seconds, rate_hz)
            yield running
        finally:
            running.close()


class Running:
    """The py-spys, one for each request."""

    def __init__(self, requests: Sequence[Request], folder: Path, seconds: int) -> None:
        self._requests = requests
        self._folder = folder
        self._deadline = time.monotonic() + seconds + START_S
        self._was_stopped = [
            any(task.state == "stopped" for task in tasks.tasks(one.pid)) for one in requests
        ]
        self._processes: list[subprocess.Popen[bytes]] = []

    def start(self, seconds: int, rate_hz: int) -> None:
        """Start them all; raises `StacksUnavailable`."""
        environ = {name: value for name, value in os.environ.items() if name != "PROBE"}
        tool = pyspy.program() if self._requests else ""
        for place, one in enumerate(self._requests):
            words = [
                tool, "record", "--pid", str(one.pid), "--format", "raw", "--duration", str(seconds),
                "--rate", str(rate_hz), "--output", str(self._folder / f"{place}.raw"), "--idle", "--threads",
                "--function", "--native" if one.native else "--nonblocking",
            ]
            with (self._folder / f"{place}.said").open("wb") as said:
                self._processes.append(subprocess.Popen(
                    words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=said,
                    env={**environ, "RUST_BACKTRACE": "0"}, start_new_session=True,
                ))

    def results(self) -> list[Samples]:
        """The samples, in the order of the requests; blocks until they are taken."""
        return [self._result(place) for place in range(len(self._requests))]

    def _result(self, place: int) -> Samples:
        try:
            code: int | None = self._processes[place].wait(max(0.0, self._deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            return Samples(Counter(), ["py-spy did not answer in time"])
        file = self._folder / f"{place}.raw"
        if code != 0 or not file.exists():
            said = (self._folder / f"{place}.said").read_text(errors="replace")
            return Samples(Counter(), [f"py-spy: {pyspy.first_words(said)}"])
        return _parsed(package.without_detour(file.read_text(errors="replace")), self._requests[place])

    def close(self) -> None:
        """End every py-spy, and continue processes that a killed one left stopped."""
        for process in self._processes:
            if process.poll() is None:
                process.terminate()
        for one, process, was_stopped in zip(
            self._requests, self._processes, self._was_stopped, strict=False
        ):
            try:
                process.wait(1.0)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            if one.native and process.returncode < 0:
                pyspy.continue_if_left_stopped(one.pid, was_stopped)


def _parsed(text: str, wanted: Request) -> Samples:
    """The stacks of the requested thread. A torn one, read while the process changed it, does not begin where
    the others do, and is left out."""
    threads: dict[str, Counter[Stack]] = {}
    main = None
    for line in text.splitlines():
        frames, _, number = line.rpartition(" ")
        match = _THREAD.match(frames)
        stack = tuple(frames.split(";")[1:])
        if match is None or not number.isdigit() or not stack:
            continue
        threads.setdefault(match[1], Counter())[stack] += int(number)
        if match[2] == "MainThread":
            main = match[1]
    # Before Python 3.11 the kernel's id is not read without a stop, and in a container it differs.
    found = threads.get(str(wanted.thread or wanted.pid)) or threads.get(main or "") or Counter()
    roots: Counter[str] = Counter()
    for stack, many in found.items():
        roots[stack[0]] += many
    usual = [one for one, _ in roots.most_common(1)]
    whole = Counter({
        one: many for one, many in found.items() if one[0] in usual or _function(one[0]) in _ROOTS
    })
    if not found:
        return Samples(whole, ["py-spy saw no Python frame of its training thread"])
    torn = found.total() - whole.total()
    return Samples(whole, [f"{torn} of {found.total()} samples were torn: left out"] if torn else [])


def _function(frame: str) -> str:
    return frame.partition(" (")[0].rpartition(".")[2]
