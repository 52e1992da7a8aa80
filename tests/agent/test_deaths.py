"""How a process died is told apart and kept, in `ps` and in the tables; and the job notices nothing."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from agent.asking import ask, evaluate, kill_server, listed, query, states, tell
from agent.nursery import Forked, Nursery, forked
from agent.test_pythons import interpreter
from harness import PATIENCE_S, PROGRAMS, ROOT, Job, Place, run_probe, wait_for_end
from probe.job.agent.endings import message_of
from probe.recording import places
from probe.recording.crash import read_crash
from probe.recording.journal import read_journal
from probe.server.recordings import exit_report
from probe.server.watch.oom import KernelLog
from server.beside import until

STEPS = 6
"""The job cannot start one: only the commands of the test do."""
DEATHS: dict[str, tuple[str, str, int | None, str]] = {
    "return": ("finished", "finished", 0, "ok"),
    "exception": ("failed", "exception Trouble: something of the user's own is wrong", 1, "alarm"),
    "exception in the training thread": (
        "failed", "exception Trouble: something of the user's own is wrong in thread user-thread", 0, "alarm",
    ),
    "sys.exit": ("failed", "exit status 3", 3, "alarm"),
    "KeyboardInterrupt": ("failed", "interrupted", -2, "notice"),
    "os._exit": ("failed", "os._exit(3)", 3, "alarm"),
    "SIGKILL": ("dead", "SIGKILL", -9, "alarm"),
    "SIGTERM": ("dead", "SIGTERM", -15, "alarm"),
    "SIGSEGV": ("dead", "SIGSEGV", -11, "alarm"),
    "abort": ("dead", "SIGABRT", -6, "alarm"),
}
"""Way to (state, how, exit status, severity)."""
UNSEEN = {
    "return": ("finished", "finished, exit status not seen"),
    "sys.exit": ("finished", "finished, exit status not seen"),
    "exception": DEATHS["exception"][:2],
    "os._exit": DEATHS["os._exit"][:2],
    "SIGKILL": ("dead", "unknown: no server saw its end"),
    "SIGSEGV": ("dead", "SIGSEGV"),
    "abort": ("dead", "SIGABRT"),
}
"""The same when no server was there: what is not known is not claimed."""
ENDED = "('finished', 'failed', 'dead')"
"""The states of verdicts on an end, in SQL: on a slow machine there are others, on jobs that wait for it."""
CELLS = {
    "return": "finished", "exception": "failed: Trouble", "sys.exit": "failed: exit status 3",
    "KeyboardInterrupt": "failed: interrupted", "SIGKILL": "dead: SIGKILL", "SIGSEGV": "dead: SIGSEGV",
}


@contextlib.contextmanager
def waiting(
    nursery: Nursery, place: Place, *ways: str, watched: bool = True, **environ: str
) -> Iterator[list[Forked]]:
    """Jobs that have trained and wait to end in these ways."""
    commands = [("ways_to_end", "--steps", str(STEPS), "--wait", "--way", way) for way in ways]
    with forked(nursery, place, *commands, watched=watched, **environ) as started:
        for job in started:
            job.wait_for("WAITING")
        yield started


def everything(place: Place) -> Path:
    """The endpoint of all recordings."""
    return place.directory / "recordings"


def verdicts(place: Place, columns: str, count: int) -> list[list[Any]]:
    """Rows of probe.verdicts on ends, once there are so many: a server writes one after it has noticed the
    end."""
    sql = f"SELECT {columns} FROM probe.verdicts WHERE state IN {ENDED}"
    found: list[list[Any]] = until(
        lambda: len(rows := query(place, everything(place), sql)) >= count and rows, "the verdicts"
    )
    return found


def test_every_death_is_told_apart(nursery: Nursery, place: Place) -> None:
    states(place)
    with waiting(nursery, place, *DEATHS) as started:
        assert set(states(place).values()) == {"running"}
        for job in started:
            job.let_go()
        told = {one["pid"]: (one["state"], one["how"], one["exit_status"]) for one in listed(place)}
        shown = {line.split()[2]: line for line in run_probe(place, "ps", "--all").stdout.splitlines()}
        rows = verdicts(place, "pid, state, severity, what, step", len(started))
        found = {row[0]: row[1:] for row in rows}
        assert len(rows) == len(found) == len(started)
        for (way, (state, how, status, severity)), job in zip(DEATHS.items(), started, strict=True):
            assert told[job.pid] == (state, how, status), way
            assert found[job.pid][:2] == [state, severity], way
            assert found[job.pid][3] == STEPS - 1, way
            assert shown[str(job.pid)].rstrip().endswith(CELLS.get(way, "")), way
        check_exceptions(place, dict(zip(DEATHS, started, strict=True)))
        check_stacks(place, dict(zip(DEATHS, started, strict=True)))


def check_exceptions(place: Place, jobs: dict[str, Forked]) -> None:
    """The table of exceptions has those that reached the top, with step and thread."""
    sql = "SELECT pid, type, thread_name, training, step FROM python.exceptions"
    found = {row[0]: row[1:] for row in query(place, everything(place), sql)}
    assert found == {
        jobs["exception"].pid: ["Trouble", "MainThread", True, STEPS],
        jobs["exception in the training thread"].pid: ["Trouble", "user-thread", True, STEPS],
        jobs["KeyboardInterrupt"].pid: ["KeyboardInterrupt", "MainThread", True, STEPS],
    }


def check_stacks(place: Place, jobs: dict[str, Forked]) -> None:
    """The innermost frame of what ended each, and that it is the verdict's."""
    sql = f"""SELECT v.pid, s.reason, s.func FROM probe.verdicts v JOIN python.stacks s
             ON v.capture_id = s.capture_id AND v.pid = s.pid
             WHERE s.depth = 0 AND s.training AND v.state IN {ENDED}"""
    found = {row[0]: row[1:] for row in query(place, everything(place), sql)}
    assert found == {
        jobs["exception"].pid: ["exception", "trouble"],
        jobs["exception in the training thread"].pid: ["exception", "trouble"],
        jobs["KeyboardInterrupt"].pid: ["exception", "by_signal"],
        jobs["SIGSEGV"].pid: ["crash", "string_at"],
        jobs["abort"].pid: ["crash", "main"],
    }
    left = "SELECT func FROM python.stacks WHERE reason = 'exit' AND depth = 1"
    assert query(place, jobs["os._exit"].pid, left) == [["main"]]


