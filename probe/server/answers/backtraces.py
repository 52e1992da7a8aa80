"""Backtraces of a process, or of all ranks of a job: from its agent, from outside, or the last in its
recording.

Called on the server's request threads, for a few seconds at most; the ranks of a job are read in parallel on
the threads for agents, each with its own deadline. Standard library, and the stack tools as child processes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from datetime import datetime
from time import monotonic
from typing import Any, NamedTuple

from probe.base.errors import AgentMissing, AgentUnreachable, ProbeError, ProcessDead, RecordingError
from probe.bundle import moment
from probe.diagnose.process.progress import History
from probe.outside.stacks import outside_view
from probe.recording.process import is_stopped
from probe.recording.waiting import waiting
from probe.server.agents import asking
from probe.server.hosts import fanout, merged_stacks
from probe.server.recordings import server_journal
from probe.server.recordings.registry import LIVE, Recorded, Registry
from probe.server.runtime import access
from probe.server.runtime.access import Scope
from probe.server.service import Service

INSIDE_S = 0.7
"""If the agent has not answered by then, the process is read from outside, which takes 0.1 s."""

OUTSIDE_S, NATIVE_S = 5.0, 10.0
"""Python frames take 0.1 s; native ones 0.5 s, and longer with hundreds of threads."""

RANKS_S, RANKS_NATIVE_S = 8.0, 12.0
"""Deadline for all ranks of a host. One that hangs takes a second; many that hang take longer."""
_NETWORK_S = 2.0
ROUTE = "/v1/backtrace"


class Options(NamedTuple):
    """Options of a backtrace: what it shows in addition to the Python frames of the training thread.

    `native`, `locals` and `workers` are always read from outside: inside, locals would run code of the
    job."""

    all_threads: bool = False
    native: bool = False
    locals: bool = False
    workers: bool = False

    @property
    def query(self) -> dict[str, int]:
        """As the query string of a request."""
        return {name: 1 for name, value in self._asdict().items() if value}

    @property
    def timeout_s(self) -> float:
        """Deadline for all ranks of a host."""
        return RANKS_NATIVE_S if self.native else RANKS_S


def backtrace(registry: Registry, subject: Recorded | int, want: Options) -> dict[str, Any]:
    """A capture of a process; `source` and `notes` say where it comes from.

    Raises `ProcessDead` for a process that left no stacks, and the errors of reading from outside."""
    if isinstance(subject, int):
        note = f"process {subject} runs without an agent; `probe {subject} attach` starts one"
        if waiting(registry.directory, subject) is not None:
            note = f"process {subject} is attached; its agent starts when it imports torch"
        return _from_outside(subject, want, None, [note])
    if registry.status(subject).state not in LIVE:
        return _kept(registry, subject)
    return now(registry, subject, want)


def now(registry: Registry, recorded: Recorded, want: Options) -> dict[str, Any]:
    """A capture of a living, recorded process; raises `ProcessDead` when it has ended."""
    why: list[str] = []
    if is_stopped(recorded.meta.pid):
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


# Multi-rank jobs --------------------------------------------------------------


async def of_job(
    service: Service, endpoint: str, caller: access.Caller, want: Options, scope: Scope
) -> dict[str, Any] | None:
    """The answer for a multi-rank job, or another host's answer for the rank it has; None when the endpoint
    means one process of this host. With scope `host`: the captures of this host alone."""
    if endpoint.strip().isdigit():  # perhaps a process without an agent
        return None
    found = await fanout.find(service, endpoint, caller, scope)
    timeout_s = want.timeout_s + _NETWORK_S
    if found.elsewhere is not None:
        return await fanout.forward(service, found, caller, "GET", ROUTE, want.query, timeout_s)
    if not found.several:
        return None
    captured = await of_hosts(service, found, caller, want, timeout_s)
    if scope == "host":
        return {"captures": captured.found, "missing": captured.missing}
    return await service.call(captured.as_dict, want)


async def of_hosts(
    service: Service, found: fanout.Found, caller: access.Caller, want: Options, timeout_s: float
) -> Captures:
    """The captures of a job's ranks, from this host and the others at once."""
    own, others = await asyncio.gather(
        service.call(of_ranks, service.registry, found.here, want, service.agents.now),
        fanout.call_others(service, found, caller, "GET", ROUTE, want.query, timeout_s),
    )
    parts = [{"captures": own.found, "missing": own.missing}, *(part.answer or {} for part in others.parts)]
    return await service.call(_combined, parts, others.missing)


