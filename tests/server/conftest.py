"""Fixtures of the server's tests; what they do is in `beside.py`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from harness import Place
from server.beside import Beside, Writer


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
