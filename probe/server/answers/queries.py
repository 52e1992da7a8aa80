"""SQL over all ranks of a job: rows of this host's recordings, rows of other hosts, live rows.

The other hosts send the rows that the SQL mentions (`POST /v1/rows`), and a worker of this host runs the SQL
over all of them. Notes name hosts that do not answer in time. Runs on the server's event loop; blocking calls
on its threads.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from probe.base.errors import HostUnreachable
from probe.recording import declared
from probe.server.answers import backtraces, live_tables
from probe.server.hosts import fanout, merged_stacks, rank_list
from probe.server.peers.peer_client import Part
from probe.server.recordings.registry import Recorded
from probe.server.runtime import access
from probe.server.runtime.access import Scope
from probe.server.runtime.request_bodies import QueryBody, RowsBody
from probe.server.service import Service
from probe.server.sql import compatibility
from probe.server.sql.pool import Ahead
from probe.server.sql.remote_rows import NOT_CARRIED, searchable
from probe.server.sql.views import mentioned

ROWS_SHARE = 0.7
"""Share of a query's time to wait for the rows of other hosts."""
_LEAST_S = 0.5
ROOM_SHARE = 8
"""The rows of all other hosts may use 1/ROOM_SHARE of a query's memory: the worker holds several copies."""
_LEAST_ROOM_BYTES = 64 << 10
_CLUSTER = frozenset({"cluster.ranks", "cluster.hosts"})
_STACKS = frozenset({"cluster.stacks", "cluster.stack_classes"})


async def answer(
    service: Service, body: QueryBody, caller: access.Caller, gone: Callable[[], Awaitable[None]],
    form: str = "json",
) -> bytes:
    """The answer as JSON, or its rows in another form, packed with the other fields (`confined.results`).
    Raises a `ProbeError` if there is none."""
    began = time.monotonic()
    timeout_s = min(body.timeout_s or float("inf"), service.settings.query_timeout_s)
    found = await fanout.find(service, body.endpoint, caller, body.scope)
    sql = JobSql([compatibility.reads(body.sql)], caller, body.scope, timeout_s)
    request = {"sql": body.sql, "limit": body.limit, "form": form}
    return await run(service, found, sql, request, timeout_s - (time.monotonic() - began), gone)


class JobSql(NamedTuple):
    """SQL to run over the rows of several hosts, its caller, and its whole time limit."""

    statements: list[str]
    caller: access.Caller
    scope: Scope
    timeout_s: float

    @property
    def names(self) -> set[str]:
        """The tables that any of the statements may read."""
        return _names(self.statements)

    @property
    def text(self) -> str:
        """The text that a host searches for the names of tables and columns, of all statements."""
        return searchable("\n;\n".join(self.statements))


def _names(statements: Sequence[str]) -> set[str]:
    """The tables that statements may read; for those that jobs declared, which only the worker knows, their
    schema."""
    found = {table.full_name for sql in statements for table in mentioned(sql)}
    return found | {declared.SCHEMA} if any(declared.SCHEMA in sql.lower() for sql in statements) else found


async def _never() -> None:
    """Never completes: the caller does not disconnect."""
    await asyncio.get_running_loop().create_future()


async def run(
    service: Service, found: fanout.Found, asked: JobSql, request: dict[str, Any], timeout_s: float,
    gone: Callable[[], Awaitable[None]] = _never, ahead: Ahead | None = None,
) -> bytes:
    """A query worker's answer to `request`, over the rows of all hosts that the SQL mentions. `timeout_s` is
    the remaining time; `ahead` receives parts of the answer, see `Pool.run`. If the endpoint names one rank
    and its host sends nothing, raises that host's error."""
    began = time.monotonic()
    names = asked.names
    own, others, whole = await asyncio.gather(
        service.call(_own_request, service, found.here, names, service.agents.now),
        _rows_of_others(service, found, asked, names, timeout_s * ROWS_SHARE),
        _of_the_job(service, found, asked, names),
    )
    parts, missing = others
    own["live"].update(whole[0])
    own["notes"] += list(dict.fromkeys([*missing, *whole[1]]))
    left_s = max(min(asked.timeout_s, _LEAST_S), timeout_s - (time.monotonic() - began))
    roots = live_tables.rings_folders(service.registry, found.here)
    remote = [(part.host.name, part.content) for part in parts]
    is_remote = bool(found.met and names - NOT_CARRIED)
    return await service.pool.run(
        {**own, **request}, left_s, roots, gone(), remote if is_remote else None, asked.timeout_s,
        viewer=asked.caller.role == access.VIEWER, ahead=ahead,
    )


