"""End record: `end.json`, the one place that says how a recorded process ended.

`write` makes it as soon as the end is noticed. `seal` adds what the rings held once all rows are in segments.
Each replaces the whole file, so a server that is killed leaves one version or the other. Any thread of the
server. Standard library only.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from probe.base import clock
from probe.recording import checked, places
from probe.recording.journal import read_journal
from probe.recording.recording import Meta

VERSION = 3
"""1 had no checksum and no version; 1 and 2 were written after sealing, without `why`."""
_NAME = "end.json"
_NUMBERS = ("step", "last_step_ns", "last_seen_ns", "ended_ns", "exit_status")


def path_of(folder: Path) -> Path:
    """Where the end record of a recording is, or will be."""
    return folder / _NAME


def exists(folder: Path) -> bool:
    """Whether a recording has an end record, damaged or not."""
    return os.path.exists(f"{folder}/{_NAME}")


def write(folder: Path, meta: Meta, end: dict[str, Any]) -> None:
    """Write how the process ended, a `Status` as a dictionary, unless there is an end record already, even a
    damaged one. Raises `OSError`."""
    if not path_of(folder).exists():
        who = {"version": VERSION, "pid": meta.pid, "started_ns": meta.started_ns}
        _replace(folder, {**who, **end, "seen_ns": clock.wall_ns(), "sealed": False})


def seal(folder: Path, meta: Meta, held: dict[str, Any]) -> None:
    """Mark that all rows are in segments, and add facts on rings and journals (`held`). Raises `OSError`."""
    try:
        facts = read(folder, meta)
    except ValueError:  # damaged: its content is lost either way
        return
    if not facts["sealed"]:
        _replace(folder, {**facts, **held, "sealed": True})


def _replace(folder: Path, facts: dict[str, Any]) -> None:
    places.write_whole(path_of(folder), checked.sealed(_NAME, facts))


def read(folder: Path, meta: Meta) -> dict[str, Any]:
    """The facts in an end record. Raises `OSError` if there is none, `ValueError` if it is damaged or belongs
    to another process."""
    facts = checked.read_sealed(path_of(folder), older=lambda facts: "version" not in facts)
    if (facts.get("pid", meta.pid), facts.get("started_ns", meta.started_ns)) != meta.owner:
        raise ValueError("it belongs to another process")
    sizes = facts.get("journal_bytes", {})
    numbers = [*(facts.get(name) for name in _NUMBERS), *(sizes.values() if isinstance(sizes, dict) else "?")]
    if any(value is not None and type(value) is not int for value in numbers):
        raise ValueError("a field that must be a number is not")
    if not isinstance(facts.get("state"), str) or not isinstance(facts.get("how", ""), str):
        raise ValueError("it does not say how it ended")
    facts.setdefault("sealed", True)
    return facts


def is_sealed(folder: Path, meta: Meta) -> bool:
    """Whether all rows of an ended process are in segments; a damaged record counts as sealed."""
    try:
        return bool(read(folder, meta)["sealed"])
    except FileNotFoundError:
        return False
    except (OSError, ValueError):
        return True


def read_from_journal(folder: Path) -> dict[str, Any] | None:
    """State, how, exit status, time and why from `watch.bin`, where versions before 3 wrote them; None
    without."""
    found = None
    for record in read_journal(places.journals(folder)[1]):
        if record.get("event") == "end":
            found = {
                "state": str(record.get("state")), "how": str(record.get("how")),
                "exit_status": record.get("exit_status"), "ended_ns": record.get("ended_ns"),
                "why": list(record.get("why") or []),
            }
    return found
