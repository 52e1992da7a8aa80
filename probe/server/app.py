"""The routes of the server, on one page.

Runs on the server's event loop; what blocks (files, agents) runs on threads,
queries run in worker processes. May import fastapi.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException
from starlette.types import Receive, Scope, Send

from probe import __version__
from probe.errors import BY_CODE, BadRequest, Forbidden, ProbeError, TooMany
from probe.server import asking, backtraces, diagnosing, live
from probe.server.prune import Pruner, Wanted
from probe.server.query import Pool
from probe.server.registry import Recorded, Registry
from probe.server.sealer import Sealer
from probe.server.views import mentioned
from probe.server.watch import Watch
from probe.settings import Settings

_log = logging.getLogger("probe.app")
_T = TypeVar("_T")
IN_FLIGHT = 8
"""Queries and snippets at once, each; more are refused with 429."""
DEFAULT_ROWS = 10_000
MOST_ROWS = 1_000_000
_CHUNK_BYTES = 256 << 10


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class QueryBody(_Body):
    """Body of `POST /v1/query`. `timeout_s` can shorten the server's own deadline, not lengthen it."""

    endpoint: str = Field("", max_length=4096)
    sql: str = Field(max_length=64 << 10)
    limit: int = Field(DEFAULT_ROWS, ge=1, le=MOST_ROWS)
    timeout_s: float | None = Field(None, gt=0, le=86400)


class EvalBody(_Body):
    """Body of `POST /v1/eval`."""

    endpoint: str = Field("", max_length=4096)
    code: str = Field(max_length=512 << 10)
    timeout_s: float | None = Field(None, gt=0, le=3600)


class EndpointBody(_Body):
    """Body of `POST /v1/detach`."""

    endpoint: str = Field("", max_length=4096)


class PruneBody(_Body):
    """Body of `POST /v1/prune`: what is to fit a recording that is deleted; at least one of them."""

    older_than_s: float | None = Field(None, ge=0)
    keep: int | None = Field(None, ge=0)
    job: str | None = Field(None, max_length=4096)
    dry_run: bool = False


class ErrorText(BaseModel):
    """What went wrong (`message`) and what to do next (`hint`); `code` is one of probe/errors.py."""

    code: str
    message: str
    hint: str


class ErrorAnswer(BaseModel):
    """The one shape of all errors."""

    error: ErrorText


class Service:
    """What the routes need: the parts of the server and its threads."""

    def __init__(
        self, registry: Registry, sealer: Sealer, watch: Watch, pool: Pool, settings: Settings
    ) -> None:
        self.registry = registry
        self.watch = watch
        self.sealer = sealer
        self.pruner = Pruner(registry, sealer)
        self.pool = pool
        self.settings = settings
        self.started = time.monotonic()
        self.last_request = time.monotonic()
        self.queries = 0
        self.evals = 0
        self.threads = ThreadPoolExecutor(16, thread_name_prefix="probe-request")
        self.agents = ThreadPoolExecutor(2 * IN_FLIGHT, thread_name_prefix="probe-agents")

    def touch(self) -> None:
        """A request came: the server stays while it is used."""
        self.last_request = time.monotonic()

    async def call(self, function: Callable[..., _T], *arguments: Any) -> _T:
        """Run something that blocks on a thread."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self.threads, functools.partial(function, *arguments))

    async def ask(self, function: Callable[..., _T], *arguments: Any) -> _T:
        """Run something that waits for an agent on a thread; these cannot block the others."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self.agents, functools.partial(function, *arguments))

    def close(self) -> None:
        """Let go of the threads; those that wait for an agent are not waited for."""
        self.threads.shutdown(wait=False, cancel_futures=True)
        self.agents.shutdown(wait=False, cancel_futures=True)

    def prepare(self, body: QueryBody, tcp: bool) -> tuple[list[Recorded], dict[str, Any]]:
        """The processes a query is about, and the request for the worker. Blocks."""
        sources = self.registry.resolve(_checked(body.endpoint, tcp))
        names = {table.full_name for table in mentioned(body.sql)}
        live_rows: dict[str, list[dict[str, Any]]] = {}
        notes = [
            f"rows of {recorded.name} stay in memory: {self.sealer.failures[recorded.folder]}"
            for recorded in sources
            if recorded.folder in self.sealer.failures
        ]
        if "cluster.ranks" in names:
            live_rows["cluster.ranks"] = live.rank_rows(
                self.registry, self.watch.current, sources
            )
        if "probe.settings" in names:
            live_rows["probe.settings"] = live.setting_rows(sources)
        if "python.backtrace" in names:
            live_rows["python.backtrace"], missing = live.capture_rows(self.registry, sources, self.agents)
            notes += missing
        return sources, {
            "sql": body.sql, "limit": body.limit, "live": live_rows, "notes": notes,
            "sources": [
                {
                    "folder": str(recorded.folder), "rings": recorded.meta.rings, "run": recorded.meta.run,
                    "attempt": recorded.meta.attempt, "rank": recorded.meta.rank, "pid": recorded.meta.pid,
                }
                for recorded in sources
            ],
        }


