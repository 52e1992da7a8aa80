"""The state of a process in one table cell. Pure."""

from __future__ import annotations

from typing import Any

from probe_cli.core.figures import known

WAITING = "waiting for torch"
COLOURS = {
    "running": "green", "starting": "yellow", "dead": "red", "failed": "red", "finished": "dim",
    WAITING: "yellow", "stalled": "red", "paused": "yellow", "stopped": "yellow",
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
