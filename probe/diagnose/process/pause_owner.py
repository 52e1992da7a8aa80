"""Finds the action that holds the training thread between two steps, from the job's journal.

Runs in any thread of the server, or in the command. Standard library only.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from probe.recording import places
from probe.recording.journal import read_journal

PAUSED, ACTING = "paused", "acting"
"""Phases of python.pulse in which the training thread is held: until `resume`, and while an action or a
snippet runs."""
HELD = (PAUSED, ACTING)
_UNDER_WAY = ("asked", "done", "standing")


@dataclass(frozen=True)
class Held:
    """The action that holds the training thread."""

    action_id: str
    action: str
    since_ns: int
    for_s: float | None
    """Time limit of the pause; None without a limit."""
    caller_uid: int | None
    caller_pid: int | None
    caller_role: str | None

    @property
    def who(self) -> str:
        """Who requested it, as far as known."""
        asked = [f"uid {self.caller_uid}"] if self.caller_uid is not None else []
        asked += [f"pid {self.caller_pid}"] if self.caller_pid is not None else []
        asked += [self.caller_role] if self.caller_role not in (None, "owner") else []
        return ", ".join(asked) or "an unknown caller"


def who_holds(folder: Path, phase: str | None) -> Held | None:
    """The action that holds the process recorded in `folder`, which is in phase `phase`; None if its journal
    names none."""
    last: dict[str, dict[str, Any]] = {}
    for record in read_journal(places.journals(folder)[0]):
        if record.get("table") == "probe.actions":
            for row in record["rows"]:
                if phase != PAUSED or row["action"] == "pause":
                    last[str(row["action_id"])] = row
    wanted = _UNDER_WAY if phase == PAUSED else ("asked",)
    found = [row for row in last.values() if row["state"] in wanted]
    return _held(found[-1]) if found and phase in HELD else None


def _held(row: dict[str, Any]) -> Held:
    arguments = json.loads(row["arguments"] or "{}")
    for_s = arguments.get("for_s") if row["action"] == "pause" else None
    return Held(
        str(row["action_id"]), str(row["action"]), int(row["t_ns"]),
        float(for_s) if isinstance(for_s, (int, float)) else None,
        row["caller_uid"], row["caller_pid"], row["caller_role"],
    )
