"""Thread pools of the server for blocking calls, separate for viewers and for everybody else.

So a viewer whose requests wait for hung processes takes no thread from the operator or the owner. Used on the
server's event loop. Standard library only.
"""

from __future__ import annotations

import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from probe.server.runtime import access


def show_name() -> None:
    """Tell the kernel the name of the calling thread, for `ps -L` and /proc: before 3.14, Python does not."""
    with contextlib.suppress(OSError):
        comm = Path(f"/proc/self/task/{threading.get_native_id()}/comm")
        comm.write_text(threading.current_thread().name)


class Threads:
    """At most `count` threads for everybody but viewers, and half as many for viewers."""

    def __init__(self, count: int, name: str) -> None:
        self._own = ThreadPoolExecutor(count, thread_name_prefix=name, initializer=show_name)
        self._viewers = ThreadPoolExecutor(
            max(1, count // 2), thread_name_prefix=f"{name}-viewer", initializer=show_name
        )

    @property
    def now(self) -> ThreadPoolExecutor:
        """The pool for the current request; outside of requests that of the server."""
        return self._viewers if access.role_now.get() == access.VIEWER else self._own

    def close(self) -> None:
        """Shut down without waiting for threads that are blocked."""
        for one in (self._own, self._viewers):
            one.shutdown(wait=False, cancel_futures=True)
