"""Runs every test, for `tests/run`: first those that may run side by side, then, one at a time, those that
hold deadlines.

The type checker runs beside them, on what time the tests leave idle, and says what it found at the end. What
failed is repeated alone, once. A test that then passes is flaky, a defect: it is listed by name and counted
at the end.
`--quick` runs what starts no training process.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
LAST_FAILED = ROOT / ".pytest_cache" / "v" / "cache" / "lastfailed"
FAILED = 1
"""pytest's exit status when tests failed; others mean that it could not run them."""
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
"""Tests of pure code: linter and types before them, and all of it within 90 s."""


class Phase(NamedTuple):
    """Tests that run together: pytest's expression of markers, how many at once, the files that have any."""

    markers: str
    workers: int
    files: tuple[str, ...] = ()


def files_with(mark: str) -> tuple[str, ...]:
    """The test files that name a mark: the others need not be imported to select its tests."""
    return tuple(sorted(
        str(file.relative_to(ROOT)) for file in ROOT.glob("tests/**/test_*.py")
        if f"pytest.mark.{mark}" in file.read_text()
    ))


PHASES = (
    Phase("not campaign and not alone", 6),  # more than cores: tests wait for jobs most of the time
    Phase("alone and not campaign", 0, files_with("alone")),  # in pytest's own process
)


def pytest(*words: str) -> int:
    """Exit status of one run of pytest in the top folder."""
    return subprocess.run([sys.executable, "-m", "pytest", *words], cwd=ROOT, check=False).returncode


def last_failed() -> set[str]:
    """The tests that failed in the last run."""
    try:
        return set(json.loads(LAST_FAILED.read_text()))
    except FileNotFoundError:
        return set()


def run(phase: Phase) -> tuple[int, set[str]]:
    """Exit status of a phase, and its flaky tests."""
    status = pytest("-n", str(phase.workers), "--no-loadscope-reorder", "-m", phase.markers, *phase.files)
    if status != FAILED:
        return status, set()
    failed = last_failed()
    sys.stderr.write("once more, one after the other, what failed\n")
    status = pytest("--last-failed", "--last-failed-no-failures=none", "-m", phase.markers)
    return status, failed - last_failed()


def run_all(phases: Sequence[Phase]) -> int:
    """The worst exit status of these phases; says at the end which tests were flaky."""
    results = [run(phase) for phase in phases]
    flaky = sorted(set().union(*(names for _, names in results)))
    for name in flaky:
        sys.stderr.write(f"flaky: {name} failed once and passed when it was repeated\n")
    sys.stderr.write(f"flaky tests: {len(flaky)}\n")
    return max(status for status, _ in results)


def compile_tests() -> None:
    """In a fresh clone, compile the test files once: else all workers do so, each for itself, as they import
    the same files at the same time."""
    if not any(ROOT.glob("tests/*/__pycache__/test_*.pyc")):
        subprocess.run(
            [sys.executable, "-m", "pytest", "--collect-only", "-qq"], cwd=ROOT, check=False,
            stdout=subprocess.DEVNULL,
        )


def idle_only() -> None:
    """Let this process run when no other wants to: tests that hold deadlines do not notice it."""
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))


def main() -> int:
    """Run all phases, or the quick tests; the exit status of the worst."""
    if sys.argv[1:] == ["--quick"]:
        return pytest("-q", "-n", "2", *QUICK)
    with subprocess.Popen(
        [sys.executable, "-m", "mypy"], cwd=ROOT, stdout=subprocess.PIPE, preexec_fn=idle_only
    ) as types:
        compile_tests()
        status = run_all(PHASES)
        said, _ = types.communicate()
    sys.stderr.write(f"mypy: {said.decode()}")
    return max(types.returncode, status)


if __name__ == "__main__":
    sys.exit(main())
