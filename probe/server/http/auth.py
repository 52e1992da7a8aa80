"""TCP access: checks of tokens, Host header, browsers and rates. On the unix socket the kernel identifies
callers.

The operator's token allows what the training user can do (with the exceptions in `access`); the viewer's only
reads. Every request over TCP passes `TcpGate` before it reaches the application. Standard library only.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import os
import time
from collections import defaultdict, deque
from collections.abc import Mapping
from pathlib import Path

from probe.base.errors import Forbidden, ProbeError, SettingInvalid, TokenInvalid, TooMany
from probe.base.settings import Settings
from probe.base.wire import ROLE_HEADER
from probe.server.http.limits import App, Receive, Scope, Send, answer_error
from probe.server.peers.peer_discovery import is_loopback
from probe.server.peers.peer_link import SERVER_HEADER, proof
from probe.server.runtime.access import OPERATOR, VIEWER, check_route, role_now
from probe.server.runtime.allowance import Allowance, Client, address_of

FAILURES_PER_MINUTE = 10
_LATE_S = 0.5
LATE_AT_ONCE = 32
"""Limit of concurrent delayed answers to wrong tokens: each holds a connection. Others are not delayed."""
_REMEMBERED = 1024
TCP_SETTINGS = (
    "listen", "allow_eval", "token_file", "viewer_token_file", "tls_certificate", "tls_key",
    "insecure_no_tls", "peers",
)
"""Settings that decide whom a server answers over TCP: all come from one job, or all from the server."""


def listen_address(settings: Settings) -> tuple[str, int]:
    """Host and port of PROBE_LISTEN. Raises `SettingInvalid`."""
    host, separator, port = settings.listen.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not separator or not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise SettingInvalid(
            f"PROBE_LISTEN={settings.listen!r} is not host:port",
            hint="For example PROBE_LISTEN=127.0.0.1:7130.",
        )
    return host, int(port)


def check_listen(settings: Settings) -> None:
    """Raise `SettingInvalid` if TCP would be reachable from other hosts without encryption."""
    host, _ = listen_address(settings)
    if bool(settings.tls_certificate) != bool(settings.tls_key):
        raise SettingInvalid("PROBE_TLS_CERTIFICATE and PROBE_TLS_KEY must be set together")
    if not is_loopback(host) and not settings.tls_certificate and not settings.insecure_no_tls:
        raise SettingInvalid(
            f"PROBE_LISTEN={settings.listen} is reachable from other hosts and has no TLS",
            hint="Set PROBE_TLS_CERTIFICATE and PROBE_TLS_KEY, or listen on 127.0.0.1 and use an ssh "
            "tunnel, or allow a token in clear text with PROBE_INSECURE_NO_TLS=1.",
        )


class TcpGate:
    """ASGI middleware of the TCP listener: passes a request on, or answers with the error."""

    def __init__(self, app: App, tokens: Mapping[str, str], host: str, port: int) -> None:
        """`tokens` by role."""
        self._app = app
        self._digests = {role: _digest(token.encode()) for role, token in tokens.items()}
        self._hosts = _allowed_hosts(host, port)
        self._failures: dict[str, deque[float]] = defaultdict(deque)
        self._allowance = Allowance()
        self._operators_token = tokens[OPERATOR]
        self._late = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            return
        try:
            self._check_origin(scope)
            token_role = await self._check_token(scope)
            role = _lowered(token_role, scope)
            server = token_role == OPERATOR and self._of_a_server(scope)
            self._allowance.take(Client(role, address_of(scope.get("client")), server))
            check_route(role, scope["method"], scope["path"])
            with self._allowance.answering(role):
                scope.setdefault("state", {})["role"] = role
                role_now.set(role)
                await self._app(scope, receive, send)
        except ProbeError as error:
            await answer_error(send, error)

    def _check_origin(self, scope: Scope) -> None:
        """Refuse other Host headers (DNS rebinding) and requests of web pages."""
        hosts = [value for name, value in scope["headers"] if name == b"host"]
        if len(hosts) != 1 or hosts[0].decode("latin-1").lower() not in self._hosts:
            raise Forbidden(
                "the Host header names another server", hint="Use the address in PROBE_LISTEN."
            )
        for name, value in scope["headers"]:
            if name == b"origin" or (name == b"sec-fetch-site" and value != b"none"):
                raise Forbidden("requests from web pages are refused", hint="Use the `probe` command.")

    async def _check_token(self, scope: Scope) -> str:
        """The role of the token in the request."""
        given = [value for name, value in scope["headers"] if name == b"authorization"]
        scheme, _, token = (given[0] if len(given) == 1 else b"").partition(b" ")
        digest = _digest(token)
        # All tokens are compared, so that the time reveals nothing.
        right = [role for role, known in self._digests.items() if hmac.compare_digest(digest, known)]
        if right and scheme.lower() == b"bearer":
            return right[0]
        # Only wrong tokens are slowed down: nobody can lock out the right one.
        failures = self._recent_failures(address_of(scope.get("client")))
        if len(failures) >= FAILURES_PER_MINUTE:
            await self._be_late()
            raise TooMany("too many wrong tokens from this address", hint="Wait a minute.")
        failures.append(time.monotonic())
        raise TokenInvalid(
            "the token is wrong" if given else "the request has no token",
            hint="Send the header `Authorization: Bearer TOKEN` with a token from that host's PROBE_DIR: "
            "`token.viewer` only reads, `token` may do more. The `probe` command takes it from "
            "PROBE_TOKEN_FILE.",
        )

    def _recent_failures(self, peer: str) -> deque[float]:
        if len(self._failures) > _REMEMBERED:
            self._failures.clear()
        failures = self._failures[peer]
        while failures and failures[0] < time.monotonic() - 60:
            failures.popleft()
        return failures

    async def _be_late(self) -> None:
        if self._late < LATE_AT_ONCE:
            self._late += 1
            try:
                await asyncio.sleep(_LATE_S)
            finally:
                self._late -= 1

    def _of_a_server(self, scope: Scope) -> bool:
        """Whether another host's server sends this request, which it proves with the operator's token."""
        said = dict(scope["headers"])
        given = said.get(SERVER_HEADER.encode())
        if given is None:
            return False
        role = said.get(ROLE_HEADER.encode(), b"").decode("latin-1")
        right = proof(self._operators_token, role, scope["method"], scope["path"])
        return hmac.compare_digest(given, right.encode())


def _lowered(role: str, scope: Scope) -> str:
    """The role for which another server sends the request, if that is less than its token's."""
    for name, value in scope["headers"]:
        if name == ROLE_HEADER.encode() and value.decode("latin-1") != role:
            return VIEWER
    return role


