"""The random states of a process: Python's, NumPy's global one, torch's, and each CUDA device's.

Reading them draws nothing, waits for no device, starts no CUDA and imports nothing: a library
that the job has not imported has no state. Standard library only, torch and NumPy where the job
has them; the training thread between two steps, or whoever saves or loads a checkpoint.
"""

from __future__ import annotations

import ctypes
import random
import sys
from collections.abc import Callable
from typing import Any


def random_states() -> dict[str, Any]:
    """All of them, in plain types: `{"python": tuple, "numpy": dict or None, "torch": ByteTensor or
    None, "cuda": [ByteTensor or None, …]}`.

    None is a library that is not there, or a device whose state cannot be read just now (a graph is
    being captured). `cuda` is empty until the job has initialised CUDA."""
    return {
        "python": random.getstate(),
        "numpy": numpy_state(),
        "torch": torch_state(),
        "cuda": [_state_or_none(generator) for generator in cuda_generators()],
    }


def restore_random_states(states: dict[str, Any]) -> None:
    """Put back what `random_states` gave; a part that is None or missing is left as it is.

    Devices that are not initialised yet get theirs when they are. Raises what the libraries raise
    for a state that is not theirs."""
    if states.get("python") is not None:
        set_python_state(states["python"])
    if states.get("numpy") is not None:
        set_numpy_state(states["numpy"])
    torch: Any = sys.modules.get("torch")
    if torch is None:
        return
    if states.get("torch") is not None:
        torch.default_generator.set_state(states["torch"])
    for device, state in enumerate(states.get("cuda") or []):
        if state is not None:
            torch.cuda.set_rng_state(state, device)


def set_python_state(state: Any) -> None:
    """Set `random`'s state, also from one whose tuples have become lists in a file."""
    version, numbers, gauss = state
    random.setstate((version, tuple(numbers), gauss))


def numpy_state(plain: Callable[[Any], Any] = lambda array: array.tolist()) -> dict[str, Any] | None:
    """The state of `numpy.random`'s global generator, each array made `plain`; None where nobody
    imported it."""
    draws: Any = sys.modules.get("numpy.random")
    return None if draws is None else _plain(draws.get_state(legacy=False), plain)


def set_numpy_state(state: dict[str, Any]) -> None:
    """Set the global generator of `numpy.random`; nothing where nobody imported it."""
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
    """The state of torch's CPU generator, a ByteTensor; None where nobody imported torch."""
    generator: Any = getattr(sys.modules.get("torch"), "default_generator", None)
    return None if generator is None else generator.get_state()


def cuda_generators() -> tuple[Any, ...]:
    """The generators of the CUDA devices; none until the job has initialised CUDA."""
    cuda: Any = sys.modules.get("torch.cuda")
    return () if cuda is None or not cuda.is_initialized() else tuple(cuda.default_generators)


class TensorState:
    """A generator's state that can be compared without an operation of torch: those can be watched by
    a mode of the job's."""

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