def test_without_a_server_what_is_not_known_is_not_claimed(nursery: Nursery, place: Place) -> None:
    with waiting(nursery, place, *UNSEEN) as started:
        for job in started:
            job.let_go()
        told = {one["pid"]: one for one in listed(place)}
        for (way, expected), job in zip(UNSEEN.items(), started, strict=True):
            one = told[job.pid]
            assert (one["state"], one["how"]) == expected, way
            assert one["exit_status"] is None, way
        pids = [pid for [pid] in verdicts(place, "pid", len(UNSEEN))]
        assert len(pids) == len(set(pids)) == len(UNSEEN)


def test_an_end_that_was_noted_is_told_the_same_by_the_next_server(nursery: Nursery, place: Place) -> None:
    with waiting(nursery, place, "SIGKILL", "sys.exit") as started:
        states(place)
        for job in started:
            job.let_go()
        before = [(one["pid"], one["state"], one["how"], one["exit_status"]) for one in listed(place)]
        folders = list(places.process_folders(place.directory))
        until(lambda: all((folder / "end.json").exists() for folder in folders), "both are written down")
        assert wait_for_end(kill_server(place), PATIENCE_S)
        after = [(one["pid"], one["state"], one["how"], one["exit_status"]) for one in listed(place)]
        assert after == before
        assert len(verdicts(place, "pid", 2)) == 2


SAME_QUERIES = (
    "SELECT step, loss, boundary FROM python.steps ORDER BY step",
    "SELECT step, loss FROM python.losses ORDER BY step",
    "SELECT step, count(*) FROM python.batches GROUP BY step ORDER BY step",
)


@pytest.mark.parametrize(
    "way", ["SIGKILL", *(pytest.param(one, marks=pytest.mark.campaign) for one in ("SIGSEGV", "abort"))]
)
def test_the_same_rows_answer_before_and_after_a_death_that_nobody_saw(
    nursery: Nursery, place: Place, way: str
) -> None:
    with waiting(nursery, place, way) as [job]:
        before = [query(place, job.pid, sql) for sql in SAME_QUERIES]
        assert [step for step, *_ in before[0]] == list(range(STEPS))
        assert wait_for_end(kill_server(place), PATIENCE_S)
        job.let_go()
        assert place.ring_files()  # nobody sealed them
        assert [query(place, recorded_folder(place), sql) for sql in SAME_QUERIES] == before
        assert [query(place, job.pid, sql) for sql in SAME_QUERIES] == before


