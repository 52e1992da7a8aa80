"""The server's application and its routes; queries, hosts, the monitor and pages have their own modules.

Runs on the server's event loop; blocking calls (files, agents) run on threads, queries in worker processes.
May import fastapi.
"""

from __future__ import annotations

import json
import logging
import os
import time
import uuid
from typing import Any, Literal

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from probe import __version__
from probe.base.errors import BY_CODE, BadRequest, ProbeError
from probe.diagnose.recipes.library import installed
from probe.server.agents import act_requests, asking
from probe.server.alerts.recipe_monitor import Monitor
from probe.server.answers import backtraces, checks, diagnosing, live_tables, summaries
from probe.server.hosts import coordinator, dispatch, fanout
from probe.server.hosts.rank_group import RankGroup
from probe.server.http import answer_lines, cluster_routes, json_answers, monitor_routes, pages, query_routes
from probe.server.recordings import listing
from probe.server.recordings.registry import Recorded
from probe.server.runtime import access, supervision
from probe.server.runtime.access import Scope
from probe.server.runtime.request_bodies import (
    ActBody,
    EndpointBody,
    ErrorAnswer,
    EvalBody,
    PruneBody,
    TogetherBody,
    UndoBody,
)
from probe.server.service import Service

_log = logging.getLogger("probe.app")
_ANYWHERE = (400, 401, 403, 404, 405, 413, 422, 429, 500, 503)
"""Errors of any route; 422 only from an agent, for an invalid checkpoint."""


def build(service: Service, monitor: Monitor) -> FastAPI:
    """The application."""
    app = FastAPI(
        title="probe", version=__version__, docs_url=None, redoc_url=None, redirect_slashes=False,
        default_response_class=_Json,
        responses={
            status: {"model": ErrorAnswer} if status == 500 else json_answers.AN_ERROR for status in _ANYWHERE
        },
    )
    _add_routes(app, service, monitor)
    _add_acting(app, service)
    query_routes.add(app, service)
    cluster_routes.add(app, service)
    monitor_routes.add(app, service, monitor)
    pages.add(app, service)
    app.add_exception_handler(ProbeError, _probe_error)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(RequestValidationError, _validation_error)
    app.add_exception_handler(Exception, _internal_error)
    return app


def _of_agents(answer: type[BaseModel]) -> dict[int | str, dict[str, Any]]:
    return {200: {"model": answer}, **json_answers.AGENT_ERRORS}


