"""The figures of a live view: each rank's loss, step time, phases and memory.

The server says those of a living rank beside its state, from its ring (`diagnose/recent_steps`). Those of
what has ended are a query's, once; and of ranks whose host has an older server, again and again. A query
costs as much as twenty lists of processes, so these are spaced by the time that they take (`SHARE_RATIO`).
Runs on the thread that asks; standard-library layers only.
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
"""Share of the time that may pass in waiting for queries. One takes the processor about as long as its caller
waits on a quiet machine, and a fifth more while the worker makes room for the next."""
_LONGEST_S, _LONGEST_RATIO = 10.0, 10.0
"""But no more than this, and this many times what it took: on a busy machine most of that was waiting."""
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
"""One row for each rank and part, the newest part first. Memory is in these rows too: process.memory, which
goes on while no step ends, would make the query half as dear again."""
_MOST_ROWS = 100_000
Key = tuple[int, int]
"""Rank and pid."""


class Figures(NamedTuple):
    """What the recording says of one rank; None for what was not measured.

    `curve`: mean loss of each part, the oldest first. `shares`: of each phase in the timed steps."""

    loss: float | None = None
    curve: tuple[float | None, ...] = ()
    step_s: float | None = None
    shares: Mapping[str, float] = {}
    memory_bytes: int | None = None


UNREAD = Figures()


def said(process: Mapping[str, Any]) -> Figures | None:
    """What the server says of a living rank beside its state; None of an older server, which does not."""
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
    """The figures of all ranks of an endpoint. `least_step`: the newest step of the rank that is furthest
    behind; what is more than some parts older is then not read."""
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
    """Steps a second of a living process: those of the newest part, and fewer while no step has ended for
    `_LATE` times as long as theirs took: then the present one has taken that long already. None before a step
    has ended."""
    if not found.step_s or found.step_s <= 0:
        return None
    late = last_step_s is not None and last_step_s > _LATE * found.step_s
    return 1.0 / (last_step_s if late and last_step_s else found.step_s)


class Spacing:
    """When to ask again, so that waiting for answers takes `SHARE_RATIO` of the time."""

    def __init__(self, least_s: float) -> None:
        self._least_s = least_s
        self._next_s = 0.0

    @property
    def due(self) -> bool:
        """Whether it is time."""
        return time.monotonic() >= self._next_s

    def took(self, seconds: float) -> None:
        """A query has just been answered, after so many seconds."""
        longest_s = _LONGEST_S + _LONGEST_RATIO * seconds
        self._next_s = time.monotonic() + max(self._least_s, min(seconds / SHARE_RATIO, longest_s))
