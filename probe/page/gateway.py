"""Gateway between a browser and the server: serves the page's files, and forwards requests of sessions.

The listener is TCP, so every user of this machine and every page in the browser can reach it. Files contain
nothing about a job and are sent to everybody. A request about jobs needs the key of a session, which no other
page can know or make a browser send: the page itself adds it as a header, not as a cookie. Only the routes
and actions that the page uses are forwarded; the server decides what the caller may do. Runs on the event
loop of `page_serving`; standard library only.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from probe.base.errors import (
    BadRequest,
    Forbidden,
    ProbeError,
    ServerUnavailable,
    TokenInvalid,
    TooLarge,
    TooMany,
)
from probe.base.isolation import capture
from probe.base.wire import HERE, LARGEST_BODY_BYTES, Reply
from probe.page.link_keys import LinkKeys

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Result = TypeVar("Result")
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

PASSED = frozenset({
    "GET /v1/health", "GET /v1/ranks", "GET /v1/processes", "GET /v1/tables", "GET /v1/recipes",
    "GET /v1/backtrace", "GET /v1/diagnose", "GET /v1/summary", "GET /v1/monitor",
    "GET /v1/query", "POST /v1/query", "POST /v1/act", "POST /v1/undo",
})
"""Routes that the page uses. No snippets, detaching or deleting, in case a session is stolen."""
ACTIONS = frozenset({"lr", "checkpoint", "pause", "resume"})
"""Actions that the page offers, in addition to `watch`."""
WATCHED = frozenset({"histograms", "steps"})
"""Arguments that the page may give to `watch`; none is code."""
AT_ONCE = 16
"""Concurrent requests to the server; further ones are refused."""
PROCESSES = {"/v1/query": 1, "/v1/summary": 1, "/v1/diagnose": 2}
"""Query processes that a request to these routes takes at the server, at most. Requests wait here for their
turn: at the server, waiting counts as part of a query's time, and excess requests are refused."""
FOR_US, FOR_VIEWERS = 3, 2
"""Query processes that all tabs together may take; the server has 4, and 2 for viewers."""
LONGEST_SAMPLING_S = 10
BODY_S = 10.0
"""Limit from a request's head to the end of its body."""
_ONCE = frozenset({b"host", b"origin", b"authorization", b"content-type", b"sec-fetch-site"})
"""Headers that access depends on."""
_KINDS = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
_SHOWN = frozenset({"application/json", "text/csv", "application/vnd.apache.arrow.stream"})
"""Media types of answers that are kept; any other becomes plain text."""
_OPEN = "Open the link that `probe web` prints."
_FOLDER = Path(__file__).parent / "static"
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
_HEADERS = {
    "cache-control": "no-store", "content-security-policy": POLICY, "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff", "x-frame-options": "DENY",
    "cross-origin-opener-policy": "same-origin", "cross-origin-resource-policy": "same-origin",
}


class Asked(NamedTuple):
    """A request to forward to the server."""

    method: str
    target: str
    body: bytes
    accept: str

    @property
    def processes(self) -> int:
        """Query processes that it takes at the server, at most."""
        path, _, query = self.target.partition("?")
        return 0 if "part=state" in query.split("&") else PROCESSES.get(path, 0)


