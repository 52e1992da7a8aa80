"""How a job ends is its own affair: exit code, stderr and the moment are those of a run without probe."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from agent.asking import accepts, ask, evaluate, listed, query, states
from agent.nursery import Forked, Nursery, forked
from harness import Place
from probe.base.errors import ProbeError

STEPS = "6"
WHOLE_END = {"WHOLE_END": "1"}
"""Forks end as any process does, as no others do."""
AFTER_PYTHON = ("return", "sys.exit", "exception")
"""Ways that lead to all of that; what comes before is the same in the others."""
SAME_STDERR = (
    "return", "sys.exit", "sys.exit with a text", "os._exit", "exception", "exception in a thread",
    "sys.exit in a thread", "KeyboardInterrupt", "SIGTERM", "SIGTERM with a handler", "abort", "SIGKILL",
    "SIGSEGV", "SIGSEGV of a forked child", "exception in the training thread",
)
SAME_FRAMES_OF_THE_USER = (
    "exception in a module", "exception in backward", "exception in the optimizer",
    "exception in the dataset", "exception in a data worker",
)
"""Ways whose traceback leads through a wrapper of ours, or through torch's path for hooks."""
RARELY = (
    "sys.exit with a text", "sys.exit in a thread", "SIGSEGV of a forked child", "exception in the optimizer",
    "exception in the dataset", "exception in a thread", "SIGKILL",
)
"""In the campaign: each goes through what another way goes through, too. `test_deaths` has the child's crash,
and SIGKILL, which no code of the job sees."""
HOW = {
    "return": "finished", "exception in a thread": "finished", "sys.exit in a thread": "finished",
    "sys.exit": "exit status 3", "sys.exit with a text": "exit status 1", "os._exit": "os._exit(3)",
    "KeyboardInterrupt": "interrupted", "SIGTERM with a handler": "exit status 7",
    "SIGTERM": "SIGTERM", "abort": "SIGABRT", "SIGKILL": "SIGKILL", "SIGSEGV": "SIGSEGV",
    "SIGSEGV of a forked child": "finished",
}
"""How each is told; all others are exceptions of the main thread."""


@pytest.mark.parametrize(
    "ways",
    [
        tuple(way for way in SAME_STDERR + SAME_FRAMES_OF_THE_USER if way not in RARELY),
        pytest.param(RARELY, marks=pytest.mark.campaign),
    ],
    ids=("most", "others"),
)
def test_every_way_to_end_is_as_without_probe(
    nursery: Nursery, place: Place, ways: tuple[str, ...]
) -> None:
    commands = [("ways_to_end", "--steps", STEPS, "--wait", "--way", way) for way in ways]
    states(place)  # a server is there: not each of them starts one
    with forked(nursery, place, *commands, watched=False) as plain, contextlib.ExitStack() as stack:
        watched = [
            job for way, command in zip(ways, commands, strict=True) for job in stack.enter_context(
                forked(nursery, place, command, **(WHOLE_END if way in AFTER_PYTHON else {}))
            )
        ]
        for job in watched:
            job.wait_for("WAITING")
        assert set(states(place).values()) == {"running"}  # the server has seen each of them
        for way, one, other in zip(ways, plain, watched, strict=True):
            assert (way, other.let_go()) == (way, one.let_go())
            if way in SAME_STDERR:
                assert other.errors() == one.errors()
            else:
                assert users_part(one.errors()) == users_part(other.errors()) != []
            assert "probe:" not in other.errors() and "Fatal Python error" not in other.errors()
        told = {process["pid"]: process["how"] for process in listed(place)}
        for way, job in zip(ways, watched, strict=True):
            assert told[job.pid].startswith(HOW.get(way, "exception Trouble: ")), (way, told[job.pid])
        everything = place.directory / "recordings"
        counted = query(place, everything, "SELECT pid, count(*) FROM python.steps GROUP BY pid")
        assert sorted(counted) == sorted([job.pid, int(STEPS)] for job in watched)


def users_part(errors: str) -> list[str]:
    """The frames of the program in a traceback, and what it ends with."""
    lines = errors.splitlines()
    own = [line for line in lines if line.strip().startswith("File ") and "/tests/programs/ways" in line]
    return own + lines[-1:]


BUSY = {
    "an endless loop that prints": "while True: print('x' * 100)",
    "a sleep": "import time; time.sleep(60)",
    "a matrix product": "import torch\nx = torch.randn(3000, 3000)\nwhile True: x = x @ x",
    "a loop that catches everything": "while True:\n try:\n  1 / 0\n except BaseException: pass",
}


def test_jobs_end_as_ever_while_a_snippet_runs(nursery: Nursery, place: Place) -> None:
    states(place)
    with contextlib.ExitStack() as stack:
        started = stack.enter_context(
            forked(nursery, place, *[("ways_to_end", "--wait")] * len(BUSY), **WHOLE_END)
        )
        for job in started:
            job.wait_for("WAITING")
        for job, (what, snippet) in zip(started, BUSY.items(), strict=True):
            asking = threading.Thread(target=evaluate_in_vain, args=(place, job.pid, snippet))
            asking.start()
            stack.callback(asking.join)
            stack.callback(job.kill)
            wait_for_thread(place, job.pid, "probe-eval")
            assert (what, job.let_go(), job.errors()) == (what, 0, "")
            assert not accepts(place, job.pid)


def evaluate_in_vain(place: Place, pid: int, code: str) -> None:
    """Whether anybody answers is not asked."""
    with contextlib.suppress(OSError, ProbeError):
        ask(place, pid, "POST", "/v1/eval", {"code": code, "timeout_s": 60.0, "when": "now"})


def wait_for_thread(place: Place, pid: int, name: str) -> None:
    """Until that thread of the job runs."""
    while True:
        found: dict[str, Any] = ask(place, pid, "GET", "/v1/stacks?all_threads=1")
        if name in {thread["thread_name"] for thread in found["threads"]}:
            return
        time.sleep(0.01)


def end_many(nursery: Nursery, place: Place, rounds: int) -> None:
    """Exits at no moment in particular, while the agent starts, walks modules or answers."""
    states(place)  # a server is there: not each of them starts one
    for number in range(rounds):
        commands = [("ways_to_end", "--steps", str(steps)) for steps in (1, 3, 10 * number, 30 * number)]
        with forked(nursery, place, *commands, **WHOLE_END) as started:
            assert [(job.wait(), job.errors()) for job in started] == [(0, "")] * len(started)


@pytest.mark.campaign
def test_twenty_exits_at_any_moment_are_quiet(nursery: Nursery, place: Place) -> None:
    end_many(nursery, place, 5)


@pytest.mark.campaign
def test_two_hundred_exits_at_any_moment_are_quiet(nursery: Nursery, place: Place) -> None:
    end_many(nursery, place, 50)


def test_a_process_that_executes_another_program_begins_a_recording_anew(
    fork: Callable[..., Forked], place: Place
) -> None:
    job = fork("executes_itself", "--steps", STEPS, "--hold")
    job.result()
    assert [(process["pid"], process["state"]) for process in listed(place)] == [
        (job.pid, "dead"), (job.pid, "running")
    ]
    assert evaluate(place, job.pid, "arguments.life")["value"] == "2"
    assert (job.let_go(), job.errors()) == (0, "")
    everything = place.directory / "recordings"
    rows = query(place, everything, "SELECT run, attempt, count(*) FROM python.steps GROUP BY ALL")
    assert sorted(count for _, _, count in rows) == [int(STEPS)] * 2
