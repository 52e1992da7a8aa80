"""Memory: how much of it a snippet may take, and how much a process has.

Read from /proc and from the control groups, on whichever thread asks. Standard library only.
"""

from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import Iterator
from pathlib import Path

from probe.base import descriptors

SHARE = 0.8
"""Of what is available now."""
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_GROUPS = Path("/sys/fs/cgroup")
_FILES = (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes"))


def memory_allowance_bytes() -> int | None:
    """What a snippet may take: a share of what the host and the control groups leave; None when unknown."""
    left = [one for one in (_available_bytes(), *_left_in_groups()) if one is not None]
    return max(0, int(min(left) * SHARE)) if left else None


def resident_bytes() -> int | None:
    """Resident memory of this process; None when it cannot be read."""
    try:
        return int(descriptors.read("/proc/self/statm").split()[1]) * _PAGE_BYTES
    except (OSError, ValueError, IndexError):
        return None


def _available_bytes() -> int | None:
    return _kilobytes("/proc/meminfo", "MemAvailable")


def _kilobytes(file: str, name: str) -> int | None:
    try:
        for line in descriptors.read_lines(file):
            if line.startswith(name + ":"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    return None


def _left_in_groups() -> Iterator[int]:
    """Bytes left in each control group that limits this process: version 2 and version 1."""
    try:
        entries = descriptors.read_lines("/proc/self/cgroup")
    except OSError:
        return
    for entry in entries:
        _, controllers, path = entry.split(":", 2)
        if controllers not in ("", "memory"):
            continue
        top = _GROUPS / controllers if controllers else _GROUPS
        folder = top / path.lstrip("/")
        for group in (folder, *folder.parents):
            if group != top and top not in group.parents:
                break
            left = _left_in(group)
            if left is not None:
                yield left


def _left_in(group: Path) -> int | None:
    for limit, usage in _FILES:
        try:
            most, used = descriptors.read_text(group / limit).strip(), int(descriptors.read(group / usage))
            if most.isdigit() and int(most) < 1 << 60:  # what is larger means no limit
                return int(most) - used + _reclaimable(group)
        except (OSError, ValueError):
            continue
    return None


def _reclaimable(group: Path) -> int:
    """Pages of files that nobody uses count as used, and are given back when memory is asked for."""
    try:
        for line in descriptors.read_lines(group / "memory.stat"):
            name, _, value = line.partition(" ")
            if name in ("inactive_file", "total_inactive_file"):
                return int(value)
    except (OSError, ValueError):
        pass
    return 0


@contextlib.contextmanager
def limited(memory_bytes: int | None) -> Iterator[None]:
    """For as long as this is entered, one huge allocation fails instead of bringing the OOM killer.

    The limit is the process's: what its other threads take meanwhile counts too."""
    before = resource.getrlimit(resource.RLIMIT_DATA)
    now = _kilobytes("/proc/self/status", "VmData")
    if memory_bytes is None or now is None:
        yield
        return
    soft, hard = before
    wanted = now + memory_bytes
    if soft != resource.RLIM_INFINITY and soft <= wanted:
        yield
        return
    try:
        resource.setrlimit(resource.RLIMIT_DATA, (wanted, hard))
    except (ValueError, OSError):
        yield
        return
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)
