"""Accelerator: the device that a job trains on; no other module of probe asks torch about it.

`current()` is the accelerator that the job has initialized: CUDA and ROCm (`cuda`), XPU, MPS, or one from
outside torch (PrivateUse1), such as an NPU. torch has one kind per process. It is found through
`torch.accelerator` and its module `torch.<kind>`; values that the module lacks are None here, and NULL in a
table.
Nothing here initializes a device or waits for one, except `synchronize`.

HOT PATH: `current`, `has`, `capturing`, `to_host`, `random_state`, `event`, `memory`. Any thread; a thread of
ours has its own current device, so for the job's device pass its index. Standard library only, with the job's
torch.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple


class DeviceMemory(NamedTuple):
    """Counters of torch's allocator of one device, in bytes; None for those it does not keep."""

    allocated_bytes: int | None
    peak_allocated_bytes: int | None
    reserved_bytes: int | None
    peak_reserved_bytes: int | None


class Accelerator:
    """The accelerator of this process."""

    def __init__(self, torch: Any, kind: str, module: Any) -> None:
        self.kind = kind
        """As in `tensor.device.type`."""
        self.module = module
        self._torch = torch
        self._pins = True
        self._begun: Callable[[], bool] = getattr(module, "is_initialized", None) or module.is_available
        self._capturing: Callable[[], bool] | None = getattr(module, "is_current_stream_capturing", None)
        self._computes: bool | None = None
        self._generator: Any = None

    # HOT PATH -----------------------------------------------------------------

    def in_use(self) -> bool:
        """Whether the job has initialized it in this process; false in a forked child."""
        return bool(self._begun())

    def has(self, tensor: Any) -> bool:
        """Whether a tensor is on it."""
        return bool(tensor.device.type == self.kind)

    def capturing(self) -> bool:
        """Whether the calling thread's stream is being captured as a graph: nothing may be queued then."""
        return self._capturing is not None and bool(self._capturing())

    def to_host(self, figures: Any) -> tuple[Any, Any] | None:
        """Queue a copy of a tensor behind the work already queued. Returns the copy and an event: once
        `event.query()` is true, the copy's `tolist()` waits for no queued work. None if not possible."""
        host = self._pinned(figures) if self._pins else None
        if host is not None:
            host.copy_(figures, non_blocking=True)
        elif hasattr(self.module, "stream"):
            host = OnDevice(self.module, figures.clone())
        else:
            return None
        event = self.module.Event()
        stream = getattr(self.module, "current_stream", None)
        if stream is None:
            event.record()
        else:
            event.record(stream(figures.device))
        return host, event

    def _pinned(self, figures: Any) -> Any:
        try:
            return self._torch.empty(figures.shape, dtype=figures.dtype, device="cpu", pin_memory=True)
        except (RuntimeError, NotImplementedError):
            self._pins = False
            return None

    def random_state(self) -> tuple[Any, Any] | None:
        """The generator of the calling thread's device, and its state, without waiting for anything; None
        while a graph is captured, and on a device without one."""
        if self.capturing():
            return None
        if self._generator is None:
            found, index = self.generators(), self.index()
            if index >= len(found):
                return None
            self._generator = found[index]
        try:
            return self._generator, self._generator.get_state()
        except _LACKING:
            return None

    def event(self) -> Any:
        """An event with a time, recorded on the calling thread's stream."""
        event = self.module.Event(enable_timing=True)
        event.record()
        return event

    def memory(self, index: int | None = None) -> DeviceMemory | None:
        """Counters of the allocator, without a call to the device; of the calling thread's device unless
        `index` says which. None if it has none."""
        where = () if index is None else (index,)
        module = self.module
        try:
            if hasattr(module, "memory_stats_as_nested_dict"):
                found = module.memory_stats_as_nested_dict(*where)
                allocated, reserved = found["allocated_bytes"]["all"], found["reserved_bytes"]["all"]
                return DeviceMemory(
                    allocated["current"], allocated["peak"], reserved["current"], reserved["peak"]
                )
            if hasattr(module, "memory_stats"):
                found = module.memory_stats(*where)
                return DeviceMemory(*map(found.get, _COUNTERS)) if found else None
            return DeviceMemory(  # MPS
                module.current_allocated_memory(), None, module.driver_allocated_memory(), None
            )
        except _LACKING:
            return None

    # Off the hot path ---------------------------------------------------------

    def elapsed_s(self, first: Any, last: Any) -> float | None:
        """Time between two events that are done; None if the device's events have no time."""
        try:
            return float(first.elapsed_time(last)) * 1e-3
        except (NotImplementedError, RuntimeError):
            return None

    def computes(self) -> bool:
        """Whether statistics can be computed on it: in float64, which MPS and some of Intel's devices lack,
        and without a fallback to the host, which would wait for it."""
        if self._computes is None:
            properties = getattr(self.module, "get_device_properties", None)
            known = True if properties is None else getattr(properties(self.index()), "has_fp64", True)
            self._computes = self.kind != "mps" and bool(known) and self._has_kernels()
        return self._computes

    def _has_kernels(self) -> bool:
        """Whether the operations of statistics have kernels of their own on a device from outside torch."""
        native = self._torch._C
        if self.kind != native._get_privateuse1_backend_name():
            return True
        has = native._dispatch_has_kernel_for_dispatch_key
        return all(any(has(f"aten::{name}", "PrivateUse1") for name in names) for names in _STATISTICS)

    def index(self) -> int:
        """Number of the calling thread's device."""
        number = getattr(self.module, "current_device", None)
        return 0 if number is None else int(number())

    def count(self) -> int:
        """How many devices the process sees."""
        return int(self.module.device_count())

    def name(self, index: int) -> str | None:
        """The device's name, such as `NVIDIA H100 80GB HBM3`; None if unknown."""
        try:
            return str(self.module.get_device_name(index))
        except _LACKING:
            return None

    def total_bytes(self, index: int) -> int | None:
        """Memory of a device; None if unknown."""
        try:
            if hasattr(self.module, "recommended_max_memory"):  # MPS
                return int(self.module.recommended_max_memory())
            return int(self.module.get_device_properties(index).total_memory)
        except _LACKING:
            return None

    def free_bytes(self, index: int) -> int | None:
        """Free memory of a device, from its driver and without waiting for its queue; None if unknown."""
        try:
            return int(self.module.mem_get_info(index)[0])
        except _LACKING:
            total, used = self.total_bytes(index), self.memory(index)
            reserved = None if used is None else used.reserved_bytes
            return None if total is None or reserved is None else total - reserved

    def generators(self) -> tuple[Any, ...]:
        """A random generator per device, each with `get_state` and `set_state`."""
        found = getattr(self.module, "default_generators", None)
        if found is not None:
            return tuple(found)
        if not hasattr(self.module, "get_rng_state"):
            return ()
        return tuple(ModuleGenerator(self.module, index) for index in range(self.count()))

    def streams(self) -> tuple[Any, Any]:
        """The calling thread's device and its streams, for `set_streams`; (None, ()) without."""
        if not hasattr(self.module, "current_stream") or not hasattr(self.module, "set_stream"):
            return None, ()
        return self.index(), tuple(self.module.current_stream(number) for number in range(self.count()))

    def set_streams(self, state: tuple[Any, Any]) -> None:
        """Restore what `streams` read."""
        index, streams = state
        for stream in streams:
            self.module.set_stream(stream)
        if index is not None:
            self.module.set_device(index)

    def snapshot(self) -> dict[str, Any] | None:
        """Every block of the allocator, in the format of pytorch.org/memory_viz; None if torch has no such
        function for this device."""
        function = getattr(getattr(self.module, "memory", None), "_snapshot", None)
        return None if function is None else dict(function())

    def synchronize(self) -> None:
        """Wait for the device."""
        self.module.synchronize()


