"""Out of memory: OOM kills in a process's memory group, and the group's limit.

Read from the counters of the control group (v1 or v2), and from the kernel log where it may be read. A
counter says only that *some* process of the group was killed: check the signal and the time too. Any thread
of the server. Standard library only.
"""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path

_FIRST_PID_SPACE = "pid:[4026531836]"
"""The host's namespace: only there are the pids in the kernel log the ones that we see."""
_KILLED = re.compile(rb"^\d+,\d+,(\d+),.*Killed process (\d+) ")
"""Microseconds since the boot, and the pid."""
_SLACK_S = 2.0
"""More than the drift between the log's clock and that of start times."""
_UNLIMITED_BYTES = 1 << 60
"""From this size a limit means unlimited (v1 has the largest possible number of pages)."""


class Group:
    """The memory group of a process; `version` of control groups is 1 or 2."""

    def __init__(self, folder: Path, root: Path, version: int, path: str) -> None:
        self.folder = folder
        self._path = path
        self._root = root
        self._version = version
        self._said = b""
        """The last content of /proc/PID/cgroup with the process in this group."""

    def left_by(self, pid: int) -> bool:
        """Whether a process was moved to another group; one that is exiting shows the root group."""
        try:
            with open(f"/proc/{pid}/cgroup", "rb", buffering=0) as file:
                said = file.read()
        except OSError:
            return False
        if said == self._said:  # the usual case, for 64 ranks every second
            return False
        now = _paths(pid).get("memory" if self._version == 1 else "", self._path)
        left = now not in ("/", self._path) and not now.endswith(" (deleted)")
        self._said = b"" if left else said
        return left

    def kills(self) -> int | None:
        """The number of OOM kills in it; None when that cannot be read."""
        names = ("memory.oom_control",) if self._version == 1 else ("memory.events.local", "memory.events")
        for name in names:
            with contextlib.suppress(OSError, ValueError):
                for line in (self.folder / name).read_text().splitlines():
                    word, _, number = line.partition(" ")
                    if word == "oom_kill":
                        return int(number)
        return None

    def limit_bytes(self) -> int | None:
        """The smallest limit from the group upwards; None without one."""
        name = "memory.limit_in_bytes" if self._version == 1 else "memory.max"
        found: list[int] = []
        folder = self.folder
        while True:
            with contextlib.suppress(OSError, ValueError):
                found.append(int((folder / name).read_text()))
            if folder in (self._root, folder.parent):
                break
            folder = folder.parent
        limits = [limit for limit in found if limit < _UNLIMITED_BYTES]
        return min(limits, default=None)


def group_of(pid: int) -> Group | None:
    """The memory group of a living process; None where there is none, or it cannot be seen from here."""
    paths = _paths(pid)
    try:
        mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    except OSError:
        return None
    if "memory" in paths:
        return _found(mounts, paths["memory"], "cgroup", 1)
    return _found(mounts, paths[""], "cgroup2", 2) if "" in paths else None


def _paths(pid: int) -> dict[str, str]:
    """Path of a process's group by controller; the second version's has no name."""
    found: dict[str, str] = {}
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            found.update(dict.fromkeys(controllers.split(","), path))
    return found


def _found(mounts: list[str], path: str, kind: str, version: int) -> Group | None:
    for line in mounts:
        left, _, right = line.partition(" - ")
        fields, (found_kind, _, options, *_) = left.split(), (*right.split(), "", "", "")
        if found_kind != kind or (version == 1 and "memory" not in options.split(",")):
            continue
        top, point = fields[3], Path(fields[4])
        inside = path if top == "/" else path.removeprefix(top)
        folder = point / inside.lstrip("/")
        if not folder.is_dir():  # a path of another namespace: the top folder is our own group
            continue
        return Group(folder, point, version, path)
    return None


class KernelLog:
    """OOM kills in the kernel log, as far back as it goes; none where it may not be read."""

    def __init__(self) -> None:
        self._descriptor = -1
        self._killed: dict[int, float] = {}
        with contextlib.suppress(OSError):
            if os.readlink("/proc/self/ns/pid") == _FIRST_PID_SPACE:
                self._descriptor = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)

    @property
    def opened(self) -> bool:
        """Whether it is open, and names the pids that we see."""
        return self._descriptor >= 0

    def names(self, pid: int, start_ticks: int) -> bool:
        """Whether the log says that this process was killed, not an earlier one with its pid."""
        while self._descriptor >= 0:
            try:
                line = os.read(self._descriptor, 8192)
            except BrokenPipeError:  # lines were lost: the rest is still there
                continue
            except OSError:
                break
            if found := _KILLED.search(line):
                self._killed[int(found[2])] = int(found[1]) / 1e6
        started_s = start_ticks / os.sysconf("SC_CLK_TCK")
        return pid in self._killed and self._killed[pid] > started_s - _SLACK_S

    def close(self) -> None:
        """Close the log."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)
