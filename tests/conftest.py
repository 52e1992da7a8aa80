"""Fixtures that all tests share; what they do is in `harness.py`."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from harness import Job, Place, running

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # by a shell that runs us in the background
    signal.signal(signal.SIGINT, signal.default_int_handler)  # children inherit what is ignored


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Workers share files; in `tests/jobs` they share jobs, each of which then runs once, and of
    `tests/docs` the documents, so that the longest file is not what all wait for in the end."""
    from xdist.scheduler import LoadScopeScheduling

    class ByFileAndJob(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file, _, test = nodeid.partition("::")
            return file + test[test.find("[") :] if "jobs/" in file or "docs/" in file else file

    return ByFileAndJob(config, log)


@pytest.fixture
def place() -> Iterator[Place]:
    """A private PROBE_DIR. Afterwards its server is stopped and nothing may be left of it."""
    place = Place()
    try:
        yield place
        left = place.close()
        assert not any(left.values()), left
    finally:
        place.remove()


@pytest.fixture
def start(place: Place) -> Iterator[Callable[..., Job]]:
    """`start(program, *options, **environ)`: a program under probe that trains; killed at the end."""
    with contextlib.ExitStack() as stack:
        yield lambda program, *options, **environ: stack.enter_context(
            running(place, program, *options, **environ)
        )
