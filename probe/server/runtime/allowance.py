"""Rate limits of TCP callers, and of viewers' concurrent requests.

Requests are counted by role and address, and separately for other hosts' servers, so viewers never use up an
operator's allowance. Used on the server's event loop. Standard library only.
"""

from __future__ import annotations

import contextlib
import ipaddress
import time
from collections.abc import Iterator
from typing import NamedTuple

from probe.base.errors import TooMany
from probe.server.runtime.access import VIEWER

REQUESTS_PER_S = 10.0
BURST = 20
HOSTS_TIMES = 20
"""Factor for another host's server: one request of a user is several of its own, a coordinated step a
dozen."""
VIEWERS_TIMES = 10
"""Factor for all viewers together, from all addresses."""
VIEWERS_AT_ONCE = 64
"""Concurrent requests of viewers; a quarter of all connections."""
REMEMBERED = 1024
"""Clients whose allowance is remembered; beyond that the least recent ones start anew."""


class Client(NamedTuple):
    """The owner of an allowance. `server`: another host's server, which has proven it."""

    role: str
    address: str
    server: bool = False

    @property
    def times(self) -> int:
        """Factor of its limits."""
        return HOSTS_TIMES if self.server else 1


_ALL_VIEWERS = Client(VIEWER, "*")


class Allowance:
    """The number of requests that each client has left (token buckets)."""

    def __init__(self) -> None:
        self._left: dict[Client, tuple[float, float]] = {}
        self._viewers = 0

    def take(self, client: Client) -> None:
        """Count one request; raises `TooMany` when there were too many."""
        self._take(client, client.times)
        if client.role == VIEWER and not client.server:  # a server has counted them already
            self._take(_ALL_VIEWERS, VIEWERS_TIMES)

    def _take(self, client: Client, times: int) -> None:
        now = time.monotonic()
        most = float(BURST * times)
        left, then = self._left.pop(client, (most, now))
        left = min(most, left + (now - then) * REQUESTS_PER_S * times)
        self._left[client] = (left - 1 if left >= 1 else left, now)
        if len(self._left) > REMEMBERED:
            del self._left[next(one for one in self._left if one is not _ALL_VIEWERS)]
        if left < 1:
            raise TooMany(f"more than {REQUESTS_PER_S * times:g} requests per second")

    @contextlib.contextmanager
    def answering(self, role: str) -> Iterator[None]:
        """Held while a request is answered; raises `TooMany` for too many concurrent requests of viewers."""
        if role != VIEWER:
            yield
            return
        if self._viewers >= VIEWERS_AT_ONCE:
            raise TooMany(f"too many concurrent requests of viewers (limit {VIEWERS_AT_ONCE})")
        self._viewers += 1
        try:
            yield
        finally:
            self._viewers -= 1


def address_of(client: tuple[str, int] | None) -> str:
    """The address of a client; for IPv6 its /64 network, in which one host can use any address."""
    text = client[0] if client else ""
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return text
    if address.version == 4:
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((address, 64), strict=False))
