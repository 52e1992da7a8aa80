"""Fixtures of the agent's tests; what they do is in `nursery.py`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import pytest

from agent.nursery import Forked, Nursery, forked
from harness import Place


@pytest.fixture(scope="session")
def nursery() -> Iterator[Nursery]:
    """The process that jobs are forked from; started by the first test that needs one."""
    nursery = Nursery()
    yield nursery
    nursery.close()


@pytest.fixture
def fork(nursery: Nursery, place: Place) -> Iterator[Callable[..., Forked]]:
    """`fork(program, *options, watched=True, **environ)`: a job in a fork; killed after the test."""
    with contextlib.ExitStack() as stack:

        def one(*command: str, watched: bool = True, **environ: str) -> Forked:
            [job] = stack.enter_context(forked(nursery, place, command, watched=watched, **environ))
            return job

        yield one
