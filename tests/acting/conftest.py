"""Fixtures of the tests of acting: jobs that are forked from one process."""

from __future__ import annotations

from agent.conftest import fork, nursery

__all__ = ["fork", "nursery"]
