"""The routes of the monitor: open incidents, destinations of alerts, automatic actions; and `/metrics`.

Only the owner may configure destinations, over the unix socket: a URL makes the server send messages from
this host to any address. Runs on the server's event loop. May import fastapi.
"""

from __future__ import annotations

import socket
from difflib import get_close_matches
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import Response

from probe.base.errors import BadRequest, DestinationInvalid, EndpointAmbiguous, RecipeUnknown
from probe.diagnose.states import INFO
from probe.server.alerts.alerts import Message
from probe.server.alerts.destinations import Rule
from probe.server.alerts.recipe_monitor import Monitor
from probe.server.http import json_answers
from probe.server.http.metrics import Metrics
from probe.server.recordings.registry import Recorded
from probe.server.runtime import access
from probe.server.runtime.request_bodies import MonitorBody
from probe.server.service import Service

MOST_RULES = 64
_ANSWERS: dict[int | str, dict[str, Any]] = {
    200: {"model": json_answers.Monitoring}, 409: json_answers.AN_ERROR,
}


def add(app: FastAPI, service: Service, monitor: Monitor) -> None:
    """Add them to the application."""
    figures = Metrics(service.registry, monitor)

    @app.get("/v1/monitor", responses=_ANSWERS)
    async def incidents(request: Request, endpoint: str = "", all: int = 0) -> dict[str, Any]:
        """Open incidents, destinations and automatic actions."""
        caller = access.caller(request)
        runs = await _runs(service, access.endpoint(endpoint, caller))
        return _answer(service, monitor, caller, runs, bool(all))

    @app.post("/v1/monitor", responses=_ANSWERS)
    async def configure(body: MonitorBody, request: Request) -> dict[str, Any]:
        """Configure destinations and automatic actions; send a test message."""
        caller = access.caller(request)
        access.require_role(caller.role, access.OWNER, "monitor")
        runs = await _runs(service, body.endpoint)
        alerts = monitor.alerts
        if body.remove:
            await alerts.remove(body.remove)
        if body.notify:
            await alerts.add(body.notify)
        if body.on or body.off:
            await _rules(service, monitor, body)
        answer = _answer(service, monitor, caller, runs, False)
        if body.test:
            if not alerts.destinations:
                hint = "Add one: `probe monitor --notify URL`."
                raise DestinationInvalid("there are no destinations", hint=hint)
            answer["tests"] = [one._asdict() for one in await alerts.test(_test_message())]
        return answer

    @app.get("/metrics", responses={200: {"content": {"text/plain": {}}}}, response_class=Response)
    async def metrics(request: Request) -> Response:
        """Metrics for Prometheus: its text format, or OpenMetrics if the Accept header names it."""
        accept = request.headers.get("accept", "")
        content, media_type = await service.call(figures.text, accept)
        return Response(content, headers={"content-type": media_type})


async def _runs(service: Service, endpoint: str) -> frozenset[str] | None:
    """The runs that an endpoint means; None for all."""
    if not endpoint.strip():
        return None
    found = await service.call(service.registry.resolve, endpoint)
    return frozenset(one.meta.run for one in found)


def _answer(
    service: Service, monitor: Monitor, caller: access.Caller, runs: frozenset[str] | None, everything: bool
) -> dict[str, Any]:
    found = [one for one in monitor.listed(everything) if runs is None or one["run"] in runs]
    notes = [monitor.store.problem] if monitor.store.problem else []
    answer: dict[str, Any] = {"monitor": service.settings.monitor, "incidents": found, "notes": notes}
    if caller.role == access.VIEWER:
        return answer
    alerts = monitor.alerts
    answer["destinations"] = [
        {"number": number, "destination": one.shown, "least": one.least, "added": number > alerts.given}
        for number, one in enumerate(alerts.destinations, 1)
    ]
    answer["rules"] = [
        {"run": one.run, "job": one.job, "recipe": one.recipe, "words": one.words,
         "last": monitor.acted.get(one.key)}
        for one in monitor.store.config.rules if runs is None or one.run in runs
    ]
    return answer


async def _rules(service: Service, monitor: Monitor, body: MonitorBody) -> None:
    """Change the automatic actions of one run."""
    if not body.endpoint.strip():
        raise BadRequest(
            "automatic actions need a job", hint="For example: `probe PID monitor --on RECIPE ACTION`."
        )
    found: list[Recorded] = await service.call(service.registry.resolve, body.endpoint)
    meta = found[0].meta
    if len({one.meta.run for one in found}) > 1:
        raise EndpointAmbiguous(f"{body.endpoint} matches several runs")
    names = await monitor.names()
    for recipe in [*(one.recipe for one in body.on), *body.off]:
        if recipe not in names:
            near = get_close_matches(recipe, names, 3)
            hint = f"Similar: {', '.join(near)}." if near else None
            raise RecipeUnknown(f"there is no recipe {recipe!r}", hint=hint)
    known = monitor.store.config.rules
    gone = set(body.off)
    kept = [one for one in known if one.run != meta.run or one.recipe not in gone]
    new = [
        Rule(meta.run, meta.job, one.recipe, one.words, one.action, one.arguments, one.now) for one in body.on
    ]
    replaced = {one.key for one in new}
    kept = [one for one in kept if one.key not in replaced] + new
    if len(kept) > MOST_RULES:
        kept = await service.call(_of_living, service, kept)
    if len(kept) > MOST_RULES:
        hint = "Remove one: `probe PID monitor --off RECIPE`."
        raise BadRequest(f"too many automatic actions (limit {MOST_RULES})", hint=hint)
    monitor.store.config.rules = kept
    await service.call(monitor.store.write)


def _of_living(service: Service, rules: list[Rule]) -> list[Rule]:
    """The rules of runs that still live."""
    living = {one.meta.run for one in service.registry.live()}
    return [one for one in rules if one.run in living]


def _test_message() -> Message:
    host = socket.gethostname()
    body = f"This is a test of probe on {host}: alerts arrive here.\nnext  probe monitor"
    return Message("test", "test", INFO, "test", f"[test] probe on {host}", body, "", None)