class OnDevice:
    """A copy that is still on a device without pinned memory."""

    def __init__(self, module: Any, figures: Any) -> None:
        self._module, self._figures = module, figures

    def tolist(self) -> Any:
        """Its numbers, read on a separate stream: the training's may be busy, or hang. Not on the training
        thread."""
        with self._module.stream(self._module.Stream(self._figures.device)):
            return self._figures.tolist()


class ModuleGenerator:
    """The generator of a device whose module has only functions for its state."""

    def __init__(self, module: Any, index: int) -> None:
        self._module, self._index = module, index

    def get_state(self) -> Any:
        """A ByteTensor on the host."""
        return self._module.get_rng_state(self._index)

    def set_state(self, state: Any) -> None:
        """Restore it."""
        self._module.set_rng_state(state, self._index)


_COUNTERS = (
    "allocated_bytes.all.current", "allocated_bytes.all.peak",
    "reserved_bytes.all.current", "reserved_bytes.all.peak",
)
_LACKING = (AttributeError, KeyError, NotImplementedError, RuntimeError, TypeError)
"""Exceptions that device modules raise for functions they have in name only."""
_STATISTICS = (
    ("sum", "sum.dim_IntList", "sum.IntList_out"), ("dot", "dot.out"), ("aminmax", "aminmax.out"),
    ("linalg_vector_norm", "linalg_vector_norm.out"), ("cat", "cat.out"), ("isnan", "isnan.out"),
    ("count_nonzero", "count_nonzero.dim_IntList"), ("take", "take.out"), ("where.self", "where.self_out"),
)
"""Operations that statistics need, each by the names under which a device may have a kernel of its own."""
_found: list[Accelerator] = []
"""The accelerator, once the job has initialized it."""


