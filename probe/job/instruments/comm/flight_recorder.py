"""Flight Recorder: reads collectives issued by C++, and completions on devices, from PyTorch's recorder.

Runs on the agent's thread. DistributedDataParallel's reductions and functional collectives never pass
through Python, so no wrapper sees them; torch keeps the last ones in memory. A read copies that memory with
the GIL held, so reads are spaced by their cost (`SHARE`). Entries that the wrappers recorded are skipped,
except to complete calls that were only queued on a device or never waited for.

Nothing is read while a device graph is being captured (a read queries events of the device), nor in versions
of torch whose dump always contains stacks. Standard library, plus the job's torch.
"""

from __future__ import annotations

import math
import os
import pickle
import sys
import threading
import time
from bisect import bisect_left
from collections.abc import MutableMapping
from typing import Any

from probe.base import accelerator
from probe.base.clock import ANCHOR_NS
from probe.job.instruments.comm.collective_calls import Group
from probe.job.instruments.comm.collectives import Collectives
from probe.job.instruments.core.patch import Patches
from probe.job.instruments.core.recorder import Recorder
from probe.recording.layout import NULL_BOOLEAN, NULL_DOUBLE, NULL_INTEGER, NULL_STRING

SHARE = 0.002
"""Fraction of the time that reads may take."""
SHARE_ONCE_QUIET = 0.01
"""The same for the first read after the training went quiet: the job may hang."""
QUIET_NS = 500_000_000
SOONEST_NS = 200_000_000
MOST_OPEN = 4096
"""Maximum number of incomplete entries, which each read checks again."""
_VARIABLES = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
"""Environment variables that set the recorder's size; the second is for torch before 2.9."""
_NAMES = {
    "_all_gather_base": "all_gather_into_tensor", "_allgather_base": "all_gather_into_tensor",
    "_reduce_scatter_base": "reduce_scatter_tensor", "all_reduce_barrier": "barrier",
    "allreduce_coalesced": "all_reduce_coalesced", "allreduce": "all_reduce", "allgather": "all_gather",
    "ALLTOALL_BASE": "all_to_all_single", "alltoall": "all_to_all", "alltoall_base": "all_to_all_single",
    "allgather_into_tensor_coalesced": "all_gather_into_tensor_coalesced",
}
"""Names of collectives: in backends, and in torch.distributed."""
_DTYPES = {
    "Float": ("float32", 4), "Double": ("float64", 8), "Half": ("float16", 2), "BFloat16": ("bfloat16", 2),
    "Long": ("int64", 8), "Int": ("int32", 4), "Short": ("int16", 2), "Char": ("int8", 1),
    "Byte": ("uint8", 1), "Bool": ("bool", 1), "ComplexFloat": ("complex64", 8),
    "ComplexDouble": ("complex128", 16), "Float8_e4m3fn": ("float8_e4m3fn", 1),
    "Float8_e5m2": ("float8_e5m2", 1),
}
"""By name of a dtype in C++: its name in Python, and its size in bytes."""


def keep_entries(entries: int, environ: MutableMapping[str, str]) -> str | None:
    """Set how many collectives torch keeps, unless the job's environment does. Call before the first process
    group is created. Returns the name of the variable set."""
    torch: Any = sys.modules.get("torch")
    if not entries or any(environ.get(name) for name in _VARIABLES):
        return None
    release = str(getattr(torch, "__version__", "")).split(".")[:2]
    old = len(release) == 2 and all(part.isdigit() for part in release) and tuple(map(int, release)) < (2, 9)
    name = _VARIABLES[1 if old else 0]
    environ[name] = str(entries)
    return name


