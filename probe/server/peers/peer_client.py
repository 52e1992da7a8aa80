"""Client for the servers of the job's other hosts.

A route about a whole job does its part for this host and calls the same route of every other host with
`scope: "host"`. Before anything else a host is called for its `PeerInfo`: who it is, which ranks of the run
it has, and which further hosts it knows. With many hosts, some of them call the others (`relay`). Runs on the
server's event loop; httpx inside functions.
"""

from __future__ import annotations

import asyncio
import math
import secrets
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from probe.base.errors import Forbidden, HostUnreachable, ProbeError, TokenInvalid, from_dict
from probe.base.settings import Settings
from probe.recording.announcement import ranks_in
from probe.server.peers.peer_discovery import MOST_HOSTS, Host, url_of
from probe.server.peers.peer_link import Answer, Links
from probe.server.runtime import packed_answers

AT_ONCE = 64
"""Hosts that are called at the same time."""
DIRECT = 32
"""Up to this many hosts are called directly; with more, requests that only read are relayed."""
MEET_S = 4.0
"""A host that does not answer within this time is unreachable: its server is stopped or too busy. One that
refuses connections is given up earlier (`peer_link.CONNECT_S`)."""
MET_S = 10.0
"""How long the info about a host is cached."""
GONE_S = 3.0
"""How long the failure of a host to answer is cached."""
_RELAY_SHARE = 0.6
"""Share of the time after which the hosts of a relay are called directly."""
_ROUNDS = 3
"""How many times the hosts that the last hosts know are called in turn."""
Question = tuple[str, str, dict[str, Any], str]
"""Method, path, body and role of a request."""


class Part(NamedTuple):
    """One host's part of an answer: `answer`, or `error`. `content` is an answer that is not JSON."""

    host: Host
    answer: dict[str, Any] | None
    error: ProbeError | None
    elapsed_s: float | None
    content: bytes = b""


class PeerInfo(NamedTuple):
    """A host, and its part of a run: its ranks, their attempt, when the newest of them started and when the
    last ended (None while one lives)."""

    host: Host
    id: str
    ranks: tuple[int, ...]
    run: str
    attempt: int
    world_size: int | None
    started_ns: int
    ended_ns: int | None
    peers: tuple[Host, ...]
    elapsed_s: float


