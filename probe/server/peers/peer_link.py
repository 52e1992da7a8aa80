"""One request to one other host, over HTTP: with the token, in bounded time and size, without redirects.

Runs on the server's event loop. httpx inside functions.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import ssl
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from probe.base.errors import HostUnreachable
from probe.base.settings import Settings
from probe.base.wire import ROLE_HEADER
from probe.server.peers.peer_discovery import Host, host_of, is_loopback

if TYPE_CHECKING:
    import httpx

CONNECT_S = 2.0
LARGEST_ANSWER_BYTES = 256 << 20
_AT_ONCE_BYTES = 256 << 10
"""Longer answers are decoded on a thread."""
SERVER_HEADER = "probe-server"
"""Proves that the sender is a server, which has the operator's token."""


def proof(token: str, role: str, method: str, path: str) -> str:
    """The proof for a request of another server; it can be made only with the operator's token."""
    said = f"a server asks\n{role}\n{method}\n{path}"
    return hmac.new(token.encode(), said.encode(), "sha256").hexdigest()


class Answer(NamedTuple):
    """A response: status, media type, content, and how long it took."""

    status: int
    kind: str
    content: bytes
    elapsed_s: float

    async def decoded(self) -> Any:
        """Its JSON; raises `ValueError`."""
        try:
            if len(self.content) <= _AT_ONCE_BYTES:
                return json.loads(self.content)
            return await asyncio.to_thread(json.loads, self.content)
        except RecursionError:
            raise ValueError("nested too deeply") from None


class Links:
    """Requests to other hosts: one HTTP client for all, created on first use."""

    def __init__(self, settings: Settings, token: Callable[[], str]) -> None:
        self._settings = settings
        self._read_token = token
        self._token = ""
        self._client: httpx.AsyncClient | None = None
        self._making = asyncio.Lock()

    async def exchange(self, host: Host, method: str, path: str, body: dict[str, Any], role: str) -> Answer:
        """One request; raises `HostUnreachable`. The caller enforces the deadline.

        `role` is sent along: the other server allows the request no more than that role."""
        self._check_clear(host)
        client = await self._opened()
        import httpx

        who = f"host {host.name} ({host.url})"
        began = time.monotonic()
        sent: dict[str, Any] = {"params": _parameters(body)} if method == "GET" else {"json": body}
        headers = {
            "Authorization": f"Bearer {self._token}", ROLE_HEADER: role, "Accept-Encoding": "identity",
            SERVER_HEADER: proof(self._token, role, method, path),
        }
        try:
            async with client.stream(method, host.url + path, headers=headers, **sent) as reply:
                if reply.is_redirect:
                    raise HostUnreachable(f"{who} sent a redirect, which is not followed")
                content = await _whole(reply, who)
        except httpx.ConnectTimeout:
            raise HostUnreachable(f"{who} does not answer: no connection within {CONNECT_S:g} s") from None
        except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError) as error:
            what = str(error) or type(error).__name__
            raise HostUnreachable(f"{who} does not answer: {what}") from None
        kind = reply.headers.get("content-type", "").partition(";")[0].strip().lower()
        return Answer(reply.status_code, kind, content, time.monotonic() - began)

    async def close(self) -> None:
        """Close the client."""
        if self._client is not None:
            await self._client.aclose()

    def _check_clear(self, host: Host) -> None:
        """Raise `HostUnreachable` if the token would be sent in clear text without the user's consent."""
        if host.url.startswith("https:") or self._settings.insecure_no_tls or is_loopback(host_of(host.url)):
            return
        raise HostUnreachable(
            f"host {host.name} ({host.url}) has no TLS, so the token would be sent in clear text",
            hint="Set PROBE_TLS_CERTIFICATE and PROBE_TLS_KEY on all hosts, or PROBE_INSECURE_NO_TLS=1.",
        )

    async def _opened(self) -> httpx.AsyncClient:
        async with self._making:
            if self._client is not None:
                return self._client
            client, self._token = await asyncio.to_thread(self._open)
            self._client = client
            return client

    def _open(self) -> tuple[httpx.AsyncClient, str]:
        import httpx

        token = self._read_token()
        try:
            trusted: Any = ssl.create_default_context(cafile=self._settings.tls_certificate or None)
        except (OSError, ssl.SSLError) as error:
            raise HostUnreachable(f"PROBE_TLS_CERTIFICATE cannot be used: {error}") from None
        # The token is not sent to a proxy, and .netrc is not used. Connections are not kept alive: the other
        # side closes idle ones, and a request sent at that moment would fail.
        return httpx.AsyncClient(
            verify=trusted, trust_env=False, follow_redirects=False,
            timeout=httpx.Timeout(None, connect=CONNECT_S),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=0),
        ), token


def _parameters(body: dict[str, Any]) -> dict[str, Any]:
    return {name: int(value) if isinstance(value, bool) else value for name, value in body.items()}


async def _whole(reply: httpx.Response, who: str) -> bytes:
    if reply.headers.get("content-encoding", "identity") != "identity":
        raise HostUnreachable(f"{who} answers in an encoding that was not requested")
    parts = bytearray()
    async for piece in reply.aiter_raw():
        parts += piece
        if len(parts) > LARGEST_ANSWER_BYTES:
            raise HostUnreachable(f"the answer of {who} is too large")
    return bytes(parts)

