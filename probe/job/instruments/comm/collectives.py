"""Collectives, sends and receives: records each call, its call site, and its completion.

Writes python.collectives and comm_s of python.steps. HOT PATH: the wrappers around the methods of
`ProcessGroup` and around `Work.wait`, on the calling thread. Every Python call of torch.distributed ends in
one of these; calls from C++ (DistributedDataParallel inside backward, functional collectives) are read from
the Flight Recorder (`flight_recorder`).

A row is written before the call, because a mismatched call can end the process. It is completed when the call
returns without a work object, or its work has been waited for. Works are referenced weakly; one dropped
without a wait is `unknown`. No lock, no collective, no device read. Calls by snippets get no row.
"""

from __future__ import annotations

import os
import sys
import time
import weakref
from collections import deque
from threading import get_ident
from typing import Any

from probe.base.clock import ANCHOR_NS
from probe.base.isolation import Isolation
from probe.job.instruments.comm.collective_calls import (
    NOTHING,
    OPS,
    Describing,
    Group,
    Op,
    device_of,
    other_rank,
    returns_early,
)
from probe.job.instruments.core.patch import Patches
from probe.job.instruments.core.recorder import Recorder
from probe.recording.layout import NULL_DOUBLE, NULL_INTEGER

_now = time.monotonic_ns
_SEQ, _OP, _PEER = 5, 6, 11
"""Indices of fields in a row."""
MOST_UNRESOLVED = 1024
"""Maximum number of calls whose completion only the Flight Recorder can show."""


class Call:
    """One call: the first fields of its row, and the data to complete it. Times are monotonic ns."""

    __slots__ = (
        "asynchronous", "counted_ns", "entered_ns", "group", "head", "number", "op", "other", "queues", "seq",
        "spent_ns", "started_ns",
    )
    group: Group
    seq: int
    head: tuple[int | float, ...]
    """Fields of the row up to `call_site`."""
    number: int
    """Number of the row."""
    op: int
    """String number of the operation."""
    asynchronous: int
    queues: bool
    """Whether it completes on a device, after call and wait have returned."""
    other: tuple[Op, int] | None
    """For uncounted methods such as sends and receives: the method, and torch's count before the call."""
    started_ns: int
    entered_ns: int
    counted_ns: int
    """`Recorder.comm_ns` when the backend was entered."""
    spent_ns: int
    """Time spent inside the call and inside `wait`."""


class _Waited(weakref.ref):  # type: ignore[type-arg]
    """A work, and the calls that complete with it."""

    __slots__ = ("calls", "key")
    calls: tuple[Call, ...]
    key: int


