"""Random states of a process: Python's, NumPy's global one, torch's, and each device's.

Reading them draws no number, waits for no device, initializes none, and imports nothing: a library
that the job did not import has no state. Runs on the training thread between two steps, or on a thread that
saves or loads a checkpoint. Standard library only, with the job's torch and NumPy.
"""

from __future__ import annotations

import ctypes
import random
import sys
from collections.abc import Callable
from typing import Any

from probe.base import accelerator


def random_states() -> dict[str, Any]:
    """All states in plain types: `{"python": tuple, "numpy": dict or None, "torch": ByteTensor or None,
    "devices": {kind: [ByteTensor or None, …]}}`.

    None: the library is not imported, or the device is capturing a graph. `devices` is empty until the job
    has initialized its accelerator, and has one kind then, such as `cuda`."""
    device = accelerator.current()
    return {
        "python": random.getstate(),
        "numpy": numpy_state(),
        "torch": torch_state(),
        "devices": {} if device is None else {
            device.kind: [_state_or_none(generator) for generator in device.generators()]
        },
    }


def restore_random_states(states: dict[str, Any]) -> None:
    """Restore the result of `random_states`; parts that are None or missing are not changed.

    Devices get their state when they are initialized; states of another kind of device are ignored. Raises
    the libraries' exceptions for an invalid state."""
    if states.get("python") is not None:
        set_python_state(states["python"])
    if states.get("numpy") is not None:
        set_numpy_state(states["numpy"])
    torch: Any = sys.modules.get("torch")
    if torch is None:
        return
    if states.get("torch") is not None:
        torch.default_generator.set_state(states["torch"])
    for kind, ones in device_states(states).items():
        module = accelerator.module_of(kind)
        for number, state in enumerate(ones[: module.device_count()] if module is not None else ()):
            if state is not None:
                module.set_rng_state(state, number)


def device_states(states: dict[str, Any]) -> dict[str, list[Any]]:
    """States by kind of device; files of earlier versions have `cuda` beside the others."""
    found = states.get("devices")
    return {"cuda": states.get("cuda") or []} if found is None else found


def set_python_state(state: Any) -> None:
    """Set `random`'s state; accepts lists in place of tuples."""
    version, numbers, gauss = state
    random.setstate((version, tuple(numbers), gauss))


def numpy_state(plain: Callable[[Any], Any] = lambda array: array.tolist()) -> dict[str, Any] | None:
    """The state of `numpy.random`'s global generator, with `plain` applied to arrays; None if not
    imported."""
    draws: Any = sys.modules.get("numpy.random")
    return None if draws is None else _plain(draws.get_state(legacy=False), plain)


def set_numpy_state(state: dict[str, Any]) -> None:
    """Set the global generator of `numpy.random`, if imported."""
    draws: Any = sys.modules.get("numpy.random")
    if draws is not None:
        import numpy

        inner = dict(state["state"])
        key = inner.get("key")
        if isinstance(key, bytes):
            inner["key"] = numpy.frombuffer(key, dtype=numpy.uint32)
        elif key is not None:
            inner["key"] = numpy.asarray(key, dtype=numpy.uint32)
        draws.set_state({**state, "state": inner})


def torch_state() -> Any:
    """The state of torch's CPU generator, a ByteTensor; None if torch is not imported."""
    generator: Any = getattr(sys.modules.get("torch"), "default_generator", None)
    return None if generator is None else generator.get_state()


def device_generators() -> tuple[Any, ...]:
    """The generators of the devices; empty until the job has initialized its accelerator."""
    device = accelerator.current()
    return () if device is None else device.generators()


class TensorState:
    """A generator's state that compares without a torch operation, which a mode of the job could see."""

    __slots__ = ("tensor",)

    def __init__(self, tensor: Any) -> None:
        self.tensor = tensor

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TensorState) and _content(self.tensor) == _content(other.tensor)

    __hash__ = None  # type: ignore[assignment]


def _content(state: Any) -> bytes:
    return ctypes.string_at(state.data_ptr(), state.nbytes)


def _state_or_none(generator: Any) -> Any:
    try:
        return generator.get_state()
    except RuntimeError:
        return None


def _plain(state: Any, plain: Callable[[Any], Any]) -> Any:
    if isinstance(state, dict):
        return {name: _plain(value, plain) for name, value in state.items()}
    return plain(state) if hasattr(state, "tobytes") else state
