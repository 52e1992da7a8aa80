"""What is asked from a process, or computed, when somebody asks: agents, ranks, settings.

Called on the server's request threads: `probe.wire.call` blocks for at most its
timeout. Standard library only.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from typing import Any

from probe import clock, wire
from probe.errors import AgentMissing, AgentUnreachable, ProbeError, ProcessDead
from probe.recording import places
from probe.server.registry import LIVE, Recorded, Registry, Status
from probe.settings import BY_NAME
from probe.tables import TABLES, columns_of

BACKTRACE_TIMEOUT_S = 2.0
_EVAL_GRACE_S = 2.0
"""The agent itself answers at the snippet's deadline; this is for the way back."""


def process_rows(registry: Registry, everything: bool) -> list[dict[str, Any]]:
    """Rows of `GET /v1/processes`."""
    return [_process(recorded, registry.status(recorded)) for recorded in registry.listed(everything)]


def _process(recorded: Recorded, status: Status) -> dict[str, Any]:
    meta = recorded.meta
    return {
        "job": meta.job, "run": meta.run, "attempt": meta.attempt, "rank": meta.rank,
        "local_rank": meta.local_rank, "world_size": meta.world_size, "host": meta.host, "pid": meta.pid,
        "state": status.state, "step": status.step,
        "last_step_s": _ago(status.last_step_ns), "last_seen_s": _ago(status.last_seen_ns),
        "started_ns": meta.started_ns, "ended_ns": status.ended_ns,
        "folder": str(recorded.folder), "argv": meta.argv,
    }


def _ago(t_ns: int | None) -> float | None:
    return None if t_ns is None else max(0.0, (clock.wall_ns() - t_ns) * 1e-9)


def rank_rows(registry: Registry, sources: list[Recorded]) -> list[dict[str, Any]]:
    """Rows of cluster.ranks: the processes of the same runs and attempts."""
    wanted = {(recorded.meta.run, recorded.meta.attempt) for recorded in sources}
    known = {recorded.folder: recorded for recorded in [*registry.processes(), *sources]}
    found: list[dict[str, Any]] = []
    for recorded in sorted(known.values(), key=lambda recorded: recorded.meta.rank):
        meta = recorded.meta
        if (meta.run, meta.attempt) in wanted:
            row = _process(recorded, registry.status(recorded))
            row["endpoint"] = recorded.name if row["state"] in LIVE else str(recorded.folder)
            found.append(row)
    return found


def setting_rows(sources: list[Recorded]) -> list[dict[str, Any]]:
    """Rows of probe.settings."""
    return [
        {
            **_common(recorded), "name": name, "value": value,
            "variable": BY_NAME[name].env if name in BY_NAME else None,
            "unit": BY_NAME[name].unit if name in BY_NAME else None,
            "meaning": BY_NAME[name].help if name in BY_NAME else None,
        }
        for recorded in sources
        for name, value in sorted(recorded.meta.settings.items())
    ]


def _common(recorded: Recorded) -> dict[str, Any]:
    meta = recorded.meta
    return {"rank": meta.rank, "run": meta.run, "attempt": meta.attempt, "pid": meta.pid}


def table_list() -> list[dict[str, Any]]:
    """Answer of `GET /v1/tables`."""
    return [
        {
            "name": table.full_name, "doc": table.doc, "source": table.source,
            "columns": [column._asdict() for column in columns_of(table)], "example": table.example,
        }
        for table in TABLES
    ]


# Agents -----------------------------------------------------------------------


def backtrace(registry: Registry, recorded: Recorded, all_threads: bool) -> dict[str, Any]:
    """A capture by the agent of one live process."""
    target = f"/v1/stacks?all_threads={int(all_threads)}"
    found = _ask(registry, recorded, "GET", target, None, BACKTRACE_TIMEOUT_S)
    return {**found, "source": "agent"}


def evaluate(registry: Registry, recorded: Recorded, code: str, timeout_s: float) -> dict[str, Any]:
    """Run a snippet in one live process; the answer is the agent's."""
    body = {"code": code, "timeout_s": timeout_s}
    return _ask(registry, recorded, "POST", "/v1/eval", body, timeout_s + _EVAL_GRACE_S)


def _ask(
    registry: Registry, recorded: Recorded, method: str, target: str, body: object, timeout_s: float
) -> dict[str, Any]:
    """Ask a live process's agent; raises `ProcessDead`, `AgentMissing` or `AgentUnreachable`."""
    status = registry.status(recorded)
    who = f"{recorded.name} (pid {recorded.meta.pid})"
    if status.state not in LIVE:
        ended = datetime.fromtimestamp((status.ended_ns or 0) * 1e-9).strftime("%Y-%m-%d %H:%M:%S")
        how = "ended" if status.state == "finished" else "died"
        raise ProcessDead(
            f"{who} {how} at about {ended}",
            hint=f"Its recording still answers: probe {recorded.meta.pid} query …",
        )
    started = time.monotonic()
    try:
        answer = wire.call(Path(recorded.meta.socket), method, target, body, timeout_s=timeout_s)
    except AgentUnreachable:
        raise AgentUnreachable(
            f"{who} did not answer within {timeout_s:g} s: it is stopped, or something in it holds the GIL"
        ) from None
    except FileNotFoundError:
        raise AgentMissing(f"{who} lives and its agent has no socket (it starts, or was stopped)") from None
    except OSError as error:
        waited_s = time.monotonic() - started
        what = error.strerror or error
        raise AgentUnreachable(f"{who} did not answer ({what}, {waited_s:.1f} s)") from None
    if not isinstance(answer, dict):
        raise AgentUnreachable(f"{who} gave no answer that can be understood")
    return answer


def capture_rows(
    registry: Registry, sources: list[Recorded], threads: ThreadPoolExecutor
) -> tuple[list[dict[str, Any]], list[str]]:
    """Rows of python.backtrace from all sources at once, and a note on each that gave none."""

    def capture(recorded: Recorded) -> dict[str, Any] | str:
        try:
            return backtrace(registry, recorded, False)
        except ProbeError as error:
            return f"python.backtrace is empty for {recorded.name}: {error.message}"

    rows: list[dict[str, Any]] = []
    notes: list[str] = []
    for recorded, found in zip(sources, threads.map(capture, sources), strict=True):
        if isinstance(found, str):
            notes.append(found)
            continue
        for thread in found.get("threads", []):
            if thread.get("training"):
                common = {**_common(recorded), "step": found.get("step"), "phase": found.get("phase")}
                rows += [{**common, **frame} for frame in thread.get("frames", [])]
    if not rows and not notes:
        notes.append("python.backtrace is empty: no thread has trained yet")
    return rows, notes


def rings_folders(registry: Registry, sources: list[Recorded]) -> list[Path]:
    """Folders beside this PROBE_DIR's recordings that a worker must be able to read."""
    inside = places.recordings(registry.directory)
    found: list[Path] = []
    for recorded in sources:
        if not recorded.folder.is_relative_to(inside):
            found.append(recorded.folder.parent)
        rings = Path(recorded.meta.rings)
        if not rings.is_relative_to(recorded.folder):
            found.append(rings.parent)
    return found