class Gateway:
    """The ASGI application of the page."""

    def __init__(
        self, forward: Callable[[Asked], Reply], keys: LinkKeys,
        sampled: tuple[str, Callable[[int], bytes]], *, viewer: bool = False,
    ) -> None:
        """`forward` sends a request to the server; `sampled`: an endpoint, and a function that samples its
        stacks for some seconds, in speedscope's format. Both block, and run on threads of their own.
        `viewer`: whether the server treats this command as a viewer."""
        self._forward = forward
        self._sampled, self._sample = sampled
        self._sampling = False
        self._keys = keys
        self._files = dict(_files())
        self._under_way = 0
        self._processes = asyncio.Semaphore(FOR_VIEWERS if viewer else FOR_US)
        self._taking = asyncio.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            return
        try:
            reply = await self._answer(scope, receive)
        except ProbeError as error:
            reply = _json(error.as_dict(), error.status)
        headers = {**_HEADERS, **reply.headers, "content-length": str(len(reply.content))}
        encoded = [
            (name.encode("latin-1"), value.encode("latin-1", "replace")) for name, value in headers.items()
        ]
        await send({"type": "http.response.start", "status": reply.status, "headers": encoded})
        await send({"type": "http.response.body", "body": reply.content})

    async def _answer(self, scope: Scope, receive: Receive) -> Reply:
        method, path = scope["method"], scope["path"]
        headers = _headers_of(scope)
        if method == "GET" and path in self._files:
            _check_reader(headers, page=path == "/")
            return self._files[path]
        _check_own_page(headers)
        if f"{method} {path}" == "POST /session":
            return self._session(_object(await _body(headers, receive)))
        self._check_key(headers)
        if path == "/rows.parquet" and method == "POST":
            return await self._parquet(await _body(headers, receive), receive)
        if path == "/flamegraph" and method == "POST":
            return await self._flames(_object(await _body(headers, receive)))
        if f"{method} {path}" not in PASSED:
            raise Forbidden(f"the page does not use {method} {path[:100]}", hint="Use the `probe` command.")
        body = await _body(headers, receive) if method == "POST" else b""
        if path == "/v1/act" and not _offered(_object(body)):
            raise Forbidden("the page does not offer this action", hint="Use the `probe` command.")
        query = scope.get("query_string", b"").decode("latin-1")
        accept = headers.get(b"accept", b"").decode("latin-1")
        asked = Asked(method, f"{path}?{query}" if query else path, body, accept)
        return _passed(await self._ask(asked, receive))

    def _session(self, body: dict[str, Any]) -> Reply:
        key = self._keys.trade(str(body.get("key", "")))
        if key is None:
            raise TokenInvalid(
                "this link was opened already, or its `probe web` has ended",
                hint="Press Enter where `probe web` runs, and open the link that it prints.",
            )
        return _json({"session": key}, 200)

    def _check_key(self, headers: dict[bytes, bytes]) -> None:
        scheme, _, key = headers.get(b"authorization", b"").decode("latin-1").partition(" ")
        if scheme.lower() != "bearer" or not self._keys.knows(key):
            raise TokenInvalid(
                "this browser has no session",
                hint="Open the link that `probe web` prints; Enter prints a new one.",
            )

    async def _flames(self, body: dict[str, Any]) -> Reply:
        """Sample stacks as `probe flamegraph` does; one sampling at a time."""
        seconds = body.get("seconds")
        if type(seconds) is not int or not 1 <= seconds <= LONGEST_SAMPLING_S:
            raise BadRequest(f"sampling takes 1 to {LONGEST_SAMPLING_S} seconds")
        if body.get("endpoint") != self._sampled:  # another name could belong to another machine
            raise Forbidden(
                f"this page samples only {self._sampled}", hint="Run `probe JOB web` for the other job.",
            )
        if self._sampling:
            raise TooMany("the stacks are being sampled already", hint="Try again in a few seconds.")
        self._sampling = True
        try:
            content = await self._apart(lambda: self._sample(seconds))
        finally:
            self._sampling = False
        return Reply(200, {"content-type": "application/json"}, content)

    async def _ask(self, asked: Asked, receive: Receive) -> Reply:
        """The server's reply."""
        async with self._turn(asked.processes, receive):
            return await self._apart(lambda: self._forward(asked))

    @contextlib.asynccontextmanager
    async def _turn(self, processes: int, receive: Receive) -> AsyncIterator[None]:
        """Holds this many query processes, granted in order of request. Raises `BadRequest` when the tab no
        longer waits: it shows another view, or was closed."""
        async with contextlib.AsyncExitStack() as held:

            async def take() -> None:
                async with self._taking:  # else two requests could deadlock, each with a part
                    for _ in range(processes):
                        await held.enter_async_context(self._processes)

            async def leave() -> None:
                while (await receive())["type"] != "http.disconnect":
                    pass

            if processes:
                waits = asyncio.ensure_future(take()), asyncio.ensure_future(leave())
                try:
                    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
                    left = not waits[0].done()
                finally:
                    for one in waits:
                        one.cancel()
                    await asyncio.gather(*waits, return_exceptions=True)
                if left:
                    raise BadRequest("the page no longer waits for the answer")
            yield

    async def _apart(self, work: Callable[[], Result]) -> Result:
        """Run blocking work on a daemon thread, which does not delay the end of the command."""
        if self._under_way >= AT_ONCE:
            raise TooMany(f"more than {AT_ONCE} requests of the page at once")
        loop = asyncio.get_running_loop()
        done: asyncio.Future[Result] = loop.create_future()

        def settle(result: Result | None, error: BaseException | None) -> None:
            if done.cancelled():
                return
            if result is not None:
                done.set_result(result)
            else:
                done.set_exception(error or ServerUnavailable("no answer"))

        def run() -> None:
            found = capture(work)
            if not loop.is_closed():
                loop.call_soon_threadsafe(settle, *found)

        self._under_way += 1
        try:
            threading.Thread(target=run, name="asking", daemon=True).start()
            return await done
        finally:
            self._under_way -= 1

    async def _parquet(self, body: bytes, receive: Receive) -> Reply:
        """The rows of a query as a Parquet file, made as `probe query -o rows.parquet` makes it."""
        reply = await self._ask(Asked("POST", "/v1/query", body, "application/json"), receive)
        if reply.status != 200:
            return _passed(reply)
        from probe.client.answer import Answer

        answer = Answer.parse(_object(reply.content))
        content = await asyncio.to_thread(answer.parquet)
        told = {"probe-truncated": json.dumps(answer.truncated), "probe-notes": json.dumps(answer.notes)}
        return Reply(200, {"content-type": "application/vnd.apache.parquet", **told}, content)