def _digest(token: bytes) -> bytes:
    return hashlib.sha256(token).digest()


def _allowed_hosts(host: str, port: int) -> frozenset[str]:
    """The exact names of the listener; no suffixes, and no other spelling of an address."""
    names = {host.lower()}
    if not is_loopback(host):  # other hosts may use this host's name
        names.add(os.uname().nodename.lower())
    if is_loopback(host) or host in ("0.0.0.0", "::"):
        names |= {"localhost", "127.0.0.1", "::1"}
    if host in ("0.0.0.0", "::"):
        names |= _own_addresses()
    spelled = {f"[{name}]" if ":" in name else name for name in names}
    return frozenset(f"{name}:{port}" for name in spelled)


def _own_addresses() -> set[str]:
    """Addresses that this host's name resolves to, and those of its interfaces."""
    import socket

    try:
        named = {str(entry[4][0]).lower() for entry in socket.getaddrinfo(os.uname().nodename, None)}
    except OSError:
        named = set()
    return named | _interface_addresses()


def _interface_addresses() -> set[str]:
    """IPv4 addresses of the interfaces, from the kernel's routing table."""
    found: set[str] = set()
    address = ""
    with contextlib.suppress(OSError):
        for line in Path("/proc/net/fib_trie").read_text().splitlines():
            if "|-- " in line:
                address = line.rpartition("|-- ")[2].strip()
            elif "/32 host LOCAL" in line:
                found.add(address)
    return found