def recorded_folder(place: Place) -> Path:
    """The folder of the only recording."""
    [meta] = place.directory.glob("recordings/run=*/attempt=*/process=*/meta.json")
    return meta.parent


# The job notices nothing ------------------------------------------------------------


def test_a_forked_childs_crash_is_not_its_parents(nursery: Nursery, place: Place) -> None:
    with (
        waiting(nursery, place, "SIGSEGV of a forked child", watched=False) as [plain],
        waiting(nursery, place, "SIGSEGV of a forked child") as [job],
    ):
        for one in (plain, job):
            tell(one)
            assert one.wait_for("CHILD") == f"CHILD {-signal.SIGSEGV}"
            one.let_go()
        assert job.errors() == plain.errors() == ""
        assert (recorded_folder(place) / "crash.txt").read_bytes() == b""
        assert [one["how"] for one in listed(place)] == ["finished, exit status not seen"]


def test_the_jobs_own_faulthandler_wins(nursery: Nursery, place: Place) -> None:
    way = "SIGSEGV with faulthandler"
    with (
        waiting(nursery, place, way, watched=False) as [plain],
        waiting(nursery, place, way) as [job],
    ):
        states(place)
        assert plain.let_go() == job.let_go() == -signal.SIGSEGV
        assert current_thread(job.errors()) == current_thread(plain.errors()) != []
        assert [one["how"] for one in listed(place)] == ["SIGSEGV"]
        assert query(place, job.pid, "SELECT count(*) FROM python.stacks") == [[0]]


def current_thread(errors: str) -> list[str]:
    """What faulthandler wrote of the thread that crashed; the addresses differ."""
    lines = errors.partition("Current thread")[2].splitlines()
    return [errors.splitlines()[0], *(line for line in lines[1:] if line.startswith("  File"))]


def test_leaving_a_job_puts_back_what_was_there(nursery: Nursery, place: Place) -> None:
    way = "says what is patched"
    with (
        waiting(nursery, place, way, watched=False) as [plain],
        waiting(nursery, place, way, way) as [watched, left],
    ):
        assert ask(place, left.pid, "POST", "/v1/stop") == {"stopped": True, "ended": []}
        said = []
        for job in (plain, watched, left):
            tell(job)
            said.append(json.loads(job.wait_for("PATCHED").removeprefix("PATCHED ")))
            assert (job.let_go(), job.errors()) == (0, "")
        assert len(said[1]["names"]) == 5
        assert said[2] == said[0] and said[0]["names"] == []
        assert not list(place.directory.glob(f"recordings/*/*/process=*-{left.pid}/crash.txt"))


def test_a_handler_that_came_after_ours_stays_when_we_leave(nursery: Nursery, place: Place) -> None:
    with waiting(nursery, place, "a handler of its own") as [job]:
        tell(job)
        job.wait_for("SET")
        assert ask(place, job.pid, "POST", "/v1/stop") == {"stopped": True, "ended": []}
        tell(job)
        assert job.wait_for("HANDLED") == f"HANDLED {signal.SIGABRT}"
        assert (job.let_go(), job.errors()) == (0, "")


def test_an_exception_of_the_main_thread_is_known_while_another_thread_keeps_the_process(
    nursery: Nursery, place: Place
) -> None:
    with waiting(nursery, place, "exception beside a thread") as [job]:
        tell(job)
        deadline = time.monotonic() + PATIENCE_S
        while not (found := query(place, job.pid, "SELECT type, thread_name FROM python.exceptions")):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert found == [["Trouble", "MainThread"]]
        assert states(place) == {job.pid: "running"}


# PROBE_HOLD_S -----------------------------------------------------------------------


