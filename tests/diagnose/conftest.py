"""Fixtures of the tests of verdicts; what they do is in `hung.py`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from agent.nursery import Nursery


@pytest.fixture(scope="session")
def nursery() -> Iterator[Nursery]:
    """The process that jobs are forked from."""
    nursery = Nursery()
    yield nursery
    nursery.close()
