"""Archive state, `archives.json` in PROBE_DIR: last use of each archive from this host, and failures since.

For `probe archive --status`. Written by the code that ships; standard library only; any thread.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any, NamedTuple

from probe.base import clock
from probe.recording import checked, places

FILE = "archives.json"


class State(NamedTuple):
    """One archive: wall times of its last use and of the first failure since, the error and what to do."""

    used_ns: int | None = None
    failing_since_ns: int | None = None
    error: str = ""
    hint: str = ""


def note(home: Path, url: str, error: str, hint: str) -> None:
    """Record that the archive at `url` was used, or failed with `error`; written when that changes, or once a
    minute."""
    known = read(home)
    before, now_ns = known.get(url, State()), clock.wall_ns()
    if error:
        after = State(before.used_ns, before.failing_since_ns or now_ns, error, hint)
    else:
        recent = before.used_ns is not None and now_ns - before.used_ns < _RECENT_NS and not before.error
        after = before if recent else State(now_ns)
    if after != before:
        told = {name: state._asdict() for name, state in {**known, url: after}.items()}
        with contextlib.suppress(OSError):
            places.write_whole(home / FILE, checked.sealed(FILE, {"archives": told}))


_RECENT_NS = 60 * 10**9


def read(home: Path) -> dict[str, State]:
    """The archives by URL."""
    try:
        told: Any = checked.read_sealed(home / FILE)["archives"]
        return {
            str(url): State(
                _time(one["used_ns"]), _time(one["failing_since_ns"]), str(one["error"]), str(one["hint"])
            )
            for url, one in told.items()
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def _time(told: Any) -> int | None:
    return told if type(told) is int else None