async def rows(
    service: Service, body: RowsBody, caller: access.Caller, gone: Callable[[], Awaitable[None]]
) -> bytes:
    """The rows of this host's ranks that the SQL mentions, packed, for the server that runs it."""
    timeout_s = min(body.timeout_s, service.settings.query_timeout_s)
    found = await fanout.find(service, body.endpoint, caller, "host")
    names = _names([body.sql])
    own = await service.call(_own_request, service, found.here, names, service.agents.now)
    request = {**own, "sql": body.sql, "limit": 1}
    room_bytes = min(body.room_bytes, service.settings.query_memory_bytes // ROOM_SHARE)
    roots = live_tables.rings_folders(service.registry, found.here)
    return await service.pool.run(
        {**request, "room_bytes": room_bytes}, timeout_s, roots, gone(), viewer=caller.role == access.VIEWER
    )


def _own_request(
    service: Service, sources: list[Recorded], names: set[str], agents: ThreadPoolExecutor
) -> dict[str, Any]:
    """This host's part of the request to the worker. Blocks."""
    live_rows: dict[str, list[dict[str, Any]]] = {}
    notes = [
        f"rows of {recorded.name} stay in memory: {service.sealer.failures[recorded.folder]}"
        for recorded in sources
        if recorded.folder in service.sealer.failures
    ]
    for recorded in sources:
        notes += [f"{recorded.name}: {what}" for what in service.registry.damage_notes(recorded)]
    beside = {recorded.folder.parent for recorded in sources}
    notes += [what for folder, what in list(service.registry.unreadable.items()) if folder.parent in beside]
    if "probe.settings" in names:
        live_rows["probe.settings"] = live_tables.setting_rows(sources)
    if "process.gpu" in names:
        service.facts.sample_devices([one for one in sources if service.registry.lives(one)])
    if "python.backtrace" in names:
        live_rows["python.backtrace"], missing = live_tables.capture_rows(service.registry, sources, agents)
        notes += missing
    return {
        "live": live_rows, "notes": notes,
        "sources": [
            {
                "folder": str(recorded.folder), "rings": recorded.meta.rings, "run": recorded.meta.run,
                "attempt": recorded.meta.attempt, "rank": recorded.meta.rank, "pid": recorded.meta.pid,
                "started_ns": recorded.meta.started_ns,
            }
            for recorded in sources
        ],
    }


async def _rows_of_others(
    service: Service, found: fanout.Found, asked: JobSql, names: set[str], timeout_s: float
) -> tuple[list[Part], list[str]]:
    """Packed rows, and notes on hosts that sent none. If the endpoint names one rank and its host sends
    nothing, raises that host's error: "0 rows" would read as if the rank had recorded none."""
    if not found.met or not names - NOT_CARRIED:
        return [], list(found.missing) if names else []
    room_bytes = service.settings.query_memory_bytes // ROOM_SHARE // len(found.met)
    body = {
        "sql": asked.text, "timeout_s": timeout_s, "room_bytes": max(room_bytes, _LEAST_ROOM_BYTES),
    }
    others = await fanout.call_others(service, found, asked.caller, "POST", "/v1/rows", body, timeout_s)
    if found.elsewhere is not None and others.failed:
        raise others.failed[0].error or HostUnreachable(f"host {found.elsewhere.name} does not answer")
    return others.parts, others.missing


async def _of_the_job(
    service: Service, found: fanout.Found, asked: JobSql, names: set[str]
) -> tuple[dict[str, list[dict[str, Any]]], list[str]]:
    """Rows of the tables about the whole job, even if one rank was named; and notes on what is missing."""
    if not names & (_CLUSTER | _STACKS):
        return {}, []
    job = await fanout.job_of(service, found, asked.caller, asked.scope)
    rows: dict[str, list[dict[str, Any]]] = {}
    missing: list[str] = []
    if names & _CLUSTER:
        ranks = await rank_list.all_ranks(service, job, asked.caller)
        rows = {"cluster.ranks": ranks["ranks"], "cluster.hosts": ranks["hosts"]}
        missing += ranks["missing"]
    if names & _STACKS:
        options = backtraces.Options()
        captured = await backtraces.of_hosts(service, job, asked.caller, options, backtraces.RANKS_S)
        merged = merged_stacks.merge(captured.found)
        rows.update({"cluster.stacks": merged.tree, "cluster.stack_classes": merged.classes})
        missing += captured.missing
    return rows, missing
