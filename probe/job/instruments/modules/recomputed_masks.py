"""Recomputed masks: checks that dropout draws the same mask when an activation checkpoint recomputes it.

Writes rows `recomputed` of python.random_states. HOT PATH on sampled steps, on the training thread: a
checksum of torch's generator state, a few microseconds, at each call of a dropout module on the CPU. Calls
inside backward are recomputations by checkpoints. torch inside functions.
"""

from __future__ import annotations

import ctypes
import sys
import time
import zlib
from typing import Any

from probe.base.clock import ANCHOR_NS
from probe.job.instruments.core.recorder import Recorder
from probe.recording.layout import NULL_INTEGER

MOST_CALLS = 64
"""Maximum calls per step, forwards and recomputations together."""


class RecomputedMasks:
    """Compares the generator's state at both calls of each dropout module."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._append = recorder.rings["python.random_states"].append
        self._reason, self._generator = recorder.intern("recomputed"), recorder.intern("torch")
        self._states: dict[int, set[int]] = {}
        self._calls = self._compared = self._name = 0
        self._differ = False

    def called(self, module: Any, name: int, tensor: Any, *, again: bool) -> None:
        """A dropout module is called, in the forward or again in a recomputation; `name`: string number."""
        held = module.__dict__
        active = held.get("training") is True and type(held.get("p")) is float and held["p"] > 0
        if not active or tensor is None or not tensor.is_cpu or self._calls >= MOST_CALLS:
            return
        torch: Any = sys.modules["torch"]
        if torch._C._len_torch_dispatch_stack() or torch._C._functorch.peek_interpreter_stack() is not None:
            return
        self._calls += 1
        state = checksum(torch.get_rng_state())
        states = self._states.setdefault(id(module), set())
        if not again:
            states.add(state)
        elif states:  # one module used in several blocks is recomputed in a different order
            self._compared += 1
            self._differ = self._differ or state not in states
            self._name = name

    def over(self) -> None:
        """The sampled step has ended."""
        if self._compared:
            self._append(
                max(self._recorder.step, 0), time.monotonic_ns() + ANCHOR_NS, self._reason, self._generator,
                NULL_INTEGER, self._name, self._compared, NULL_INTEGER, NULL_INTEGER, self._differ, True,
            )
        if self._calls:
            self._states.clear()
            self._calls = self._compared = 0
            self._differ = False


def checksum(state: Any) -> int:
    """CRC-32 of a generator's state, a tensor of bytes in host memory; a few microseconds, without numpy."""
    return zlib.crc32(ctypes.string_at(state.data_ptr(), state.numel()))
