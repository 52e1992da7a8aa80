"""One clock: monotonic nanoseconds for order and durations, one wall anchor for dates.

Rows carry wall time computed from the monotonic clock, so a clock set back an
hour in the middle of a run reorders nothing and gives no negative duration.
Any thread may call; imports `time` only.
"""

from __future__ import annotations

import time

monotonic_ns = time.monotonic_ns
"""Nanoseconds of the monotonic clock (CLOCK_MONOTONIC: the same for all processes of a host)."""

ANCHOR_NS: int = time.time_ns() - time.monotonic_ns()
"""Add to a monotonic time to get nanoseconds since 1970; taken once when the process starts."""


def wall_ns() -> int:
    """Nanoseconds since 1970 that never run backwards within a process."""
    return time.monotonic_ns() + ANCHOR_NS
