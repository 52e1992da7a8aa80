"""Where a process is, or all ranks of a job: asked of its agent, read from outside, or what its recording
kept last.

Called on the server's request threads, for at most a few seconds; the ranks of a job are looked at side by
side on those for agents, each with a deadline of its own. Standard library and the stack tools, which run
in processes of their own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from datetime import datetime
from itertools import chain
from time import monotonic
from typing import Any, NamedTuple

from probe.base.errors import AgentMissing, AgentUnreachable, ProbeError, ProcessDead
from probe.diagnose.process.progress import History
from probe.outside.stacks import outside_view
from probe.recording import places
from probe.recording.captures import last_capture
from probe.recording.journal import read_journal
from probe.recording.process import life
from probe.recording.waiting import waiting
from probe.server.agents import asking
from probe.server.hosts import fanout, merged_stacks
from probe.server.recordings import server_journal
from probe.server.recordings.registry import LIVE, Recorded, Registry
from probe.server.runtime import access
from probe.server.runtime.access import Scope
from probe.server.service import Service

INSIDE_S = 0.7
"""An agent that does not answer by then is not waited for: from outside it takes a tenth of a second."""

OUTSIDE_S, NATIVE_S = 5.0, 10.0
"""Python frames take a tenth of a second; native ones half a second, and longer with hundreds of threads."""

RANKS_S, RANKS_NATIVE_S = 8.0, 12.0
"""All ranks of a host are answered for by then. One that hangs takes a second; many that do, longer."""
_ON_THE_WAY_S = 2.0
ROUTE = "/v1/backtrace"
STOPPED_LETTERS = "Tt"


class Want(NamedTuple):
    """What a backtrace is to show, beside the Python frames of the training thread.

    `native`, `locals` and `workers` are always read from outside: inside, locals would run code of
    the job's."""

    all_threads: bool = False
    native: bool = False
    locals: bool = False
    workers: bool = False


def backtrace(registry: Registry, subject: Recorded | int, want: Want) -> dict[str, Any]:
    """A capture of a process, and in `source` and `notes` where it comes from.

    Raises `ProcessDead` for one that left no stacks, and what reading from outside raises."""
    if isinstance(subject, int):
        note = f"process {subject} runs without an agent; `probe {subject} attach` starts one in it"
        if waiting(registry.directory, subject) is not None:
            note = f"process {subject} is attached to; its agent starts when it has imported torch"
        return _from_outside(subject, want, None, [note])
    if registry.status(subject).state not in LIVE:
        return _kept(registry, subject)
    return now(registry, subject, want)


def now(registry: Registry, recorded: Recorded, want: Want) -> dict[str, Any]:
    """A capture of a living, recorded process; raises `ProcessDead` when it does not live."""
    why: list[str] = []
    process = life(recorded.meta.pid)
    if process is not None and process.state in STOPPED_LETTERS:
        why.append(f"{recorded.name} is stopped and cannot answer: read from outside")
    elif not (want.native or want.locals or want.workers):
        target = f"/v1/stacks?all_threads={int(want.all_threads)}"
        try:
            answer = asking.ask(registry, recorded, "GET", target, None, INSIDE_S)
            return {**answer, "source": "agent", "pid": recorded.meta.pid}
        except (AgentUnreachable, AgentMissing) as error:
            why.append(f"{error.message}: read from outside")
    capture = _from_outside(recorded.meta.pid, want, registry.training_thread(recorded), why)
    progress = History(recorded.meta).read()
    if progress is not None:
        capture["step"], capture["phase"] = progress.steps, progress.phase
    server_journal.note_capture(recorded.folder, capture, "external")
    return capture


# All ranks of a job -----------------------------------------------------------


async def of_job(
    service: Service, endpoint: str, caller: access.Caller, want: Want, scope: Scope
) -> dict[str, Any] | None:
    """The answer for a job of several ranks, or that of another host for the rank it has; None when one
    process of this host is meant. With scope `host`: the captures of this host alone."""
    if endpoint.strip().isdigit():  # perhaps of a process without an agent
        return None
    found = await fanout.find(service, endpoint, caller, scope)
    wanted = {name: 1 for name, value in want._asdict().items() if value}
    timeout_s = (RANKS_NATIVE_S if want.native else RANKS_S) + _ON_THE_WAY_S
    if found.elsewhere is not None:
        return await fanout.forward(service, found, caller, "GET", ROUTE, wanted, timeout_s)
    if not found.several:
        return None
    captured = await of_hosts(service, found, caller, want, timeout_s)
    if scope == "host":
        return {"captures": captured.found, "missing": captured.missing}
    return await service.call(captured.as_dict, want)


async def of_hosts(
    service: Service, found: fanout.Found, caller: access.Caller, want: Want, timeout_s: float
) -> Captures:
    """The captures of a job's ranks, of this host and of the others at once."""
    wanted = {name: 1 for name, value in want._asdict().items() if value}
    own, asked = await asyncio.gather(
        service.call(of_ranks, service.registry, found.here, want, service.agents.now),
        fanout.ask(service, found, caller, "GET", ROUTE, wanted, timeout_s),
    )
    parts = [{"captures": own.found, "missing": own.missing}, *(part.answer or {} for part in asked.parts)]
    return await service.call(together, parts, asked.missing)