def _add_routes(app: FastAPI, service: Service, monitor: Monitor) -> None:
    @app.get("/v1/health", responses={200: {"model": json_answers.Health}})
    async def health(request: Request) -> dict[str, Any]:
        """The server's state: how many processes are recorded, how many recordings cannot be read, and which
        of its parts have failed and were restarted; and the caller's role."""
        processes = len(await service.call(service.registry.live))
        return {
            "status": "ok", "version": __version__, "pid": os.getpid(),
            "uptime_s": round(time.monotonic() - service.started, 3), "processes": processes,
            "unreadable": len(service.registry.unreadable), "failures": supervision.failures(),
            "role": access.caller(request).role,
        }

    @app.get("/v1/processes", responses={200: {"model": json_answers.Processes}})
    async def processes(all: int = 0, figures: int = 0) -> dict[str, Any]:
        """The recorded processes: living and recently ended ones, or all with `all=1`; `figures=1` adds the
        same figures as in `/v1/ranks`."""
        current, live = service.watch.current, listing.Live(bool(figures))
        rows, notes = await service.call(listing.process_rows, service.registry, current, bool(all), live)
        return {"processes": summaries.plain(rows), "notes": notes}

    @app.get("/v1/tables", responses={200: {"model": json_answers.Tables}})
    async def tables(request: Request, endpoint: str = "", scope: Scope = "job") -> dict[str, Any]:
        """Every table: columns, units, meaning, an example. With an endpoint also the tables that its
        processes on this host declared."""
        caller = access.caller(request)
        here = (await fanout.find(service, endpoint, caller, scope)).here if endpoint else []
        return {"tables": await service.call(live_tables.table_list, here)}

    @app.get("/v1/backtrace", responses=_of_agents(json_answers.Capture))
    async def backtrace(
        request: Request, endpoint: str = "", all_threads: int = 0, native: int = 0, locals: int = 0,
        workers: int = 0, scope: Scope = "job",
    ) -> dict[str, Any]:
        """The stacks of one process: from its agent, from outside, or the last in its recording.

        For a multi-rank job: those of all ranks, merged into a tree and into classes."""
        caller = access.caller(request)
        if native:  # stops the process for a moment
            access.require_role(caller.role, access.OPERATOR, "backtrace with native frames")
        if locals:
            access.require_role(caller.role, access.OPERATOR, "backtrace with local variables")
        options = backtraces.Options(bool(all_threads), bool(native), bool(locals), bool(workers))
        answer = await backtraces.of_job(service, endpoint, caller, options, scope)
        if answer is not None:
            return answer
        subject = await service.call(_subject, service, endpoint, caller)
        return await service.call_agent(backtraces.backtrace, service.registry, subject, options)

    followed = {"content": {answer_lines.MEDIA_TYPE: {"schema": {"type": "string"}}}}

    @app.get(
        "/v1/diagnose", response_model=None,
        responses={**json_answers.AGENT_ERRORS, 200: {"model": json_answers.Diagnosis, **followed}},
    )
    async def diagnose(
        request: Request, endpoint: str = "", symptom: str = "", deep: int = 1, scope: Scope = "job",
        part: Literal["", "state", "checks"] = "", follow: int = 0,
    ) -> dict[str, Any] | Response:
        """Diagnose one process or a multi-rank job, with evidence and what to do next; with a symptom, list
        all of its checks. `part`: only the state of the process or job, or only what the checks find. With
        `follow=1`, lines of JSON: `{"part": {"findings", "judged", "of"}}` as they come, and the answer."""
        options = checks.Options(symptom, bool(deep), part)
        caller = access.caller(request)
        if not follow:
            return await diagnosing.answer(service, endpoint, caller, scope, options)

        async def telling(tell: answer_lines.Tell) -> dict[str, Any]:
            def told(one: checks.Part) -> None:
                tell({**one._asdict(), "findings": [finding.as_dict() for finding in one.findings]})

            return await diagnosing.answer(service, endpoint, caller, scope, options, told)

        return await answer_lines.answer(telling, _as_json)

    @app.get("/v1/recipes", responses={200: {"model": json_answers.Recipes}})
    async def recipe_list() -> dict[str, Any]:
        """The installed recipes, and problems in recipe files."""
        return (await service.call(installed, service.settings.recipes)).as_dict()

    @app.get("/v1/summary", responses=_of_agents(json_answers.Summary))
    async def summary(
        request: Request, endpoint: str = "", until: int | None = None, findings: int = 0,
        scope: Scope = "job",
    ) -> dict[str, Any]:
        """Learning, speed and memory of a run in numbers; with `findings=1` also what is wrong."""
        caller = access.caller(request)
        return await summaries.answer(
            service, monitor.listed, endpoint, caller, until=until, findings=bool(findings), scope=scope
        )

    @app.post("/v1/detach", responses=_of_agents(json_answers.Detached))
    async def detach(body: EndpointBody, request: Request) -> dict[str, Any]:
        """Stop the agent of one live process; its recording stays."""
        caller = access.caller(request)
        access.require_code(caller, service.settings, "detach")
        recorded = await service.call(service.registry.one, access.endpoint(body.endpoint, caller))
        return await service.call_agent(asking.detach, service.registry, recorded)

    @app.post("/v1/prune", responses=_of_agents(json_answers.Pruned))
    async def prune(body: PruneBody, request: Request) -> dict[str, Any]:
        """Delete recordings of ended processes, or list those that would be deleted."""
        access.require_role(access.caller(request).role, access.OWNER, "prune")
        return await service.call(service.pruner.prune, body)


