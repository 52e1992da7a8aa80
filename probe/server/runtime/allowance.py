"""How often, and how many at once, whoever comes over TCP may ask: nobody is shut out by somebody else.

Requests are counted by role and address, and those of other hosts' servers apart: a viewer, or a crowd of
them, never uses up what an operator may. Used on the server's event loop. Standard library only.
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
"""So many times as often another host's server may ask: one question is several of its own, and what all
ranks do together is a dozen."""
VIEWERS_TIMES = 10
"""So many times as often as one of them all viewers together may ask, from wherever they do."""
VIEWERS_AT_ONCE = 64
"""Requests of viewers that are being answered; a quarter of the connections that there may be."""
REMEMBERED = 1024
"""Addresses whose allowance is known; of more, those that asked least lately start anew."""


class Asker(NamedTuple):
    """Whose allowance it is. `server`: another host's, by the proof that it has given."""

    role: str
    address: str
    server: bool = False

    @property
    def times(self) -> int:
        """How many times as often as a person it may ask."""
        return HOSTS_TIMES if self.server else 1


_ALL_VIEWERS = Asker(VIEWER, "*")


class Allowance:
    """What everybody has left."""

    def __init__(self) -> None:
        self._left: dict[Asker, tuple[float, float]] = {}
        self._viewers = 0

    def take(self, asker: Asker) -> None:
        """One request; raises `TooMany` when too many came lately."""
        self._take(asker, asker.times)
        if asker.role == VIEWER and not asker.server:  # those of a server are counted where they ask
            self._take(_ALL_VIEWERS, VIEWERS_TIMES)

    def _take(self, asker: Asker, times: int) -> None:
        now = time.monotonic()
        most = float(BURST * times)
        left, then = self._left.pop(asker, (most, now))
        left = min(most, left + (now - then) * REQUESTS_PER_S * times)
        self._left[asker] = (left - 1 if left >= 1 else left, now)
        if len(self._left) > REMEMBERED:
            del self._left[next(one for one in self._left if one is not _ALL_VIEWERS)]
        if left < 1:
            raise TooMany(f"more than {REQUESTS_PER_S * times:g} requests per second")

    @contextlib.contextmanager
    def answering(self, role: str) -> Iterator[None]:
        """While a request is answered; raises `TooMany` when too many of viewers are."""
        if role != VIEWER:
            yield
            return
        if self._viewers >= VIEWERS_AT_ONCE:
            raise TooMany(f"{VIEWERS_AT_ONCE} requests of viewers are being answered already")
        self._viewers += 1
        try:
            yield
        finally:
            self._viewers -= 1


def address_of(client: tuple[str, int] | None) -> str:
    """Where somebody comes from; of IPv6 the network, in which one host has all the addresses it likes."""
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
