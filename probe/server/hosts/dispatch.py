"""Dispatch: what is asked to be done goes to the one process that is meant, or to all ranks of the job.

Runs on the server's event loop.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from probe.server.agents import act_requests
from probe.server.agents.forwarding import Request
from probe.server.hosts import act_on_all, fanout
from probe.server.hosts.rank_group import RankGroup
from probe.server.runtime import access
from probe.server.runtime.request_bodies import ActBody, EvalBody, UndoBody
from probe.server.service import Service


async def act_for(service: Service, body: ActBody, caller: access.Caller) -> dict[str, Any]:
    """Do an action for somebody: a caller, or the monitor."""
    if act_requests.runs_code(body.action, body.arguments):
        access.require_code(caller, service.settings, body.action)
    asked = act_requests.action(body, caller, service.settings)
    return await on_one_or_all(service, body, caller, asked, act_on_all.act)


_B = TypeVar("_B", EvalBody, ActBody, UndoBody)


async def on_one_or_all(
    service: Service, body: _B, caller: access.Caller, asked: Request,
    on_all: Callable[[RankGroup, _B], Awaitable[dict[str, Any]]],
) -> dict[str, Any]:
    """Ask the one process that is meant, here or on another host, or all ranks of the job."""
    endpoint = access.endpoint(body.endpoint, caller)
    answer = await service.forwarder.forward(endpoint, asked)
    if answer is not None:
        return answer
    found = await fanout.find(service, endpoint, caller, body.scope)
    if found.elsewhere is not None:
        path, timeout_s = asked.target, asked.timeout_s
        return await fanout.forward(service, found, caller, "POST", path, body.model_dump(), timeout_s)
    return await on_all(RankGroup(service, found, caller), body)
