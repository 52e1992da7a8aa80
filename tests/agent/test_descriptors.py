"""A job may do with its descriptors and children what it likes: nothing of ours gets into its files."""

from __future__ import annotations

import contextlib
import os
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agent.asking import accepts, ask, query, states
from agent.nursery import Forked, Nursery, ready
from agent.treated import Fork, both
from harness import Place
from probe.base import wire
from probe.base.errors import ProbeError
from probe.recording import places

STEPS = 40


@pytest.fixture
def folder() -> Iterator[Callable[[], Path]]:
    """New folders for a job's files; gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="probe-test-job-") as top:
        os.chmod(top, 0o755)
        yield lambda: Path(tempfile.mkdtemp(dir=top))


@pytest.mark.parametrize(
    "treatments",
    [
        "closes_low closes_twice lays_over", "closes_all_and_fills restless_thread", "sockets_of_its_own",
        "closes_all leaves_probe", "closes_low comes_back_to_probe closes_all_and_fills",
        "forks forks_in_a_thread forks_twice forks_and_executes inherits", "uses_all_up",
        "other_folder other_umask lowers_limits other_user", "alarms default_signals",
        "blocks_signals other_root",
    ],
)
def test_a_jobs_files_results_and_end_are_the_same_whatever_it_does_to_its_descriptors(
    fork: Fork, folder: Callable[[], Path], treatments: str
) -> None:
    plain, watched = both(fork, folder, "--treatments", *treatments.split())
    assert watched == plain
    assert plain["code"] == 0


@pytest.mark.parametrize("end", ["exception", "_exit", "exec", "abort"])
def test_a_job_that_closed_everything_ends_as_it_would_have(
    fork: Fork, folder: Callable[[], Path], end: str
) -> None:
    plain, watched = both(fork, folder, "--treatments", "closes_all_and_fills", "--end", end, steps=400)
    assert watched == plain


def test_an_agent_whose_descriptors_were_closed_answers_and_records_on(
    fork: Fork, folder: Callable[[], Path], place: Place
) -> None:
    words = ("--folder", str(folder()), "--treatments", "closes_all_and_fills", "--hold")
    job = fork("treats_itself", "--steps", str(STEPS), *words)
    job.result()
    listens_again(place, job.pid)
    assert ask(place, job.pid, "GET", "/v1/health")["failures"] == {}
    assert ask(place, job.pid, "GET", "/v1/stacks")["threads"]
    assert query(place, job.pid, "SELECT step FROM python.steps ORDER BY step") == [[n] for n in range(STEPS)]
    assert query(place, job.pid, "SELECT count(*) > 0 FROM python.stacks") == [[True]]
    assert (job.let_go(), job.errors()) == (0, "")
    assert states(place) == {job.pid: "finished"}  # the journal has the end


def numbers_of(job: Forked) -> set[int]:
    return {int(path.name) for path in Path(f"/proc/{job.pid}/fd").iterdir()}


def listens_again(place: Place, pid: int) -> None:
    """Until the agent has made a socket in place of the one that the job closed."""
    deadline = time.monotonic() + 60
    while not accepts(place, pid):
        assert time.monotonic() < deadline, "the agent never listened again"
        time.sleep(0.01)


def test_a_job_has_no_more_than_five_descriptors_of_ours_and_all_of_them_high(
    fork: Fork, place: Place
) -> None:
    plain = fork("halfway", "--steps", "20", "--hold", watched=False)
    job = fork("halfway", "--steps", "20", "--hold")
    for one in (plain, job):
        one.wait_for("READY")
    listens_again(place, job.pid)
    ours = numbers_of(job) - numbers_of(plain)
    assert len(ours) <= 5 and min(ours) >= 512, ours


def test_a_caller_that_hangs_up_does_not_end_a_job_that_ends_by_broken_pipes(
    fork: Fork, folder: Callable[[], Path], place: Place
) -> None:
    words = ("--folder", str(folder()), "--treatments", "default_signals", "--hold")
    job = fork("treats_itself", "--steps", str(STEPS), *words)
    job.result()
    for _ in range(20):
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as caller:
            caller.connect(str(places.agent_socket(place.directory, job.pid)))
            caller.sendall(wire.request_bytes("GET", "/v1/stacks?all_threads=1"))
    assert ask(place, job.pid, "GET", "/v1/health")["pid"] == job.pid
    assert (job.let_go(), job.errors()) == (0, "")


def test_what_a_job_withholds_is_not_said_on_its_stderr(
    fork: Fork, folder: Callable[[], Path]
) -> None:
    words = ("--treatments", "uses_all_up", "--step-s", "0.02")
    plain, watched = both(fork, folder, *words, steps=60, PROBE_MEMORY_INTERVAL_S="0.05")
    assert watched == plain and plain["errors"] == ""


@pytest.mark.parametrize(
    "rounds", [200, pytest.param(20000, marks=(pytest.mark.campaign, pytest.mark.alone))]
)
def test_connections_that_come_while_descriptors_are_closed_in_bulk_cost_no_file(
    nursery: Nursery, place: Place, rounds: int
) -> None:
    """Each of them has a low number for an instant, which may be a file of the job's in the next."""
    with ready(nursery, place, "closes_in_bulk", "--rounds", str(rounds)) as job:
        over = threading.Event()

        def keep_asking() -> None:
            while not over.is_set():
                with contextlib.suppress(OSError, ProbeError):
                    ask(place, job.pid, "GET", "/v1/health", timeout_s=1.0)

        threads = [threading.Thread(target=keep_asking) for _ in range(2)]
        for thread in threads:
            thread.start()
        try:
            result = job.result()
        finally:
            over.set()
            for thread in threads:
                thread.join()
    assert (result["wrongs"], result["wrong"]) == (0, [])
