"""Texts for a process's state (one table cell) and its progress and remaining time. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from probe_cli.core.figures import known, span

WAITING = "waiting for torch"
COLOURS = {
    "running": "green", "starting": "yellow", "dead": "red", "failed": "red", "finished": "dim",
    WAITING: "yellow", "stalled": "red", "paused": "yellow", "stopped": "yellow",
    "bundled": "dim",
}
_LONGEST_HOW = 60


def state_text(process: dict[str, Any]) -> str:
    """The state and, if known, how the process ended: `running`, `dead: SIGKILL`, `failed: ValueError`."""
    word, how = known(process.get("state")), str(process.get("how") or "")
    how = how.removeprefix("exception ").removeprefix(f"{word}, ")
    kind, separator, _ = how.partition(": ")
    if separator and kind.isidentifier():  # an exception; its message is in python.exceptions
        how = kind
    return word if how in ("", word, "unknown") else f"{word}: {how[:_LONGEST_HOW]}"


def time_left_parts(process: Mapping[str, Any]) -> list[str]:
    """Progress towards the planned number of steps with its source, remaining time, and elapsed time:
    `step 1,199 of 10,000 (max_steps = …)`, `2 h 10 min left at the usual rate`, `34 min so far`."""
    total, step, left_s = process.get("total_steps"), process.get("step"), process.get("left_s")
    parts = []
    if total is not None and step is not None:
        parts.append(f"step {step:,} of {total:,} ({known(process.get('total_source'))})")
    if left_s is not None:
        parts.append(f"{span(left_s)} left at the usual rate")
    if process.get("elapsed_s") is not None:
        parts.append(f"{span(process['elapsed_s'])} so far" if process.get("ended_ns") is None
                     else f"took {span(process['elapsed_s'])}")
    return parts
