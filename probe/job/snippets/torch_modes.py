"""Torch modes: modes of torch and NumPy that a snippet can leave changed, and how to read and restore them.

These change numbers, devices, speed or printing and are stored in no tensor: grad and
inference mode, autocast, default dtype and device, deterministic algorithms, TF32, cuDNN,
threads, anomaly detection, modes left open, denormals, NumPy's error handling. A mode that
this version of torch lacks is left out. Reading initialises no device. Runs on the
snippet's thread. Standard library only; torch and NumPy if the job has them.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

from probe.base import accelerator
from probe.base.isolation import capture


class State(NamedTuple):
    """State that is restored after a snippet. `name` completes "… was put back".

    `marks`: the state belongs to the whole process, and only code that contains one of these words
    changes it; None: it belongs to one thread."""

    name: str
    read: Callable[[], Any]
    write: Callable[[Any], object]
    marks: tuple[str, ...] | None = None


_PLAIN = (  # name, getter and setter in torch._C without their `_get_` and `_set_`, marks
    ("the use of cuDNN", "cudnn_enabled", ("backends", "cudnn")),
    ("cuDNN's benchmark mode", "cudnn_benchmark", ("backends", "cudnn")),
    ("cuDNN's deterministic mode", "cudnn_deterministic", ("backends", "cudnn")),
    ("the use of oneDNN", "mkldnn_enabled", ("backends", "mkldnn")),
    ("oneDNN's deterministic mode", "mkldnn_deterministic", ("backends", "mkldnn")),
    ("filling of uninitialised memory", "deterministic_fill_uninitialized_memory", ("deterministic",)),
    ("reduced precision of FP16 sums", "cublas_allow_fp16_reduced_precision_reduction", ("backends",)),
    ("reduced precision of BF16 sums", "cublas_allow_bf16_reduced_precision_reduction", ("backends",)),
    ("accumulation in FP16", "cublas_allow_fp16_accumulation", ("backends",)),
    ("the order of attention kernels", "sdp_priority_order", ("sdp",)),
)

_ATTENTION = ("flash", "mem_efficient", "math", "cudnn")
_PRECISIONS = (
    ("generic", "all"),
    *(("cuda", operation) for operation in ("all", "matmul", "conv", "rnn")),
    *(("mkldnn", operation) for operation in ("all", "matmul", "conv", "rnn")),
)
_SMALLEST_NORMAL = sys.float_info.min

_held: list[Any] = []
"""Guards of inference mode, kept because a guard restores the previous mode when it is freed."""


def torch_modes(torch: Any) -> list[State]:
    """The modes of the torch that the job has imported. Inference mode first: it moves the others."""
    native = torch._C
    found = [
        State("inference mode", torch.is_inference_mode_enabled, lambda on: _set_inference(torch, on)),
        State("grad mode", torch.is_grad_enabled, native._set_grad_enabled),
        State("autocast", lambda: _autocast(torch), lambda state: _set_autocast(torch, state)),
        State("forward-mode gradients", native._is_fwd_grad_enabled, native._set_fwd_grad_enabled),
        State("threads of the backward pass", native._is_multithreading_enabled,
              native._set_multithreading_enabled),
        State("modes of torch functions and the default device", lambda: _function_modes(torch),
              lambda modes: _set_function_modes(torch, modes)),
        State("dispatch modes", native._len_torch_dispatch_stack,
              lambda count: _pop_dispatch_modes(torch, count)),
        State("denormal numbers", lambda: _SMALLEST_NORMAL / 2 > 0,
              lambda kept: torch.set_flush_denormal(not kept)),
        State("the default dtype", torch.get_default_dtype, torch.set_default_dtype, ("set_default",)),
        State("deterministic algorithms", lambda: _deterministic(native),
              lambda state: _set_deterministic(torch, state), ("deterministic",)),
        State("the precision of float32 (TF32)", lambda: _precision(native),
              lambda state: _set_precision(native, state), ("backends", "precision")),
        State("the number of threads", torch.get_num_threads, torch.set_num_threads, ("num_threads",)),
        State("anomaly detection", lambda: (torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()),
              lambda state: torch.set_anomaly_enabled(*state), ("anomaly",)),
        State("warnings that are always given", native._get_warnAlways, native._set_warnAlways,
              ("warn_always",)),
        State("how tensors are printed", lambda: dict(vars(torch._tensor_str.PRINT_OPTS)),
              lambda options: vars(torch._tensor_str.PRINT_OPTS).update(options), ("printoptions",)),
    ]
    if hasattr(native._autograd, "_top_saved_tensors_default_hooks"):  # from torch 2.8 on
        found.append(State("hooks of saved tensors", lambda: _saved_hooks(torch),
                           lambda top: _pop_saved_hooks(torch, top)))
    for name, attribute, marks in _PLAIN:
        getter = getattr(native, f"_get_{attribute}", None)
        setter = getattr(native, f"_set_{attribute}", None)
        if getter is not None and setter is not None:
            found.append(State(name, getter, _setter(setter), marks))
    for kind in _ATTENTION:
        getter = getattr(native, f"_get_{kind}_sdp_enabled", None)
        setter = getattr(native, f"_set_sdp_use_{kind}", None)
        if getter is not None and setter is not None:
            found.append(State(f"the {kind} kernel of attention", getter, setter, ("sdp", "backends")))
    return found


def device_modes() -> list[State]:
    """The current device and streams; nothing until the job has initialised its accelerator."""
    device = accelerator.current()
    if device is None:
        return []
    return [State("the current device and stream", device.streams, device.set_streams)]


def numpy_modes(numpy: Any) -> list[State]:
    """The modes of the NumPy that the job has imported."""
    if not (hasattr(numpy, "geterr") and hasattr(numpy, "get_printoptions")):
        return []  # it is still being imported
    return [
        State("NumPy's handling of errors", numpy.geterr, lambda state: numpy.seterr(**state)),
        State("how NumPy prints", numpy.get_printoptions, lambda state: numpy.set_printoptions(**state)),
    ]


def _setter(setter: Callable[..., object]) -> Callable[[Any], object]:
    """A setter that accepts the value of its getter, also if that is a tuple of arguments."""
    return lambda value: setter(*value) if isinstance(value, tuple) else setter(value)


def _set_inference(torch: Any, on: bool) -> None:
    guard = torch._C._InferenceMode(on)
    guard.__enter__()
    _held.append(guard)


def _autocast(torch: Any) -> Any:
    """Nesting depth, whether casts are cached, and per device whether it is on and its dtype."""
    torch.autocast_increment_nesting()
    depth = torch.autocast_decrement_nesting()
    cached = torch.is_autocast_cache_enabled()
    devices = getattr(torch._C, "_autocast_supported_devices", lambda: ("cpu", "cuda"))
    return depth, cached, tuple(
        (device, torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)) for device in devices()
    )


def _set_autocast(torch: Any, state: Any) -> None:
    depth, cached, devices = state
    for device, on, dtype in devices:
        torch.set_autocast_enabled(device, on)
        torch.set_autocast_dtype(device, dtype)
    torch.set_autocast_cache_enabled(cached)
    now = torch.autocast_increment_nesting()
    while now > depth:
        now = torch.autocast_decrement_nesting()
    while now < depth:
        now = torch.autocast_increment_nesting()
    if depth == 0:  # a cast weight that stayed would be used by the next forward pass
        torch.clear_autocast_cache()


def _saved_hooks(torch: Any) -> Any:
    return torch._C._autograd._top_saved_tensors_default_hooks(True)


def _pop_saved_hooks(torch: Any, top: Any) -> None:
    while (now := _saved_hooks(torch)) is not None and now != top:
        torch._C._autograd._pop_saved_tensors_default_hooks()


def _function_modes(torch: Any) -> Any:
    native = torch._C
    stack = [native._get_function_stack_at(place) for place in range(native._len_torch_function_stack())]
    return (
        stack,
        getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None),
        getattr(sys.modules.get("torch.utils._device"), "CURRENT_DEVICE", None),
    )


def _set_function_modes(torch: Any, modes: Any) -> None:
    stack, context, current = modes
    native = torch._C
    for _ in range(native._len_torch_function_stack()):
        native._pop_torch_function_stack()
    for mode in stack:
        native._push_on_torch_function_stack(mode)
    if hasattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context") or context is not None:
        torch._GLOBAL_DEVICE_CONTEXT.device_context = context
    devices: Any = sys.modules.get("torch.utils._device")
    if devices is not None:
        devices.CURRENT_DEVICE = current


def _pop_dispatch_modes(torch: Any, count: int) -> None:
    while torch._C._len_torch_dispatch_stack() > count:
        torch.utils._python_dispatch._pop_mode()


def _deterministic(native: Any) -> tuple[bool, bool]:
    return native._get_deterministic_algorithms(), native._get_deterministic_algorithms_warn_only()


def _set_deterministic(torch: Any, state: tuple[bool, bool]) -> None:
    on, warn_only = state
    torch._C._set_deterministic_algorithms(on, warn_only=warn_only)
    inductor: Any = sys.modules.get("torch._inductor.config")
    if hasattr(inductor, "deterministic"):  # torch 2.10 sets it as well
        inductor.deterministic = on


def _precision(native: Any) -> list[Any]:
    """Every TF32 switch; None for one that torch refuses to read because another contradicts it."""
    reads: list[Callable[[], Any]] = [
        native._get_float32_matmul_precision, native._get_cublas_allow_tf32, native._get_cudnn_allow_tf32,
    ]
    single = getattr(native, "_get_fp32_precision_getter", None)
    if single is not None:
        reads += [functools.partial(single, *which) for which in _PRECISIONS]
    return [capture(read)[0] for read in reads]


def _set_precision(native: Any, state: list[Any]) -> None:
    """Restore the old switches first: setting them also moves the new ones."""
    matmul, _cublas, cudnn, *single = state
    if single:
        for which, precision in zip(_PRECISIONS, single, strict=True):
            native._set_fp32_precision_setter(*which, precision)
    if matmul is not None and capture(native._get_float32_matmul_precision)[0] != matmul:
        native._set_float32_matmul_precision(matmul)
    if cudnn is not None and capture(native._get_cudnn_allow_tf32)[0] != cudnn:
        native._set_cudnn_allow_tf32(cudnn)
    for which, precision in zip(_PRECISIONS, single, strict=False):
        native._set_fp32_precision_setter(*which, precision)
