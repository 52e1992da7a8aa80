"""Runs all tests for `tests/run`: first in parallel those that allow it, then those with deadlines alone.

During the second phase, tests that only compute use the idle processor time. The type checker runs on idle
time from the start and reports at the end. Failed tests are repeated once, alone. One that then passes is
flaky, which counts as a defect: it is listed at the end. `--quick` runs tests that start no training.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
FAILED = 1
"""pytest's exit status if tests failed; higher ones mean that it could not run them."""
QUICK = (
    "tests/test_layers.py", "tests/test_redaction.py", "tests/recipes", "tests/docs/test_declarations.py",
    *(f"tests/cli/test_{name}.py" for name in (
        "acting", "all_ranks_said", "answers", "arguments", "commands", "comparing", "endpoints", "errors",
        "grid", "monitoring",
    )),
    *(f"tests/control/test_{name}.py" for name in (
        "checkpoint_file", "guard", "interventions", "output", "rates", "schedules",
    )),
    *(f"tests/diagnose/test_{name}.py" for name in ("incidents", "ranks", "ranks_alignment", "state")),
    "tests/cluster/test_identity.py", "tests/instruments/test_statistics.py",
    "tests/server/test_cut_answers.py", "tests/server/test_ends.py", "tests/server/test_run_incidents.py",
)
"""Tests of pure code for `--quick`, which runs linter and type checker first and takes at most 90 s."""
UNHURRIED = (
    *QUICK, "tests/archive/test_compaction.py", "tests/cli/test_reference.py", "tests/client/test_answer.py",
    "tests/control/test_checkpoint_ranks.py", "tests/fleet/test_questions.py",
    "tests/instruments/test_graph_shape.py", "tests/server/test_segments.py", "tests/startup/test_hook.py",
)
"""Tests that only compute: in parallel with tests that have deadlines they would slow those down."""


class Phase(NamedTuple):
    """Tests that run together: pytest's marker expression, number of workers, files to run (empty: all),
    files left to another phase, and pytest's cache folder (concurrent phases need different ones)."""

    markers: str
    workers: int
    files: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    cache: str = ".pytest_cache"


def files_with(mark: str) -> tuple[str, ...]:
    """The test files that use a mark, so that pytest need not import the others."""
    return tuple(sorted(
        str(file.relative_to(ROOT)) for file in ROOT.glob("tests/**/test_*.py")
        if f"pytest.mark.{mark}" in file.read_text()
    ))


SIDE_BY_SIDE = Phase("not campaign and not alone", 4, without=UNHURRIED)
"""More workers than cores, since tests wait for jobs; but each worker imports all tests."""
ALONE = Phase("alone and not campaign", 0, files_with("alone"))
"""Run one at a time, in pytest's own process."""
IN_IDLE_TIME = Phase("not campaign and not alone", 2, UNHURRIED, cache=".pytest_cache/unhurried")
"""Run during `ALONE`, whose tests leave processor time idle while they wait."""


def command(phase: Phase, *words: str) -> list[str]:
    """The command line for one run of pytest in the repository's root."""
    return [
        sys.executable, "-m", "pytest", "-o", f"cache_dir={phase.cache}", "-m", phase.markers, *words,
    ]


def all_of(phase: Phase) -> list[str]:
    """The command line that runs a phase."""
    ignored = [f"--ignore={name}" for name in phase.without]
    return command(phase, "-n", str(phase.workers), "--no-loadscope-reorder", *ignored, *phase.files)


def last_failed(phase: Phase) -> set[str]:
    """The tests that failed in the last run."""
    try:
        return set(json.loads((ROOT / phase.cache / "v" / "cache" / "lastfailed").read_text()))
    except FileNotFoundError:
        return set()


def once_more(phase: Phase, status: int) -> tuple[int, set[str]]:
    """Repeat the failed tests of a phase, if any; return the exit status and the flaky tests."""
    if status != FAILED:
        return status, set()
    failed = last_failed(phase)
    sys.stderr.write("once more, one after the other, what failed\n")
    again = command(phase, "--last-failed", "--last-failed-no-failures=none")
    status = subprocess.run(again, cwd=ROOT, check=False).returncode
    return status, failed - last_failed(phase)