def _offered(body: dict[str, Any]) -> bool:
    """Whether the page offers this action."""
    action, arguments = body.get("action"), body.get("arguments")
    if action == "watch":
        return isinstance(arguments, dict) and arguments.keys() <= WATCHED
    return isinstance(action, str) and action in ACTIONS


def _files() -> list[tuple[str, Reply]]:
    """Every file of the page, by its path."""
    found = []
    for file in sorted(_FOLDER.iterdir()):
        kind = _KINDS.get(file.suffix)
        if kind is not None:
            path = "/" if file.name == "index.html" else f"/{file.name}"
            headers = {"content-type": f"{kind}; charset=utf-8"}
            found.append((path, Reply(200, headers, file.read_bytes())))
    return found


def _headers_of(scope: Scope) -> dict[bytes, bytes]:
    """The headers; those that access depends on may occur only once."""
    found: dict[bytes, bytes] = {}
    for name, value in scope["headers"]:
        if name in found and name in _ONCE:
            raise BadRequest(f"more than one header {name.decode('latin-1')}")
        found[name] = value
    if not HERE.fullmatch(found.get(b"host", b"")):
        raise Forbidden("the Host header names another machine", hint=_OPEN)
    return found


def _check_reader(headers: dict[bytes, bytes], *, page: bool) -> None:
    """Refuse files to other pages. A link on one may open this page, which shows nothing without a key."""
    site = headers.get(b"sec-fetch-site", b"none")
    kind = headers.get(b"sec-fetch-mode"), headers.get(b"sec-fetch-dest")
    if site not in (b"none", b"same-origin") and not (page and kind == (b"navigate", b"document")):
        raise Forbidden("other pages may not read this", hint=_OPEN)


def _check_own_page(headers: dict[bytes, bytes]) -> None:
    """Refuse requests that other pages cause. The key protects already; this helps if it ever leaks."""
    origin = headers.get(b"origin")
    if origin is not None and origin.lower() != b"http://" + headers[b"host"].lower():
        raise Forbidden("requests from other pages are refused", hint=_OPEN)
    if headers.get(b"sec-fetch-site", b"same-origin") != b"same-origin":
        raise Forbidden("requests from other pages are refused", hint=_OPEN)


async def _body(headers: dict[bytes, bytes], receive: Receive) -> bytes:
    """The whole body, which must be JSON and short."""
    if headers.get(b"content-type", b"").partition(b";")[0].strip().lower() != b"application/json":
        raise BadRequest("the body has to be JSON", hint="Send the header `Content-Type: application/json`.")

    async def whole() -> bytes:
        parts = bytearray()
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise BadRequest("the request was cut short")
            parts += message.get("body", b"")
            if len(parts) > LARGEST_BODY_BYTES:
                raise TooLarge(f"the body is larger than {LARGEST_BODY_BYTES} bytes")
            if not message.get("more_body", False):
                return bytes(parts)

    try:
        return await asyncio.wait_for(whole(), BODY_S)
    except asyncio.TimeoutError:
        raise BadRequest(f"the body was not complete within {BODY_S:g} s") from None


def _object(body: bytes) -> dict[str, Any]:
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        raise BadRequest("the body is not JSON") from None
    if not isinstance(found, dict):
        raise BadRequest("the body is not a JSON object")
    return found


def _json(content: dict[str, Any], status: int) -> Reply:
    return Reply(status, {"content-type": "application/json"}, json.dumps(content).encode())


def _passed(reply: Reply) -> Reply:
    """The server's reply with only the headers that the page needs, and never with an executable type."""
    kept = {
        name: value for name, value in reply.headers.items()
        if name == "content-type" or name.startswith("probe-")
    }
    if kept.get("content-type", "").partition(";")[0] not in _SHOWN:
        kept["content-type"] = "text/plain"
    return Reply(reply.status, kept, reply.content)
