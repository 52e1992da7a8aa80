"""Measures attaching in every state of a job: success, duration, and disturbance of the job.

    python bench/attach.py [--targets N] [--states NAME …] [--quick]

For each state, attaches once to each of N fresh processes of `tests/programs/attach_states.py`, shortly after
it reports that it is ready; the first attach is the dangerous one, because it loads the library. Each process
checks its own arithmetic throughout. The main thread's pause is the longest gap between two iterations of its
loop, for states that iterate many times a second; next to it is the longest gap of processes that ran as long
without an attach. If gdb is installed, the runs are repeated without it. Prints Markdown.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from overhead import HERE, PROGRAMS, places

sys.path.insert(0, str(HERE.parent))

from probe.base.errors import ProbeError
from probe.outside.attach.attaching import attach

STATES = {
    "sleep": "`time.sleep`", "lock": "waits for a lock", "recv": "waits for a socket",
    "join": "waits for a thread that waits for a lock", "busy": "computes in Python",
    "many": "computes in Python, 64 threads wait", "numpy": "computes in numpy, 5 threads",
    "torch": "computes in torch, 4 threads in C++", "allocate": "allocates in C, GIL released",
    "multiply": "computes in C, GIL released, calls nothing",
}
TICKS = frozenset({"busy", "many", "numpy", "torch"})
"""States whose main thread iterates every few milliseconds."""
WITHOUT_GDB = ("join", "many", "numpy", "torch")
WAIT_S = 60.0
BEFORE_S, AFTER_S = 0.2, 0.3


class Try(NamedTuple):
    """One process: the problem if attaching failed, its times, and the process's own results."""

    problem: str
    took_ms: float
    stopped_ms: float | None
    gap_ms: float | None
    wrong: int
    died: bool


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--targets", type=int, default=20, help="processes for each state")
    parser.add_argument("--states", nargs="+", choices=list(STATES), default=list(STATES))
    parser.add_argument("--quick", action="store_true", help="one process each, as a smoke test")
    arguments = parser.parse_args()
    count = 1 if arguments.quick else arguments.targets
    print(f"{os.cpu_count()} cores, Linux {platform.release()}, Python {platform.python_version()}, "
          f"{gdb_version()}; load average {os.getloadavg()[0]:.1f} at the start\n")
    with places() as (work, environment), compiled() as loops:
        os.environ.update(environment)
        directory = work / "probe"
        table("With gdb", arguments.states, count, loops, directory)
        with without_gdb():
            table("Without gdb: pyinjector", [state for state in arguments.states if state in WITHOUT_GDB],
                  count, loops, directory)
    print(f"Load average at the end: {os.getloadavg()[0]:.1f}.")


def table(title: str, states: list[str], count: int, loops: str, directory: Path) -> None:
    """Run and print one table."""
    print(f"### {title}\n")
    print("| job | attached | median | longest | stopped | longest gap "
          "| without attach | wrong results | deaths |")
    print("|---|---|---|---|---|---|---|---|---|", flush=True)
    for state in states:
        tries = [one(state, loops, directory) for _ in range(count)]
        ran_s = median(found.took_ms for found in tries) / 1e3 + BEFORE_S + AFTER_S
        alone = [left_alone(state, loops, ran_s) for _ in range(min(count, 5))] if state in TICKS else []
        well = [found for found in tries if not found.problem]
        gaps = [found.gap_ms for found in tries if found.gap_ms is not None]
        stopped = [found.stopped_ms for found in well if found.stopped_ms is not None]
        print(
            f"| {STATES[state]} | {len(well)}/{count} | {ms([found.took_ms for found in well])} "
            f"| {ms([found.took_ms for found in well], max)} | {ms(stopped)} "
            f"| {ms(gaps) if state in TICKS else ''} | {ms(alone)} "
            f"| {sum(found.wrong for found in tries)} | {sum(found.died for found in tries)} |", flush=True,
        )
        for problem in sorted({found.problem for found in tries if found.problem}):
            print(f"{state}: {problem}", file=sys.stderr)
    print()


def ms(values: list[float], which: Any = median) -> str:
    """A time for the table; empty without values."""
    return f"{which(values):,.0f} ms" if values else ""


def one(state: str, loops: str, directory: Path) -> Try:
    """Start a process, attach to it, let it end."""
    with started(state, loops) as process:
        time.sleep(BEFORE_S)
        began = time.monotonic()
        problem, stopped_ms = "", None
        try:
            found = attach(process.pid, dict(settings()), directory=directory, wait_s=WAIT_S)
            stopped_ms = None if found.paused_s is None else found.paused_s * 1e3
        except ProbeError as error:
            problem = f"{type(error).__name__}: {error.message}"
        took_ms = (time.monotonic() - began) * 1e3
        time.sleep(AFTER_S)
        result = ended(process)
        return Try(
            problem, took_ms, stopped_ms, result.get("longest_gap_ms"), result.get("wrong", 0), not result
        )


def left_alone(state: str, loops: str, run_s: float) -> float:
    """The longest gap, in ms, of a process without an attach."""
    with started(state, loops) as process:
        time.sleep(run_s)
        return float(ended(process)["longest_gap_ms"])


def settings() -> Iterator[tuple[str, str]]:
    """Settings for the agent: the private folders."""
    yield from ((name, value) for name, value in os.environ.items() if name.startswith("PROBE_"))


@contextlib.contextmanager
def started(state: str, loops: str) -> Iterator[subprocess.Popen[str]]:
    """A process in that state, killed at the end."""
    quiet = {name: value for name, value in os.environ.items() if not name.startswith("PROBE")}
    process = subprocess.Popen(
        [sys.executable, str(PROGRAMS / "attach_states.py"), state, loops], env=quiet, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True,
    )
    assert process.stdout is not None
    try:
        assert process.stdout.readline().strip() == "READY"
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def ended(process: subprocess.Popen[str]) -> dict[str, Any]:
    """The process's own results; empty if it did not end normally."""
    process.send_signal(signal.SIGUSR1)
    try:
        said, _ = process.communicate(timeout=WAIT_S)
    except subprocess.TimeoutExpired:
        return {}
    lines = [line for line in said.splitlines() if line.startswith("RESULT ")]
    return json.loads(lines[-1].removeprefix("RESULT ")) if lines and process.returncode == 0 else {}


@contextlib.contextmanager
def compiled() -> Iterator[str]:
    """Compile attach_loops.c into a library."""
    with tempfile.TemporaryDirectory() as folder:
        made = str(Path(folder) / "loops.so")
        source = str(PROGRAMS / "attach_loops.c")
        subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", made, source], check=True)
        yield made


@contextlib.contextmanager
def without_gdb() -> Iterator[None]:
    """Remove gdb from PATH."""
    before = os.environ["PATH"]
    found = shutil.which("gdb")
    kept = [entry for entry in before.split(os.pathsep) if not os.path.exists(os.path.join(entry, "gdb"))]
    os.environ["PATH"] = os.pathsep.join(kept) if found else before
    try:
        yield
    finally:
        os.environ["PATH"] = before


def gdb_version() -> str:
    """`gdb 13.1`, or `no gdb`."""
    program = shutil.which("gdb")
    if program is None:
        return "no gdb"
    done = subprocess.run([program, "--version"], capture_output=True, text=True, check=False)
    return "gdb " + done.stdout.splitlines()[0].split()[-1]


if __name__ == "__main__":
    main()
