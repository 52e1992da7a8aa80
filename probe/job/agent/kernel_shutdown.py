"""Kernel shutdown: records that the front end asked this notebook kernel to shut down or restart.

A front end asks the kernel, waits a few seconds, and then sends SIGTERM or SIGKILL to one that is still
exiting, which would look like a crash. On the agent's thread, and where the agent stops. Standard library;
reads ipykernel's own record if the job has loaded that.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from probe.base import clock
from probe.base.isolation import capture

EVENT = "kernel shutdown"


class KernelShutdown:
    """Records the request once. `journal` writes a record."""

    def __init__(self, journal: Callable[[dict[str, Any]], object]) -> None:
        self._journal = journal
        self._noted = False

    def check(self) -> None:
        """Check whether the front end has asked for it."""
        if self._noted or "ipykernel.kernelapp" not in sys.modules:
            return
        content, _ = capture(_content)
        if isinstance(content, dict):
            self._noted = True
            restart = content.get("restart") is True
            self._journal({"event": EVENT, "t_ns": clock.wall_ns(), "restart": restart})


def _content() -> Any:
    """The content of the kernel's answer to `shutdown_request`; None before there was one."""
    app: Any = sys.modules["ipykernel.kernelapp"].IPKernelApp._instance
    message = None if app is None else app.kernel._shutdown_message
    return None if message is None else message["content"]
