"""Runs every test, for `tests/run`: first those that may run side by side, then, one at a time, those that
hold deadlines, and on the time that these leave idle those that wait for nothing.

The type checker runs on idle time from the start, and says what it found at the end. What failed is repeated
alone, once. A test that then passes is flaky, a defect: it is listed by name and counted at the end.
`--quick` runs what starts no training process.
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
UNHURRIED = (
    *QUICK, "tests/archive/test_compaction.py", "tests/cli/test_reference.py", "tests/client/test_answer.py",
    "tests/control/test_checkpoint_ranks.py", "tests/fleet/test_questions.py",
    "tests/instruments/test_graph_shape.py", "tests/server/test_segments.py", "tests/startup/test_hook.py",
)
"""They compute and wait for nothing, so beside others they take time from those that hold deadlines."""


class Phase(NamedTuple):
    """Tests that run together: pytest's expression of markers, how many at once, the files that have any, the
    files that are left to another phase, and pytest's folder for what failed: two phases at once have two."""

    markers: str
    workers: int
    files: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    cache: str = ".pytest_cache"


def files_with(mark: str) -> tuple[str, ...]:
    """The test files that name a mark: the others need not be imported to select its tests."""
    return tuple(sorted(
        str(file.relative_to(ROOT)) for file in ROOT.glob("tests/**/test_*.py")
        if f"pytest.mark.{mark}" in file.read_text()
    ))


SIDE_BY_SIDE = Phase("not campaign and not alone", 4, without=UNHURRIED)
"""More at once than there are cores, since tests wait for jobs; each more costs the imports of all tests."""
ALONE = Phase("alone and not campaign", 0, files_with("alone"))
"""In pytest's own process."""
IN_IDLE_TIME = Phase("not campaign and not alone", 2, UNHURRIED, cache=".pytest_cache/unhurried")
"""Beside tests that run alone, and wait, there is time enough."""


def command(phase: Phase, *words: str) -> list[str]:
    """Of one run of pytest in the top folder."""
    return [
        sys.executable, "-m", "pytest", "-o", f"cache_dir={phase.cache}", "-m", phase.markers, *words,
    ]


def all_of(phase: Phase) -> list[str]:
    """The command that runs a phase."""
    ignored = [f"--ignore={name}" for name in phase.without]
    return command(phase, "-n", str(phase.workers), "--no-loadscope-reorder", *ignored, *phase.files)


def last_failed(phase: Phase) -> set[str]:
    """The tests that failed in the last run."""
    try:
        return set(json.loads((ROOT / phase.cache / "v" / "cache" / "lastfailed").read_text()))
    except FileNotFoundError:
        return set()


def once_more(phase: Phase, status: int) -> tuple[int, set[str]]:
    """Repeat what failed in a phase, if anything did: its exit status, and the flaky tests."""
    if status != FAILED:
        return status, set()
    failed = last_failed(phase)
    sys.stderr.write("once more, one after the other, what failed\n")
    again = command(phase, "--last-failed", "--last-failed-no-failures=none")
    status = subprocess.run(again, cwd=ROOT, check=False).returncode
    return status, failed - last_failed(phase)


def run(phase: Phase) -> tuple[int, set[str]]:
    """Exit status of a phase, and its flaky tests."""
    return once_more(phase, subprocess.run(all_of(phase), cwd=ROOT, check=False).returncode)


def run_all(phases: Sequence[Phase], idle: Phase | None = None) -> int:
    """The worst exit status of phases, one after the other, and of `idle`, on the time that the last of them
    leaves idle; says at the end which tests were flaky."""
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
    """In a fresh clone, compile the test files once: else all workers do so, each for itself, as they import
    the same files at the same time."""
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
    """Let this process run when no other wants to: tests that hold deadlines do not notice it. Where the
    kernel shares time among sessions, a policy counts within one, so the session gets the last rank, too."""
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    rank_of_session("self", 19)


def rank_of_session(pid: int | str, nice: int) -> None:
    """The rank of a process's session, where sessions have one."""
    with contextlib.suppress(OSError):
        Path(f"/proc/{pid}/autogroup").write_text(str(nice))


@contextlib.contextmanager
def on_idle_time(words: Sequence[str]) -> Iterator[subprocess.Popen[bytes]]:
    """A process that takes no time that another wants; killed, with its children, where the block fails."""
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
    """What runs on idle time is waited for from now on: on a busy machine there would be none."""
    rank_of_session(process.pid, 0)
    for folder in Path("/proc").glob("[0-9]*/task/[0-9]*"):
        with contextlib.suppress(OSError):  # it ended, or the kernel lets nobody leave that policy
            if os.getsid(int(folder.parts[2])) == process.pid:
                os.sched_setscheduler(int(folder.name), os.SCHED_OTHER, os.sched_param(0))


def main() -> int:
    """Run all phases, or the quick tests; the exit status of the worst."""
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
