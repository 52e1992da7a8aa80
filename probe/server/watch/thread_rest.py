"""Tracks how a training thread rests while its process is quiet, from the kernel's counters.

Thread `probe-watch`; `until` may be called by any thread. Standard library only.
"""

from __future__ import annotations

from dataclasses import dataclass

from probe.diagnose.process import kernel_waits
from probe.diagnose.process.kernel_waits import Rested


@dataclass
class ThreadRest:
    """How long a thread has slept without a break, from its count of context switches, and its CPU time."""

    watched_since_s: float | None = None
    still_since_s: float = 0.0
    switches: int | None = None
    run_s: float | None = None
    """Its CPU time when watching began."""
    used_s: float = 0.0

    def update(self, pid: int, tid: int, now_s: float) -> None:
        """Read the count again."""
        switches = kernel_waits.switches(pid, tid)
        if self.watched_since_s is None:
            self.watched_since_s = self.still_since_s = now_s
            self.run_s = kernel_waits.run_s(pid, tid)
        elif self.run_s is not None:
            self.used_s = max(0.0, (kernel_waits.run_s(pid, tid) or self.run_s) - self.run_s)
        if switches is None or switches != self.switches:
            self.still_since_s = now_s
        self.switches = switches

    def forget(self) -> None:
        """Start anew: the thread does not rest."""
        self.watched_since_s = self.switches = self.run_s = None
        self.used_s = 0.0

    def until(self, now_s: float) -> Rested | None:
        """How it has rested until now; None while it is not watched. Any thread."""
        since_s = self.watched_since_s
        if since_s is None:
            return None
        return Rested(now_s - self.still_since_s, now_s - since_s, self.used_s, self.switches)
