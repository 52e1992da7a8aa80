"""The recorded processes as rows of `GET /v1/processes` and of cluster.ranks.

Called on the server's threads; reads files. Standard library only.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from probe.base import clock
from probe.diagnose import recent_steps
from probe.diagnose.finding import Finding
from probe.diagnose.process.progress import interval_under_way
from probe.diagnose.process.time_left import UNKNOWN, time_left
from probe.diagnose.states import ALARM, OK, PAUSED
from probe.recording.process import is_stopped
from probe.server.recordings import exit_report
from probe.server.recordings.job_names import shown_names
from probe.server.recordings.registry import LIVE, Recorded, Registry, Status

Current = Callable[[Path], Finding | None]
"""The watch's present verdict on the process recorded in a folder; None while all is well."""
RUNNING, STALLED = "running", "stalled"
MOST_NOTES = 32
DAMAGE_S = 1.0
"""Time for checking journals for damage in one request; results are cached for the next."""
_NOT_ALL = "not all recordings were checked for damage yet: try again"
_MOST_NEW_STEPS = 8192
"""The size of the ring of python.steps; older steps need a query."""


class Live(NamedTuple):
    """What a live view requests about living processes in addition to their states: their `figures`; and for
    one `rank` a summary of its steps `since` a step (`recent_steps.together`) with the rate of `amount`, and
    `noted`, a number that grows when something other than a step is recorded."""

    figures: bool = False
    rank: int | None = None
    since: int = -1
    amount: str = "1"


STATES = Live()


def process_rows(
    registry: Registry, current: Current, everything: bool, live: Live = STATES
) -> tuple[list[dict[str, Any]], list[str]]:
    """Rows of `GET /v1/processes`, with stalls from `current`; and notes about recordings that are damaged or
    cannot be read."""
    rows: list[dict[str, Any]] = []
    notes: list[str] = []
    until_s = time.monotonic() + DAMAGE_S
    listed = registry.listed(everything)
    names = shown_names(recorded.meta for recorded in listed)
    for recorded in listed:
        rows.append({**_process(registry, current, recorded, live), "name": names[recorded.meta.run]})
        if time.monotonic() > until_s:
            notes = [_NOT_ALL, *notes[1 if notes[:1] == [_NOT_ALL] else 0:]]
            continue
        who = f"{recorded.name} (pid {recorded.meta.pid})"
        notes += [f"{who}: {what}" for what in registry.damage_notes(recorded)]
    notes += sorted(registry.unreadable.values())
    return rows, exit_report.at_most(notes, MOST_NOTES)


def _process(registry: Registry, current: Current, recorded: Recorded, live: Live) -> dict[str, Any]:
    meta, status = recorded.meta, registry.status(recorded)
    state, how = status.state, status.how
    if state in LIVE:
        state, how = _living(recorded, state, how, current(recorded.folder))
    left = time_left(meta, status.step) if state == RUNNING else UNKNOWN
    return {
        "job": meta.job, "run": meta.run, "attempt": meta.attempt, "rank": meta.rank,
        "local_rank": meta.local_rank, "world_size": meta.world_size, "host": meta.host, "pid": meta.pid,
        "state": state, "how": how, "exit_status": status.exit_status, "step": status.step,
        "last_step_s": _ago(status.last_step_ns), "last_seen_s": _ago(status.last_seen_ns),
        "started_ns": meta.started_ns, "ended_ns": status.ended_ns,
        "elapsed_s": max(0, (status.ended_ns or clock.wall_ns()) - meta.started_ns) * 1e-9,
        **left._asdict(), "folder": str(recorded.folder), "argv": meta.argv,
        **_newest(registry, recorded, status, live),
    }


def _newest(registry: Registry, recorded: Recorded, status: Status, live: Live) -> dict[str, Any]:
    """The values that `live` requests; none for an ended process, whose rows need a query."""
    found: dict[str, Any] = {}
    if status.state not in LIVE:
        return found
    if live.figures:
        rows = registry.last_steps(recorded, recent_steps.PARTS * recent_steps.PART_STEPS)
        found["figures"] = None if rows is None else recent_steps.figures(rows)
    if live.rank == recorded.meta.rank:
        rows = registry.last_steps(recorded, _MOST_NEW_STEPS, live.since)
        found["since"] = None if rows is None else recent_steps.together(rows, live.amount)
        found["noted"] = registry.noted(recorded)
    return found


def _living(recorded: Recorded, state: str, how: str, verdict: Finding | None) -> tuple[str, str]:
    """State and details of a process that lives."""
    if is_stopped(recorded.meta.pid):
        return "stopped", ""
    if verdict is None or verdict.severity == OK:
        return state, how or _between_steps(recorded)
    if verdict.state == PAUSED:
        return PAUSED, "by probe"
    return (STALLED if verdict.severity == ALARM else state), verdict.state


def _between_steps(recorded: Recorded) -> str:
    """`evaluating for 12 s`, `saving for 3 s` or the like while the training thread does that between two
    steps; else empty."""
    found = interval_under_way(recorded.meta)
    if found is None:
        return ""
    kind, began_ns = found
    doing = {"evaluation": "evaluating", "checkpoint": "saving"}.get(kind or "", kind or "")
    return f"{doing} for {max(0.0, (clock.wall_ns() - began_ns) / 1e9):.0f} s"


def _ago(t_ns: int | None) -> float | None:
    return None if t_ns is None else max(0.0, (clock.wall_ns() - t_ns) * 1e-9)


def rank_rows(
    registry: Registry, current: Current, sources: list[Recorded], live: Live = STATES
) -> list[dict[str, Any]]:
    """Rows of cluster.ranks: the processes of the same runs and attempts, each rank's newest."""
    found: list[dict[str, Any]] = []
    for attempt in dict.fromkeys(recorded.attempt for recorded in sources):
        for recorded in registry.same_attempt([one for one in sources if one.attempt == attempt]):
            row = _process(registry, current, recorded, live)
            row["endpoint"] = str(recorded.folder) if row["ended_ns"] else recorded.name
            row["midway"] = exit_report.began_midway(recorded.folder)
            found.append(row)
    return found
