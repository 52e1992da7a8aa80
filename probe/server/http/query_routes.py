"""The routes of queries. `POST` is for programs, `GET` for a browser, a dashboard, curl; `rows` for servers.

The Accept header selects the form of the answer: JSON, or CSV or Arrow with the other fields in headers. Runs
on the server's event loop; queries run in worker processes. May import fastapi.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Coroutine, Mapping, Sequence
from typing import Annotated, Any

from fastapi import FastAPI, Query, Request
from fastapi.responses import Response
from starlette.types import Receive, Send
from starlette.types import Scope as AsgiScope

from probe.base.errors import BadRequest, TooMany
from probe.server.answers import queries
from probe.server.http import json_answers
from probe.server.runtime import access, packed_answers
from probe.server.runtime.access import Scope
from probe.server.runtime.request_bodies import DEFAULT_ROWS, MOST_ROWS, QueryBody, RowsBody
from probe.server.service import IN_FLIGHT, VIEWERS_IN_FLIGHT, Service

JSON, CSV, ARROW = "application/json", "text/csv", "application/vnd.apache.arrow.stream"
FORMS = {JSON: "json", CSV: "csv", ARROW: "arrow"}
"""Media types of the answers, the preferred first, and the forms of `confined.results`."""
LONGEST_NOTES = 4096
"""Characters of notes in a header; notes that do not fit are counted."""
_CHUNK_BYTES = 256 << 10
_ANSWERS: dict[int | str, dict[str, Any]] = {
    **json_answers.AGENT_ERRORS,
    200: {"model": json_answers.Rows, "content": {CSV: {}, ARROW: {}}},
}


def add(app: FastAPI, service: Service) -> None:
    """Add them to the application."""

    @app.get("/v1/query", responses=_ANSWERS)
    async def ask(
        request: Request,
        sql: Annotated[str, Query(max_length=16 << 10)],
        endpoint: Annotated[str, Query(max_length=4096)] = "",
        limit: Annotated[int, Query(ge=1, le=MOST_ROWS)] = DEFAULT_ROWS,
        timeout_s: Annotated[float | None, Query(gt=0, le=86400)] = None,
        scope: Scope = "job",
    ) -> Response:
        """Run one SQL statement, which can only read, over the recordings of an endpoint. `Accept` chooses
        between JSON, CSV and Arrow."""
        body = QueryBody(endpoint=endpoint, sql=sql, limit=limit, timeout_s=timeout_s, scope=scope)
        return await _answer(service, body, request)

    @app.post("/v1/query", responses=_ANSWERS)
    async def query(body: QueryBody, request: Request) -> Response:
        """Run one SQL statement, which can only read, over the recordings of an endpoint. `Accept` chooses
        between JSON, CSV and Arrow."""
        return await _answer(service, body, request)

    @app.post("/v1/rows", responses=json_answers.PACKED, response_class=Response)
    async def rows(body: RowsBody, request: Request) -> Response:
        """The rows of this host that a statement may read, for another host's server."""
        caller = access.caller(request)
        made = queries.rows(service, body, caller, functools.partial(_disconnected, request))
        return await _in_flight(service, caller, made, packed_answers.MEDIA_TYPE)


async def _answer(service: Service, body: QueryBody, request: Request) -> Response:
    media_type = accepted(request.headers.getlist("accept"))
    caller = access.caller(request)
    gone = functools.partial(_disconnected, request)
    made = queries.answer(service, body, caller, gone, FORMS[media_type])
    return await _in_flight(service, caller, made, media_type)


def accepted(headers: Sequence[str]) -> str:
    """The media type of the answer, from the Accept headers: JSON if they leave the choice.

    Raises `BadRequest` if they allow none."""
    chosen, best = "", 0.0
    for part in ",".join(headers).split(",") if any(headers) else ["*/*"]:
        name, *parameters = (word.strip().lower() for word in part.split(";"))
        fitting = [one for one in FORMS if name in (one, "*/*", f"{one.partition('/')[0]}/*")]
        weight = next((_number(word[2:]) for word in parameters if word.startswith("q=")), 1.0)
        if fitting and weight > best:
            chosen, best = fitting[0], weight
    if not chosen:
        hint = f"Send `Accept: {JSON}`, `{CSV}` or `{ARROW}`."
        raise BadRequest(f"rows cannot be returned as {', '.join(headers)[:200]}", hint=hint)
    return chosen


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0


async def _in_flight(
    service: Service, caller: access.Caller, made: Coroutine[Any, Any, bytes], media_type: str
) -> Response:
    """Await a query's answer, unless too many queries run; viewers cannot use up everybody's share."""
    running, role = service.queries, caller.role
    viewers = role == access.VIEWER and running[role] >= VIEWERS_IN_FLIGHT
    if viewers or running.total() >= IN_FLIGHT:
        made.close()
        what, limit = ("queries of viewers", VIEWERS_IN_FLIGHT) if viewers else ("queries", IN_FLIGHT)
        raise TooMany(f"too many concurrent {what} (limit {limit})")
    running[role] += 1
    answer: _ReadyBytes | None = None
    try:
        answer = _ReadyBytes(await made, service, role, media_type)
        return answer
    finally:
        if answer is None:
            running[role] -= 1


class _ReadyBytes(Response):
    """A complete answer, sent in pieces, so that a slow reader holds only one piece in memory.

    The query counts as running until the last piece is sent."""

    def __init__(self, content: bytes, service: Service, role: str, media_type: str) -> None:
        self._content = memoryview(content)
        headers = {"cache-control": "no-store", "x-content-type-options": "nosniff"}
        if media_type in (CSV, ARROW):
            head, [self._content] = packed_answers.unpack(content)
            headers.update(_told(head))
        super().__init__(None, media_type=media_type, headers=headers)
        self.headers["content-length"] = str(len(self._content))
        self._service = service
        self._role = role

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            content = self._content
            for start in range(0, max(1, len(content)), _CHUNK_BYTES):
                piece = content[start : start + _CHUNK_BYTES]
                more = start + _CHUNK_BYTES < len(content)
                await send({"type": "http.response.body", "body": bytes(piece), "more_body": more})
        finally:
            self._service.queries[self._role] -= 1


def _told(head: Mapping[str, Any]) -> dict[str, str]:
    """The fields of a JSON answer other than the rows, as headers: `Probe-Notes` is a JSON list of texts."""
    notes: list[str] = list(head["notes"])
    kept = list(notes)
    while len(json.dumps(kept)) > LONGEST_NOTES:
        kept = kept[: len(kept) // 2]
    if len(kept) < len(notes):
        kept.append(f"and {len(notes) - len(kept)} more: ask for {JSON}")
    return {
        "probe-truncated": json.dumps(bool(head["truncated"])),
        "probe-elapsed-ms": json.dumps(head["elapsed_ms"]), "probe-notes": json.dumps(kept),
    }


async def _disconnected(request: Request) -> None:
    """Completes when the caller disconnects."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