def build(service: Service) -> FastAPI:
    """The application."""
    app = FastAPI(
        title="probe", version=__version__, docs_url=None, redoc_url=None, redirect_slashes=False,
        responses={status: {"model": ErrorAnswer} for status in sorted({400, 404, 405, 413, 429, 500, 503})},
    )
    _add_routes(app, service)
    _add_queries(app, service)
    app.add_exception_handler(ProbeError, _probe_error)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(RequestValidationError, _validation_error)
    app.add_exception_handler(Exception, _internal_error)
    return app


_FOR_AGENTS: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorAnswer} for status in (401, 403, 409, 410, 504)
}


def _add_routes(app: FastAPI, service: Service) -> None:
    @app.get("/v1/health")
    async def health() -> dict[str, Any]:
        """Whether the server is well, and how many processes it watches."""
        processes = len(await service.call(service.registry.live))
        return {
            "status": "ok", "version": __version__, "pid": os.getpid(),
            "uptime_s": round(time.monotonic() - service.started, 3), "processes": processes,
        }

    @app.get("/v1/processes", responses={401: {"model": ErrorAnswer}})
    async def processes(all: int = 0) -> dict[str, Any]:
        """The recorded processes: the living and the lately ended, or all with `all=1`."""
        current = service.watch.current
        return {"processes": await service.call(live.process_rows, service.registry, current, bool(all))}

    @app.get("/v1/tables")
    async def tables() -> dict[str, Any]:
        """Every table: columns, units, meaning, an example."""
        return {"tables": live.table_list()}

    @app.get("/v1/backtrace", responses=_FOR_AGENTS)
    async def backtrace(
        request: Request, endpoint: str = "", all_threads: int = 0, native: int = 0, locals: int = 0,
        workers: int = 0,
    ) -> dict[str, Any]:
        """Where one process is: from its agent, from outside, or the last that its recording kept."""
        subject = await service.call(_subject, service, endpoint, _is_tcp(request))
        want = backtraces.Want(bool(all_threads), bool(native), bool(locals), bool(workers))
        return await service.ask(backtraces.backtrace, service.registry, subject, want)

    @app.get("/v1/diagnose", responses=_FOR_AGENTS)
    async def diagnose(request: Request, endpoint: str = "") -> dict[str, Any]:
        """How one process is, with the evidence and what to do next."""
        subject = await service.call(_subject, service, endpoint, _is_tcp(request))
        return await service.ask(diagnosing.diagnose, service.registry, service.watch, subject)

    @app.post("/v1/detach", responses=_FOR_AGENTS)
    async def detach(body: EndpointBody, request: Request) -> dict[str, Any]:
        """Have the agent of one live process leave it; the recording stays."""
        tcp = _is_tcp(request)
        if tcp and not service.settings.allow_eval:
            raise Forbidden("detach is not answered over TCP", hint="Use it on the host itself.")
        recorded = await service.call(service.registry.one, _checked(body.endpoint, tcp))
        return await service.ask(asking.detach, service.registry, recorded)

    @app.post("/v1/prune", responses=_FOR_AGENTS)
    async def prune(body: PruneBody, request: Request) -> dict[str, Any]:
        """Delete recordings of processes that have ended, or say which would be."""
        if _is_tcp(request):
            raise Forbidden("prune is not answered over TCP", hint="Use it on the host itself.")
        wanted = Wanted(body.older_than_s, body.keep, body.job, body.dry_run)
        return await service.call(service.pruner.prune, wanted)

    @app.post("/v1/eval", responses=_FOR_AGENTS)
    async def evaluate(body: EvalBody, request: Request) -> dict[str, Any]:
        """Run a snippet in one live process."""
        tcp = _is_tcp(request)
        if tcp and not service.settings.allow_eval:
            raise Forbidden(
                "eval is not answered over TCP",
                hint="Use it on the host itself, or set PROBE_ALLOW_EVAL=1 there.",
            )
        recorded = await service.call(service.registry.one, _checked(body.endpoint, tcp))
        if service.evals >= IN_FLIGHT:
            raise TooMany(f"{IN_FLIGHT} snippets are waited for already")
        service.evals += 1
        try:
            timeout_s = body.timeout_s or service.settings.eval_timeout_s
            return await service.ask(asking.evaluate, service.registry, recorded, body.code, timeout_s)
        finally:
            service.evals -= 1