_asks: list[Callable[[], Any]] = []
"""The function that returns the accelerator or None; set once torch is imported."""


def current() -> Accelerator | None:
    """The accelerator that this job has initialized; None until then. HOT PATH."""
    if _found:
        return _found[0] if _found[0].in_use() else None
    if _asks and _asks[0]() is None:
        return None
    return _initialized()


def _initialized() -> Accelerator | None:
    kind, module = _registered()
    if module is None or not hasattr(module, "is_available"):
        return None
    found = Accelerator(sys.modules["torch"], kind, module)
    if not found.in_use():
        return None
    _found.append(found)
    return found


def _registered() -> tuple[str, Any]:
    """Kind and module of the accelerator that this torch was built for or that registered itself; ("", None)
    without one. A renamed PrivateUse1 may have no module yet."""
    torch: Any = sys.modules.get("torch")
    asks = getattr(getattr(torch, "accelerator", None), "current_accelerator", None)
    if asks is None:
        return "", None  # torch is not imported, or being imported
    try:
        device = asks()
    except RuntimeError:  # torch 2.6 without one; raising each time would cost ten times as much
        asks = functools.partial(_accelerator_of, torch._C._get_accelerator)
        device = asks()
    _asks[:] = [asks]
    return ("", None) if device is None else (device.type, getattr(torch, device.type, None))


def _accelerator_of(named: Callable[[], Any]) -> Any:
    """The device that torch's own function returns; None for the CPU."""
    device = named()
    return None if device.type == "cpu" else device


def capturing() -> bool:
    """Whether the calling thread's work is being captured as a graph. False before torch is imported."""
    device = current()
    return device is not None and device.capturing()


def measurable(tensor: Any) -> bool:
    """Whether statistics of a tensor can be computed on its device. Not on devices that are no accelerator of
    torch (XLA computes later, meta never), nor where `Accelerator.computes` is false."""
    if tensor.is_cpu:
        return True
    device = current()
    return device is not None and device.has(tensor) and device.computes()


def kinds() -> Sequence[str]:
    """Kinds of device that this process computes on, the accelerator first."""
    device = current()
    return ("cpu",) if device is None else (device.kind, "cpu")


def module_of(kind: str) -> Any:
    """`torch.<kind>` if that is this process's accelerator and there is one; else None."""
    registered, module = _registered()
    return module if registered == kind and module is not None and module.is_available() else None


def graph_class() -> Any:
    """The class that captures graphs, by `capture_begin` and `capture_end`; None without."""
    _, module = _registered()
    graphs = getattr(module, "graphs", None)
    names = [name for name in dir(graphs) if name.endswith("Graph")]
    return next((found for name in names if hasattr(found := getattr(graphs, name), "capture_begin")), None)
