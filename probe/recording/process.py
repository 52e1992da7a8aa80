"""What is known about a process: who it is, and whether it still lives.

A pid alone is not an identity: it is reused. A process is named by its pid, its
start time in clock ticks and the boot it happened in. Standard library only;
any thread, never the hot path.
"""

from __future__ import annotations

import functools
import os
from typing import NamedTuple

from probe.base import descriptors

STATES = {
    "R": "running", "S": "sleeping", "D": "uninterruptible", "T": "stopped",
    "t": "traced", "Z": "zombie", "X": "dead", "I": "idle",
}


class Life(NamedTuple):
    """One life of a pid. `state` is the letter of /proc/PID/stat."""

    pid: int
    start_ticks: int
    uid: int
    state: str


def own_pid() -> int:
    """This process as /proc shows it, and so as everybody sees it who shares its files: in a pid namespace
    without a /proc of its own that is another number than `os.getpid()`."""
    try:
        return int(os.readlink("/proc/self"))
    except (OSError, ValueError):
        return os.getpid()


def life(pid: int) -> Life | None:
    """The process that has this pid now; None when there is none (a zombie counts as a process)."""
    try:
        folder = f"/proc/{pid}"
        uid = os.stat(folder).st_uid
        fields = descriptors.read(f"{folder}/stat").rpartition(b")")[2].split()
        return Life(pid, int(fields[19]), uid, fields[0].decode())
    except (OSError, IndexError, ValueError):
        return None


def is_stopped(pid: int) -> bool:
    """Whether a signal or a debugger has stopped the process that has this pid now."""
    found = life(pid)
    return found is not None and found.state in "Tt"


def alive(pid: int, start_ticks: int, boot_id: str) -> bool:
    """Whether exactly this life goes on; a zombie does not."""
    found = life(pid)
    return (
        found is not None
        and found.start_ticks == start_ticks
        and found.state not in "ZX"
        and boot_id in ("", current_boot_id())
    )


@functools.lru_cache(maxsize=1)
def current_boot_id() -> str:
    """Names this boot of the machine (of the kernel, in a container); empty when hidden."""
    try:
        return descriptors.read_text("/proc/sys/kernel/random/boot_id").strip()
    except OSError:
        return ""
