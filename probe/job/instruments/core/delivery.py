"""Delivery: figures that a device computes are copied to the host behind the work already queued, and read
when they are there.

HOT PATH: `send`, on the training thread. One copy into pinned memory and one event; nothing waits. The
agent's thread calls `collect`. Only CUDA can do that; figures on other devices are given up. torch inside
functions.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable
from typing import Any

MOST_PENDING = 1024
"""Vectors on their way; the oldest are given up beyond that."""


class Delivery:
    """Vectors on their way to the host, oldest first."""

    def __init__(self) -> None:
        self._pending: deque[tuple[Any, Any, Callable[[Any], object]]] = deque(maxlen=MOST_PENDING)

    def send(self, figures: Any, then: Callable[[Any], object]) -> None:
        """Have `then` called on the agent's thread with the numbers of `figures`, a tensor on a device."""
        torch: Any = sys.modules["torch"]
        if not figures.is_cuda:
            return
        host = torch.empty(figures.shape, dtype=figures.dtype, pin_memory=True)
        host.copy_(figures, non_blocking=True)
        arrived = torch.cuda.Event()
        arrived.record(torch.cuda.current_stream(figures.device))
        self._pending.append((host, arrived, then))

    @property
    def pending(self) -> bool:
        """Whether anything is on its way."""
        return bool(self._pending)

    def collect(self) -> None:
        """Hand out what has arrived; on the agent's thread."""
        while self._pending and self._pending[0][1].query():
            host, _, then = self._pending.popleft()
            then(host.tolist())

    def clear(self) -> None:
        """Give everything up."""
        self._pending.clear()


def capturing() -> bool:
    """Whether a CUDA graph is being captured: then nothing may be queued."""
    cuda = sys.modules["torch"].cuda
    return bool(cuda.is_initialized() and cuda.is_current_stream_capturing())
