"""Throttle: keeps background work below a bandwidth and a share of one core.

The caller reports the bytes that it sent; `pause` then sleeps as long as the limits require, or until the
thread must stop. Standard library only; one thread.
"""

from __future__ import annotations

import threading
import time

_LONGEST_S = 30.0
"""Limit of one pause: a caller that was suspended may have used any amount."""


class Pace:
    """The limits of one thread. `rate_bytes_s`: bytes sent in a second; `share_ratio`: of one core."""

    def __init__(self, rate_bytes_s: float, share_ratio: float, stopping: threading.Event) -> None:
        self._rate, self._share, self.stopping = rate_bytes_s, share_ratio, stopping
        self._cpu_s = time.thread_time()

    def pause(self, sent_bytes: int = 0) -> bool:
        """Sleep for what was used since the last pause; returns whether the caller must stop."""
        used_s = time.thread_time() - self._cpu_s
        wait_s = max(used_s / self._share - used_s, sent_bytes / self._rate if self._rate else 0.0)
        stop = self.stopping.wait(min(wait_s, _LONGEST_S)) if wait_s > 0 else self.stopping.is_set()
        self._cpu_s = time.thread_time()
        return stop
