"""Jobs on several hosts: where the ranks are, and the other hosts' parts of an answer.

    found = await fanout.find(service, endpoint, caller, scope)     # here, on which hosts, what is missing
    if found.elsewhere is not None:                                 # one process, on another host
        return await fanout.forward(service, found, caller, "GET", "/v1/…", {…}, timeout_s)
    …the part of `found.here`…
    others = await fanout.call_others(service, found, caller, "GET", "/v1/…", {…}, timeout_s)
    …for part in others.parts: part.answer…; others.missing is for the answer's "missing"

Runs on the server's event loop; files are read on threads.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from probe.base.errors import AccessDenied, EndpointUnknown, HostUnreachable, ProbeError
from probe.base.rank_sets import as_text, named
from probe.server.peers import peer_discovery
from probe.server.peers.peer_client import Part, PeerInfo
from probe.server.peers.peer_discovery import Host
from probe.server.recordings.registry import LIVE, Recorded, Registry
from probe.server.runtime import access
from probe.server.runtime.access import Scope
from probe.server.runtime.tokens import load_token
from probe.server.service import Service


class Found(NamedTuple):
    """The processes that an endpoint means.

    `here`: those on this host. `met`: the other hosts that have some; `endpoint` is sent to them. `lost`:
    hosts that do not answer. `missing`: notes about ranks that should exist and were not found. `elsewhere`:
    the host that has the one rank that was named (also in `met`). `world_size`: that of the newest rank.
    `whole`: the endpoint means a job, not one process."""

    here: list[Recorded]
    endpoint: str = ""
    met: tuple[PeerInfo, ...] = ()
    lost: tuple[Part, ...] = ()
    missing: tuple[str, ...] = ()
    elsewhere: Host | None = None
    world_size: int | None = None
    whole: bool = False

    @property
    def several(self) -> bool:
        """Whether it is a whole multi-rank job: then a route answers for all ranks."""
        return self.whole and (len(self.here) > 1 or (self.world_size or 1) > 1 or bool(self.met))

    @property
    def lowest(self) -> Recorded | None:
        """The lowest rank on this host."""
        return min(self.here, key=lambda one: one.meta.rank, default=None)


class Others(NamedTuple):
    """The other hosts' parts: `parts` have an answer, `failed` an error; `missing` has notes about everything
    that is missing, for any reason."""

    parts: list[Part]
    missing: list[str]
    failed: list[Part]


async def find(service: Service, endpoint: str, caller: access.Caller, scope: Scope = "job") -> Found:
    """The processes of an endpoint. Raises what `Registry.resolve` raises when no host has any."""
    checked = access.endpoint(endpoint, caller)
    here, unknown = await service.call(_here, service.registry, checked)
    name, rank = await service.call(_named, service.registry, checked, here)
    whole = rank is None and (len(here) > 1 or bool(name))
    own = Found(here, checked, world_size=_world_size(here), whole=whole)
    if scope == "host" or not name or (here and rank is not None) or _complete(here):
        if unknown is not None:
            raise unknown
        return own
    hosts = await service.call(candidates, service, name)
    met, lost = await service.peers.meet(hosts, name, role_of(caller)) if hosts else ([], [])
    if rank is not None:
        return _one_rank(name, rank, met, lost, unknown)
    if unknown is not None and not any(one.ranks for one in met):
        raise _nobody(unknown, lost)
    return await service.call(_found, service.registry, here, name, met, lost)


async def job_of(service: Service, found: Found, caller: access.Caller, scope: Scope) -> Found:
    """The whole job of the processes that were found; of an older attempt only the ranks on this host."""
    if found.whole or not (found.here or found.met):
        return found
    run = found.here[0].meta.run if found.here else found.endpoint.rpartition("/")[0]
    try:
        job = await find(service, run, caller, scope)
    except ProbeError:
        job = found
    newest = {recorded.meta.attempt for recorded in job.here}
    if not found.here or (newest and {recorded.meta.attempt for recorded in found.here} <= newest):
        return job
    return found._replace(here=await service.call(service.registry.same_attempt, found.here))


async def call_others(
    service: Service, found: Found, caller: access.Caller, method: str, path: str, body: dict[str, Any],
    timeout_s: float,
) -> Others:
    """The parts of the other hosts, and notes about everything that is missing.

    `endpoint` and `scope` are added to `body`. Never takes longer than `timeout_s`."""
    if not found.met:
        return Others([], list(found.missing), [])
    hosts = [one.host for one in found.met]
    body = {**body, "endpoint": found.endpoint}
    parts = await service.peers.call(hosts, method, path, body, timeout_s, role_of(caller))
    failed = [part for part in parts if part.error is not None]
    service.peers.failed(failed)
    missing = [_without(part.host.ranks, part.error) for part in failed if part.error is not None]
    return Others([part for part in parts if part.error is None], [*found.missing, *missing], failed)


async def forward(
    service: Service, found: Found, caller: access.Caller, method: str, path: str, body: dict[str, Any],
    timeout_s: float,
) -> dict[str, Any]:
    """The answer of the host that has the one process that is meant; raises the error that it answers."""
    assert found.elsewhere is not None
    body = {**body, "endpoint": found.endpoint}
    role = role_of(caller)
    (part,) = await service.peers.call([found.elsewhere], method, path, body, timeout_s, role)
    if part.error is not None:
        service.peers.failed([part])
        raise part.error
    return part.answer or {}


def role_of(caller: access.Caller) -> str:
    """The role for calls to another host: never more than the caller's."""
    return access.OPERATOR if caller.role in (access.OWNER, access.MONITOR) else caller.role