def _add_acting(app: FastAPI, service: Service) -> None:
    @app.post("/v1/eval", responses=_of_agents(json_answers.Evaluated))
    async def evaluate(body: EvalBody, request: Request) -> dict[str, Any]:
        """Run a snippet in one process or in all ranks of a job: at once if it only reads, else between two
        steps."""
        return await dispatch.evaluate(service, body, access.caller(request))

    @app.post("/v1/act", responses=_of_agents(json_answers.Acted))
    async def act(body: ActBody, request: Request) -> dict[str, Any]:
        """Run an action on one process, or on all ranks of a job, between two steps; `/v1/undo` undoes it."""
        return await dispatch.act(service, body, access.caller(request))

    @app.post("/v1/undo", responses=_of_agents(json_answers.Acted))
    async def undo(body: UndoBody, request: Request) -> dict[str, Any]:
        """Undo an action, between two steps."""
        return await dispatch.undo(service, body, access.caller(request))

    @app.post("/v1/together", responses=_of_agents(json_answers.Phase))
    async def host_phase(body: TogetherBody, request: Request) -> dict[str, Any]:
        """One phase of a coordinated request, for the ranks of this host."""
        caller = access.caller(request)
        action, arguments = body.asked.get("action"), body.asked.get("arguments")
        if "code" in body.asked or act_requests.runs_code(action, arguments):
            access.require_code(caller, service.settings, "eval")
        found = await fanout.find(service, body.endpoint, caller, "host")
        asked = {**body.asked, "caller": caller._asdict()}
        ranks = RankGroup(service, found, caller)
        return await coordinator.host_phase(ranks, {**body.model_dump(), "asked": asked})


class _Json(JSONResponse):
    """JSON for any content of files: lone surrogates are escaped, NaN and infinities are text."""

    def render(self, content: Any) -> bytes:
        return _as_json(content)


def _as_json(content: Any) -> bytes:
    try:
        text = json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except ValueError:
        text = json.dumps(summaries.plain(content), ensure_ascii=False, separators=(",", ":"))
    return text.encode("utf-8", "backslashreplace")


def _subject(service: Service, endpoint: str, caller: access.Caller) -> Recorded | int:
    """The process an endpoint means; over TCP only a recorded one."""
    checked = access.endpoint(endpoint, caller)
    return service.registry.one(checked) if caller.tcp else service.registry.one_or_pid(checked)


# Errors -----------------------------------------------------------------------


async def _probe_error(_request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, ProbeError)
    return _Json(error.as_dict(), error.status)


async def _http_error(request: Request, error: Exception) -> JSONResponse:
    """404 and 405, in the common error shape."""
    assert isinstance(error, HTTPException)
    what = {404: "there is no route", 405: "method not allowed:"}.get(error.status_code, "refused:")
    found = BadRequest(f"{what} {request.method} {request.url.path}"[:500])
    return _Json(found.as_dict(), error.status_code, headers=getattr(error, "headers", None))


async def _validation_error(_request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    where = ".".join(str(part) for part in first.get("loc", ()) if part not in ("body", "query"))
    found = BadRequest(f"{where or 'the body'}: {first.get('msg', 'not valid')}"[:500])
    return _Json(found.as_dict(), found.status)


async def _internal_error(_request: Request, error: Exception) -> JSONResponse:
    """A bug in probe: the details are in the log, under a number."""
    number = uuid.uuid4().hex[:8]
    _log.error("internal error %s", number, exc_info=error)
    found = BY_CODE["error"](f"internal error {number}", hint="The server's log has the details.")
    return _Json(found.as_dict(), 500)
