"""Fixtures that all tests share; what they do is in `harness.py`."""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import forked_servers
from agent.nursery import Forked, Nursery, forked, shared
from harness import SERVER, Job, Place, private_place, running

SERVER["PROBE_SERVER_PYTHON"] = forked_servers.python()
SERVER["PROBE_MONITOR"] = "0"  # its rounds, at the start and the end of every run, take a second or two each

for number, usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(number) is signal.SIG_IGN:  # by a shell that runs us in the background, by nohup
        signal.signal(number, usual)  # children inherit what is ignored


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Workers share files; in `tests/jobs` they share jobs, each of which then runs once, and the documents,
    so that the longest file is not what all wait for in the end."""
    from xdist.scheduler import LoadScopeScheduling

    class ByFileAndJob(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file, _, test = nodeid.partition("::")
            parted = "jobs/" in file or file.endswith("test_documents.py")
            return file + test[test.find("[") :] if parted else file

    return ByFileAndJob(config, log)


LIGHT = ("tests/control/", "tests/recipes/", "tests/test_")
LONG = ("tests/docs/", "tests/attach/", "tests/cluster/", "tests/together/")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes long begins first, and what is pure code comes last: no worker has a long file to do when
    all others are done."""
    items.sort(key=lambda item: item.nodeid.startswith(LIGHT) - item.nodeid.startswith(LONG))


@pytest.fixture
def place() -> Iterator[Place]:
    """A private PROBE_DIR. Afterwards its server is stopped and nothing may be left of it."""
    with private_place() as place:
        yield place


@pytest.fixture
def real_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers are started as they are where nobody tests: as processes of an interpreter of their own."""
    monkeypatch.setitem(SERVER, "PROBE_SERVER_PYTHON", sys.executable)


@pytest.fixture(scope="session")
def nursery() -> Nursery:
    """The process that jobs are forked from, one for all workers."""
    return shared()


@pytest.fixture
def fork(nursery: Nursery, place: Place) -> Iterator[Callable[..., Forked]]:
    """`fork(program, *options, watched=True, **environ)`: a job in a fork; killed after the test."""
    with contextlib.ExitStack() as stack:

        def one(*command: str, watched: bool = True, **environ: str) -> Forked:
            [job] = stack.enter_context(forked(nursery, place, command, watched=watched, **environ))
            return job

        yield one


@pytest.fixture
def start(fork: Callable[..., Forked]) -> Callable[..., Job]:
    """`start(program, *options, **environ)`: a job in a fork that has made its first steps."""

    def one(program: str, *options: str, **environ: str) -> Job:
        job = fork(program, *options, **environ)
        job.wait_for("READY")
        return job

    return one


@pytest.fixture
def start_interpreter(place: Place) -> Iterator[Callable[..., Job]]:
    """As `start`, with an interpreter of its own: its command line, environment and frames are the job's."""
    with contextlib.ExitStack() as stack:
        yield lambda program, *options, **environ: stack.enter_context(
            running(place, program, *options, **environ)
        )