def candidates(service: Service, name: str) -> list[Host]:
    """Hosts that a run, or the newest run of a job, may have. Blocks on files."""
    registry, settings = service.registry, service.settings
    hosts = peer_discovery.from_file(settings)
    here = [one for one in registry.processes() if name in (one.meta.run, one.meta.job)]
    if here:
        folders = [one.folder for one in here if one.attempt == here[-1].attempt]
        token = load_token(settings.token_file, registry.directory / "token")
        run = here[-1].meta.run
        hosts += peer_discovery.from_recordings(folders, run, token, service.tcp_port, settings)
    return list({host.url or host.name: host for host in reversed(hosts)}.values())[::-1]


def held(registry: Registry, name: str) -> dict[str, Any]:
    """This host's part of the newest attempt of a run, or of a job's newest run. Blocks on files."""
    try:
        here = registry.resolve(name) if name else []
    except ProbeError:
        here = []
    facts = _facts(registry, here)
    return {
        "run": here[0].meta.run if here else "", "ranks": as_text(one.meta.rank for one in here),
        "attempt": facts.attempt, "world_size": _world_size(here), "started_ns": facts.started_ns,
        "ended_ns": facts.ended_ns,
    }


class _Facts(NamedTuple):
    """Facts about one host's part of a run; a `PeerInfo` has them too."""

    attempt: int
    started_ns: int
    ended_ns: int | None


def _facts(registry: Registry, here: list[Recorded]) -> _Facts:
    ends = [registry.status(one) for one in here]
    alive = any(status.state in LIVE for status in ends)
    return _Facts(
        max((one.meta.attempt for one in here), default=0),
        max((one.meta.started_ns for one in here), default=0),
        None if alive else max((status.ended_ns or 0 for status in ends), default=0),
    )


def _here(registry: Registry, endpoint: str) -> tuple[list[Recorded], EndpointUnknown | None]:
    try:
        found = registry.resolve(endpoint)
    except EndpointUnknown as error:
        return [], error
    if not endpoint.strip() and (_world_size(found) or 1) > len(found):
        found = registry.resolve(found[0].meta.run)  # ended ranks included
    return found, None


def _named(registry: Registry, endpoint: str, here: list[Recorded]) -> tuple[str, int | None]:
    """The run or job to ask other hosts for ("" for none), and the rank that was named."""
    text = endpoint.strip()
    if text.startswith("/") or (text.isascii() and text.isdigit()):
        return "", None
    job, separator, rank = text.rpartition("/")
    if not separator:
        return (here[0].meta.run if here else text), None
    if not (rank.isascii() and rank.isdigit()):
        return "", None
    try:
        return registry.resolve(job)[0].meta.run, int(rank)
    except ProbeError:
        return job, int(rank)


def _world_size(here: Iterable[Recorded]) -> int | None:
    newest = max(here, key=lambda one: one.meta.started_ns, default=None)
    return None if newest is None else newest.meta.world_size


