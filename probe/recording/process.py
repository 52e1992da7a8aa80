"""Process identity: which process has a pid, and whether it is alive.

Pids are reused, so a process is identified by pid, start time in clock ticks, and boot. Standard library
only; any thread, never the hot path.
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
    """One process that has or had a pid. `state` is the letter of /proc/PID/stat."""

    pid: int
    start_ticks: int
    uid: int
    state: str


def own_pid() -> int:
    """This process's pid as /proc shows it to readers of its files: in a pid namespace without its own /proc
    it differs from `os.getpid()`."""
    try:
        return int(os.readlink("/proc/self"))
    except (OSError, ValueError):
        return os.getpid()


def life(pid: int) -> Life | None:
    """The process that has this pid now, zombies included; None without one."""
    try:
        folder = f"/proc/{pid}"
        uid = os.stat(folder).st_uid
        fields = descriptors.read(f"{folder}/stat").rpartition(b")")[2].split()
        return Life(pid, int(fields[19]), uid, fields[0].decode())
    except (OSError, IndexError, ValueError):
        return None


def is_stopped(pid: int) -> bool:
    """Whether a signal or a debugger has stopped the process that has this pid now. Not for the job: the
    server checks every process every second, and the verified reads of `life` take five times as long."""
    try:
        number = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return os.read(number, 1024).rpartition(b")")[2][1:2] in (b"T", b"t")
    except OSError:
        return False
    finally:
        os.close(number)


def alive(pid: int, start_ticks: int, boot_id: str) -> bool:
    """Whether exactly this process is alive; a zombie is not."""
    found = life(pid)
    return (
        found is not None
        and found.start_ticks == start_ticks
        and found.state not in "ZX"
        and boot_id in ("", current_boot_id())
    )


@functools.lru_cache(maxsize=1)
def current_boot_id() -> str:
    """Id of this boot of the kernel; empty when hidden."""
    try:
        return descriptors.read_text("/proc/sys/kernel/random/boot_id").strip()
    except OSError:
        return ""