def test_a_held_process_shows_where_it_failed_and_ends_as_it_would_have(
    nursery: Nursery, place: Place
) -> None:
    with (
        waiting(nursery, place, "exception in a module", watched=False) as [plain],
        waiting(nursery, place, "exception in a module", PROBE_HOLD_S="3600") as [job],
    ):
        states(place)
        tell(job)
        held = wait_for_error(job, "probe: holding")
        assert f"`probe {job.pid} backtrace`" in held and "Trouble: something of the user's own" in held
        captured = json.loads(run_probe(place, str(job.pid), "backtrace", "--format", "json").stdout)
        [thread] = captured["threads"]
        assert thread["thread_name"] == "MainThread (exception)" and thread["training"]
        assert [frame["func"].rpartition(".")[2] for frame in thread["frames"]][:2] == ["trouble", "forward"]
        assert evaluate(place, job.pid, "tuple(x.shape)")["value"] == "(1, 2)"
        assert query(place, job.pid, "SELECT type FROM python.exceptions") == [["Trouble"]]
        job.signal(signal.SIGINT)
        assert job.wait() == plain.let_go() == 1
        assert users(job.errors().replace(held + "\n", "")) == users(plain.errors())
        assert [(one["state"], one["how"]) for one in listed(place)] == [DEATHS["exception"][:2]]


def users(errors: str) -> list[str]:
    """Frames of the program, and how a traceback ends; the wrappers between them are ours."""
    return [line for line in errors.splitlines() if "ways_to_end" in line] + errors.splitlines()[-1:]


def wait_for_error(job: Job, beginning: str) -> str:
    """The line of stderr that begins so."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        for line in job.errors().splitlines(keepends=True):
            if line.startswith(beginning) and line.endswith("\n"):
                return line.rstrip("\n")
        time.sleep(0.02)
    raise AssertionError(f"{beginning!r} was never said; stderr:\n{job.errors()}")


def test_a_held_process_goes_at_once_with_sigterm(nursery: Nursery, place: Place) -> None:
    with waiting(nursery, place, "exception", "KeyboardInterrupt", PROBE_HOLD_S="3600") as [job, other]:
        states(place)
        tell(job)
        wait_for_error(job, "probe: holding")
        job.signal(signal.SIGTERM)
        assert job.wait() == -signal.SIGTERM
        assert other.let_go() == -signal.SIGINT and "probe:" not in other.errors()
        assert {one["pid"]: one["how"] for one in listed(place)} == {
            job.pid: "SIGTERM", other.pid: "interrupted",
        }


# Out of memory ----------------------------------------------------------------------

LIMIT_BYTES = 200 << 20
"""Of what a fork takes for itself: torch is the nursery's."""


@pytest.fixture
def group() -> Iterator[Path]:
    """A memory group with a limit, below our own; removed afterwards whatever happens."""
    own = re.search(r"^\d+:memory:(.*)$", Path("/proc/self/cgroup").read_text(), re.M)
    if own is None:
        pytest.skip("no control group of the first version for memory here")
    folder = Path("/sys/fs/cgroup/memory") / own[1].lstrip("/") / f"probe-test-{os.getpid()}"
    try:
        folder.mkdir()
    except OSError as error:
        pytest.skip(f"{folder.parent} cannot be written: {error.strerror}")
    try:
        (folder / "memory.limit_in_bytes").write_text(str(LIMIT_BYTES))
        yield folder
    finally:
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                folder.rmdir()
                break
            except OSError:  # the last process is not gone from it yet
                assert time.monotonic() < deadline, f"{folder} is still in use"
                time.sleep(0.02)


@pytest.fixture
def start_in(group: Path, fork: Callable[..., Forked]) -> Callable[[], Forked]:
    """Starts a job in that group; killed before the group is removed."""

    def start() -> Forked:
        job = fork("deaths_by_memory", GROUP=str(group))
        job.wait_for("READY")
        return job

    return start


def test_a_process_that_the_kernel_killed_for_its_memory_is_told_from_one_that_somebody_killed(
    place: Place, start_in: Callable[[], Forked]
) -> None:
    first, second = start_in(), start_in()
    assert set(states(place).values()) == {"running"}
    first.signal(signal.SIGKILL)
    assert first.wait() == -signal.SIGKILL
    assert told(place, first.pid)["how"] == "SIGKILL"
    tell(second)
    assert second.wait() == -signal.SIGKILL
    assert told(place, second.pid)["how"] == "killed by the kernel: out of memory"
    assert "dead: killed by the kernel: out of memory" in run_probe(place, "ps", "--all").stdout
    [[state, why]] = [row[1:] for row in verdicts(place, "pid, state, why", 2) if row[0] == second.pid]
    assert state == "dead"
    assert "oom_kill" in why and f"{LIMIT_BYTES >> 20} MB" in why and "resident memory" in why