def _complete(here: list[Recorded]) -> bool:
    """Whether all ranks of the job are on this host."""
    world_size = _world_size(here)
    return bool(here) and (world_size or 1) <= len({one.meta.rank for one in here})


def _one_rank(
    name: str, rank: int, met: list[PeerInfo], lost: list[Part], unknown: EndpointUnknown | None
) -> Found:
    has = [one for one in met if rank in one.ranks]
    if has:
        newest = max(has, key=lambda one: (one.attempt, one.started_ns))
        only = newest._replace(host=newest.host._replace(ranks=(rank,)), ranks=(rank,))
        return Found([], f"{newest.run or name}/{rank}", (only,), elsewhere=newest.host)
    raise _nobody(unknown or EndpointUnknown(f"job {name!r} has no rank {rank}"), lost)


def _nobody(unknown: EndpointUnknown, lost: list[Part]) -> ProbeError:
    """The error when no host that answers has it; names the hosts that do not answer."""
    if not lost:
        return unknown
    silent = "; ".join(part.error.message for part in lost[:8] if part.error is not None)
    message = f"{unknown.message}, and some hosts do not answer: {silent}"
    return HostUnreachable(message, hint=unknown.hint)


def _found(
    registry: Registry, here: list[Recorded], name: str, met: list[PeerInfo], lost: list[Part]
) -> Found:
    """The processes of the newest attempt, and its missing ranks."""
    own = _facts(registry, here)
    having = [one for one in met if one.ranks]
    parts: list[_Facts | PeerInfo] = [*([own] if here else []), *having]
    newest = max(part.attempt for part in parts)
    began_ns = max(part.started_ns for part in parts if part.attempt == newest)

    def over(part: _Facts | PeerInfo) -> bool:
        """Whether it belongs to an attempt that had ended when the newest began."""
        return part.attempt < newest and part.ended_ns is not None and part.ended_ns <= began_ns

    kept = [one for one in having if not over(one)]
    stays = [] if here and over(own) else here
    sizes = [(own.started_ns, _world_size(stays))] if stays else []
    sizes += [(one.started_ns, one.world_size) for one in kept]
    world_size = max(sizes, key=lambda size: size[0])[1]
    present = {one.meta.rank for one in stays} | {rank for one in kept for rank in one.ranks}
    run = stays[0].meta.run if stays else kept[0].run or name
    missing = tuple(_missing(world_size, present, lost))
    return Found(stays, run, tuple(kept), tuple(lost), missing, None, world_size, True)


def _missing(world_size: int | None, present: set[int], lost: list[Part]) -> list[str]:
    """Notes about ranks that must exist and were not found, and about hosts that may have them."""
    absent = set(range(min(world_size or 0, 1 << 20))) - present
    if world_size is not None and not absent:
        return []
    said: list[str] = []
    for part in lost:
        theirs = [rank for rank in part.host.ranks if rank in absent]
        if part.error is not None and (theirs or not part.host.ranks):
            said.append(_without(theirs, part.error))
        absent -= set(theirs)
    if absent:
        unknown = "no host known" if not lost else "on none of the hosts that answer"
        said.append(f"{named(absent)}: {unknown}")
    return said


def _without(ranks: Sequence[int], error: ProbeError) -> str:
    return f"{named(ranks)}: {error.message}" if ranks else error.message


def host_rows(found: Found, others: Others) -> list[dict[str, Any]]:
    """Rows of cluster.hosts: this host, the hosts that answered, and those that did not."""
    own = {"host": os.uname().nodename, "url": None, "source": "here", "error": None, "elapsed_s": None}
    rows: list[dict[str, Any]] = [{**own, "state": "answers" if found.here else "no ranks"}]
    for part in [*others.parts, *others.failed, *found.lost]:
        rows.append(
            {
                "host": part.host.name, "url": part.host.url or None, "source": part.host.source,
                "state": _state(part.error), "error": None if part.error is None else part.error.message,
                "elapsed_s": part.elapsed_s,
            }
        )
    return rows


def _state(error: ProbeError | None) -> str:
    """The value of the column `cluster.hosts.state`."""
    if error is None:
        return "answers"
    if isinstance(error, AccessDenied):
        return "refused"
    return "late" if error.message.endswith("in time") else "unreachable"
