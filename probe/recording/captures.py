"""Captures: stacks as rows, in one format for those taken from inside and from outside.

Standard library only; any thread, never the hot path.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

_OF_CAPTURE = ("capture_id", "t_ns", "step", "phase")
_OF_THREAD = ("process_id", "thread_id", "thread_name", "training", "state", "owns_gil", "moving")


def journal_rows(capture: dict[str, Any], reason: str) -> list[dict[str, Any]]:
    """A capture as rows of python.stacks; missing values are NULL. Variables are not kept."""
    common = {name: capture.get(name) for name in _OF_CAPTURE}
    return [
        {
            **common, "reason": reason, **{name: frame[name] for name in frame if name != "locals"},
            **{name: thread.get(name) for name in _OF_THREAD},
        }
        for thread in capture["threads"]
        for frame in thread["frames"]
    ]


def last_capture(rows: Iterable[dict[str, Any]]) -> tuple[dict[str, Any], str] | None:
    """The newest capture among rows of python.stacks, and its reason; None when there is none."""
    newest: list[dict[str, Any]] = []
    for row in rows:
        if not newest or row["capture_id"] == newest[0]["capture_id"]:
            newest.append(row)
        elif row["t_ns"] >= newest[0]["t_ns"]:
            newest = [row]
    if not newest:
        return None
    first = newest[0]
    threads: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in newest:
        key = (row.get("process_id"), row.get("thread_id"), row.get("thread_name"))
        thread = threads.setdefault(key, {**{name: row.get(name) for name in _OF_THREAD}, "frames": []})
        thread["frames"].append(
            {name: value for name, value in row.items() if name not in (*_OF_CAPTURE, *_OF_THREAD, "reason")}
        )
    capture = {name: first.get(name) for name in _OF_CAPTURE}
    return {**capture, "threads": list(threads.values())}, str(first["reason"])
