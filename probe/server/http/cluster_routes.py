"""The routes about several hosts: this host's info for its peers, all ranks, and the relay.

Runs on the server's event loop. May import fastapi.
"""

from __future__ import annotations

import os
from typing import Any, Literal

from fastapi import FastAPI, Request, Response

from probe.base.errors import BadRequest
from probe.server.answers.summaries import plain
from probe.server.hosts import fanout
from probe.server.hosts.rank_list import all_ranks
from probe.server.http import json_answers
from probe.server.peers import peer_discovery
from probe.server.peers.peer_client import only_reads
from probe.server.peers.peer_discovery import Host
from probe.server.recordings.listing import Live
from probe.server.runtime import access, packed_answers
from probe.server.runtime.access import Scope
from probe.server.runtime.request_bodies import RelayBody
from probe.server.service import Service


def add(app: FastAPI, service: Service) -> None:
    """Add them to the application."""

    @app.get("/v1/peers", responses={**json_answers.AGENT_ERRORS, 200: {"model": json_answers.Peers}})
    async def known_peers(request: Request, run: str = "", scope: Scope = "host") -> dict[str, Any]:
        """This host's identity, its part of a run, and the other hosts that it knows for it."""
        name = access.endpoint(run, access.caller(request))
        hosts = await service.call(fanout.candidates, service, name)
        return {
            "id": service.peers.id, "host": os.uname().nodename,
            "held": await service.call(fanout.held, service.registry, name),
            "peers": [{"name": host.name, "url": host.url} for host in hosts if host.url],
        }

    @app.get("/v1/ranks", responses={**json_answers.AGENT_ERRORS, 200: {"model": json_answers.Ranks}})
    async def ranks(
        request: Request, endpoint: str = "", scope: Scope = "job", figures: int = 0,
        rank: int | None = None, since: int = -1, amount: Literal["tokens", "samples", "1"] = "1",
    ) -> dict[str, Any]:
        """All ranks of a job on all hosts, the hosts, and what is missing. For live views, of living
        processes: `figures=1` adds loss, step time, phases and memory of the last steps; `rank`, if it is on
        this host, adds a summary of its steps after `since`, with the rate of `amount`, and `noted`, a number
        that grows when something other than a step is recorded."""
        caller = access.caller(request)
        found = await fanout.find(service, endpoint, caller, scope)
        job = await fanout.job_of(service, found, caller, scope)
        answer = await all_ranks(service, job, caller, Live(bool(figures), rank, since, amount))
        return {**answer, "ranks": plain(answer["ranks"])}  # NaN is text, as in a query's answer

    @app.post("/v1/relay", responses=json_answers.PACKED, response_class=Response)
    async def relay(body: RelayBody, request: Request) -> Response:
        """Call other hosts for another server, and return their answers unchanged."""
        access.require_role(access.caller(request).role, access.OPERATOR, "relay")
        if f"{body.method} {body.path}" not in access.NEEDS or not only_reads(body.method, body.path):
            raise BadRequest(f"{body.method} {body.path} cannot be relayed")
        hosts = [Host(one.name, one.url, "peer") for one in body.hosts]
        if any(peer_discovery.url_of(host.url, service.settings) != host.url for host in hosts):
            raise BadRequest("invalid peer address")
        content = await service.peers.relay(
            hosts, body.method, body.path, body.body, body.timeout_s, body.role
        )
        return Response(content, media_type=packed_answers.MEDIA_TYPE)
