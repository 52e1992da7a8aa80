"""RankGroup: sends one request to all ranks of a job, on this host and through other hosts' servers.

Runs on the server's event loop; files are read on threads. May import numpy through the ring reader.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine, Sequence
from typing import Any, NamedTuple

from probe.base.errors import HostUnreachable, ProbeError, RecordingError, from_dict
from probe.recording.layout import NULL_INTEGER
from probe.recording.reader import open_ring
from probe.server.agents import asking
from probe.server.agents.forwarding import Request
from probe.server.hosts import fanout
from probe.server.peers.peer_client import PeerInfo
from probe.server.recordings.registry import Recorded
from probe.server.runtime import access
from probe.server.service import Service

ENDS = 64
"""Step ends that are read to predict the next steps."""
PATIENT_S = 1.0
"""After this long without an answer, check whether the agent responds at all."""


class Reply(NamedTuple):
    """One rank's answer or error."""

    rank: int
    pid: int | None
    host: str
    answer: dict[str, Any] | None
    error: ProbeError | None

    def as_dict(self) -> dict[str, Any]:
        """Its form in an answer."""
        who: dict[str, Any] = {"rank": self.rank, "pid": self.pid, "host": self.host}
        return {**who, "answer": self.answer} if self.error is None else {**who, **self.error.as_dict()}


class RankGroup:
    """The ranks of one job."""

    def __init__(self, service: Service, found: fanout.Found, caller: access.Caller) -> None:
        self.service = service
        self.found = found
        self.caller = caller

    @property
    def here(self) -> list[Recorded]:
        """The ranks of this host."""
        return self.found.here

    @property
    def hosts(self) -> tuple[PeerInfo, ...]:
        """The other hosts that have ranks."""
        return self.found.met

    def only(self, ranks: Sequence[int]) -> RankGroup:
        """The group of only these ranks."""
        wanted = set(ranks)
        here = [one for one in self.here if one.meta.rank in wanted]
        met = tuple(one for one in self.hosts if wanted.intersection(one.ranks))
        return RankGroup(self.service, self.found._replace(here=here, met=met), self.caller)

    async def ask(self, request: Request) -> list[Reply]:
        """The replies of this host's ranks to the same request, in order of rank."""
        asked = (ask_rank(self.service, one, request) for one in self.here)
        return sorted(await asyncio.gather(*asked), key=lambda reply: reply.rank)

    async def phase(self, body: dict[str, Any]) -> list[Reply]:
        """One phase of a coordinated request, on all ranks of all hosts; `body` is that of `/v1/together`."""
        replies = [reply async for reply in self.phase_as_they_come(body)]
        return sorted(replies, key=lambda reply: reply.rank)

    async def phase_as_they_come(self, body: dict[str, Any]) -> AsyncIterator[Reply]:
        """The same, each reply as soon as it arrives."""
        there = [asyncio.ensure_future(self._host(met, body)) for met in self.hosts]
        here: list[Coroutine[Any, Any, list[Reply]]] = [
            ask_phase(self.service, [one], body) for one in self.here
        ]
        asked = [*(asyncio.ensure_future(one) for one in here), *there]
        try:
            for done in asyncio.as_completed(asked):
                for reply in await done:
                    yield reply
        finally:
            for one in asked:
                one.cancel()

    async def ask_host(self, met: PeerInfo, body: dict[str, Any]) -> dict[str, Any]:
        """Another host's answer to one phase; raises its error."""
        only = self.found._replace(met=(met,), missing=())
        others = await fanout.call_others(
            self.service, only, self.caller, "POST", "/v1/together", body, body["timeout_s"]
        )
        for part in others.failed:
            raise part.error or HostUnreachable(f"host {met.host.name} does not answer")
        return others.parts[0].answer or {}

    async def _host(self, met: PeerInfo, body: dict[str, Any]) -> list[Reply]:
        try:
            answer = await self.ask_host(met, body)
            return [_reply(met.host.name, one) for one in answer["ranks"]]
        except ProbeError as error:
            return [Reply(rank, None, met.host.name, None, error) for rank in met.ranks]
        except (KeyError, TypeError, ValueError):
            nonsense = HostUnreachable(f"host {met.host.name} sent an answer that cannot be read")
            return [Reply(rank, None, met.host.name, None, nonsense) for rank in met.ranks]


async def ask_phase(service: Service, ranks: Sequence[Recorded], body: dict[str, Any]) -> list[Reply]:
    """One phase, on some ranks of this host."""
    phase, steps = body["phase"], body.get("steps") or {}

    async def one(recorded: Recorded) -> Reply:
        asked = {**body["asked"], "id": body["id"], "phase": phase}
        if phase == "arm":
            asked["step"] = steps.get(str(recorded.meta.rank))
        request = Request("/v1/together", asked, PATIENT_S, body["timeout_s"])
        reply = await ask_rank(service, recorded, request)
        if phase == "prepare" and reply.answer is not None:
            reply.answer["ends"] = await service.call(recent_ends, recorded)
            stall = await service.call(service.watch.lasting_stall, recorded)
            reply.answer["stalled"] = None if stall is None else f"{stall.state}: {stall.what}"
        return reply

    return list(await asyncio.gather(*(one(recorded) for recorded in ranks)))


async def ask_rank(service: Service, recorded: Recorded, request: Request) -> Reply:
    """The reply of one rank of this host; never raises."""
    meta = recorded.meta
    try:
        status = await service.call(service.registry.status, recorded)
        asking.require_live(recorded, status)
        answer = await service.forwarder.forward_to(recorded, request)
    except ProbeError as error:
        return Reply(meta.rank, meta.pid, meta.host, None, error)
    return Reply(meta.rank, meta.pid, meta.host, answer, None)


def recent_ends(recorded: Recorded) -> list[tuple[int, int]]:
    """The last steps of a rank: number and end (wall clock, ns), in order; none if they cannot be read."""
    with contextlib.suppress(OSError, RecordingError), open_ring(
        recorded.meta, "python.steps"
    ) as ring:
        highest = ring.highest()
        rows = ring.read(max(0, highest - ENDS), highest)
        found = [(int(row["step"]), int(row["t_ns"])) for row in rows]
        return [(step, t_ns) for step, t_ns in found if NULL_INTEGER not in (step, t_ns)]
    return []


def common(texts: Sequence[str]) -> str | None:
    """The text if all are equal; None when they differ, or there are none."""
    return texts[0] if len(set(texts)) == 1 else None


def by_text(replies: Sequence[tuple[int, str]]) -> list[tuple[list[int], str]]:
    """Ranks grouped by their text, in order of the lowest rank."""
    found: dict[str, list[int]] = {}
    for rank, text in replies:
        found.setdefault(text, []).append(rank)
    return sorted((ranks, text) for text, ranks in found.items())


def _reply(host: str, one: dict[str, Any]) -> Reply:
    rank, pid = int(one["rank"]), one.get("pid")
    error = from_dict(one, 500) if "error" in one else None
    answer = one.get("answer")
    if error is None and not isinstance(answer, dict):
        raise ValueError("neither an answer nor an error")
    return Reply(rank, pid if isinstance(pid, int) else None, str(one.get("host") or host), answer, error)


