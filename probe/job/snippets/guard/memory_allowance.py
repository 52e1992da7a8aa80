"""Memory allowance: how much memory a snippet may take, and how much the process has.

Read from /proc and from the control groups. Any thread. Standard library only.
"""

from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import Iterator

from probe.base import descriptors
from probe.job.instruments.core.host_memory import HostMemoryReader

SHARE = 0.8
"""Share of the memory that is available now."""
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def memory_allowance_bytes() -> int | None:
    """Memory that a snippet may take: a share of the memory still available; None if unknown."""
    available = HostMemoryReader().read().available_bytes
    return None if available is None else int(available * SHARE)


def resident_bytes() -> int | None:
    """Resident memory of this process; None when it cannot be read."""
    try:
        return int(descriptors.read("/proc/self/statm").split()[1]) * _PAGE_BYTES
    except (OSError, ValueError, IndexError):
        return None


def _data_bytes() -> int | None:
    """The memory that RLIMIT_DATA counts."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in descriptors.read_lines("/proc/self/status"):
            if line.startswith("VmData:"):
                return int(line.split()[1]) * 1024
    return None


@contextlib.contextmanager
def limited(memory_bytes: int | None) -> Iterator[None]:
    """In the block, one huge allocation fails instead of triggering the OOM killer.

    The limit is the process's: allocations of its other threads count too."""
    before = resource.getrlimit(resource.RLIMIT_DATA)
    now = _data_bytes()
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
