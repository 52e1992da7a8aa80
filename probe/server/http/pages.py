"""HTML pages for people: `/` lists the recorded processes with links to routes, `/docs` describes all routes.

Built from the listing and from `/openapi.json`, without scripts or external resources. `/` is plain text for
clients that do not accept HTML. Runs on the server's event loop. May import fastapi.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from typing import Any
from urllib.parse import urlencode

from fastapi import FastAPI, Request
from fastapi.responses import HTMLResponse, PlainTextResponse, Response

from probe import __version__
from probe.server.recordings import listing
from probe.server.runtime.access import NEEDS, OPERATOR
from probe.server.service import Service

_STYLE = """
body { font: 1rem/1.5 system-ui, sans-serif; max-width: 64rem; margin: 2rem auto; padding: 0 1rem;
  color-scheme: light dark }
table { border-collapse: collapse; margin: .5rem 0 1.5rem }
td, th { text-align: left; vertical-align: top; padding: .2rem 1rem .2rem 0; border-bottom: 1px solid #8884 }
code, pre, textarea, input { font: .9rem/1.5 ui-monospace, monospace }
h2 { margin-top: 2.5rem; border-top: 1px solid #8888; padding-top: 1rem }
textarea { width: 100%; box-sizing: border-box }
"""
_HEADERS = {
    "content-security-policy": "default-src 'none'; form-action 'self'; base-uri 'none'; "
    "frame-ancestors 'none'; style-src 'sha256-"
    f"{base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()}'",
    "cache-control": "no-store", "referrer-policy": "no-referrer", "x-content-type-options": "nosniff",
    "x-frame-options": "DENY", "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
_FIRST_QUERY = "SELECT step, wall_s, data_s, forward_s, loss FROM python.steps ORDER BY step DESC LIMIT 20"
_ERRORS = '{"error": {"code", "message", "hint"}}'


def add(app: FastAPI, service: Service) -> None:
    """Add them to the application."""
    known: list[str] = []

    @app.get("/", include_in_schema=False)
    async def front(request: Request) -> Response:
        """The recorded processes, and links to routes about them."""
        rows, _ = await service.call(listing.process_rows, service.registry, service.watch.current, False)
        if "text/html" in request.headers.get("accept", "").lower():
            return HTMLResponse(_page("probe", _front(rows)), headers=_HEADERS)
        return PlainTextResponse("\n".join(_front_text(rows)) + "\n", headers=_HEADERS)

    @app.get("/docs", include_in_schema=False)
    async def described() -> Response:
        """Every route, from `/openapi.json`."""
        if not known:  # on a thread: it takes a while, the first time
            known.append(await service.call(lambda: _page("probe: HTTP", _described(app.openapi()))))
        return HTMLResponse(known[0], headers=_HEADERS)


def _page(title: str, parts: Iterable[str]) -> str:
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style>{"".join(parts)}</html>\n'
    )


def _grid(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; its cells are HTML."""
    made = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table><tr>{''.join(f'<th>{escape(one)}</th>' for one in headings)}</tr>{made}</table>"


def _code(text: str) -> str:
    return f"<code>{escape(text)}</code>"


def _link(route: str, words: str, **parameters: str) -> str:
    target = f"{route}?{urlencode(parameters)}" if parameters else route
    return f'<a href="{escape(target)}">{escape(words)}</a>'


# / ----------------------------------------------------------------------------------


def _front(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    yield f"<h1>probe {escape(__version__)} on {escape(os.uname().nodename)}</h1>"
    if rows:
        headings = ("process", "pid", "step", "state", "ask")
        yield _grid(headings, map(_process, rows))
    else:
        yield f"<p>Nothing is recorded. Start a job with {_code('PROBE=1 python train.py')}.</p>"
    yield (
        '<form action="/v1/query"><p><label>Endpoint: <input name="endpoint" '
        'placeholder="the only live process"></label><p><label>Read-only SQL:'
        f'<textarea name="sql" rows="4">{escape(_FIRST_QUERY)}</textarea></label>'
        '<p><button>Query</button></form>'
    )
    yield f"<p>{_link('/docs', 'All routes')} · {_link('/openapi.json', 'OpenAPI')} · "
    yield f"{_link('/v1/tables', 'Tables')} · {_link('/metrics', 'Prometheus metrics')}"


def _process(row: Mapping[str, Any]) -> Sequence[str]:
    endpoint = str(row["pid"])
    asked = ("diagnose", "backtrace", "summary")
    links = [_link(f"/v1/{route}", route, endpoint=endpoint) for route in asked]
    links.append(_link("/v1/query", "steps", endpoint=endpoint, sql=_FIRST_QUERY))
    return (
        escape(row["name"]), endpoint, escape(str(_known(row["step"]))), escape(row["state"]), " ".join(links)
    )


def _front_text(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    yield f"probe {__version__} on {os.uname().nodename}"
    yield ""
    for row in rows:
        yield f"{row['name']}  pid {row['pid']}  step {_known(row['step'])}  {row['state']}"
    if not rows:
        yield "nothing is recorded: start a job with PROBE=1 python train.py"
    yield ""
    yield "GET /v1/query?endpoint=PID&sql=SELECT…   rows; Accept: application/json, text/csv, Arrow"
    yield "GET /v1/diagnose?endpoint=PID            what is wrong"
    yield "GET /v1/backtrace?endpoint=PID           where it is"
    yield "GET /metrics                             for Prometheus"
    yield "GET /docs, /openapi.json                 every route"


def _known(step: int | None) -> int | str:
    return "-" if step is None else step


# /docs ------------------------------------------------------------------------------


def _described(schema: Mapping[str, Any]) -> Iterator[str]:
    """The whole description as HTML."""
    yield "<h1>HTTP interface</h1><p>Over the unix socket the caller is the owner. Over TCP send "
    yield f"{_code('Authorization: Bearer TOKEN')}; each route names the role that it needs. "
    yield f"Bodies are JSON. Errors are {_code(_ERRORS)}. "
    yield f"{_link('/openapi.json', 'OpenAPI')} has the same in machine-readable form.</p>"
    for path, operations in schema["paths"].items():
        for method, operation in operations.items():
            yield from _route(method.upper(), path, operation)
    yield "<h2>Shapes</h2>"
    for name, shape in sorted(schema.get("components", {}).get("schemas", {}).items()):
        yield f'<h3 id="{escape(name)}">{escape(name)}</h3><p>{escape(shape.get("description", ""))}</p>'
        yield _fields(shape)


def _route(method: str, path: str, operation: Mapping[str, Any]) -> Iterator[str]:
    yield f"<h2>{escape(method)} {escape(path)}</h2><p>{escape(operation.get('description', ''))}</p>"
    yield f"<p>Role: {escape(NEEDS.get(f'{method} {path}', OPERATOR))}</p>"
    parameters = operation.get("parameters", ())
    if parameters:
        yield _grid(
            ("parameter", "type", "default"),
            (
                (_code(one["name"]), _type(one["schema"]),
                 "required" if one.get("required") else _code(json.dumps(one["schema"].get("default"))))
                for one in parameters
            ),
        )
    if "requestBody" in operation:
        yield f"<p>Body: {_contents(operation['requestBody'])}</p>"
    for status, answer in sorted(operation.get("responses", {}).items()):
        if status == "200":
            yield f"<p>Answer: {_contents(answer)}</p>"


def _contents(described: Mapping[str, Any]) -> str:
    kinds = described.get("content", {})
    shown = [
        _code(kind) + (f" {_type(one['schema'])}" if one.get("schema") else "") for kind, one in kinds.items()
    ]
    return ", ".join(shown)


def _fields(shape: Mapping[str, Any]) -> str:
    required = shape.get("required", ())
    rows = (
        (_code(name), _type(field), "" if name in required else _code(json.dumps(field.get("default"))))
        for name, field in shape.get("properties", {}).items()
    )
    more = "<p>…and more fields.</p>" if shape.get("additionalProperties") is True else ""
    return _grid(("field", "type", "default"), rows) + more


def _type(schema: Mapping[str, Any]) -> str:
    """A schema in a few words."""
    if "$ref" in schema:
        name = escape(schema["$ref"].rpartition("/")[2])
        return f'<a href="#{name}">{name}</a>'
    if "anyOf" in schema:
        return " or ".join(map(_type, schema["anyOf"]))
    if "enum" in schema or "const" in schema:
        return " or ".join(_code(json.dumps(one)) for one in schema.get("enum", [schema.get("const")]))
    if schema.get("type") == "array":
        return f"list of {_type(schema['items'])}" if schema.get("items") else "list"
    return escape(str(schema.get("type", "anything")))
