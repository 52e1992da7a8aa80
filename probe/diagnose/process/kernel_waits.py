"""The kernel's view of a process: snapshots of /proc and control groups, compared before and after a window.

Stops and traces nothing, so it works in any state of the process and costs it nothing. Runs in threads of the
server, or in the command. Standard library only.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from probe.outside.processes import tasks
from probe.recording.process import STATES

_CGROUPS = Path("/sys/fs/cgroup")
_UNLIMITED_BYTES = 1 << 60
"""cgroup v1 represents 'no limit' as the highest number of pages."""
SYSCALLS: dict[str, dict[int, str]] = {
    "x86_64": {
        0: "read", 1: "write", 7: "poll", 17: "pread64", 18: "pwrite64", 23: "select", 35: "nanosleep",
        42: "connect", 43: "accept", 45: "recvfrom", 47: "recvmsg", 46: "sendmsg", 44: "sendto",
        61: "wait4", 72: "fcntl", 73: "flock", 74: "fsync", 75: "fdatasync", 202: "futex",
        230: "clock_nanosleep", 232: "epoll_wait", 247: "waitid", 257: "openat", 270: "pselect6",
        271: "ppoll", 281: "epoll_pwait", 288: "accept4",
    },
    "aarch64": {
        25: "fcntl", 32: "flock", 56: "openat", 63: "read", 64: "write", 67: "pread64", 68: "pwrite64",
        72: "pselect6", 73: "ppoll", 82: "fsync", 83: "fdatasync", 95: "waitid", 98: "futex",
        101: "nanosleep", 115: "clock_nanosleep", 22: "epoll_pwait", 202: "accept", 203: "connect",
        206: "sendto", 207: "recvfrom", 211: "sendmsg", 212: "recvmsg", 242: "accept4", 260: "wait4",
    },
}
"""Names of system calls in which a thread may wait, by machine and number."""
ON_DESCRIPTOR = frozenset(
    (
        "read", "write", "pread64", "pwrite64", "recvfrom", "recvmsg", "sendto", "sendmsg", "connect",
        "accept", "accept4", "fcntl", "flock", "fsync", "fdatasync",
    )
)
"""Calls whose first argument is a descriptor."""


STANDARD_INPUT = "standard input"


@dataclass(frozen=True)
class Snapshot:
    """One reading of a process. None means it could not be read."""

    monotonic_s: float
    state: str | None
    """State of the process; None if it does not exist."""
    tracer: int
    """PID of its tracer; 0 without one."""
    major_faults: int | None
    swap_bytes: int | None
    rss_bytes: int | None
    tasks: dict[int, tasks.Task]
    children: dict[int, tuple[str, int]]
    """State and CPU ticks of every descendant."""
    periods: int | None
    throttled: int | None
    """Scheduling periods, and throttled periods, of the control group that limits its CPU."""


class Rested(NamedTuple):
    """Observed rest of a thread, in seconds: continuous sleep, observed time, CPU time used. `switches`: its
    context switches at the last observation, None if it was running then."""

    still_s: float
    watched_s: float
    used_s: float
    switches: int | None = None

    def as_of(self, now: tasks.Task | None) -> Rested:
        """The value as of now: if the thread has run since the last observation, its sleep starts over."""
        same = now is not None and self.switches is not None and now.switches == self.switches
        return self if same else self._replace(still_s=0.0)


def snapshot(pid: int) -> Snapshot:
    """Take one snapshot."""
    fields = _stat(pid)
    status = _status(pid)
    periods, throttled = _throttling(pid)
    return Snapshot(
        monotonic_s=time.monotonic(),
        state=None if fields is None else STATES.get(fields[0], fields[0]),
        tracer=int(status.get("TracerPid", "0")),
        major_faults=None if fields is None else int(fields[9]),
        swap_bytes=_kib(status.get("VmSwap")),
        rss_bytes=_kib(status.get("VmRSS")),
        tasks={task.tid: task for task in tasks.tasks(pid)},
        children=dict(_children(pid)),
        periods=periods,
        throttled=throttled,
    )


_STATUS_BYTES = 1 << 16
_SWITCHES = re.compile(rb"\n(?:non)?voluntary_ctxt_switches:\t(\d+)")
"""Voluntary and involuntary context switches in /proc/PID/task/TID/status."""


def switches(pid: int, tid: int) -> int | None:
    """Context switches of one thread, from a single read: as long as the number stays the same and the thread
    is not running, it sleeps. None if it is running or gone."""
    try:
        with open(f"/proc/{pid}/task/{tid}/status", "rb", buffering=0) as file:
            data = file.read(_STATUS_BYTES)
    except OSError:
        return None
    if data.partition(b"\nState:\t")[2][:1] in (b"R", b""):
        return None
    counts = _SWITCHES.findall(data)
    return sum(map(int, counts)) if len(counts) == 2 else None


def run_s(pid: int, tid: int) -> float | None:
    """CPU time that one thread has used; None if the kernel does not count it or the thread is gone."""
    try:
        with open(f"/proc/{pid}/task/{tid}/schedstat", "rb", buffering=0) as file:
            return int(file.read(_STATUS_BYTES).split()[0]) / 1e9
    except (OSError, IndexError, ValueError):
        return None


def syscall_name(number: int | None) -> str | None:
    """Name of a system call of this machine; its number as text if the name is not listed."""
    if number is None:
        return None
    return SYSCALLS.get(os.uname().machine, {}).get(number, f"system call {number}")


def waits_on(pid: int, tid: int, call: str | None) -> str | None:
    """Target of the descriptor that a thread's system call uses, `standard input` for 0; None without one."""
    if call not in ON_DESCRIPTOR:
        return None
    try:
        words = Path(f"/proc/{pid}/task/{tid}/syscall").read_text().split()
        number = int(words[1], 16)
        return STANDARD_INPUT if number == 0 else os.readlink(f"/proc/{pid}/fd/{number}")
    except (OSError, IndexError, ValueError):
        return None


