"""Refuses requests that web pages make a browser send to the unix socket.

A browser reaches the socket through a port that somebody forwards to it (`ssh -L
8080:PROBE_DIR/server.sock`), and then counts as the owner, without a token. So the Host header must name this
host, which stops DNS rebinding, and only probe's own pages may cause requests. Runs on the server's event
loop. Standard library only.
"""

from __future__ import annotations

from probe.base.errors import Forbidden, ProbeError
from probe.base.wire import HERE, ROLE_HEADER
from probe.server.http.limits import App, Receive, Scope, Send, answer_error
from probe.server.runtime.access import OWNER, VIEWER, check_route, role_now


class SocketGate:
    """ASGI middleware of the unix socket: passes a request on, or answers with the error."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            return
        try:
            _check_host(scope)
            _check_page(scope)
            _lower_role(scope)
        except ProbeError as error:
            await answer_error(send, error)
            return
        await self._app(scope, receive, send)


def _check_host(scope: Scope) -> None:
    hosts = [value for name, value in scope["headers"] if name == b"host"]
    if len(hosts) != 1 or not HERE.fullmatch(hosts[0]):
        raise Forbidden(
            "the Host header names another server", hint="Use http://localhost, on any port, before the path."
        )


def _check_page(scope: Scope) -> None:
    """Refuse requests from other pages; links and forms of probe's own pages may read."""
    for name, value in scope["headers"]:
        if name == b"origin":
            raise Forbidden("requests from web pages are refused", hint="Use the `probe` command, or curl.")
        ours = value == b"none" or (value == b"same-origin" and scope["method"] == "GET")
        if name == b"sec-fetch-site" and not ours:
            raise Forbidden("requests from web pages are refused", hint="Type the address into the browser.")


def _lower_role(scope: Scope) -> None:
    """Treat a request that asks for less than the owner's role as a viewer's: the page of `probe web
    --look-only` sends those. Raises `Forbidden` for a route that viewers may not use."""
    if any(name == ROLE_HEADER.encode() and value != OWNER.encode() for name, value in scope["headers"]):
        scope.setdefault("state", {})["role"] = VIEWER
        role_now.set(VIEWER)
        check_route(VIEWER, scope["method"], scope["path"])
