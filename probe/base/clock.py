"""One clock: monotonic nanoseconds for order and durations, one anchor to wall time.

Rows carry wall time computed from the monotonic clock, so setting the wall clock back during a run neither
reorders rows nor makes a duration negative. Any thread; imports `time` only.
"""

from __future__ import annotations

import time

monotonic_ns = time.monotonic_ns
"""Nanoseconds of CLOCK_MONOTONIC, the same for all processes of a host."""

ANCHOR_NS: int = time.time_ns() - time.monotonic_ns()
"""Monotonic time plus this is nanoseconds since 1970; taken once, when the process starts."""


def wall_ns() -> int:
    """Nanoseconds since 1970, never running backwards within a process."""
    return time.monotonic_ns() + ANCHOR_NS
