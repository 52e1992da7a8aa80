"""Host memory: how much this process can still get, and the total.

Each is the smallest of the machine's figure (/proc/meminfo) and the figures of the process's control groups
that have a limit (v1 or v2; a container is one). A group's inactive file cache counts as free, as it does for
the kernel before it kills. Runs on the agent's thread with every memory sample: it reads a few small kernel
files and never blocks. Standard library only.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import NamedTuple

from probe.base import descriptors

_UNLIMITED_BYTES = 1 << 60
"""A limit of this size or more means no limit (v1 writes the largest number of pages)."""
RESCAN_SAMPLES = 60
"""Samples between two scans for groups: they rarely gain or lose a limit."""


class HostMemory(NamedTuple):
    """One sample; None for a figure that cannot be read."""

    available_bytes: int | None
    limit_bytes: int | None


class Group(NamedTuple):
    """Files of one memory control group that has a limit; `cache` names its inactive file cache."""

    limit: Path
    usage: Path
    statistics: Path
    cache: str


class HostMemoryReader:
    """Reads the figures; `root` stands in for `/` in tests."""

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = root
        self._meminfo = root / "proc/meminfo"
        self._groups: list[Group] = []
        self._samples = 0

    def read(self) -> HostMemory:
        """Take a sample."""
        if self._samples % RESCAN_SAMPLES == 0:
            self._groups = limited_groups(self._root)
        self._samples += 1
        available, limit = _machine(self._meminfo)
        for group in self._groups:
            with contextlib.suppress(OSError, ValueError):
                most = int(descriptors.read(group.limit))
                used = int(descriptors.read(group.usage)) - _cache(group)
                left = max(0, most - used)
                available = left if available is None else min(available, left)
                limit = most if limit is None else min(limit, most)
        return HostMemory(available, limit)


def _machine(meminfo: Path) -> tuple[int | None, int | None]:
    """Available and total memory of the machine."""
    found: dict[str, int] = {}
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in descriptors.read_lines(meminfo)[:3]:  # MemTotal, MemFree, MemAvailable
            name, _, rest = line.partition(":")
            found[name] = int(rest.split()[0]) * 1024
    return found.get("MemAvailable"), found.get("MemTotal")


def _cache(group: Group) -> int:
    with contextlib.suppress(OSError, ValueError):
        for line in descriptors.read_lines(group.statistics):
            name, _, number = line.partition(" ")
            if name == group.cache:
                return int(number)
    return 0


def limited_groups(root: Path = Path("/")) -> list[Group]:
    """This process's memory groups that have a limit, from its own group upwards."""
    try:
        lines = descriptors.read_lines(root / "proc/self/cgroup")
    except OSError:
        return []
    found: list[Group] = []
    for line in lines:
        number, controllers, path = (*line.split(":", 2), "", "")[:3]
        top = root / "sys/fs/cgroup"
        if "memory" in controllers.split(","):
            found += _limited(top / "memory", path, version=1)
        elif number == "0" and not controllers:
            found += _limited(top, path, version=2)
    return found


def _limited(top: Path, path: str, *, version: int) -> list[Group]:
    folder = top / path.lstrip("/")
    if not folder.is_dir():  # a path in another namespace: the top is our own group
        folder = top
    found: list[Group] = []
    while True:
        group = (
            Group(folder / "memory.limit_in_bytes", folder / "memory.usage_in_bytes",
                  folder / "memory.stat", "total_inactive_file")
            if version == 1 else
            Group(folder / "memory.max", folder / "memory.current", folder / "memory.stat", "inactive_file")
        )
        with contextlib.suppress(OSError, ValueError):  # v2 says "max" for no limit
            if int(descriptors.read(group.limit)) < _UNLIMITED_BYTES:
                found.append(group)
        if folder in (top, folder.parent):
            return found
        folder = folder.parent
