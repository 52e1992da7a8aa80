"""The figures of a live view: each rank's loss, step time, phases and memory.

For a live rank the server sends them with its state, from its ring (`diagnose/recent_steps`). For an ended
rank one query reads them; for ranks on a host with an older server, repeated queries. A query costs as much
as twenty lists of processes, so queries are spaced by the time they take (`SHARE_RATIO`). Runs on the thread
that sends the requests; standard-library layers only.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from probe.client.answer import Answer
from probe.diagnose.recent_steps import NOT_WORKED, PART_STEPS, PARTS, PHASES
from probe_cli.core import figures
from probe_cli.core.session import Session

SHARE_RATIO = 0.012
"""Largest share of the time spent waiting for queries. On an idle machine a query uses the processor about as
long as its caller waits, and a fifth longer while the worker frees memory for the next."""
_LONGEST_S, _LONGEST_RATIO = 10.0, 10.0
"""Upper limit of the spacing: this long plus this multiple of the query's time. On a busy machine most of
that time was spent waiting."""
_LATE = 3.0
_NOT_WORKED = " - ".join(f"coalesce({name}, 0)" for name in NOT_WORKED)
_PHASE_COLUMNS = ", ".join(f"{name}_s" for name in PHASES)
_PHASE_SUMS = ", ".join(f"sum({name}_s) FILTER (NOT shadow AND NOT sampled) AS {name}" for name in PHASES)
_SQL = f"""\
WITH recent AS (
  SELECT rank, pid, step, wall_s - {_NOT_WORKED} AS worked_s, {_PHASE_COLUMNS}, loss, rss_bytes,
    allocated_bytes, sampled, shadow,
    row_number() OVER (PARTITION BY rank, pid ORDER BY step DESC) - 1 AS back
  FROM python.steps WHERE step > $least QUALIFY back < {PARTS * PART_STEPS}),
parts AS (
  SELECT rank, pid, back // {PART_STEPS} AS part, avg(worked_s) AS step_s, arg_max(loss, step) AS loss,
    avg(loss) FILTER (isfinite(loss)) AS mean_loss, arg_max(rss_bytes, step) AS rss_bytes,
    arg_max(allocated_bytes, step) AS allocated_bytes, {_PHASE_SUMS}
  FROM recent GROUP BY ALL)
SELECT * FROM parts ORDER BY rank, pid, part"""
"""One row per rank and part, newest part first. Memory comes from the same rows: reading process.memory,
which is also sampled while no step ends, would make the query half as expensive again."""
_MOST_ROWS = 100_000
Key = tuple[int, int]
"""Rank and pid."""


class Figures(NamedTuple):
    """The recorded figures of one rank; None if not measured.

    `curve`: mean loss of each part, oldest first. `shares`: share of each phase in the timed steps."""

    loss: float | None = None
    curve: tuple[float | None, ...] = ()
    step_s: float | None = None
    shares: Mapping[str, float] = {}
    memory_bytes: int | None = None


UNREAD = Figures()


def said(process: Mapping[str, Any]) -> Figures | None:
    """The figures that the server sent with a live rank's state; None from an older server."""
    if "figures" not in process:
        return None
    found = process["figures"]
    if not isinstance(found, dict):
        return UNREAD
    held, curve, shares = (found.get(name) for name in ("memory_bytes", "curve", "shares"))
    parts = {name: figures.value(shares.get(name)) for name in PHASES} if isinstance(shares, dict) else {}
    return Figures(
        loss=figures.value(found.get("loss")),
        curve=tuple(map(figures.value, curve)) if isinstance(curve, list) else (),
        step_s=figures.value(found.get("step_s")),
        shares={name: one for name, one in parts.items() if one is not None and 0 <= one <= 1},
        memory_bytes=held if isinstance(held, int) else None,
    )


def read_figures(session: Session, endpoint: str, least_step: int) -> dict[Key, Figures]:
    """Query the figures of all ranks of an endpoint. `least_step`: newest step of the rank furthest behind;
    the query skips steps more than `PARTS` parts older."""
    sql = _SQL.replace("$least", str(least_step - PARTS * PART_STEPS - 1))
    body = {"endpoint": endpoint, "sql": sql, "limit": _MOST_ROWS}
    found: dict[Key, list[dict[str, Any]]] = {}
    for row in Answer.parse(session.request("POST", "/v1/query", body=body)).records():
        found.setdefault((row["rank"], row["pid"]), []).append(row)
    return {key: _figures(rows) for key, rows in found.items()}


def _figures(parts: Sequence[Mapping[str, Any]]) -> Figures:
    newest = parts[0]
    sums = {
        name: sum(values)
        for name in PHASES
        if (values := [part[name] for part in parts if part[name] is not None])
    }
    whole = sum(sums.values())
    held = newest["allocated_bytes"]
    return Figures(
        loss=figures.value(newest["loss"]),
        curve=tuple(figures.value(part["mean_loss"]) for part in reversed(parts)),
        step_s=figures.value(newest["step_s"]),
        shares={name: value / whole for name, value in sums.items()} if whole > 0 else {},
        memory_bytes=newest["rss_bytes"] if held is None else held,
    )


def steps_per_s(found: Figures, last_step_s: float | None) -> float | None:
    """Steps per second of a live process, from the newest part; once no step has ended for `_LATE` times its
    step time, from the time since the last step. None before a step has ended."""
    if not found.step_s or found.step_s <= 0:
        return None
    late = last_step_s is not None and last_step_s > _LATE * found.step_s
    return 1.0 / (last_step_s if late and last_step_s else found.step_s)


class Spacing:
    """Schedules queries so that waiting for them takes `SHARE_RATIO` of the time."""

    def __init__(self, least_s: float) -> None:
        self._least_s = least_s
        self._next_s = 0.0

    @property
    def due(self) -> bool:
        """Whether the next query is due."""
        return time.monotonic() >= self._next_s

    def took(self, seconds: float) -> None:
        """Record that a query has just been answered, after this many seconds."""
        longest_s = _LONGEST_S + _LONGEST_RATIO * seconds
        self._next_s = time.monotonic() + max(self._least_s, min(seconds / SHARE_RATIO, longest_s))
