"""Fixtures of the fleet's tests: a server, and recorded processes without torch."""

from __future__ import annotations

import pytest

import forked_servers
from probe.fleet import worker_process
from programs.server_nursery import Workers
from server.conftest import beside, common_place, place, record

__all__ = ["beside", "common_place", "forked_workers", "place", "record"]


@pytest.fixture
def forked_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers are forks: an interpreter with DuckDB takes longer than most questions."""
    monkeypatch.setattr(worker_process, "start", Workers(forked_servers.address(), worker_process.start))
