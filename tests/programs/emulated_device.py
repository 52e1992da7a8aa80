"""An asynchronous accelerator that needs no hardware, registered with torch as the device `emulated`.

`register()` takes PyTorch's hooks for out-of-tree devices (PrivateUse1), from Python: no compiler.
What is real in it: tensors of torch's own class on a device of their own, dispatch, autograd with its device
thread, `torch.emulated` with streams, events, allocator statistics, out-of-memory errors and a generator.

Device memory is memory of the host that no host tensor sees. A kernel is computed when it is submitted and
takes its time on the stream, which is a queue served by a thread: only what leaves the device (events, copies
to the host) waits for the stream. A copy to pinned memory holds `POISON` until the stream has reached it, so
whoever reads early has wrong numbers. All that waits for the device is counted in `waits`, with its thread
and stack. Where a test holds the default stream (`hold`), nothing on it finishes until it is released, but
for what is waited for.

With `behind`, no thread serves a stream: the device is exactly so many kernels behind the host, as one is
whose queue of launches is full (CUDA's has 1,024 places); 0: it has nothing else to do, and is done with a
kernel before the host looks.

What it does not have: several devices, graph capture, kernels that differ from the host's, real pinned memory
(torch has no such hook for Python: `torch.empty` is replaced for `pin_memory=True`).
"""

from __future__ import annotations

import ctypes
import functools
import queue
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple

import torch

NAME = "emulated"
TOTAL_BYTES = 1 << 30
POISON = -6.25e18
"""What a host buffer holds whose copy has not arrived; every dtype that is copied so can hold it."""
READS = frozenset({  # operations whose result the host needs before it goes on
    "aten::_local_scalar_dense", "aten::equal", "aten::masked_select", "aten::nonzero", "aten::_unique2",
    "aten::unique_consecutive", "aten::unique_dim",
})
STATISTICS = (
    "sum.dim_IntList", "dot", "aminmax", "linalg_vector_norm", "cat", "isnan", "count_nonzero.dim_IntList",
    "take", "where.self",
)
"""Operations that the device has kernels of its own for; the others it has from the fallback."""
_HOST, _EXTENSION = 1, 12
"""DLPack's numbers of a host and of a device that is an extension."""


class Wait(NamedTuple):
    """Something waited for the device."""

    what: str
    thread: str
    stack: str


class OwnDevice:
    """All state of the device."""

    def __init__(self) -> None:
        self.waits: list[Wait] = []
        self.kernel_s = 0.0
        """Time that a kernel takes on its stream."""
        self.behind: int | None = None
        """Kernels that the device is behind the host; None: kernels take `kernel_s`."""
        self.total_bytes = TOTAL_BYTES
        self.allocated_bytes = self.peak_bytes = 0
        self.pins = True
        self.going = threading.Event()
        self.going.set()
        self.generator = torch.Generator()
        self.initialized = False
        self._accounts = threading.Lock()

    def allocate(self, size: int) -> None:
        with self._accounts:
            if self.allocated_bytes + size > self.total_bytes:
                raise torch.OutOfMemoryError(
                    f"{NAME} out of memory. Tried to allocate {size} bytes. Device 0 has a total capacity "
                    f"of {self.total_bytes} bytes of which {self.free_bytes} bytes is free."
                )
            self.allocated_bytes += size
            self.peak_bytes = max(self.peak_bytes, self.allocated_bytes)

    @property
    def free_bytes(self) -> int:
        return self.total_bytes - self.allocated_bytes

    def free(self, size: int) -> None:
        with self._accounts:
            self.allocated_bytes -= size

    def hold(self) -> None:
        """Nothing on the device finishes any more."""
        self.going.clear()

    def release(self) -> None:
        """Everything submitted finishes."""
        self.going.set()

    def wait(self, what: str, over: Callable[[], bool], *, held: bool = True) -> None:
        """The calling thread waits for the device. `held`: for what a test may hold."""
        stack = "".join(traceback.format_stack(limit=12)[:-1])
        self.waits.append(Wait(what, threading.current_thread().name, stack))
        held = held and not self.going.is_set()
        if held:
            self.going.set()
        while not over():
            time.sleep(0.0002)
        if held:
            self.going.clear()


DEVICE = OwnDevice()