class Flight:
    """Reads the Flight Recorder for `collectives`."""

    def __init__(self, recorder: Recorder, collectives: Collectives) -> None:
        self._recorder = recorder
        self._collectives = collectives
        ring = recorder.rings["python.collectives"]
        self._append, self._put, self._rows = ring.append, ring.put, ring.rows
        intern = recorder.intern
        self._states = {state: intern(state) for state in ("pending", "done", "unknown")}
        self._source = intern("flight")
        self._dump: Any = None
        self._capturing = 0
        self._patches = Patches()
        self._seen = -1
        self._newest = 0
        self._open: dict[int, tuple[int, tuple[Any, ...]]] = {}
        self._last_ns = self._cost_ns = 0
        self._begun_ns = time.monotonic_ns()
        self._pid = os.getpid()
        self._reading = threading.Lock()
        self._any_group = False

    @property
    def available(self) -> bool:
        """Whether this torch has a Flight Recorder that can be read."""
        return self._dump is not None

    def install(self) -> None:
        """Find torch's dump function, if torch.distributed is imported."""
        c10d: Any = sys.modules.get("torch._C._distributed_c10d")
        self._dump = getattr(c10d, "_dump_fr_trace", None) or getattr(c10d, "_dump_nccl_trace", None)
        self._collectives.flight_tells = self.available
        graph = accelerator.graph_class() if self.available else None
        if graph is not None:
            self._patches.wrap(graph, "capture_begin", self._before_capture)
            self._patches.wrap(graph, "capture_end", self._after_capture)

    def uninstall(self) -> None:
        """Read a last time, then stop. No read in a forked child, where the recorder's lock may be held."""
        if self._pid == os.getpid():
            self._last_ns = self._cost_ns = 0
            self.read()
        self._patches.undo()
        self._give_up()
        self._open.clear()

    def _give_up(self) -> None:
        self._dump = None
        self._collectives.flight_tells = False

    def _before_capture(self, original: Any) -> Any:
        def capture_begin(graph: Any, *args: Any, **kwargs: Any) -> Any:
            self._capturing += 1
            try:
                return original(graph, *args, **kwargs)
            except BaseException:
                self._capturing -= 1
                raise

        return capture_begin

    def _after_capture(self, original: Any) -> Any:
        def capture_end(graph: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(graph, *args, **kwargs)  # if this fails, the capture may still be active
            self._capturing -= 1
            return result

        return capture_end

    # The agent's thread -----------------------------------------------------

    def read(self) -> None:
        """Read, if due."""
        now = time.monotonic_ns()
        if self._dump is None or self._capturing > 0 or not self._due(now):
            return
        self._any_group = self._any_group or self._collectives.any_group()
        if not self._any_group:
            return  # a read would create the recorder before the job can set its size
        if not self._reading.acquire(blocking=False):
            return  # another thread is doing the last read, in `uninstall`
        try:
            dumped = self._dump(includeCollectives=True, includeStackTraces=False, onlyActive=False)
            entries = pickle.loads(dumped).get("entries") or []
            ahead_ns = time.time_ns() - time.monotonic_ns()
            if entries:
                self._take(entries, ahead_ns)
        except TypeError:  # an old torch, whose dump always walks the stacks
            self._give_up()
        finally:
            self._cost_ns = time.monotonic_ns() - now
            self._last_ns = now
            self._reading.release()

    def _due(self, now: int) -> bool:
        since = now - self._last_ns
        if since < SOONEST_NS:
            return False
        if since * SHARE >= self._cost_ns:
            return True
        recorder = self._recorder
        moved = max(self._collectives.called_ns, recorder.step_start_ns)
        went_quiet = now - moved > QUIET_NS and self._last_ns < moved + QUIET_NS
        return went_quiet and since * SHARE_ONCE_QUIET > self._cost_ns

    def _take(self, entries: list[dict[str, Any]], ahead_ns: int) -> None:
        collectives = self._collectives
        groups = collectives.groups_by_name({_group_name(entry) for entry in entries})
        ends = self._recorder.past.ends(self._recorder.step)
        oldest: dict[str, int] = {}
        lowest = highest = -1
        for entry in entries:
            record, name, seq = _record_number(entry), _group_name(entry), _sequence_number(entry)
            lowest = record if lowest < 0 else min(lowest, record)
            highest = max(highest, record)
            if entry.get("is_p2p") or not name:
                continue
            oldest[name] = min(seq, oldest.get(name, seq))
            complete = bool(entry.get("retired")) or entry.get("state") == "completed"
            if record in self._open:
                if complete:
                    self._close(record, "done", _duration_s(entry))
                continue
            call = collectives.unresolved.pop((name, seq), None) if complete else None
            if call is not None:
                collectives.resolve(call, "done", _duration_s(entry))
            elif record > self._seen and not _recorded(groups.get(name), entry, seq):
                began_ns = int(entry["time_created_ns"]) - ahead_ns
                if not complete or began_ns >= self._begun_ns:  # else it ended before recording began
                    self._write(record, entry, groups.get(name), seq, began_ns, ends, complete)
        self._seen = max(self._seen, highest)
        self._forget(lowest, oldest)

    def _forget(self, lowest: int, oldest: dict[str, int]) -> None:
        """Mark entries that torch has overwritten since the last read as unknown."""
        for record in [record for record in self._open if record < lowest]:
            self._close(record, "unknown", NULL_DOUBLE)
        unresolved = self._collectives.unresolved
        for name, seq in [key for key in list(unresolved) if key[1] < oldest.get(key[0], -1)]:
            call = unresolved.pop((name, seq), None)
            if call is not None:
                self._collectives.resolve(call, "unknown", NULL_DOUBLE)

    def _write(
        self, record: int, entry: dict[str, Any], group: Group | None, seq: int, began_ns: int,
        ends: list[tuple[int, int]], complete: bool,
    ) -> None:
        intern = self._recorder.intern
        dtype, shapes, elements, size = self._inputs(entry)
        head = (
            self._step_at(began_ns, ends), NULL_INTEGER, began_ns + ANCHOR_NS, intern(_group_name(entry)),
            group.ranks_id if group is not None else NULL_STRING, seq, intern(_operation(entry)), dtype,
            shapes, elements, size, NULL_INTEGER, NULL_STRING, NULL_BOOLEAN,
        )
        state = self._states["done" if complete else "pending"]
        duration_s = _duration_s(entry) if complete else NULL_DOUBLE
        self._newest = self._append(*head, duration_s, NULL_DOUBLE, state, self._source)
        if not complete:
            if len(self._open) >= MOST_OPEN:
                self._open.clear()
            self._open[record] = (self._newest, head)

    def _close(self, record: int, state: str, duration_s: float) -> None:
        number, head = self._open.pop(record)
        if self._collectives.newest(self._newest) - number < self._rows - 1:
            self._put(number, *head, duration_s, NULL_DOUBLE, self._states[state], self._source)

    def _inputs(self, entry: dict[str, Any]) -> tuple[int, int, int, int]:
        sizes, names = entry.get("input_sizes") or [], entry.get("input_dtypes") or []
        if not sizes or len(sizes) != len(names):
            return NULL_STRING, NULL_STRING, NULL_INTEGER, NULL_INTEGER
        intern = self._recorder.intern
        elements = [math.prod(map(int, shape)) for shape in sizes]
        widths = [_DTYPES.get(name, (name, 0))[1] for name in names]
        dtypes = dict.fromkeys(_DTYPES.get(name, (name, 0))[0] for name in names)
        size = sum(count * width for count, width in zip(elements, widths, strict=True))
        return (
            intern(", ".join(dtypes)), intern(", ".join(str(list(shape)) for shape in sizes)), sum(elements),
            size if all(widths) else NULL_INTEGER,
        )

    def _step_at(self, t_ns: int, ends: list[tuple[int, int]]) -> int:
        """The step that ran at a monotonic time; NULL if no longer known."""
        place = bisect_left(ends, t_ns, key=lambda end: end[1])
        if place == len(ends):
            return self._recorder.step
        step = ends[place][0]
        return step if step >= 0 and (place or step == 0) else NULL_INTEGER


def _record_number(entry: dict[str, Any]) -> int:
    """Number of an entry, increasing with each entry."""
    return int(entry.get("record_id", entry.get("id", -1)))


def _group_name(entry: dict[str, Any]) -> str:
    return str((entry.get("process_group") or ("",))[0])


def _sequence_number(entry: dict[str, Any]) -> int:
    """Number among the collectives of its group; old versions of torch count all operations together."""
    found = entry.get("collective_seq_id", entry.get("seq_id"))
    return NULL_INTEGER if found is None else int(found)


def _recorded(group: Group | None, entry: dict[str, Any], seq: int) -> bool:
    """Whether a wrapper recorded this entry, or may have: it is older than the remembered numbers."""
    if group is None:
        return False
    on_device = group.mixed and not str(entry.get("profiling_name", "")).startswith("gloo:")
    known = tuple(group.recorded[on_device])
    return seq in known or (len(known) == group.recorded[on_device].maxlen and seq < known[0])


def _operation(entry: dict[str, Any]) -> str:
    name = str(entry.get("profiling_name", "")).partition(":")[2]
    return _NAMES.get(name, name)


def _duration_s(entry: dict[str, Any]) -> float:
    found = entry.get("duration_ms")
    return NULL_DOUBLE if found is None else float(found) / 1e3