def memory_limit(pid: int) -> tuple[int | None, int | None]:
    """The tightest memory limit of its control groups, and that group's usage, in bytes; None without one."""
    found: list[tuple[int, int]] = []
    for folder in _groups(pid, "memory"):
        limit = _bytes(folder / "memory.max", folder / "memory.limit_in_bytes")
        usage = _bytes(folder / "memory.current", folder / "memory.usage_in_bytes")
        if limit is not None and usage is not None and limit < _UNLIMITED_BYTES:
            found.append((limit, usage))
    return min(found, default=(None, None))


def _children(pid: int) -> Iterator[tuple[int, tuple[str, int]]]:
    for child in tasks.children(pid):
        fields = _stat(child)
        if fields is not None:
            yield child, (STATES.get(fields[0], fields[0]), int(fields[11]) + int(fields[12]))


def _stat(pid: int) -> list[str] | None:
    """Fields of /proc/PID/stat, starting with the state."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return None


def _status(pid: int) -> dict[str, str]:
    try:
        lines = Path(f"/proc/{pid}/status").read_text(errors="replace").splitlines()
    except OSError:
        return {}
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def _kib(text: str | None) -> int | None:
    return int(text.split()[0]) * 1024 if text else None


def _throttling(pid: int) -> tuple[int | None, int | None]:
    """Periods and throttled periods of the most throttled of its control groups."""
    found: list[tuple[int, int]] = []
    for folder in _groups(pid, "cpu"):
        try:
            lines = (folder / "cpu.stat").read_text().splitlines()
        except OSError:
            continue
        counts = {name: int(value) for name, value in (line.split()[:2] for line in lines)}
        if counts.get("nr_periods"):
            found.append((counts.get("nr_throttled", 0), counts["nr_periods"]))
    throttled, periods = max(found, default=(None, None))
    return periods, throttled


def _groups(pid: int, controller: str) -> Iterator[Path]:
    """Folders of the process's control groups, innermost first, under cgroup versions 1 and 2.

    In a container the path may be the host's path: then the mounted root is used instead."""
    try:
        lines = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            roots = [_CGROUPS, _CGROUPS / "unified"]
        elif controller in controllers.split(","):
            roots = [_CGROUPS / controllers, _CGROUPS / controller]
        else:
            continue
        for root in roots:
            folder = root / path.lstrip("/")
            if ".." not in path and folder.is_dir():
                while folder != root:
                    yield folder
                    folder = folder.parent
            if root.is_dir():
                yield root
                break


def _bytes(*files: Path) -> int | None:
    for file in files:
        try:
            text = file.read_text().strip()
        except OSError:
            continue
        return _UNLIMITED_BYTES if text == "max" else int(text)
    return None
