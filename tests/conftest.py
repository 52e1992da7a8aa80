"""Fixtures shared by all tests; most of their code is in `harness.py`."""

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
SERVER["PROBE_MONITOR"] = "0"  # its checks at the start and end of every run take 1-2 s each

for number, usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(number) is signal.SIG_IGN:  # set by nohup, or by a shell for a background job
        signal.signal(number, usual)  # children inherit ignored signals


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give each test file to one worker, so its tests share fixtures. Files of `tests/jobs` are split by job
    (each job still runs once) and test_documents.py by document, so the longest file does not finish last."""
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
    """Start long tests first and tests of pure code last: no worker is left with a long file at the end."""
    items.sort(key=lambda item: item.nodeid.startswith(LIGHT) - item.nodeid.startswith(LONG))


@pytest.fixture
def place() -> Iterator[Place]:
    """A private PROBE_DIR. Afterwards its server is stopped; leftover processes or files fail the test."""
    with private_place() as place:
        yield place


@pytest.fixture
def real_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start servers as in production: as a new interpreter, not as a fork."""
    monkeypatch.setitem(SERVER, "PROBE_SERVER_PYTHON", sys.executable)


@pytest.fixture(scope="session")
def nursery() -> Nursery:
    """The process that jobs are forked from; all pytest workers share it."""
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
    """`start(program, *options, **environ)`: a forked job that has completed its first steps."""

    def one(program: str, *options: str, **environ: str) -> Job:
        job = fork(program, *options, **environ)
        job.wait_for("READY")
        return job

    return one


@pytest.fixture
def start_interpreter(place: Place) -> Iterator[Callable[..., Job]]:
    """Like `start`, but in a new interpreter, for tests that look at command line, environment or frames."""
    with contextlib.ExitStack() as stack:
        yield lambda program, *options, **environ: stack.enter_context(
            running(place, program, *options, **environ)
        )
