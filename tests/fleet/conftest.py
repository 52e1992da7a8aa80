"""Fixtures of the fleet's tests: a server, and recorded processes without torch."""

from __future__ import annotations

from server.conftest import beside, common_place, place, record

__all__ = ["beside", "common_place", "place", "record"]
