"""The servers of the job's other hosts: asking all of them at once, and who did not answer.

A route that is about a whole job does its part for this host, and asks the same route of every other
host with `scope: "host"`, which keeps it there. Runs on the server's event loop. httpx inside functions.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from probe.errors import HostUnreachable, ProbeError, from_dict
from probe.settings import Settings

Scope = Literal["job", "host"]
"""`job`: all hosts; `host`: only the one that is asked."""
AT_ONCE = 64
"""Hosts that are asked at the same time."""
HERE = "here"


class Host(NamedTuple):
    """A server of the job. `url` is empty for the host that was asked; `source` says how it is known."""

    name: str
    url: str
    source: str


class Part(NamedTuple):
    """One host's part of an answer: `answer`, or `error`."""

    host: Host
    answer: dict[str, Any] | None
    error: ProbeError | None
    elapsed_s: float | None


class Everywhere:
    """The other hosts, as one server knows them."""

    def __init__(self, directory: Path, settings: Settings) -> None:
        self._directory = directory
        self._settings = settings
        self._slots = asyncio.Semaphore(AT_ONCE)

    def others(self) -> list[Host]:
        """Hosts of the job beside this one. Reads files: not for the event loop."""
        return []

    async def ask(
        self, hosts: Sequence[Host], method: str, path: str, body: dict[str, Any] | None, timeout_s: float
    ) -> list[Part]:
        """The same question to all of them at once, each answered or given up within `timeout_s`.

        `body` goes as JSON, or as the query string of a GET; `scope` is added."""
        if not hosts:
            return []
        return list(
            await asyncio.gather(*(self._ask(host, method, path, body or {}, timeout_s) for host in hosts))
        )

    async def _ask(
        self, host: Host, method: str, path: str, body: dict[str, Any], timeout_s: float
    ) -> Part:
        import httpx

        began = time.monotonic()
        asked = {**body, "scope": "host"}
        sent: dict[str, Any] = {"params": asked} if method == "GET" else {"json": asked}
        async with self._slots:
            try:
                async with httpx.AsyncClient(trust_env=False, timeout=timeout_s) as client:
                    reply = await client.request(method, host.url + path, **sent)
                    decoded = reply.json()
            except (httpx.HTTPError, ValueError) as error:
                failed = HostUnreachable(f"{host.name} ({host.url}) does not answer: {error}")
                return Part(host, None, failed, None)
        elapsed_s = time.monotonic() - began
        if reply.status_code >= 400:
            return Part(host, None, from_dict(decoded, reply.status_code), elapsed_s)
        return Part(host, decoded, None, elapsed_s)
