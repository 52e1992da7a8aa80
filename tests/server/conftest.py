"""Fixtures of the server's tests; what they do is in `beside.py`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from harness import Place, private_place
from server.beside import Beside, Writer


@pytest.fixture(scope="module")
def common_place() -> Iterator[Place]:
    """The place of a file's tests that are marked `one_server`."""
    with private_place() as place:
        yield place


@pytest.fixture
def place(request: pytest.FixtureRequest, place: Place) -> Place:
    """A place of the test's own, else its file's, whose server the first test starts."""
    if request.node.get_closest_marker("one_server") is None:
        return place
    common: Place = request.getfixturevalue("common_place")
    return common


@pytest.fixture
def beside(place: Place, monkeypatch: pytest.MonkeyPatch) -> Beside:
    """The server of a private place; started by the test."""
    return Beside(place, monkeypatch)


@pytest.fixture
def record(place: Place) -> Iterator[Callable[..., Writer]]:
    """`record(job="gpt", rank=0, …)`: a recorded process; killed at the end."""
    with contextlib.ExitStack() as stack:

        def start(environ: dict[str, str] | None = None, **wanted: Any) -> Writer:
            writer = Writer(place, wanted, **(environ or {}))
            stack.callback(writer.kill)
            return writer

        yield start