class Captures(NamedTuple):
    """The captures of a job's ranks, by rank, and a line on each rank (or host) that gave none."""

    found: dict[int, dict[str, Any]]
    missing: list[str]

    def as_dict(self, want: Want) -> dict[str, Any]:
        """The answer of `GET /v1/backtrace` for a job: captures, merged."""
        merged = merged_stacks.merge(self.found, all_threads=want.all_threads or want.workers)
        return {
            "ranks": {str(rank): self.found[rank] for rank in sorted(self.found)},
            "tree": merged.tree, "classes": merged.classes, "missing": self.missing,
        }


def of_ranks(
    registry: Registry, sources: Sequence[Recorded], want: Want, threads: ThreadPoolExecutor
) -> Captures:
    """A capture of each rank on this host. Blocks until all are there or late; not to run on `threads`."""
    deadline = monotonic() + (RANKS_NATIVE_S if want.native else RANKS_S)
    asked = {threads.submit(_of_rank, registry, recorded, want): recorded for recorded in sources}
    found: dict[int, dict[str, Any]] = {}
    missing: dict[int, str] = {}
    waiting: set[Future[dict[str, Any]]] = set(asked)
    while waiting and monotonic() < deadline:
        done, waiting = wait(waiting, deadline - monotonic(), FIRST_COMPLETED)
        for one in done:
            recorded = asked[one]
            try:
                found[recorded.meta.rank] = one.result()
            except ProbeError as error:
                missing[recorded.meta.rank] = f"rank {recorded.meta.rank}: {error.message}"
    for one in waiting:
        one.cancel()
        rank = asked[one].meta.rank
        missing[rank] = f"rank {rank}: its stacks could not be read in time"
    return Captures(found, [missing[rank] for rank in sorted(missing)])


def _of_rank(registry: Registry, recorded: Recorded, want: Want) -> dict[str, Any]:
    """A capture of one rank, with its `state`; raises what `backtrace` raises."""
    process = life(recorded.meta.pid)
    state = merged_stacks.ALIVE
    if registry.status(recorded).state not in LIVE:
        state, capture = merged_stacks.ENDED, _kept(registry, recorded)
    else:
        if process is not None and process.state in STOPPED_LETTERS:
            state = merged_stacks.STOPPED
        capture = now(registry, recorded, want)
        # Where none trains yet the main thread says more than none.
        if merged_stacks.training_thread(capture) is None:
            capture = now(registry, recorded, want._replace(all_threads=True))
            if not want.all_threads:
                thread = merged_stacks.training_thread(capture)
                capture["threads"] = [thread] if thread else []
    return {**capture, "rank": recorded.meta.rank, "host": recorded.meta.host, "state": state}


def rows(captured: Captures) -> dict[str, list[dict[str, Any]]]:
    """Rows of cluster.stacks and cluster.stack_classes."""
    merged = merged_stacks.merge(captured.found)
    return {"cluster.stacks": merged.tree, "cluster.stack_classes": merged.classes}


def together(parts: Sequence[Mapping[str, Any]], missing: Sequence[str]) -> Captures:
    """What several hosts found; of two captures of a rank, that of the living process."""
    found: dict[int, dict[str, Any]] = {}
    lines = list(missing)
    for part in parts:
        lines += part.get("missing", [])
        for rank, capture in part.get("captures", {}).items():
            known = found.get(int(rank))
            if known is None or known.get("state") == merged_stacks.ENDED:
                found[int(rank)] = capture
    return Captures(found, lines)


def _from_outside(pid: int, want: Want, training_thread: int | None, why: list[str]) -> dict[str, Any]:
    capture = outside_view.read_stacks(
        pid, all_threads=want.all_threads, native=want.native, locals=want.locals, workers=want.workers,
        training_thread=training_thread, timeout_s=NATIVE_S if want.native else OUTSIDE_S,
    )
    return {**capture, "notes": [*why, *capture.get("notes", [])]}


def _kept(registry: Registry, recorded: Recorded) -> dict[str, Any]:
    """The last stacks that the recording of an ended process holds."""
    status = registry.status(recorded)
    ended = datetime.fromtimestamp((status.ended_ns or 0) * 1e-9).strftime("%Y-%m-%d %H:%M:%S")
    who = f"{recorded.name} (pid {recorded.meta.pid})"
    found = last_capture(_stack_rows(recorded))
    if found is None:
        raise ProcessDead(
            f"{who} ended at about {ended} and left no stacks",
            hint=f"`probe {recorded.meta.pid} diagnose` says how it ended; its recording answers `query`.",
        )
    capture, reason = found
    age_s = max(0.0, ((status.ended_ns or 0) - capture["t_ns"]) * 1e-9)
    note = (
        f"{who} ended at about {ended} ({status.how}); these are the last stacks it left "
        f"(reason: {reason}, {age_s:.1f} s before its end)"
    )
    return {**capture, "source": "recording", "pid": recorded.meta.pid, "notes": [note]}


def _stack_rows(recorded: Recorded) -> Iterator[dict[str, Any]]:
    for record in chain.from_iterable(map(read_journal, places.journals(recorded.folder))):
        if record.get("table") == "python.stacks":
            yield from record["rows"]