class PeerClient:
    """The other hosts that one server knows."""

    def __init__(self, settings: Settings, token: Callable[[], str]) -> None:
        """`token` returns the operator's token, blocking; it is sent only to hosts of the job."""
        self.id = secrets.token_hex(16)
        self._settings = settings
        self._slots = asyncio.Semaphore(AT_ONCE)
        self.links = Links(settings, token)
        self._met: dict[tuple[str, str], tuple[float, PeerInfo | ProbeError]] = {}
        self._had: dict[tuple[str, str], Host] = {}

    # Discovery ----------------------------------------------------------------

    async def meet(self, hosts: Sequence[Host], run: str, role: str) -> tuple[list[PeerInfo], list[Part]]:
        """The info of these hosts and of those they know (each once, without this server); and the hosts that
        cannot be reached, with the error. `run` is a run's or a job's name."""
        met: dict[str, PeerInfo] = {}
        lost: dict[str, Part] = {}
        seen: set[str] = set()
        wanted = list(hosts)
        for _ in range(_ROUNDS):
            fresh = {host.url or host.name: host for host in wanted if (host.url or host.name) not in seen}
            if not fresh or len(seen) >= MOST_HOSTS:
                break
            seen.update(fresh)
            wanted = []
            for host, found in await self._introduced(list(fresh.values()), run, role):
                if isinstance(found, PeerInfo):
                    if found.id != self.id:
                        met.setdefault(found.id, found)
                        wanted += found.peers
                else:
                    had = self._had.get((host.url, run), host)
                    lost[host.url or host.name] = Part(host if host.ranks else had, None, found, None)
        return list(met.values()), list(lost.values())

    async def _introduced(
        self, hosts: list[Host], run: str, role: str
    ) -> list[tuple[Host, PeerInfo | ProbeError]]:
        now = time.monotonic()
        known: list[tuple[Host, PeerInfo | ProbeError]] = []
        unknown: list[Host] = []
        for host in hosts:
            at, found = self._met.get((host.url, run), (0.0, None))
            lasts_s = MET_S if isinstance(found, PeerInfo) else GONE_S
            if not host.url:
                known.append((host, HostUnreachable(f"host {host.name} cannot be reached: {host.why}")))
            elif found is not None and now - at < lasts_s:
                known.append((host, found))
            else:
                unknown.append(host)
        if len(self._met) > 4 * MOST_HOSTS:
            self._met.clear()
            self._had.clear()
        for part in await self.call(unknown, "GET", "/v1/peers", {"run": run}, MEET_S, role):
            result = part.error or _met(part, self._settings)
            self._met[part.host.url, run] = (time.monotonic(), result)
            if isinstance(result, PeerInfo):
                self._had[part.host.url, run] = result.host
            known.append((part.host, result))
        return known

    def failed(self, parts: Iterable[Part]) -> None:
        """Drop the cached info of hosts that failed; unreachable ones stay unreachable for a moment."""
        errors = {part.host.url: part.error for part in parts}
        for url, run in [key for key in self._met if key[0] in errors]:
            error = errors[url]
            if isinstance(error, HostUnreachable):
                self._met[url, run] = (time.monotonic(), error)
            else:
                del self._met[url, run]

    # Requests ----------------------------------------------------------------

    async def call(
        self, hosts: Sequence[Host], method: str, path: str, body: dict[str, Any] | None, timeout_s: float,
        role: str = "operator",
    ) -> list[Part]:
        """The same request to all hosts at once, within `timeout_s`.

        `body` is sent as JSON, or as the query string of a GET; `scope` is added. `role` is the caller's: the
        hosts allow the request no more than that."""
        deadline = time.monotonic() + timeout_s
        question = (method, path, body or {}, role)
        if len(hosts) <= DIRECT or not only_reads(method, path):
            return list(await asyncio.gather(*(self._direct(host, question, deadline) for host in hosts)))
        size = math.ceil(math.sqrt(len(hosts)))
        groups = [hosts[first : first + size] for first in range(0, len(hosts), size)]
        found = await asyncio.gather(*(self._through(group, question, deadline) for group in groups))
        return [part for parts in found for part in parts]

    async def relay(
        self, hosts: Sequence[Host], method: str, path: str, body: dict[str, Any], timeout_s: float, role: str
    ) -> bytes:
        """For another server: call these hosts, and return their answers unchanged."""
        deadline = time.monotonic() + timeout_s
        question = (method, path, body, role)
        answers = await asyncio.gather(*(self._answer(host, question, deadline) for host in hosts))
        heads = [
            {"url": host.url, "error": answer.as_dict()["error"]}
            if isinstance(answer, ProbeError)
            else {"url": host.url, **answer._asdict(), "content": None}
            for host, answer in zip(hosts, answers, strict=True)
        ]
        contents = [b"" if isinstance(answer, ProbeError) else answer.content for answer in answers]
        return await asyncio.to_thread(packed_answers.pack, {"answers": heads}, contents)

    async def _direct(self, host: Host, question: Question, deadline: float) -> Part:
        return await _part(host, await self._answer(host, question, deadline))

    async def _answer(self, host: Host, question: Question, deadline: float) -> Answer | ProbeError:
        try:
            left_s = deadline - time.monotonic()
            return await asyncio.wait_for(self._exchange(host, question), max(left_s, 0.001))
        except asyncio.TimeoutError:
            return HostUnreachable(f"host {host.name} ({host.url}) does not answer in time")
        except ProbeError as error:
            return error

    async def _exchange(self, host: Host, question: Question) -> Answer:
        method, path, body, role = question
        async with self._slots:
            return await self.links.exchange(host, method, path, {**body, "scope": "host"}, role)

    async def _through(self, group: Sequence[Host], question: Question, deadline: float) -> list[Part]:
        """The first of a group relays to the others; if it does not, they are called directly."""
        leader, *others = group
        own = asyncio.ensure_future(self._direct(leader, question, deadline))
        parts = await self._relayed(leader, others, question, deadline) if others else []
        answered = {part.host.url for part in parts}
        left = [host for host in others if host.url not in answered]
        parts += await asyncio.gather(*(self._direct(host, question, deadline) for host in left))
        return [await own, *parts]

    async def _relayed(
        self, leader: Host, others: Sequence[Host], question: Question, deadline: float
    ) -> list[Part]:
        method, path, body, role = question
        share_s = (deadline - time.monotonic()) * _RELAY_SHARE
        asked = {
            "method": method, "path": path, "body": body, "role": role, "timeout_s": share_s,
            "hosts": [{"name": host.name, "url": host.url} for host in others],
        }
        passed = ("POST", "/v1/relay", asked, "operator")
        answer = await self._answer(leader, passed, time.monotonic() + share_s)
        if isinstance(answer, ProbeError) or answer.status != 200:
            return []
        try:
            head, contents = await asyncio.to_thread(packed_answers.unpack, answer.content)
            return await _relayed_parts(others, head, contents)
        except (ValueError, KeyError, TypeError):
            return []