class Captures(NamedTuple):
    """The captures of a job's ranks, by rank, and a note on each rank (or host) without one."""

    found: dict[int, dict[str, Any]]
    missing: list[str]

    def as_dict(self, want: Options) -> dict[str, Any]:
        """The answer of `GET /v1/backtrace` for a job: the captures, merged."""
        merged = merged_stacks.merge(self.found, all_threads=want.all_threads or want.workers)
        return {
            "ranks": {str(rank): self.found[rank] for rank in sorted(self.found)},
            "tree": merged.tree, "classes": merged.classes, "missing": self.missing,
        }


def of_ranks(
    registry: Registry, sources: Sequence[Recorded], want: Options, threads: ThreadPoolExecutor
) -> Captures:
    """A capture of each rank on this host. Blocks until all are read or late; must not run on `threads`."""
    deadline = monotonic() + want.timeout_s
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


def _of_rank(registry: Registry, recorded: Recorded, want: Options) -> dict[str, Any]:
    """A capture of one rank, with its `state`; raises what `backtrace` raises."""
    if registry.status(recorded).state not in LIVE:
        state, capture = merged_stacks.ENDED, _kept(registry, recorded)
    else:
        state = merged_stacks.STOPPED if is_stopped(recorded.meta.pid) else merged_stacks.ALIVE
        capture = now(registry, recorded, want)
        # If no thread trains yet, show the main thread.
        if merged_stacks.training_thread(capture) is None:
            capture = now(registry, recorded, want._replace(all_threads=True))
            if not want.all_threads:
                thread = merged_stacks.training_thread(capture)
                capture["threads"] = [thread] if thread else []
    return {**capture, "rank": recorded.meta.rank, "host": recorded.meta.host, "state": state}


def _combined(parts: Sequence[Mapping[str, Any]], missing: Sequence[str]) -> Captures:
    """The captures of several hosts; of two captures of a rank, the one of the living process."""
    found: dict[int, dict[str, Any]] = {}
    lines = list(missing)
    for part in parts:
        lines += part.get("missing", [])
        for rank, capture in part.get("captures", {}).items():
            known = found.get(int(rank))
            if known is None or known.get("state") == merged_stacks.ENDED:
                found[int(rank)] = capture
    return Captures(found, lines)


def _from_outside(pid: int, want: Options, training_thread: int | None, why: list[str]) -> dict[str, Any]:
    capture = outside_view.read_stacks(
        pid, all_threads=want.all_threads, native=want.native, locals=want.locals, workers=want.workers,
        training_thread=training_thread, timeout_s=NATIVE_S if want.native else OUTSIDE_S,
    )
    return {**capture, "notes": [*why, *capture.get("notes", [])]}


def _kept(registry: Registry, recorded: Recorded) -> dict[str, Any]:
    """The last stacks in the recording of an ended process."""
    status = registry.status(recorded)
    ended = datetime.fromtimestamp((status.ended_ns or 0) * 1e-9).strftime("%Y-%m-%d %H:%M:%S")
    who = f"{recorded.name} (pid {recorded.meta.pid})"
    if status.state == moment.STATE:
        return _of_bundle(recorded, who, ended)
    found = server_journal.last_capture(recorded.folder)
    if found is None:
        raise ProcessDead(
            f"{who} ended at about {ended} and left no stacks",
            hint=f"`probe {recorded.meta.pid} diagnose` shows how it ended; `query` reads its recording.",
        )
    capture, reason = found
    age_s = max(0.0, ((status.ended_ns or 0) - capture["t_ns"]) * 1e-9)
    note = (
        f"{who} ended at about {ended} ({status.how}); these are the last stacks it left "
        f"(reason: {reason}, {age_s:.1f} s before its end)"
    )
    return {**capture, "source": "recording", "pid": recorded.meta.pid, "notes": [note]}


def _of_bundle(recorded: Recorded, who: str, when: str) -> dict[str, Any]:
    """The stacks that were taken when the bundle was made; raises `ProcessDead` if there were none."""
    known = moment.read(recorded.folder)
    if known is None or known.capture is None:
        raise ProcessDead(f"{who} is a recording in a bundle of {when}, made without stacks")
    if not isinstance(known.capture.get("threads"), list):
        raise RecordingError(f"{recorded.folder / moment.FILE} cannot be used: its stacks have no threads")
    note = f"{who} is a recording in a bundle: these are its stacks from {when}, when the bundle was made"
    return {**known.capture, "source": "bundle", "pid": recorded.meta.pid, "notes": [note]}
