"""Rank list: all ranks of a job on all hosts, for `GET /v1/ranks` and the tables of the cluster.

Runs on the server's event loop.
"""

from __future__ import annotations

from typing import Any

from probe.server.hosts import fanout, ranks_seen
from probe.server.recordings.listing import rank_rows
from probe.server.runtime import access
from probe.server.service import Service

RANKS_S = 5.0
"""Deadline of the other hosts for what is asked of files alone."""


async def all_ranks(service: Service, found: fanout.Found, caller: access.Caller) -> dict[str, Any]:
    """Answer of `GET /v1/ranks`: the pattern of every route that is about all ranks.

    (One about the one process that an endpoint names asks `found.elsewhere` first, with `fanout.forward`.)"""
    rows = await service.call(rank_rows, service.registry, service.watch.current, found.here)
    asked = await fanout.ask(service, found, caller, "GET", "/v1/ranks", {}, RANKS_S)
    for part in asked.parts:
        rows += ranks_seen.of_another(part.answer)
    return {
        "ranks": ranks_seen.lined_up(rows, found.world_size), "hosts": fanout.host_rows(found, asked),
        "missing": asked.missing, "world_size": found.world_size,
    }