def only_reads(method: str, path: str) -> bool:
    """Whether a request may be repeated, as it is when a relaying host does not answer."""
    return method == "GET" or path == "/v1/rows"


async def _relayed_parts(
    hosts: Sequence[Host], head: dict[str, Any], contents: Sequence[memoryview]
) -> list[Part]:
    """The parts in another host's relayed answer. Raises `ValueError`, `KeyError` or `TypeError`."""
    by_url = {host.url: host for host in hosts}
    found: list[Part] = []
    for said, content in zip(head["answers"], contents, strict=True):
        host = by_url.pop(said["url"], None)
        if host is None:
            continue
        if "error" in said:
            found.append(Part(host, None, from_dict(said, 503), None))
            continue
        answer = Answer(int(said["status"]), str(said["kind"]), bytes(content), float(said["elapsed_s"]))
        found.append(await _part(host, answer))
    return found


async def _part(host: Host, answer: Answer | ProbeError) -> Part:
    if isinstance(answer, ProbeError):
        return Part(host, None, answer, None)
    try:
        if answer.status == 200 and answer.kind == packed_answers.MEDIA_TYPE:
            return Part(host, None, None, answer.elapsed_s, answer.content)
        decoded = await answer.decoded()
    except ValueError:
        error = HostUnreachable(f"host {host.name} ({host.url}) sent an answer that cannot be read")
        return Part(host, None, error, answer.elapsed_s)
    if answer.status in (401, 403):
        found = from_dict(decoded, answer.status)
        kind = TokenInvalid if answer.status == 401 else Forbidden
        refused = kind(f"host {host.name} ({host.url}) refuses: {found.message}", hint=found.hint)
        return Part(host, None, refused, answer.elapsed_s)
    if answer.status != 200 or not isinstance(decoded, dict):
        return Part(host, None, from_dict(decoded, answer.status), answer.elapsed_s)
    return Part(host, decoded, None, answer.elapsed_s)


def _met(part: Part, settings: Settings) -> PeerInfo | ProbeError:
    """The info in an answer, which is checked value by value."""
    said = part.answer or {}
    who = f"host {part.host.name} ({part.host.url})"
    nonsense = HostUnreachable(f"{who} is not a probe server")
    try:
        name, number, held = str(said["host"])[:255], str(said["id"])[:255], said["held"]
        ranks = ranks_in(str(held["ranks"]))
        facts = [held[key] for key in ("attempt", "started_ns")]
        further = [(str(one["name"])[:255], str(one["url"])) for one in said["peers"][:MOST_HOSTS]]
        run = str(held["run"])[:255]
    except (KeyError, TypeError, ValueError):
        return nonsense
    optional = (held.get("world_size"), held.get("ended_ns"))
    if any(type(fact) is not int for fact in facts):
        return nonsense
    world_size, ended_ns = (value if type(value) is int else None for value in optional)
    peers = [(its_name, url_of(url, settings)) for its_name, url in further]
    return PeerInfo(
        part.host._replace(name=name, ranks=ranks), number, ranks, run, facts[0], world_size, facts[1],
        ended_ns, tuple(Host(its_name, url, "peer") for its_name, url in peers if url),
        part.elapsed_s or 0.0,
    )