class Stream:
    """A queue that a thread serves."""

    def __init__(self, device: Any = None, priority: int = 0) -> None:
        self._queue: queue.SimpleQueue[tuple[float, Callable[[], object]]] = queue.SimpleQueue()
        self._busy_s = 0.0
        self._before: Any = None
        self.submitted = self.done = self.kernels = 0
        self._late: deque[tuple[int, Callable[[], object]]] = deque()
        """With `DEVICE.behind`: what is to finish, and after how many kernels."""
        threading.Thread(target=self._serve, name="emulated-stream", daemon=True).start()

    def _serve(self) -> None:
        while True:
            busy_s, finish = self._queue.get()
            time.sleep(busy_s)
            if self in _default:
                DEVICE.going.wait()
            finish()
            self.done += 1

    def kernel(self) -> None:
        """A kernel is queued."""
        self._busy_s += DEVICE.kernel_s
        self.kernels += 1
        self.go_on()

    def go_on(self, *, to_the_end: bool = False) -> None:
        """With `DEVICE.behind`: finish what is due, or everything."""
        while self._late and (to_the_end or self._late[0][0] <= self.kernels):
            finish = self._late.popleft()[1]
            finish()
            self.done += 1

    def put(self, finish: Callable[[], object]) -> None:
        """Queue something that the host can see."""
        if DEVICE.behind is not None:
            self.submitted += 1
            self._late.append((self.kernels + DEVICE.behind, finish))
            self.go_on()
            return
        busy_s, self._busy_s = self._busy_s, 0.0
        self.submitted += 1
        self._queue.put((busy_s, finish))

    def query(self) -> bool:
        return self.done == self.submitted

    def synchronize(self, for_what: str = "a stream") -> None:
        self.put(lambda: None)
        until = self.submitted
        self.go_on(to_the_end=True)
        DEVICE.wait(for_what, lambda: self.done >= until, held=self in _default)

    def wait_event(self, event: Event) -> None:
        self.put(event.finished.wait)

    def wait_stream(self, stream: Stream) -> None:
        self.wait_event(stream.record_event())

    def record_event(self, event: Event | None = None) -> Event:
        event = event or Event()
        event.record(self)
        return event

    def __enter__(self) -> Stream:
        self._before = current_stream()
        _of_thread.stream = self
        return self

    def __exit__(self, *error: object) -> None:
        _of_thread.stream = self._before


class Event:
    """A place in a stream."""

    def __init__(self, enable_timing: bool = False, blocking: bool = False, **_other: Any) -> None:
        self._timing = enable_timing
        self._recorded = False
        self.finished = threading.Event()
        self.t_ns = 0

    def record(self, stream: Stream | None = None) -> None:
        self._recorded = True
        self.finished = finished = threading.Event()

        def finish() -> None:
            self.t_ns = time.monotonic_ns()
            finished.set()

        (stream or current_stream()).put(finish)

    def query(self) -> bool:
        return not self._recorded or self.finished.is_set()

    def synchronize(self) -> None:
        if self._recorded:
            current_stream().go_on(to_the_end=DEVICE.behind is not None)
            DEVICE.wait("an event", self.finished.is_set)

    def wait(self, stream: Stream | None = None) -> None:
        (stream or current_stream()).wait_event(self)

    def elapsed_time(self, end: Event) -> float:
        """Milliseconds."""
        if not (self._timing and end._timing and self._recorded and end._recorded):
            raise RuntimeError("both events must be recorded, with enable_timing=True")
        if not (self.query() and end.query()):
            raise RuntimeError("both events must be completed before calculating elapsed time")
        return (end.t_ns - self.t_ns) / 1e6


_of_thread = threading.local()
_default: list[Stream] = []


def current_stream(device: Any = None) -> Stream:
    """The stream of the calling thread; each thread begins with the default one, as on CUDA."""
    own: Stream | None = getattr(_of_thread, "stream", None)
    if own is not None:
        return own
    if not _default:
        _default.append(Stream())
    return _default[0]


# Tensors ----------------------------------------------------------------------------------------------


class Block(bytearray):
    """Memory of the device, counted."""

    def __init__(self, size: int) -> None:
        DEVICE.allocate(size)
        super().__init__(size)
        self.counted = size

    def __del__(self) -> None:
        if hasattr(self, "counted"):
            DEVICE.free(self.counted)


_ALIGNED = 64
_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.restype, _pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]


def _moved(tensor: torch.Tensor, place: int) -> torch.Tensor:
    """The same memory as a tensor of another device."""
    capsule = torch._C._to_dlpack(tensor)
    address = _pointer(capsule, b"dltensor")
    assert address is not None
    ctypes.c_int32.from_address(address + 8).value = place
    ctypes.c_int32.from_address(address + 12).value = 0
    return torch._C._from_dlpack(capsule)


def inside(tensor: torch.Tensor) -> torch.Tensor:
    """What is in the memory of the device, without waiting for it: for the device itself, and for tests."""
    with torch._C._AutoDispatchBelowAutograd():
        return _moved(tensor.detach(), _HOST)


