"""Module times: forward, backward and optimizer times of every module, on sampled steps.

Writes python.torch_trace. HOT PATH on sampled steps only: `_start` registers global forward hooks when a
step begins, `_stop` removes them when it ends; in between a module call costs a few microseconds. Backward
is timed by pre-hooks on the graph nodes of the calls' inputs and outputs; they are freed with the graph.
Hooks on tensors would move with in-place operations, and full backward hooks wrap outputs. A job that
compiles gets no hooks, and a compiled module is one row. Nothing is recorded while a device's graph is being
captured. On a device, times come from events; nothing waits for it. The agent's thread writes these rows once
the events are done, and rows of a module without a name once it has one (`collect`).
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import deque
from typing import Any, NamedTuple

from probe.base import accelerator, descriptors
from probe.base.clock import ANCHOR_NS
from probe.base.isolation import Isolation
from probe.job.instruments.core import thread_tools
from probe.job.instruments.core.object_access import contents
from probe.job.instruments.core.recorder import Recorder
from probe.job.instruments.loop.forward import Forward
from probe.job.instruments.loop.losses import Losses
from probe.job.instruments.modules.module_names import ModuleNames, Unnamed
from probe.job.instruments.modules.recomputed_masks import RecomputedMasks
from probe.job.instruments.modules.root_calls import RootCalls
from probe.recording.layout import NULL_DOUBLE

_now = time.monotonic_ns
_ident = threading.get_ident
_STATM = "/proc/self/statm"
_PAGE_MB = os.sysconf("SC_PAGE_SIZE") / 2**20
MOST_CALLS = 8192
"""Maximum number of module calls recorded in one sampled step."""
MOST_LATE_ROWS = 20_000


class Call:
    """One module call of the sampled step."""

    __slots__ = ("end_event", "end_ns", "input_event", "input_ns", "micro_step", "module", "name",
                 "output_event", "output_ns", "recompute", "start_event", "start_ns", "unnamed")

    def __init__(
        self, module: Any, name: int, unnamed: Unnamed | None, start_ns: int, micro_step: int,
        recompute: bool,
    ) -> None:
        self.module = module
        self.name = name
        self.unnamed = unnamed
        """Set while the name is unknown."""
        self.start_ns = start_ns
        self.micro_step = micro_step
        self.recompute = recompute
        self.end_ns = self.output_ns = self.input_ns = 0
        self.start_event = self.end_event = self.output_event = self.input_event = None


class LateRow(NamedTuple):
    """A row that waits for its device or for its module's name."""

    start_event: Any
    end_event: Any
    unnamed: Unnamed | None
    fields: list[Any]


