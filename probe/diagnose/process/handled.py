"""Reads which exception a training thread catches repeatedly, as noted by its agent, and the scarce resource.

The agent checks only while no step ends (`job/agent/handling`). The scarce resource (descriptors, disk space)
is read from /proc and the file system. Runs in threads of the server, or in the command. Standard library
only.
"""

from __future__ import annotations

import errno
import os
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from probe.base import clock
from probe.diagnose import states
from probe.diagnose.finding import Finding
from probe.recording import places
from probe.recording.journal import read_journal

EVENT = "handling"
_FRESH_S = 75.0
"""A note no older than this is current: a current note is rewritten after a minute at most."""
_NO_ROOM_RATIO = 0.001
_RETRIES = frozenset({
    states.BUSY, states.SLOW_STEP, states.BLOCKED, states.LOCK_WAIT, states.STARVED, states.WAITING_FOR_DATA,
})
"""States of a thread that may be retrying something."""
_POLLING = frozenset({"_queue.Empty", "queue.Empty", "TimeoutError", "BlockingIOError", "InterruptedError"})
"""Exceptions that code catches while polling: a normal way to wait."""


@dataclass(frozen=True)
class Handled:
    """Exceptions of one type, raised at one line."""

    type: str
    message: str
    place: str
    """`load (data.py:12)`."""
    new: int
    """How many distinct exceptions were seen."""
    seen: int
    looks: int
    over_s: float
    lacks: str = ""
    """The scarce resource, measured now: descriptors or disk space; empty if the exception names none."""

    @property
    def said(self) -> str:
        """One line: exception, place, frequency, scarce resource."""
        lacks = f" ({self.lacks})" if self.lacks else ""
        often = f"{self.new} distinct ones in {self.looks} samples over {self.over_s:.0f} s"
        return f"{self.type}: {self.message}{lacks}, raised in {self.place}, caught repeatedly ({often})"


def with_exception(found: Finding, again: Handled) -> Finding:
    """The state of a process, with the exception that it catches repeatedly if that is more informative."""
    if found.severity == states.OK or found.state not in _RETRIES or again.type in _POLLING:
        return found
    state = found.state if found.state == states.WAITING_FOR_DATA else states.RETRYING
    return replace(found, state=state, what=f"{again.said}; {found.what}")


def handled(pid: int, folder: Path, quiet_s: float) -> Handled | None:
    """The exception that the process catches repeatedly since the last sign of training, if any."""
    last: dict[str, Any] | None = None
    for record in read_journal(places.journals(folder)[0]):
        if record.get("event") == EVENT:
            last = record
    if last is None or last.get("type") is None:
        return None
    age_s = (clock.wall_ns() - int(last["t_ns"])) / 1e9
    if age_s > min(quiet_s, _FRESH_S):
        return None
    return Handled(
        str(last["type"]), str(last["message"]).partition("\n")[0],
        f"{last['func']} ({str(last['file']).rpartition('/')[2]}:{last['lineno']})",
        int(last["new"]), int(last["seen"]), int(last["looks"]), float(last["over_s"]),
        lacks(pid, last.get("errno"), last.get("filename")),
    )


def lacks(pid: int, number: int | None, name: str | None) -> str:
    """The resource that the process is short of, according to its errno."""
    if number in (errno.EMFILE, errno.ENFILE):
        return descriptors(pid) or ""
    if number in (errno.ENOSPC, errno.EDQUOT):
        return room(pid, name)
    return ""


def descriptors(pid: int) -> str | None:
    """`1,024 of at most 1,024 descriptors are open`; None if that cannot be read."""
    try:
        count = len(os.listdir(f"/proc/{pid}/fd"))
        found = re.search(r"^Max open files +(\d+|unlimited)", Path(f"/proc/{pid}/limits").read_text(), re.M)
    except OSError:
        return None
    if found is None or not found[1].isdigit():
        return None
    return f"{count:,} of at most {int(found[1]):,} descriptors are open"


def room(pid: int, name: str | None) -> str:
    """Free space on the file system of a file; without a name, on the full file systems of open files."""
    if name is not None:
        path = name if name.startswith("/") else f"/proc/{pid}/cwd/{name}"
        return _room(path) or _room(os.path.dirname(path)) or ""
    full: dict[int, str] = {}
    try:
        for number in os.listdir(f"/proc/{pid}/fd"):
            path = os.readlink(f"/proc/{pid}/fd/{number}")
            if path.startswith("/") and (not path.startswith(("/dev/", "/proc/")) or "/shm/" in path):
                left = os.statvfs(f"/proc/{pid}/fd/{number}")
                if left.f_blocks and left.f_bavail <= _NO_ROOM_RATIO * left.f_blocks:
                    full.setdefault(left.f_fsid, _room(path))
    except OSError:
        pass
    return "; ".join(line for line in full.values() if line)


def _room(path: str) -> str:
    try:
        left = os.statvfs(path)
    except OSError:
        return ""
    free, of = (part * left.f_frsize / 2**20 for part in (left.f_bavail, left.f_blocks))
    return f"{free:,.0f} of {of:,.0f} MiB are free on the file system of {path}"
