"""Delivery: asynchronous copies of figures from a device to the host.

A copy is queued behind the device's pending work and read later. HOT PATH: `send`, on the training thread:
one copy into pinned memory and one event, no wait. The agent's thread calls `collect`. Figures on anything
but the job's accelerator are dropped.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from probe.base import accelerator
from probe.recording.layout import NULL_DOUBLE

MOST_PENDING = 1024
"""Pending copies; beyond that the oldest are dropped."""


class Delivery:
    """Pending copies, oldest first."""

    def __init__(self) -> None:
        self._pending: deque[tuple[Any, Any, Callable[[Any], object]]] = deque(maxlen=MOST_PENDING)

    def send(self, figures: Any, then: Callable[[Any], object]) -> tuple[Any, Any] | None:
        """Copy a tensor to the host; the agent's thread calls `then` with its numbers once they have arrived.

        Returns the copy and its event, see `Accelerator.to_host`; None if no copy was made."""
        device = accelerator.current()
        if device is None or not device.has(figures) or device.capturing():
            return None
        sent = device.to_host(figures)
        if sent is not None:
            self._pending.append((*sent, then))
        return sent

    @property
    def pending(self) -> bool:
        """Whether any copy is pending."""
        return bool(self._pending)

    def collect(self) -> None:
        """Pass arrived figures to their callbacks; on the agent's thread."""
        while self._pending and self._pending[0][1].query():
            host, _, then = self._pending.popleft()
            then(host.tolist())

    def clear(self) -> None:
        """Drop everything."""
        self._pending.clear()


def host_number(value: Any) -> float:
    """A number, or a tensor of one element in host memory, as a float. NULL for anything else: reading from
    a device would wait for it."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    on_host = getattr(value, "is_cpu", False) and value.numel() == 1
    return float(value.detach()) if on_host else NULL_DOUBLE
