"""Forked children: no agent, no descriptor, no hook of ours in them; no mark on the parent's recording."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from agent.asking import accepts, ask, descriptors, evaluate, query, recorded, states, without_times
from agent.nursery import Forked
from harness import Place, wait_for_end

STEPS = 20


def test_a_forked_child_has_nothing_of_ours_and_the_parent_loses_nothing(
    fork: Callable[..., Forked], place: Place
) -> None:
    command = ("forks_while_training", "--steps", str(STEPS), "--hold")
    plain, watched = fork(*command, watched=False), fork(*command)
    result = watched.result()
    assert without_times(result) == without_times(plain.result())
    assert [code for code, _ in result["children"]] == [0, 0]
    assert [meta.pid for meta in recorded(place)] == [watched.pid]
    assert sockets(place) == [f"{watched.pid}.sock"]
    rows = query(place, watched.pid, "SELECT step, loss FROM python.steps ORDER BY step")
    assert rows == [[step, float.fromhex(loss)] for step, loss in enumerate(result["losses"])]
    counts = "SELECT (SELECT count(*) FROM python.losses), (SELECT count(DISTINCT t_ns) FROM python.losses)"
    assert query(place, watched.pid, counts) == [[STEPS, STEPS]]
    assert (watched.let_go(), watched.errors()) == (0, "")


def sockets(place: Place) -> list[str]:
    return sorted(path.name for path in (place.directory / "agents").iterdir())


def fork_under_load(fork: Callable[..., Forked], place: Place, times: int) -> None:
    """Forks while the agent's threads answer: none of their locks or connections may get stuck in a child."""
    command = ("forks_while_training", "--steps", "4", "--forks", str(times))
    plain, job = fork(*command, watched=False), fork(*command, "--hold")
    job.wait_for("READY")
    done = threading.Event()
    answered = [0]

    def load() -> None:
        while not done.is_set():
            found = evaluate(place, job.pid, "print(training.model)\ntraining.optimizer", when="now")
            assert "Linear" in found["output"] and found["value"].startswith("SGD")
            assert ask(place, job.pid, "GET", "/v1/stacks?all_threads=1")["threads"]
            answered[0] += 1

    thread = threading.Thread(target=load)
    thread.start()
    try:
        result = job.result()
    finally:
        done.set()
        thread.join()
    assert result["statuses"] == [0] * times
    assert without_times(result) == without_times(plain.result())
    assert answered[0] > 0
    [[steps]] = query(place, job.pid, "SELECT count(*) FROM python.steps")
    assert steps == 4 + times
    assert (job.let_go(), job.errors()) == (0, "")


def test_forks_while_the_agent_answers_get_stuck_nowhere(fork: Callable[..., Forked], place: Place) -> None:
    fork_under_load(fork, place, 25)


@pytest.mark.alone
@pytest.mark.campaign
def test_a_thousand_forks_while_the_agent_answers(fork: Callable[..., Forked], place: Place) -> None:
    fork_under_load(fork, place, 1000)


def test_a_child_that_outlives_its_parent_does_not_answer_for_it(
    fork: Callable[..., Forked], place: Place
) -> None:
    job = fork("forks_while_training", "--steps", "4", "--orphan", "--hold")
    orphan = int(job.wait_for("ORPHAN").split()[1])
    try:
        assert accepts(place, job.pid)
        assert descriptors(orphan).count("socket") == 0
        job.signal(signal.SIGKILL)
        job.wait()
        assert not accepts(place, job.pid)
        assert states(place) == {job.pid: "dead"}
        assert not wait_for_end(orphan, 0)
    finally:
        with suppress(ProcessLookupError):
            os.kill(orphan, signal.SIGKILL)