def _empty(size: Any, stride: Any, dtype: torch.dtype) -> torch.Tensor:
    if any(one == 0 for one in size):
        return _moved(torch.empty_strided(size, stride, dtype=dtype), _EXTENSION)
    elements = 1 + sum((one - 1) * step for one, step in zip(size, stride, strict=True))
    needed = elements * dtype.itemsize
    block = Block(-(-needed // 512) * 512 + _ALIGNED)
    start = -ctypes.addressof(ctypes.c_char.from_buffer(block)) % _ALIGNED
    flat = torch.frombuffer(block, dtype=dtype, count=elements, offset=start)
    return _moved(flat.as_strided(size, stride), _EXTENSION)


def _onto(found: torch.Tensor) -> torch.Tensor:
    """A tensor of the device with the values of one of the host."""
    result = _empty(found.shape, found.stride(), found.dtype)
    _moved(result, _HOST).copy_(found)
    return result


def _own(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.device.type == NAME


def _as_host(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return _moved(value, _HOST) if _own(value) else value
    if isinstance(value, (list, tuple)):
        return [_as_host(one) for one in value]
    if isinstance(value, torch.device):
        return torch.device("cpu")
    return value


def _kernel(op: Any, *args: Any, **kwargs: Any) -> Any:
    """Any operation that torch has on the host."""
    schema = op._schema
    if any(one.alias_info is not None and not one.alias_info.is_write for one in schema.returns):
        return op.redispatch(_CPU, *args, **kwargs)  # a view: the host's kernel makes it without the values
    with torch._C._AutoDispatchBelowAutograd():
        names = [one.name for one in schema.arguments]
        given = dict(zip(names, args, strict=False))
        if "generator" in names and (given | kwargs).get("generator") is None:
            kwargs["generator"] = DEVICE.generator
            args = tuple(value for name, value in given.items() if name != "generator")
        numbers = [one.name for one in schema.arguments if str(one.type) == "Tensor"
                   and isinstance((given | kwargs).get(one.name), (bool, int, float, complex))]
        written = [(given | kwargs)[one.name] for one in schema.arguments
                   if one.alias_info is not None and one.alias_info.is_write]
        call = op.overloadpacket if numbers else op  # the number of `tensor % 4` comes as itself
        given = {name: _as_host(value) for name, value in kwargs.items()}
        out = {one.name: kwargs[one.name] for one in schema.arguments if one.is_out}
        given |= {name: torch.empty(0, dtype=one.dtype) for name, one in out.items()}
        found = call(*_as_host(args), **given)
        for name, tensor in out.items():
            _fill(tensor, given[name])
        current_stream().kernel()
        if schema.name in READS:
            current_stream().synchronize(schema.name)
        if not written:
            return _results(found)
        return written[0] if len(schema.returns) == 1 else tuple(written) if schema.returns else None


def _fill(tensor: torch.Tensor, values: torch.Tensor) -> None:
    """Values of the host in a tensor of the device, which takes their shape."""
    if tensor.shape == values.shape:
        _moved(tensor, _HOST).copy_(values)
    else:
        tensor.data = _onto(values)


def _results(found: Any) -> Any:
    if isinstance(found, torch.Tensor):
        return _onto(found)
    if isinstance(found, (list, tuple)):
        return type(found)([_results(one) for one in found])
    return found


def _new(size: Any, *, dtype: Any = None, memory_format: Any = None, **_other: Any) -> torch.Tensor:
    memory_format = memory_format or torch.contiguous_format
    like = torch.empty(size, dtype=dtype, device="meta", memory_format=memory_format)
    DEVICE.initialized = True
    return _empty(like.shape, like.stride(), like.dtype)


def _new_strided(size: Any, stride: Any, *, dtype: Any = None, **_other: Any) -> torch.Tensor:
    DEVICE.initialized = True
    return _empty(size, stride, dtype or torch.get_default_dtype())


def _copy(source: torch.Tensor, target: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    """Between the device and the host; within it, a kernel."""
    stream = current_stream()
    with torch._C._AutoDispatchBelowAutograd():
        if _own(target):
            _moved(target, _HOST).copy_(_as_host(source))
            stream.kernel()
            return target
        values = _moved(source, _HOST).clone()
        if not (non_blocking and hasattr(target, "is_pinned_here")):
            stream.synchronize("a copy to the host")
            return target.copy_(values)
        target.fill_(POISON if target.dtype.is_floating_point else -1)

        def finish() -> None:
            with torch._C._AutoDispatchBelowAutograd():
                target.copy_(values)

        stream.put(finish)
        return target


def _scalar(tensor: torch.Tensor) -> Any:
    current_stream().synchronize("item()")
    return _moved(tensor, _HOST).item()


def _resize(tensor: torch.Tensor, size: Any, *, memory_format: Any = None) -> torch.Tensor:
    tensor.data = _new(size, dtype=tensor.dtype, memory_format=memory_format)  # nobody here needs the values
    return tensor


# The module -------------------------------------------------------------------------------------------


def _statistics(device: Any = None) -> dict[str, Any]:
    def one(current: int, peak: int) -> dict[str, dict[str, int]]:
        return {"all": {"current": current, "peak": peak}}

    return {
        "allocated_bytes": one(DEVICE.allocated_bytes, DEVICE.peak_bytes),
        "reserved_bytes": one(2 * DEVICE.allocated_bytes, 2 * DEVICE.peak_bytes),
    }


class Properties(NamedTuple):
    """Of the device."""

    name: str
    total_memory: int


def _set_stream(stream: Stream) -> None:
    _of_thread.stream = stream


@contextmanager
def _stream(stream: Stream | None) -> Iterator[None]:
    if stream is None:
        yield
        return
    with stream:
        yield


def _module(lean: bool) -> ModuleType:
    module: Any = ModuleType(f"torch.{NAME}")
    module.Stream, module.Event = Stream, Event
    module.current_stream, module.stream = current_stream, _stream
    module.default_stream = lambda device=None: (_default or [current_stream()])[0]
    module.synchronize = lambda device=None: current_stream().synchronize()
    module.is_available = lambda: True
    module.is_initialized = lambda: DEVICE.initialized
    module.device_count = lambda: 1
    module.current_device = lambda: 0
    module.set_device = lambda device: None
    module._is_in_bad_fork = lambda: False
    module._lazy_init = lambda: None
    module.get_rng_state = lambda device=0: DEVICE.generator.get_state()
    module.set_rng_state = lambda state, device=0: DEVICE.generator.set_state(state)
    module.manual_seed = module.manual_seed_all = lambda seed: DEVICE.generator.manual_seed(seed)
    module.memory_stats = lambda device=None: {
        f"{name}.{pool}.{figure}": number for name, pools in _statistics().items()
        for pool, figures in pools.items() for figure, number in figures.items()
    }
    if lean:
        module.memory = SimpleNamespace(_snapshot=lambda: {"segments": [], "device_traces": []})
    else:
        module.default_generators = (DEVICE.generator,)
        module.memory_stats_as_nested_dict = _statistics
        module.set_stream = _set_stream
    module.memory_allocated = lambda device=None: DEVICE.allocated_bytes
    module.mem_get_info = lambda device=None: (DEVICE.free_bytes, DEVICE.total_bytes)
    module.get_device_properties = lambda device=None: Properties("Emulated Accelerator", DEVICE.total_bytes)
    module.get_device_name = lambda device=None: "Emulated Accelerator"
    module.get_amp_supported_dtype = lambda: [torch.bfloat16, torch.float16]
    return module


_libraries: list[Any] = []
_CPU: Any = None


def register(*, lean: bool = False) -> OwnDevice:
    """Make torch know the device; once in a process. `lean`: it has no pinned memory and no kernels of its
    own, and its module has other functions than CUDA's, as modules from outside torch may."""
    global _CPU
    DEVICE.pins = not lean
    from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

    _CPU = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
    _setup_privateuseone_for_python_backend(NAME, backend_module=_module(lean))
    everything = torch.library.Library("_", "IMPL")
    everything.fallback(_kernel, "PrivateUse1")
    aten = torch.library.Library("aten", "IMPL")
    for name, kernel in {
        "empty.memory_format": _new, "empty_strided": _new_strided, "_copy_from": _copy,
        "_local_scalar_dense": _scalar, "resize_": _resize,
    }.items():
        aten.impl(name, kernel, "PrivateUse1")
    for name in () if lean else STATISTICS:
        packet, _, overload = name.partition(".")
        operation = getattr(getattr(torch.ops.aten, packet), overload or "default")
        aten.impl(name, functools.partial(_kernel, operation), "PrivateUse1")
    _libraries[:] = [everything, aten]
    plain = torch.empty

    def empty(*size: Any, pin_memory: bool = False, **options: Any) -> torch.Tensor:
        if pin_memory and not DEVICE.pins:
            raise RuntimeError("Backend doesn't support getPinnedMemoryAllocator()")
        found = plain(*size, **options)
        if pin_memory:
            found.is_pinned_here = True
        return found

    torch.empty = empty
    return DEVICE