def run(phase: Phase) -> tuple[int, set[str]]:
    """Run a phase; return its exit status and its flaky tests."""
    return once_more(phase, subprocess.run(all_of(phase), cwd=ROOT, check=False).returncode)


def run_all(phases: Sequence[Phase], idle: Phase | None = None) -> int:
    """Run phases one after the other, and `idle` during the last one on idle time. Return the worst exit
    status; report flaky tests at the end."""
    *before, last = phases
    results = [run(phase) for phase in before]
    if idle is None:
        results.append(run(last))
    else:
        with on_idle_time(all_of(idle)) as process:
            results.append(run(last))
            take_all_time(process)
            said, _ = process.communicate()
        sys.stderr.write(said.decode())
        results.append(once_more(idle, process.returncode))
    flaky = sorted(set().union(*(names for _, names in results)))
    for name in flaky:
        sys.stderr.write(f"flaky: {name} failed once and passed when it was repeated\n")
    sys.stderr.write(f"flaky tests: {len(flaky)}\n")
    return max(status for status, _ in results)


def compile_tests() -> None:
    """Compile the test files, which matters in a fresh clone: otherwise all workers import the same files at
    the same time, and each compiles them again."""
    if any(ROOT.glob("tests/*/__pycache__/test_*.pyc")):
        return
    files = sorted(str(file.relative_to(ROOT)) for file in ROOT.glob("tests/**/test_*.py"))
    halves = [
        subprocess.Popen(
            [sys.executable, "-m", "pytest", "--collect-only", "-qq", "-p", "no:cacheprovider", *half],
            cwd=ROOT, stdout=subprocess.DEVNULL,
        )
        for half in (files[::2], files[1::2])
    ]
    for one in halves:
        one.wait()


def idle_only() -> None:
    """Give this process idle priority, so it does not disturb tests with deadlines. Where the kernel divides
    time among sessions (autogroup), the session gets the lowest priority too."""
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    rank_of_session("self", 19)


def rank_of_session(pid: int | str, nice: int) -> None:
    """Set the priority of a process's session, if the kernel has autogroup."""
    with contextlib.suppress(OSError):
        Path(f"/proc/{pid}/autogroup").write_text(str(nice))


@contextlib.contextmanager
def on_idle_time(words: Sequence[str]) -> Iterator[subprocess.Popen[bytes]]:
    """A process with idle priority; killed with its children if the block fails."""
    with subprocess.Popen(
        words, cwd=ROOT, stdout=subprocess.PIPE, start_new_session=True, preexec_fn=idle_only
    ) as process:
        try:
            yield process
        except BaseException:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            raise


def take_all_time(process: subprocess.Popen[bytes]) -> None:
    """Restore normal priority when the process is waited for: a busy machine has no idle time."""
    rank_of_session(process.pid, 0)
    for folder in Path("/proc").glob("[0-9]*/task/[0-9]*"):
        with contextlib.suppress(OSError):  # it ended, or the kernel does not allow leaving the idle policy
            if os.getsid(int(folder.parts[2])) == process.pid:
                os.sched_setscheduler(int(folder.name), os.SCHED_OTHER, os.sched_param(0))


def main() -> int:
    """Run all phases, or the quick tests, and return the worst exit status."""
    if sys.argv[1:] == ["--quick"]:
        quick = [sys.executable, "-m", "pytest", "-q", "-n", str(IN_IDLE_TIME.workers), *QUICK]
        return subprocess.run(quick, cwd=ROOT, check=False).returncode
    with on_idle_time([sys.executable, "-m", "mypy"]) as types:
        compile_tests()
        status = run_all([SIDE_BY_SIDE, ALONE], IN_IDLE_TIME)
        take_all_time(types)
        said, _ = types.communicate()
    sys.stderr.write(f"mypy: {said.decode()}")
    return max(types.returncode, status)


if __name__ == "__main__":
    sys.exit(main())
