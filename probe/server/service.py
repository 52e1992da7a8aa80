"""Service: the parts of the server that routes need, and its thread pools.

Created once, in `serve`. Runs on the server's event loop; blocking calls (files, agents) run on threads.
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, TypeVar

from probe.base.errors import EndpointUnknown
from probe.base.settings import Settings
from probe.server.agents import asking
from probe.server.agents.forwarding import Forwarder
from probe.server.peers.peer_client import PeerClient
from probe.server.recordings.gathered_facts import FactsGatherer
from probe.server.recordings.pruner import Pruner
from probe.server.recordings.registry import Recorded, Registry, Status
from probe.server.recordings.sealer import Sealer
from probe.server.runtime.threads import Threads
from probe.server.runtime.tokens import load_token
from probe.server.sql.pool import Pool
from probe.server.watch.stall_watch import Watch

_T = TypeVar("_T")
IN_FLIGHT = 8
"""Concurrent queries; more are refused with 429."""
VIEWERS_IN_FLIGHT = IN_FLIGHT // 2
"""Concurrent queries of viewers."""


class Service:
    """The parts of the server that routes need."""

    def __init__(
        self, registry: Registry, sealer: Sealer, watch: Watch, pool: Pool, settings: Settings
    ) -> None:
        self.registry = registry
        self.watch = watch
        self.sealer = sealer
        self.pruner = Pruner(registry, sealer)
        self.pool = pool
        self.settings = settings
        token = functools.partial(load_token, settings.token_file, registry.directory / "token")
        self.peers = PeerClient(settings, token)
        self.tcp_port: int | None = None
        self.started = time.monotonic()
        self.last_request = time.monotonic()
        self.queries = Counter[str]()
        self.facts = FactsGatherer(registry)
        self.forwarder = Forwarder(self._find, self._status, watch.stall)
        self.threads = Threads(16, "probe-request")
        self.agents = Threads(2 * IN_FLIGHT, "probe-agents")

    def touch(self) -> None:
        """Note a request: the server keeps running while it is used."""
        self.last_request = time.monotonic()

    async def call(self, function: Callable[..., _T], *arguments: Any) -> _T:
        """Run a blocking function on a thread."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self.threads.now, functools.partial(function, *arguments))

    async def call_agent(self, function: Callable[..., _T], *arguments: Any) -> _T:
        """Run a function that waits for a process on a thread; these threads are separate from the others."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self.agents.now, functools.partial(function, *arguments))

    async def _find(self, endpoint: str) -> Recorded | None:
        """The one process of this host that an endpoint means; None for a multi-rank job, or other hosts."""

        def found() -> Recorded | None:
            try:
                recorded = self.registry.resolve(endpoint)
            except EndpointUnknown:
                return None  # `fanout.find` asks other hosts, or raises
            one_rank = "/" in endpoint or endpoint.strip().isdigit()
            if len(recorded) > 1 or ((recorded[0].meta.world_size or 1) > 1 and not one_rank):
                return None
            asking.require_live(recorded[0], self.registry.status(recorded[0]))
            return recorded[0]

        return await self.call(found)

    async def _status(self, recorded: Recorded) -> Status:
        return await self.call(self.registry.status, recorded)

    def close(self) -> None:
        """Shut down the thread pools, without waiting for threads that are blocked."""
        self.threads.close()
        self.agents.close()