class Modules:
    """Registers the hooks for sampled steps and writes their rows."""

    def __init__(
        self, recorder: Recorder, isolation: Isolation, forward: Forward, losses: Losses, names: ModuleNames
    ) -> None:
        self.recorder = recorder
        self.forward = forward
        self.losses = losses
        self.names = names
        self._isolation = isolation
        self._append = recorder.rings["python.torch_trace"].append
        self._masks = RecomputedMasks(recorder)
        self._roots = RootCalls(recorder, isolation)
        self._stages = {name: recorder.intern(name) for name in ("forward", "backward", "step")}
        self._handles: list[Any] = []
        self._stack: list[Call] = []
        self._began: list[Call] = []
        self._calls = 0
        self._sequence = 0
        self._sample = 0
        self._statm: descriptors.Descriptor | None = None
        self._statm_number = -1
        self._backward_thread = 0
        self._highest_mb = 0.0
        self._device: accelerator.Accelerator | None = None
        self._tensor: Any = None
        self._late_rows: deque[LateRow] = deque(maxlen=MOST_LATE_ROWS)
        self.tools: thread_tools.Tools | None = None
        """Profiler and tracer of the training thread when a step was last sampled; None before."""

    def install(self) -> None:
        """Offer sampling to the recorder; off the hot path."""
        guard = self._isolation.guard
        self._tensor = sys.modules["torch"].Tensor
        self._pre_hook = guard("modules", self._before_call)
        self._hook = guard("modules", self._after_call)
        self._statm = descriptors.opened(_STATM, os.O_RDONLY, keep=True)
        start = guard("modules", self._start)
        self.recorder.start_sampling = lambda: start() is True  # `start` returns None if it failed
        self.recorder.stop_sampling = guard("modules", self._stop)
        self.losses.after_backward = guard("modules", self._after_backward)
        self.losses.nested_backward = guard("modules", self.nested_backward)

    def uninstall(self) -> None:
        """Remove the hooks. Pending rows that lack only a name are written with the class name."""
        self.recorder.start_sampling = None
        self._stop()
        for row in self._late_rows:
            if row.unnamed is not None and row.end_event is None:
                row.fields[_MODULE] = row.unnamed.label
                self._append(*row.fields)
        self._late_rows.clear()
        self.losses.after_backward = self.losses.nested_backward = None
        statm, self._statm = self._statm, None
        if statm is not None:
            statm.close()

    # HOT PATH: on sampled steps ---------------------------------------------

    def _start(self) -> bool:
        """Register the hooks for the step that begins; False if it cannot be sampled."""
        torch = sys.modules["torch"]
        self._device = device = accelerator.current()
        if device is None:
            self._statm_number = self._proven_statm()
        elif device.capturing():
            return False
        self._sample += 1
        self.tools = thread_tools.here()
        if self.forward.compiles:
            return True
        if not self.names.ready:
            return False
        module = torch.nn.modules.module
        self._handles = [
            module.register_module_forward_pre_hook(self._pre_hook),
            module.register_module_forward_hook(self._hook),
        ]
        self._grad_enabled = torch.is_grad_enabled
        self._calls = 0
        return True

    def _proven_statm(self) -> int:
        """A descriptor verified to be still that of the kernel's file; -1 without one."""
        try:
            if self._statm is not None and not self._statm.ours:
                self._statm = descriptors.opened(_STATM, os.O_RDONLY, keep=True)
            return -1 if self._statm is None else self._statm.fileno()
        except OSError:
            return -1

    def _stop(self) -> None:
        self._masks.over()
        self._roots.over()
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._stack.clear()
        self._began.clear()

    def _before_call(self, module: Any, args: Any) -> None:
        recorder = self.recorder
        start = _now()
        inside_backward = self.losses.in_backward
        if not recorder.sampling or self._calls >= MOST_CALLS or self._foreign(inside_backward):
            return
        stack = self._stack
        if not inside_backward and (recorder.interval is not None or not stack) and not self.forward.trains():
            if not stack:
                self.forward.note_gradless(module, args)
            if recorder.interval is not None:
                return  # may be an evaluation
        elif not stack and not inside_backward and not recorder.forward_start_ns:
            self.forward.begin(module, args)
        self._calls += 1
        name = self.names.of(module)
        unnamed = self.names.unnamed(module) if name is None else None
        call = Call(module, name or 0, unnamed, start, recorder.micro_step, inside_backward)
        stack.append(call)
        tensor = self._first_tensor(args)
        if type(module).__name__.startswith("Dropout"):
            self._masks.called(module, call.name, tensor, again=inside_backward)
        if tensor is not None and tensor.grad_fn is not None:
            tensor.grad_fn.register_prehook(self._input_hook(call))
        device = self._device
        if device is not None and tensor is not None and device.has(tensor):
            call.start_event = device.event()
        call.start_ns = now = _now()
        recorder.cost_ns += now - start

    def _after_call(self, module: Any, args: Any, output: Any) -> None:
        end = _now()
        recorder = self.recorder
        stack = self._stack
        if not stack or self._foreign(self.losses.in_backward):
            return
        if stack[-1].module is not module and not self._unwind(module):
            return
        call = stack.pop()
        call.end_ns = end
        call.module = None
        if call.start_event is not None and self._device is not None:
            call.end_event = self._device.event()
        self._write(call, "forward", call.start_ns, end, call.start_event, call.end_event)
        tensor = self._first_tensor(output)
        if tensor is not None and tensor.grad_fn is not None:
            tensor.grad_fn.register_prehook(self._output_hook(call))
        if not stack and not self.losses.in_backward and self._grad_enabled():
            self._roots.ended(module, call.name, self._first_tensor(args), output, self._tensor)
        recorder.cost_ns += _now() - end

    def _first_tensor(self, value: Any) -> Any:
        """The first tensor in an output or in arguments, up to two levels deep in containers."""
        kind = type(value)
        tensor = self._tensor
        if issubclass(kind, tensor):
            return value
        for item in contents(kind, value):
            if issubclass(type(item), tensor):
                return item
            if issubclass(type(item), (list, tuple)):
                first = next(iter(contents(type(item), item)), None)
                if issubclass(type(first), tensor):
                    return first
        return None

    def _foreign(self, inside_backward: bool) -> bool:
        """Whether this thread is neither the training thread nor the one running its backward: on a device,
        autograd runs backward and the recompute of checkpoints on its own thread while the training thread
        waits."""
        return self.recorder.elsewhere() and not (inside_backward and _ident() == self._backward_thread)

    def _unwind(self, module: Any) -> bool:
        """Close the calls that an exception left open (a checkpoint stops its recompute early). False if the
        start of this call was not seen."""
        stack = self._stack
        if not any(call.module is module for call in stack):
            return False
        while stack[-1].module is not module:
            call = stack.pop()
            self._write(call, "forward", call.start_ns, 0, None, None)
        return True

    def _output_hook(self, call: Call) -> Any:
        """Runs when the gradient of the call's output is ready: its backward begins."""
        sample = self._sample

        def began(_gradient: Any) -> None:
            if sample == self._sample and self.recorder.sampling and not call.output_ns:
                call.output_ns = _now()
                self._backward_thread = _ident()
                if call.start_event is not None and self._device is not None:
                    call.output_event = self._device.event()
                self._began.append(call)

        return self._isolation.guard("modules", began)

    def _input_hook(self, call: Call) -> Any:
        """Runs when the gradient of the call's input is ready: its backward has ended."""

        def ended(_gradient: Any) -> None:
            if not call.input_ns:
                call.input_ns = _now()
                if call.start_event is not None and self._device is not None:
                    call.input_event = self._device.event()

        return self._isolation.guard("modules", ended)

    def _after_backward(self, end: int) -> None:
        """Write a row for each call whose backward began.

        Autograd runs a forward's operations in reverse. So the backward of a call ends when the gradient of
        its input is ready, or when the backward of a call that ended before it started begins, whichever is
        earlier; without either, when all of backward ends."""
        last = self._device.event() if self._device is not None else None
        open_calls: list[Call] = []
        for call in self._began:
            while open_calls and open_calls[-1].start_ns >= call.end_ns:
                self._close(open_calls.pop(), call.output_ns, call.output_event)
            open_calls.append(call)
        for call in reversed(open_calls):
            self._close(call, end, last)
        self._began.clear()

    def nested_backward(self, mark: int | None) -> int:
        """Called before a backward inside backward (a reentrant checkpoint) with None, after it with the
        value returned. Calls whose backward began inside it end with it."""
        if mark is not None:
            now = _now()
            event = self._device.event() if self._device is not None else None
            for call in self._began[mark:]:
                if not call.input_ns:
                    call.input_ns, call.input_event = now, event
        return len(self._began)

    def _close(self, call: Call, latest_ns: int, latest_event: Any) -> None:
        end, event = latest_ns, latest_event
        if call.output_ns <= call.input_ns < end:
            end, event = call.input_ns, call.input_event
        self._write(call, "backward", call.output_ns, end, call.output_event, event)

    def trace_step(self, optimizer: str, start: int, end: int) -> None:
        """The `step` row of an optimizer step on a sampled step."""
        self._trace("step", optimizer, start, end)

    def trace_region(self, region: str, start: int, end: int) -> None:
        """The `forward` row of a compiled region."""
        self._trace("forward", region, start, end)

    def _trace(self, stage: str, name: str, start: int, end: int) -> None:
        call = Call(None, self.recorder.intern(name), None, start, self.recorder.micro_step, False)
        self._write(call, stage, start, end, None, None)

    def _write(self, call: Call, stage: str, start: int, end: int, first: Any, last: Any) -> None:
        recorder = self.recorder
        self._sequence += 1
        allocated, highest, cached, most_cached = self._memory()
        fields = [
            recorder.step, call.micro_step, self._sequence, call.name, self._stages[stage],
            allocated, highest, cached, most_cached,
            (start - recorder.step_start_ns) / 1e9,
            (end - start) / 1e9 if end else NULL_DOUBLE,
            call.recompute, start + ANCHOR_NS,
        ]
        if call.unnamed is not None or (first is not None and last is not None):
            self._late_rows.append(LateRow(first, last, call.unnamed, fields))
        else:
            self._append(*fields)

    def _memory(self) -> tuple[float, float, float, float]:
        """allocated, max_allocated, cached, max_cached in MB, from one read."""
        device = self._device
        if device is None:
            try:
                used = int(os.pread(self._statm_number, 64, 0).split()[1]) * _PAGE_MB
            except (OSError, IndexError, ValueError):  # the job closed it during this step
                return NULL_DOUBLE, NULL_DOUBLE, NULL_DOUBLE, NULL_DOUBLE
            self._highest_mb = max(self._highest_mb, used)
            return used, self._highest_mb, NULL_DOUBLE, NULL_DOUBLE
        found = device.memory()
        if found is None:
            return NULL_DOUBLE, NULL_DOUBLE, NULL_DOUBLE, NULL_DOUBLE
        return (
            _mb(found.allocated_bytes), _mb(found.peak_allocated_bytes),
            _mb(found.reserved_bytes), _mb(found.peak_reserved_bytes),
        )

    # The agent's thread -----------------------------------------------------

    def collect(self) -> None:
        """Write the rows whose events are done and whose modules have names."""
        rows = self._late_rows
        while rows:
            first, last, unnamed, fields = rows[0]
            timed = first is not None and last is not None
            if timed and not last.query():
                return
            if unnamed is not None:
                name = self.names.settled(unnamed)
                if name is None:
                    return
                fields[_MODULE] = name
            if timed:
                device = accelerator.current()
                took_s = None if device is None else device.elapsed_s(first, last)
                fields[_DURATION] = NULL_DOUBLE if took_s is None else took_s
            rows.popleft()
            self._append(*fields)


def _mb(size_bytes: int | None) -> float:
    return NULL_DOUBLE if size_bytes is None else size_bytes / 2**20


_MODULE, _DURATION = 3, 10
"""Column indices in a row of python.torch_trace."""