def test_the_kernels_log_still_tells_when_no_server_was_there(
    place: Place, start_in: Callable[[], Forked]
) -> None:
    log = KernelLog()
    log.close()
    if not log.opened:
        pytest.skip("the kernel's log may not be read, or its pids are others than ours")
    job = start_in()
    tell(job)
    assert job.wait() == -signal.SIGKILL
    found = told(place, job.pid)
    assert (found["how"], found["exit_status"]) == ("killed by the kernel: out of memory", None)


def told(place: Place, pid: int) -> dict[str, Any]:
    """What `ps` tells of one process."""
    [found] = [one for one in listed(place) if one["pid"] == pid]
    return found


# Every Python ------------------------------------------------------------------------

WITHOUT_TORCH = {
    "exception": (1, "exception", "trouble"), "thread": (0, "exception", "trouble"),
    "os._exit": (7, "exit", "<lambda>"), "SIGSEGV": (-signal.SIGSEGV, None, "string_at"),
    "abort": (-signal.SIGABRT, None, "main"), "sys.exit": (3, None, ""), "stop": (0, None, ""),
}


@pytest.mark.parametrize("minor", [
    13, *(pytest.param(minor, marks=pytest.mark.campaign) for minor in (10, 11, 12, 14)),
])
def test_ends_are_written_down_in_every_python(minor: int, tmp_path: Path) -> None:
    python = interpreter(minor)
    for way, (status, reason, func) in WITHOUT_TORCH.items():
        folder = tmp_path / way
        folder.mkdir()
        done = subprocess.run(
            [python, str(PROGRAMS / "deaths_without_torch.py"), str(folder), way],
            env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False,
        )
        assert done.returncode == status, (way, done.stderr)
        process, *asked = done.stdout.splitlines()
        # The interpreter itself asks for the text once, to print it; we do not.
        assert len(asked) == (way in ("exception", "thread")), way
        records = list(read_journal(Path(process) / "journal.bin"))
        rows = [row for one in records if one.get("table") == "python.stacks" for row in one["rows"]]
        innermost = (rows[0]["reason"], rows[0]["func"]) if rows else None
        assert innermost == (None if reason is None else (reason, func)), way
        crash = read_crash(Path(process) / "crash.txt")
        assert (crash is not None) == (way in ("SIGSEGV", "abort")), way
        if crash is not None:
            assert crash.signal == exit_report.signal_name(-status)
            [thread] = [thread for thread in crash.threads if thread.current]
            assert thread.frames[0]["func"] == func
        messages = [row["message"] for one in records if one.get("table") == "python.exceptions"
                    for row in one["rows"]]
        expected = "what is wrong\ncaused by KeyError: 'the cause'"
        assert messages == [expected] * (reason == "exception"), way


class Hostile(Exception):
    """Nothing of it may be asked."""

    def __str__(self) -> str:
        raise AssertionError("the text was asked for")

    __repr__ = __str__


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ValueError(), ""),
        (ValueError("plain"), "plain"),
        (ValueError("a", 1), "('a', 1)"),
        (KeyError("missing"), "'missing'"),
        (OSError(2, "No such file", "train.py"), "[Errno 2] No such file: 'train.py'"),
        (ValueError(Hostile("inner")), "<Hostile>"),
        (Hostile("its own"), "its own"),
        (Hostile(), ""),
        (ValueError("x" * 10_000_000), "x" * 4000),
        (ValueError("x" * 10_000_000, 1), "x" * 4000),
    ],
)
def test_the_text_of_an_exception_is_kept_short_and_made_without_the_jobs_code(
    error: BaseException, said: str
) -> None:
    assert message_of(error) == said


def test_causes_are_named_and_a_circle_of_them_ends() -> None:
    first, second = ValueError("first"), TypeError("second")
    first.__cause__, second.__cause__ = second, first
    assert message_of(first) == "first\ncaused by TypeError: second"
    third = KeyError("third")
    third.__context__ = first
    assert message_of(third).startswith("'third'\nwhile handling ValueError: first")
    third.__suppress_context__ = True
    assert message_of(third) == "'third'"