class Collectives:
    """Installs the wrappers."""

    def __init__(self, recorder: Recorder, isolation: Isolation) -> None:
        self.recorder = recorder
        ring = recorder.rings["python.collectives"]
        self._append, self._put, self._rows = ring.append, ring.put, ring.rows
        self._put_end = ring.rest("asynchronous")
        intern = recorder.intern
        self._states = {name: intern(name) for name in ("pending", "done", "failed", "unknown")}
        self._pending, self._done = self._states["pending"], self._states["done"]
        self._source = intern("call")
        self._received = intern("recv")
        self.groups: dict[int, Group] = {}
        self._gone: deque[Group] = deque(maxlen=64)
        self.unresolved: dict[tuple[str, int], Call] = {}
        """By group and sequence number: calls that complete on a device, or were dropped without a wait."""
        self.called_ns = 0
        """Time when the last call began or completed."""
        self.flight_tells = False
        """Whether the Flight Recorder is read."""
        self._works: dict[int, _Waited] = {}
        self._newest = 0
        self._module: Any = None
        self._wanted = False
        self._patches = Patches()
        self._isolation = isolation
        self._on_drop = isolation.guard("collectives", self._dropped, traced=False)

    @property
    def installed(self) -> bool:
        """Whether the wrappers are in place."""
        return self._module is not None

    def install(self) -> None:
        """Put the wrappers in place once the job has imported torch.distributed; never imports it."""
        self._wanted = True
        self._put_in_place()

    def _put_in_place(self) -> None:
        c10d = sys.modules.get("torch._C._distributed_c10d")
        distributed: Any = sys.modules.get("torch.distributed.distributed_c10d")
        if self._module is not None or c10d is None or not hasattr(distributed, "_world"):
            return
        torch: Any = sys.modules["torch"]
        kind: Any = c10d.ProcessGroup
        self._describing = Describing(self.recorder.intern, os.path.dirname(os.path.abspath(torch.__file__)))
        self._distributed = distributed
        self._sequence = kind._get_sequence_number_for_group
        for method, op in OPS.items():
            if method in vars(kind):
                self._wrap_call(kind, method, op)
        if "_start_coalescing" in vars(kind):
            self._wrap_window(kind)
        self._wrap_wait(c10d.Work)
        self._module = c10d

    def uninstall(self) -> None:
        """Put the originals back; pending rows stay pending."""
        self._wanted = False
        self._patches.undo()
        self._works.clear()
        self._module = None

    def _wrap_call(self, kind: Any, method: str, op: Op) -> None:
        guard = self._isolation.guard
        name = self.recorder.intern(op.name)
        begin = guard("collectives", self._beginner(op, name), traced=False)
        returned = guard("collectives", self._returned, traced=False)
        raised = guard("collectives", self._raised, traced=False)
        live = self._patches.live

        def make(original: Any) -> Any:
            def call(group: Any, *args: Any, **kwargs: Any) -> Any:
                if not live[0]:
                    return original(group, *args, **kwargs)
                begun = begin(group, args, kwargs)
                try:
                    work = original(group, *args, **kwargs)
                except BaseException:
                    raised(begun)
                    raise
                returned(begun, work)
                return work

            return call

        self._patches.wrap(kind, method, make)

    def _wrap_window(self, kind: Any) -> None:
        opened = self._isolation.guard("collectives", self._window_opened, traced=False)
        closed = self._isolation.guard("collectives", self._window_closed, traced=False)
        live = self._patches.live

        def wrap(then: Any, *, first: bool) -> Any:
            def make(original: Any) -> Any:
                def window(group: Any, *args: Any, **kwargs: Any) -> Any:
                    if not live[0]:
                        return original(group, *args, **kwargs)
                    if first:
                        result = original(group, *args, **kwargs)
                        then(group)
                        return result
                    work = None
                    try:
                        work = original(group, *args, **kwargs)
                        return work
                    finally:
                        then(group, work)

                return window

            return make

        self._patches.wrap(kind, "_start_coalescing", wrap(opened, first=True))
        self._patches.wrap(kind, "_end_coalescing", wrap(closed, first=False))

    def _wrap_wait(self, kind: Any) -> None:
        waited = self._isolation.guard("collectives", self._waited, traced=False)
        failed = self._isolation.guard("collectives", self._wait_failed, traced=False)
        live = self._patches.live
        recorder = self.recorder

        def wrap_wait(original: Any) -> Any:
            def wait(work: Any, *args: Any, **kwargs: Any) -> Any:
                if not live[0]:
                    return original(work, *args, **kwargs)
                start, counted = _now(), recorder.comm_ns
                try:
                    result = original(work, *args, **kwargs)
                except BaseException:
                    failed(work, start, counted)
                    raise
                waited(work, start, counted)
                return result

            return wait

        self._patches.wrap(kind, "wait", wrap_wait)

    # HOT PATH ---------------------------------------------------------------

    def _beginner(self, op: Op, name: int) -> Any:
        """Create the function that writes the row of a method's call. A closure saves attribute lookups."""
        recorder, groups, meet, append = self.recorder, self.groups, self._meet, self._append
        inputs, call_site, sequence = self._describing.inputs, self._describing.call_site, self._sequence
        takes, place, counted, one_other = op.inputs >= 0, op.options, op.counted, op.one_other
        pending, source = self._pending, self._source
        caller = 2 + self._isolation.untraced_frames  # past the guard and the wrapper

        def begin(group: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
            now = self.called_ns = _now()
            known = groups.get(id(group))
            if known is None or known.reference() is not group:
                known = meet(group)
            dtype, shapes, elements, size, on_device = inputs(op, args, kwargs) if takes else NOTHING
            given = args[place] if 0 <= place < len(args) else kwargs.get("opts")
            frame = sys._getframe(caller)
            asynchronous = getattr(given, "asyncOp", None)
            if asynchronous is None:
                asynchronous = returns_early(op, frame)
            call = Call()
            if counted and known.plain and not known.window:
                seq = sequence(group) - known.others + 1
                known.recorded[0].append(seq)
            else:
                seq = self._number(call, op, known, group, args, given, on_device)
            call.head = head = (
                recorder.step, recorder.micro_step, now + ANCHOR_NS, known.name_id, known.ranks_id, seq, name,
                dtype, shapes, elements, size, other_rank(known, given) if one_other else NULL_INTEGER,
                call_site(frame),
            )
            self._newest = call.number = append(
                *head, asynchronous, NULL_DOUBLE, NULL_DOUBLE, pending, source
            )
            call.group, call.seq, call.asynchronous, call.started_ns = known, seq, asynchronous, now
            call.op = name
            call.queues = on_device and not known.on_host
            call.counted_ns = recorder.comm_ns
            call.entered_ns = entered = _now()
            if get_ident() == recorder.thread:
                recorder.cost_ns += entered - now
            return call

        return begin

    def _number(
        self, call: Call, op: Op, known: Group, group: Any, args: tuple[Any, ...], given: Any, on_device: bool
    ) -> int:
        """Sequence number of a call that is not simply the next one in its group."""
        call.other = None
        if op.counted:
            seq = known.next_number(group, device_of(op, args, given) if known.mixed else None)
            if seq != NULL_INTEGER:
                known.recorded[known.mixed and on_device].append(seq)
            return seq
        if known.plain:
            call.other = (op, self._sequence(group))
        return NULL_INTEGER

    def _returned(self, call: Call | None, work: Any) -> None:
        if call is None:
            return
        now = _now()
        call.spent_ns = now - call.started_ns
        recorder = self.recorder
        training = get_ident() == recorder.thread
        if training:
            recorder.communicated(now, call.entered_ns, call.counted_ns)
        if call.seq == NULL_INTEGER and call.other is not None:
            call.group.count_other(*call.other)
        window = call.group.window
        if window is not None:
            window.append(call)
        elif work is None:
            self._complete(call, now)
        if work is not None:  # as `_await`
            reference = self._works[id(work)] = _Waited(work, self._on_drop)
            reference.calls, reference.key = (call,), id(work)
        if training:
            recorder.cost_ns += _now() - now

    def _raised(self, call: Call | None) -> None:
        if call is None:
            return
        now = _now()
        call.spent_ns = now - call.started_ns
        recorder = self.recorder
        if get_ident() == recorder.thread:
            recorder.communicated(now, call.entered_ns, call.counted_ns)
        if call.seq == NULL_INTEGER and call.other is not None:
            call.group.count_other(*call.other)
        self._uncount(call)
        self._write(call, NULL_DOUBLE, call.spent_ns / 1e9, "failed")

    def _uncount(self, call: Call) -> None:
        """Remove the number of a call that failed before torch counted it: the next call will have it."""
        group = call.group.reference()
        if call.seq == NULL_INTEGER or group is None or call.group.counts_now(group) >= call.seq:
            return
        call.head = (*call.head[:_SEQ], NULL_INTEGER, *call.head[_SEQ + 1 :])
        self._rewrite(call)
        for known in call.group.recorded:
            if known and known[-1] == call.seq:
                known.pop()

    def _await(self, work: Any, calls: list[Call]) -> None:
        reference = _Waited(work, self._on_drop)
        reference.calls, reference.key = tuple(calls), id(work)
        self._works[id(work)] = reference

    def _waited(self, work: Any, start: int, counted: int) -> None:
        now = self.called_ns = _now()
        recorder = self.recorder
        training = get_ident() == recorder.thread
        if training:
            recorder.communicated(now, start, counted)
        reference = self._works.pop(id(work), None)
        if reference is None:
            return
        for call in reference.calls:
            call.spent_ns += now - start
            if call.queues or call.op == self._received:
                self._complete(call, now, work)
            elif self._newest - call.number < self._rows - 1:  # as `_complete` and `_write`
                self._put_end(
                    call.number, call.asynchronous, (now - call.started_ns) / 1e9, call.spent_ns / 1e9,
                    self._done, self._source,
                )
        if training:
            recorder.cost_ns += _now() - now

    def _wait_failed(self, work: Any, start: int, counted: int) -> None:
        now = _now()
        if get_ident() == self.recorder.thread:
            self.recorder.communicated(now, start, counted)
        reference = self._works.pop(id(work), None)
        for call in reference.calls if reference is not None else ():
            call.spent_ns += now - start
            self._write(call, NULL_DOUBLE, call.spent_ns / 1e9, "failed")

    def _dropped(self, reference: _Waited) -> None:
        """A work was freed without a wait. Runs on any thread, at any point."""
        if self._works.get(reference.key) is not reference:
            return
        del self._works[reference.key]
        for call in reference.calls:
            self._write(call, NULL_DOUBLE, NULL_DOUBLE, "unknown")
            self._leave_to_flight(call)

    def _complete(self, call: Call, now: int, work: Any = None) -> None:
        """The call returned without a work, or the wait returned."""
        if call.queues:  # only queued on a device: the Flight Recorder shows when it completes
            state = "pending" if self.flight_tells and call.seq != NULL_INTEGER else "unknown"
            self._write(call, NULL_DOUBLE, call.spent_ns / 1e9, state)
            self._leave_to_flight(call)
            return
        if call.head[_PEER] == NULL_INTEGER and call.head[_OP] == self._received and work is not None:
            sender = call.group.global_rank(work._source_rank())
            call.head = (*call.head[:_PEER], sender, *call.head[_PEER + 1 :])
            self._rewrite(call)
        self._write(call, (now - call.started_ns) / 1e9, call.spent_ns / 1e9, "done")

    def _write(self, call: Call, duration_s: float, wait_s: float, state: str) -> None:
        """Write the last fields of the row, unless a newer row has overwritten it."""
        if self._newest - call.number < self._rows - 1:
            self._put_end(
                call.number, call.asynchronous, duration_s, wait_s, self._states[state], self._source
            )

    def _rewrite(self, call: Call) -> None:
        """Write the whole row again, still pending, after a change to one of its first fields."""
        if self._newest - call.number < self._rows - 1:
            self._put(
                call.number, *call.head, call.asynchronous, NULL_DOUBLE, NULL_DOUBLE, self._pending,
                self._source,
            )

    def _leave_to_flight(self, call: Call) -> None:
        if self.flight_tells and call.seq != NULL_INTEGER:
            if len(self.unresolved) >= MOST_UNRESOLVED:
                self.unresolved.clear()
            self.unresolved[call.group.name, call.seq] = call

    def _window_opened(self, group: Any) -> None:
        known = self.groups.get(id(group))
        if known is None or known.reference() is not group:
            known = self._meet(group)
        known.window = []

    def _window_closed(self, group: Any, work: Any) -> None:
        known = self.groups.get(id(group))
        calls = known.window if known is not None else None
        if known is None or calls is None:
            return
        known.window = None
        alone = [call for call in calls if not any(call in one.calls for one in self._works.values())]
        if work is not None:
            self._await(work, alone)
        else:
            now = _now()
            for call in alone:
                self._complete(call, now)

    def _meet(self, group: Any) -> Group:
        """Register a new group. Freed groups are kept for a while: the Flight Recorder may still have their
        entries."""
        for key in [key for key, one in list(self.groups.items()) if one.reference() is None]:
            gone = self.groups.pop(key, None)
            if gone is not None:
                self._gone.append(gone)
        known = self.groups[id(group)] = Group(group, self.recorder.intern, self._sequence, self._distributed)
        return known

    # The agent's thread -----------------------------------------------------

    def collect(self) -> None:
        """Put the wrappers in place once the job has imported torch.distributed."""
        if self._wanted and self._module is None:
            self._put_in_place()
            if not self._wanted:  # uninstalled concurrently by another thread
                self.uninstall()

    def any_group(self) -> bool:
        """Whether the job currently has a process group."""
        return self._module is not None and bool(self._distributed._world.pg_names)

    def groups_by_name(self, wanted: set[str]) -> dict[str, Group]:
        """The groups with these names, including those without a call from Python."""
        met = list(self.groups.values())
        found = {one.name: one for one in (*list(self._gone), *met)}
        found.update({one.name: one for one in met if one.reference() is not None})
        if not wanted <= found.keys():
            for group, name in list(self._distributed._world.pg_names.items()):
                if name in wanted and name not in found:
                    found[name] = self._meet(group)
        return found

    def newest(self, other: int) -> int:
        """Number of the ring's newest row; `other`: of the newest row from the Flight Recorder's reader."""
        self._newest = max(self._newest, other)
        return self._newest

    def resolve(self, call: Call, state: str, duration_s: float) -> None:
        """Complete a row from the Flight Recorder, or as `unknown` if its entry is gone."""
        self._write(call, duration_s, call.spent_ns / 1e9 if call.queues else NULL_DOUBLE, state)
