"""All ranks of a job on all hosts, for `GET /v1/ranks` and the tables of the cluster.

Each rank is listed once, with how far it is behind. Rows of other hosts are checked value by value. Runs on
the server's event loop.
"""

from __future__ import annotations

from typing import Any

from probe.diagnose.recent_steps import PARTS, PHASES
from probe.server.hosts import fanout
from probe.server.recordings.listing import STATES, Live, rank_rows
from probe.server.runtime import access
from probe.server.service import Service

RANKS_S = 5.0
"""Deadline for other hosts' answers that come from files alone."""
LONGEST_TEXT = 1024
MOST_RANKS = 1 << 17
_KINDS: dict[str, tuple[type, ...]] = {
    "job": (str,), "run": (str,), "attempt": (int,), "rank": (int,), "local_rank": (int,),
    "world_size": (int,), "host": (str,), "pid": (int,), "state": (str,), "how": (str,),
    "exit_status": (int,), "step": (int,),
    "last_step_s": (int, float), "last_seen_s": (int, float), "started_ns": (int,), "ended_ns": (int,),
    "elapsed_s": (int, float), "total_steps": (int,), "total_source": (str,), "left_s": (int, float),
    "midway": (bool,),
}
_NOT_FINITE = ("NaN", "Infinity", "-Infinity")
_NEEDED = ("run", "attempt", "rank", "pid", "started_ns")


async def all_ranks(
    service: Service, found: fanout.Found, caller: access.Caller, live: Live = STATES
) -> dict[str, Any]:
    """Answer of `GET /v1/ranks`. Of `live`, other hosts send only the figures; the summary since a step is
    limited to a rank of this host."""
    rows = await service.call(rank_rows, service.registry, service.watch.current, found.here, live)
    asked = {"figures": 1} if live.figures else {}
    others = await fanout.call_others(service, found, caller, "GET", "/v1/ranks", asked, RANKS_S)
    for part in others.parts:
        rows += _of_another(part.answer)
    return {
        "ranks": _lined_up(rows, found.world_size), "hosts": fanout.host_rows(found, others),
        "missing": others.missing, "world_size": found.world_size,
    }


def _of_another(answer: dict[str, Any] | None) -> list[dict[str, Any]]:
    """The rows in another host's answer; invalid rows are left out, invalid values are NULL."""
    said = (answer or {}).get("ranks")
    found: list[dict[str, Any]] = []
    for row in said[:MOST_RANKS] if isinstance(said, list) else []:
        if isinstance(row, dict):
            checked = {name: _checked(row.get(name), kinds) for name, kinds in _KINDS.items()}
            if all(checked[name] is not None for name in _NEEDED) and checked["rank"] >= 0:
                found.append({**checked, "endpoint": f"{checked['job']}/{checked['rank']}"})
                if "figures" in row:
                    found[-1]["figures"] = _figures(row["figures"])
    return found


def _figures(said: Any) -> dict[str, Any] | None:
    """Another host's `recent_steps.figures`, checked value by value."""
    if not isinstance(said, dict):
        return None
    curve, shares = said.get("curve"), said.get("shares")
    return {
        **{name: _number(said.get(name)) for name in ("loss", "step_s", "memory_bytes")},
        "curve": [_number(one) for one in curve[:PARTS]] if isinstance(curve, list) else [],
        "shares": {
            name: found for name in PHASES if (found := _number(shares.get(name))) is not None
        } if isinstance(shares, dict) else {},
    }


def _number(value: Any) -> Any:
    """A number; JSON has NaN and infinities as text."""
    return value if type(value) is float or value in _NOT_FINITE else _checked(value, (int,))


def _checked(value: Any, kinds: tuple[type, ...]) -> Any:
    if type(value) not in kinds:
        return None
    if isinstance(value, str):
        return value[:LONGEST_TEXT]
    return value if -(2**63) <= value < 2**63 else None


def _lined_up(rows: list[dict[str, Any]], world_size: int | None) -> list[dict[str, Any]]:
    """Each rank's newest process, in order of rank, with `lag_steps`: how far it is behind the foremost."""
    newest: dict[tuple[str, int], dict[str, Any]] = {}
    for row in sorted(rows, key=lambda row: (row["attempt"], row["started_ns"])):
        newest[row["run"], row["rank"]] = row
    found = [
        row for (_, rank), row in sorted(newest.items(), key=lambda item: (item[0][1], item[0][0]))
        if world_size is None or rank < world_size or (row["world_size"] or 0) <= world_size
    ]
    foremost: dict[str, int] = {}
    for row in found:
        if _comparable(row):
            foremost[row["run"]] = max(foremost.get(row["run"], 0), row["step"])
    for row in found:
        row["lag_steps"] = foremost[row["run"]] - row["step"] if _comparable(row) else None
    return found


def _comparable(row: dict[str, Any]) -> bool:
    """Whether the rank counts its steps from the job's first one."""
    return row.get("step") is not None and row.get("midway") is False