def test_an_answer_arrives_although_a_child_inherited_its_connection(
    fork: Callable[..., Forked], place: Place
) -> None:
    job = fork("forks_while_training", "--steps", "4", "--hold")
    job.result()
    # os.fork is refused in a snippet; so it is the C library's, which knows of none of Python's hooks.
    snippet = """
import ctypes, time
child = ctypes.PyDLL(None).fork()
if child == 0:
    time.sleep(600)
child
"""
    answer = evaluate(place, job.pid, snippet, when="now")
    child = int(answer["value"])
    assert [answer["error"], Path(f"/proc/{child}/status").exists()] == [None, True]
    os.kill(child, signal.SIGKILL)
    # A thread that waits for the GIL longer than the switch interval asks for it. A child of such a moment
    # would hand the GIL to that thread, which it does not have, and wait for ever. Those that wait already
    # count the usual interval: the sleep lets each of them have the GIL before the fork.
    snippet = """
import ctypes, os, sys, time
fork, usual_s = ctypes.PyDLL(None).fork, sys.getswitchinterval()
print('once')
sys.setswitchinterval(100)
time.sleep(0.2)
child = fork()
sys.setswitchinterval(usual_s)
os.waitpid(child, 0)[1] if child else print('lost')
"""
    leaving = evaluate(place, job.pid, snippet, when="now")
    assert (leaving["output"], leaving["value"]) == ("once\n", "0")
    assert (job.let_go(), job.errors()) == (0, "")


@pytest.mark.parametrize("workers", [2, pytest.param(4, marks=pytest.mark.campaign)])
def test_data_workers_have_nothing_of_ours(fork: Callable[..., Forked], place: Place, workers: int) -> None:
    command = ("dataloader_workers", "--workers", str(workers), "--persistent", "--steps", "12", "--hold")
    plain, job = fork(*command, watched=False), fork(*command)
    result = job.result()
    assert without_times(result) == without_times(plain.result())
    assert [meta.pid for meta in recorded(place)] == [job.pid]
    assert sockets(place) == [f"{job.pid}.sock"]
    ours, theirs = children(job.pid), children(plain.pid)
    assert len(ours) == len(theirs) == workers
    assert len(bound_sockets(job.pid, place.directory)) == 1
    for mine, other in zip(ours, theirs, strict=True):
        assert threads(mine) == threads(other)
        usual = descriptors(other)
        assert without_passing(place, descriptors(mine), usual) == usual
        assert not bound_sockets(mine, place.directory)
        assert not {path for path in mapped(mine) if str(place.rings) in path}
    batches = "SELECT count(*), count(*) FILTER (WHERE state = 'done') FROM python.batches"
    assert query(place, job.pid, batches) == [[12, 12]]
    assert query(place, job.pid, "SELECT step FROM python.steps ORDER BY step") == [[n] for n in range(12)]
    assert (job.let_go(), job.errors()) == (0, plain.errors())


def without_passing(place: Place, names: list[str], usual: list[str]) -> list[str]:
    """Without what the agent's thread has open for a moment, which a child keeps that is forked in it: a file
    of /proc, the folder, lock and log of the server that it looks for or starts, its connection to that one.

    The child does not hold the lock (`probe.boot.launch`). A worker has sockets of its own, for tensors.
    """
    passing = {str(place.directory), *(str(place.directory / name) for name in ("server.lock", "server.log"))}
    left = [name for name in names if name not in passing and not name.startswith("/proc/")]
    if left.count("socket") == usual.count("socket") + 1:
        left.remove("socket")
    return left


def bound_sockets(pid: int, directory: Path) -> list[str]:
    """The sockets of a process that are bound to a path in `directory`."""
    held = {os.readlink(link) for link in Path(f"/proc/{pid}/fd").iterdir()}
    rows = [line.split() for line in Path("/proc/net/unix").read_text().splitlines()[1:]]
    bound = {f"socket:[{row[6]}]": row[7] for row in rows if len(row) > 7}
    return [path for name, path in bound.items() if name in held and path.startswith(str(directory))]


def children(pid: int) -> list[int]:
    found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(child) for child in found]


def threads(pid: int) -> list[str]:
    return sorted(task.joinpath("comm").read_text() for task in Path(f"/proc/{pid}/task").iterdir())


def mapped(pid: int) -> set[str]:
    return {line.split(maxsplit=5)[-1] for line in Path(f"/proc/{pid}/maps").read_text().splitlines()}


def test_an_agent_that_waits_for_an_optimizer_does_not_disturb_the_hooks_of_the_job(
    fork: Callable[..., Forked], place: Place
) -> None:
    plain = fork("hooks_of_its_own", "--hold", watched=False)
    job = fork("hooks_of_its_own", "--deferred", "--hold", watched=False)
    assert without_times(job.result()) == without_times(plain.result())
    assert query(place, job.pid, "SELECT step FROM python.steps ORDER BY step") == [[n] for n in range(20)]
    assert (job.let_go(), job.errors()) == (0, "")
