"""Limits that uvicorn does not have: connections, slow clients, bodies, ambiguous requests.

`LimitedProtocol` is uvicorn's HTTP/1.1 protocol with timeouts and a limit on connections; `BodyLimit` is ASGI
middleware around the application. Both run on the server's event loop. May import uvicorn.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections import Counter
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from probe.base.errors import BadRequest, ProbeError, TokenInvalid, TooLarge, TooMany
from probe.base.wire import LARGEST_BODY_BYTES, LARGEST_HEAD_BYTES, Peer, head_of, peer_of
from probe.server.runtime.allowance import address_of

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

CONNECTIONS = 256
"""More than may wait for the end of a step (`forwarding.PENDING`), so that other requests still get in."""
HEAD_TIMEOUT_S = 5.0
"""From the connection, or the previous answer, to a complete request head."""
BODY_TIMEOUT_S = 10.0
SEND_TIMEOUT_S = 20.0
"""A client that reads nothing of its answer for this long is disconnected."""


class _Strict(h11.Connection):
    """h11 behind `wire.head_of`: h11 alone accepts lines that end in LF, and joins folded lines."""

    def __init__(self) -> None:
        super().__init__(h11.SERVER, LARGEST_HEAD_BYTES)
        self.refused: ProbeError | None = None

    def next_event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        """The next event; raises `h11.RemoteProtocolError` before an ambiguous head is parsed."""
        if self.their_state is h11.IDLE:
            data, _ = self.trailing_data
            try:
                head_of(data)
            except ProbeError as error:
                self.refused = error
                raise h11.RemoteProtocolError(error.message) from None
        return super().next_event()


class LimitedProtocol(H11Protocol):
    """One connection: identifies the peer, enforces timeouts and the limit on connections.

    There is one timer at a time, for the request's head or for reading the answer. When it fires, the client
    is disconnected.
    """

    _timer: asyncio.TimerHandle | None = None
    _since = 0.0

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.conn = self._strict = _Strict()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A new client: identify it and check the limit."""
        super().connection_made(transport)
        peer = _unix_peer(transport)
        if peer is not None:
            if peer.uid not in (os.getuid(), 0):
                transport.abort()
                return
            self.app_state = {"peer": peer}  # uvicorn hands it to the application as the scope's state
        self._since = self.loop.time()
        if len(self.connections) > CONNECTIONS and not self._make_room():
            self._refuse(TooMany(f"more than {CONNECTIONS} connections at once"))
            return
        self._cut_off_after(HEAD_TIMEOUT_S)

    def connection_lost(self, exc: Exception | None) -> None:
        """The client has disconnected."""
        self._cut_off_after(None)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Bytes of a request; the head's timeout runs until the request is being answered."""
        if self.transport.is_closing():
            return
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete and not self.transport.is_closing():
            self._cut_off_after(None)

    def on_response_complete(self) -> None:
        """The answer is sent, or in the buffer: wait for the rest to be read, then for the next head."""
        super().on_response_complete()
        if self.transport.is_closing():
            self._cut_off_after(SEND_TIMEOUT_S)
        elif self.cycle is None or self.cycle.response_complete:
            self._cut_off_after(HEAD_TIMEOUT_S)

    def timeout_keep_alive_handler(self) -> None:
        """Close an idle connection; data that the client did not read is dropped."""
        self._cut_off_after(SEND_TIMEOUT_S)
        super().timeout_keep_alive_handler()

    def pause_writing(self) -> None:
        """The client is not reading."""
        super().pause_writing()
        self._cut_off_after(SEND_TIMEOUT_S)

    def resume_writing(self) -> None:
        """The client has read what was buffered."""
        self._cut_off_after(None)
        super().resume_writing()

    def send_400_response(self, msg: str) -> None:
        """Answer invalid HTTP in the common error shape."""
        self._refuse(self._strict.refused or BadRequest("not a valid HTTP/1.1 request"))

    @property
    def _idle(self) -> bool:
        """Whether no request of this client is being answered."""
        return self.cycle is None or bool(self.cycle.response_complete)

    def _make_room(self) -> bool:
        """Disconnect the oldest idle connection of the address that has most of them; False when none is
        idle. So an address that opens many idle connections cannot keep others out."""
        others = [one for one in self.connections if isinstance(one, LimitedProtocol) and one is not self]
        idle = [one for one in others if one._idle]
        if not idle:
            return False
        count = Counter(address_of(one.client) for one in idle)
        oldest = min(idle, key=lambda one: (-count[address_of(one.client)], one._since))
        self.connections.discard(oldest)
        oldest.transport.abort()
        return True

    def _cut_off_after(self, seconds: float | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if seconds is not None:
            self._timer = self.loop.call_later(seconds, self.transport.abort)

    def _refuse(self, error: ProbeError) -> None:
        body = json.dumps(error.as_dict()).encode()
        head = (
            f"HTTP/1.1 {error.status} Refused\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            self.transport.write(head.encode("ascii") + body)
        self._cut_off_after(1.0)
        self.transport.close()


def _unix_peer(transport: asyncio.Transport) -> Peer | None:
    """The peer of a unix socket; None over TCP, where the token is checked instead."""
    connection = transport.get_extra_info("socket")
    if connection is None or connection.family != socket.AF_UNIX:
        return None
    return peer_of(connection)


class BodyLimit:
    """Refuses bodies that are encoded, too large, too slow or not declared to be JSON."""

    def __init__(self, app: App, on_request: Callable[[], None]) -> None:
        self._app = app
        self._on_request = on_request

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            return
        self._on_request()
        try:
            body = await asyncio.wait_for(_read_body(scope, receive), BODY_TIMEOUT_S)
        except asyncio.TimeoutError:
            await answer_error(send, BadRequest(f"the body was not complete within {BODY_TIMEOUT_S:g} s"))
            return
        except ProbeError as error:
            await answer_error(send, error)
            return
        if body is None:
            return
        messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

        async def replay() -> Message:
            return messages.pop() if messages else await receive()

        await self._app(scope, replay, send)


async def _read_body(scope: Scope, receive: Receive) -> bytes | None:
    """The whole body; None when the client disconnects."""
    names = [name for name, _ in scope["headers"]]
    if b"content-encoding" in names:
        raise BadRequest("encoded bodies are not accepted")
    parts = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        parts += message.get("body", b"")
        if len(parts) > LARGEST_BODY_BYTES:
            raise TooLarge(f"the body is larger than {LARGEST_BODY_BYTES} bytes")
        if not message.get("more_body", False):
            if parts:
                _check_json(scope)
            return bytes(parts)


def _check_json(scope: Scope) -> None:
    """Refuse any other body: a web page cannot send JSON to another site without a CORS preflight."""
    kinds = [value.decode("latin-1") for name, value in scope["headers"] if name == b"content-type"]
    if len(kinds) == 1 and kinds[0].partition(";")[0].strip().lower() == "application/json":
        return
    found = f"is {', '.join(kinds)[:200]}" if kinds else "is missing"
    raise BadRequest(
        f"the body has to be JSON, and its Content-Type {found}",
        hint="Send the header `Content-Type: application/json`; `curl --json '{…}' URL` does.",
    )


async def answer_error(send: Send, error: ProbeError) -> None:
    """Answer with an error from outside the application, and close the connection."""
    body = json.dumps(error.as_dict()).encode()
    headers = [
        (b"content-type", b"application/json"), (b"content-length", str(len(body)).encode()),
        (b"connection", b"close"),
    ]
    if isinstance(error, TokenInvalid):
        headers.append((b"www-authenticate", b'Bearer realm="probe"'))
    await send({"type": "http.response.start", "status": error.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
