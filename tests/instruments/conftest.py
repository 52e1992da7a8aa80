"""Fixtures of the instruments' tests: jobs that are forked from one process."""

from __future__ import annotations

from agent.conftest import fork, nursery

__all__ = ["fork", "nursery"]
