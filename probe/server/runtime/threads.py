"""Threads of the server for what blocks: those of viewers and those of everybody else apart.

A viewer whose questions wait for hung processes then keeps no thread from the operator or the owner. Used on
the server's event loop. Standard library only.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from probe.server.runtime import access


class Threads:
    """At most `count` threads for everybody but viewers, and half as many for those."""

    def __init__(self, count: int, name: str) -> None:
        self._own = ThreadPoolExecutor(count, thread_name_prefix=name)
        self._viewers = ThreadPoolExecutor(max(1, count // 2), thread_name_prefix=f"{name}-viewer")

    @property
    def now(self) -> ThreadPoolExecutor:
        """Those for the request that is being answered; without one, those of the server itself."""
        return self._viewers if access.role_now.get() == access.VIEWER else self._own

    def close(self) -> None:
        """Let go of them; those that wait for something are not waited for."""
        for one in (self._own, self._viewers):
            one.shutdown(wait=False, cancel_futures=True)