def _add_queries(app: FastAPI, service: Service) -> None:
    @app.post("/v1/query", responses={**_FOR_AGENTS, 200: {"content": {"application/json": {}}}})
    async def query(body: QueryBody, request: Request) -> Response:
        """One SQL statement over the recordings of an endpoint."""
        if service.queries >= IN_FLIGHT:
            raise TooMany(f"{IN_FLIGHT} queries run already")
        service.queries += 1
        answer: _JsonBytes | None = None
        try:
            sources, asked = await service.call(service.prepare, body, _is_tcp(request))
            roots = live.rings_folders(service.registry, sources)
            timeout_s = min(body.timeout_s or float("inf"), service.settings.query_timeout_s)
            content = await service.pool.run(asked, timeout_s, roots, _disconnected(request))
            answer = _JsonBytes(content, service)
            return answer
        finally:
            if answer is None:
                service.queries -= 1


class _JsonBytes(Response):
    """JSON that is ready, sent in pieces so that a slow reader holds one of them, not all.

    The query counts as in flight until the last piece is sent."""

    media_type = "application/json"

    def __init__(self, content: bytes, service: Service) -> None:
        super().__init__(content)
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            content = memoryview(bytes(self.body))
            for start in range(0, len(content), _CHUNK_BYTES):
                piece = content[start : start + _CHUNK_BYTES]
                more = start + _CHUNK_BYTES < len(content)
                await send({"type": "http.response.body", "body": bytes(piece), "more_body": more})
        finally:
            self._service.queries -= 1


async def _disconnected(request: Request) -> None:
    """Completes when the caller has gone."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _is_tcp(request: Request) -> bool:
    return bool(request.scope.get("state", {}).get("tcp"))


def _subject(service: Service, endpoint: str, tcp: bool) -> Recorded | int:
    """The process an endpoint means; over TCP only a recorded one, and no other of the host."""
    checked = _checked(endpoint, tcp)
    return service.registry.one(checked) if tcp else service.registry.subject(checked)


def _checked(endpoint: str, tcp: bool) -> str:
    """The endpoint; over TCP only what the registry knows, not any folder of the host."""
    if tcp and endpoint.strip().startswith("/"):
        raise Forbidden("folders are not opened over TCP", hint="Name a pid, a job or job/rank.")
    if "\x00" in endpoint:
        raise BadRequest("the endpoint contains a NUL character")
    return endpoint


# Errors -----------------------------------------------------------------------


async def _probe_error(_request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, ProbeError)
    return JSONResponse(error.as_dict(), error.status)


async def _http_error(request: Request, error: Exception) -> JSONResponse:
    """404 and 405, in the one shape."""
    assert isinstance(error, HTTPException)
    what = {404: "there is no route", 405: "not allowed here:"}.get(error.status_code, "refused:")
    found = BadRequest(f"{what} {request.method} {request.url.path}"[:500])
    return JSONResponse(found.as_dict(), error.status_code, headers=getattr(error, "headers", None))


async def _validation_error(_request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    where = ".".join(str(part) for part in first.get("loc", ()) if part != "body")
    found = BadRequest(f"{where or 'the body'}: {first.get('msg', 'not valid')}"[:500])
    return JSONResponse(found.as_dict(), found.status)


async def _internal_error(_request: Request, error: Exception) -> JSONResponse:
    """A fault of ours: the details are for the log, a number leads there."""
    number = uuid.uuid4().hex[:8]
    _log.error("internal error %s", number, exc_info=error)
    found = BY_CODE["error"](f"an internal error, number {number}", hint="The server's log has the details.")
    return JSONResponse(found.as_dict(), 500)
