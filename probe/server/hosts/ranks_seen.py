"""Rows of `cluster.ranks` from several hosts, as one list: each rank once, and how far it is behind.

What another host said is checked value by value. Standard library only; pure.
"""

from __future__ import annotations

from typing import Any

LONGEST_TEXT = 1024
MOST_RANKS = 1 << 17
_KINDS: dict[str, tuple[type, ...]] = {
    "job": (str,), "run": (str,), "attempt": (int,), "rank": (int,), "local_rank": (int,),
    "world_size": (int,), "host": (str,), "pid": (int,), "state": (str,), "how": (str,),
    "exit_status": (int,), "step": (int,),
    "last_step_s": (int, float), "last_seen_s": (int, float), "started_ns": (int,), "ended_ns": (int,),
    "midway": (bool,),
}
_NEEDED = ("run", "attempt", "rank", "pid", "started_ns")


def of_another(answer: dict[str, Any] | None) -> list[dict[str, Any]]:
    """The rows in another host's answer; what has no sensible form is left out or NULL."""
    said = (answer or {}).get("ranks")
    found: list[dict[str, Any]] = []
    for row in said[:MOST_RANKS] if isinstance(said, list) else []:
        if isinstance(row, dict):
            checked = {name: _checked(row.get(name), kinds) for name, kinds in _KINDS.items()}
            if all(checked[name] is not None for name in _NEEDED) and checked["rank"] >= 0:
                found.append({**checked, "endpoint": f"{checked['job']}/{checked['rank']}"})
    return found


def _checked(value: Any, kinds: tuple[type, ...]) -> Any:
    if type(value) not in kinds:
        return None
    if isinstance(value, str):
        return value[:LONGEST_TEXT]
    return value if -(2**63) <= value < 2**63 else None


def lined_up(rows: list[dict[str, Any]], world_size: int | None) -> list[dict[str, Any]]:
    """Each rank's newest life, in order of rank, with `lag_steps`: how far it is behind the furthest."""
    newest: dict[tuple[str, int], dict[str, Any]] = {}
    for row in sorted(rows, key=lambda row: (row["attempt"], row["started_ns"])):
        newest[row["run"], row["rank"]] = row
    found = [
        row for (_, rank), row in sorted(newest.items(), key=lambda item: (item[0][1], item[0][0]))
        if world_size is None or rank < world_size or (row["world_size"] or 0) <= world_size
    ]
    furthest: dict[str, int] = {}
    for row in found:
        if _comparable(row):
            furthest[row["run"]] = max(furthest.get(row["run"], 0), row["step"])
    for row in found:
        row["lag_steps"] = furthest[row["run"]] - row["step"] if _comparable(row) else None
    return found


def _comparable(row: dict[str, Any]) -> bool:
    """Whether the rank counts its steps from the job's first."""
    return row.get("step") is not None and row.get("midway") is False
