"""Memory: samples memory of the process and the device, CPU contention, garbage collections, open files and
writes.

Writes process.memory and passes the last figures to the recorder for python.steps. Runs on the agent's
thread: small reads from /proc and, with a device in use, one read of the allocator's counters (no device
call).
"""

from __future__ import annotations

import contextlib
import gc
import os
import threading
from pathlib import Path

from probe.base import accelerator, descriptors
from probe.base.clock import wall_ns
from probe.job.instruments.core.host_memory import HostMemoryReader
from probe.job.instruments.core.recorder import Recorder
from probe.job.instruments.loop.optimizers import Optimizers
from probe.job.introspection.thread_stacks import native_id
from probe.recording.layout import NULL_INTEGER

_STATUS = Path("/proc/self/status")
_LOAD = Path("/proc/loadavg")
_OWN = Path("/proc/self/stat")
_MACHINE = Path("/proc/stat")
_OPEN = Path("/proc/self/fd")
_IO = Path("/proc/self/io")
_TICK_NS = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
_MOST_CHILDREN = 64
_MOST_LISTED = 4096
"""Maximum number of open files counted by listing them, if the kernel does not count them."""
_FIELDS = {"VmRSS": "rss_bytes", "VmHWM": "rss_peak_bytes", "Threads": "threads"}


def process_memory() -> dict[str, int]:
    """rss_bytes, rss_peak_bytes and threads of this process, as far as /proc can be read: a job may have
    another root, or no descriptors left."""
    found: dict[str, int] = {}
    try:
        lines = descriptors.read_lines(_STATUS)
    except OSError:
        return found
    for line in lines:
        name, _, rest = line.partition(":")
        if name in _FIELDS:
            value, *unit = rest.split()
            found[_FIELDS[name]] = int(value) * (1024 if unit == ["kB"] else 1)
    return found


def runnable() -> int | None:
    """Number of the machine's threads that run or wait for a CPU now; None if /proc cannot be read."""
    try:
        return int(descriptors.read_lines(_LOAD)[0].split()[3].partition("/")[0])
    except (OSError, ValueError, IndexError):
        return None


def cpu_wait_ns(ident: int | None) -> int | None:
    """Total time that a thread has been ready to run but waited for a CPU; None if the kernel does not
    report it."""
    number = _number_of(ident)
    try:
        return int(descriptors.read_lines(Path(f"/proc/self/task/{number}/schedstat"))[0].split()[1])
    except (OSError, ValueError, IndexError):
        return None


def _number_of(ident: int | None) -> int | None:
    """The kernel's id of a thread."""
    thread = next((one for one in threading.enumerate() if one.ident == ident), None)
    return None if thread is None else native_id(thread)


def children(ident: int | None) -> list[str] | None:
    """Ids of the child processes that a thread has started and that have not been reaped; None if /proc
    cannot be read."""
    number = _number_of(ident)
    try:
        return None if number is None else descriptors.read_text(f"/proc/self/task/{number}/children").split()
    except OSError:
        return None


def cpu_ns(started: list[str] | None) -> int | None:
    """Total CPU time of this process, of its children that have ended, and of those in `started`, such as a
    loader's workers; None if /proc cannot be read."""
    try:
        own = _ticks(_OWN, 4)
    except (OSError, ValueError, IndexError):
        return None
    for child in (started or [])[:_MOST_CHILDREN]:
        with contextlib.suppress(OSError, ValueError, IndexError):  # it has just ended
            own += _ticks(Path(f"/proc/{child}/stat"), 2)
    return own * _TICK_NS


def open_files(before: int | None) -> int | None:
    """Number of file descriptors that this process has open. None if it cannot be read, or if the kernel does
    not count them (before Linux 6.2) and there were too many to list last time (`before`)."""
    try:
        return os.stat(_OPEN).st_size or (
            len(descriptors.names(_OPEN)) if (before or 0) < _MOST_LISTED else None)
    except OSError:
        return None


def written() -> tuple[int | None, int | None]:
    """Total number of write system calls, and bytes written by them, to files, pipes and terminals; None if
    the kernel does not report it."""
    try:
        found = dict(line.split(": ", 1) for line in descriptors.read_lines(_IO))
        return int(found["syscw"]), int(found["wchar"])
    except (OSError, ValueError, KeyError):
        return None, None


def _ticks(stat: Path, fields: int) -> int:
    """User and system time of a process; with four `fields`, including its children that have ended."""
    after = descriptors.read_lines(stat)[0].rpartition(")")[2].split()
    return sum(map(int, after[11 : 11 + fields]))


def machine_cpu_ns() -> tuple[int | None, int | None]:
    """Total CPU time used on this machine, including time taken by other virtual machines (steal), and idle
    CPU time; None if /proc cannot be read."""
    try:
        user, nice, system, idle, iowait, irq, softirq, steal = map(
            int, descriptors.read(_MACHINE, 256).split()[1:9])
    except (OSError, ValueError):
        return None, None
    return (user + nice + system + irq + softirq + steal) * _TICK_NS, (idle + iowait) * _TICK_NS


def collections() -> tuple[int | None, int | None]:
    """Total garbage collections of the oldest and of the middle generation: only reads counters. None for a
    generation that the interpreter does not have."""
    *_, middle, oldest = (None, None, *(one["collections"] for one in gc.get_stats()))
    return oldest, middle


def device_memory(index: int | None) -> tuple[int | None, int | None, int | None, int | None]:
    """allocated, reserved, peak allocated and total bytes of the job's device; None if unknown.

    `index`: the device's index, because the agent's thread has another current device."""
    device = accelerator.current()
    if device is None:
        return None, None, None, None
    index = device.index() if index is None else index
    found = device.memory(index) or accelerator.DeviceMemory(None, None, None, None)
    return (
        found.allocated_bytes, found.reserved_bytes, found.peak_allocated_bytes, device.total_bytes(index)
    )


class Memory:
    """Takes samples; `sample` is called by the agent's thread."""

    def __init__(self, recorder: Recorder, optimizers: Optimizers) -> None:
        self._recorder = recorder
        self._optimizers = optimizers
        self._host = HostMemoryReader()
        self._append = recorder.rings["process.memory"].append
        self._open_files: int | None = None

    def sample(self) -> None:
        """One row of process.memory."""
        recorder = self._recorder
        found = process_memory()
        host = self._host.read()
        *device, total = (
            NULL_INTEGER if value is None else value
            for value in device_memory(self._optimizers.device_index())
        )
        recorder.rss_bytes = found.get("rss_bytes", NULL_INTEGER)
        recorder.allocated_bytes, recorder.reserved_bytes, recorder.peak_allocated_bytes = device
        started = children(recorder.thread)
        self._open_files = open_files(self._open_files)
        oldest, middle = collections()
        self._append(
            recorder.step,
            wall_ns(),
            recorder.rss_bytes,
            found.get("rss_peak_bytes", NULL_INTEGER),
            *device,
            found.get("threads", NULL_INTEGER),
            *(NULL_INTEGER if value is None else value for value in (
                *host, total, runnable(), cpu_wait_ns(recorder.thread), oldest,
                cpu_ns(started), *machine_cpu_ns(), self._open_files,
                None if started is None else len(started), *written(), middle,
            )),
        )
