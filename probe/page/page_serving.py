"""Serves the page on a port of this machine, for as long as `probe JOB web` runs.

Runs on the command's main thread, in an event loop of its own. uvicorn in functions.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from collections.abc import Callable
from typing import Any

from probe.base.errors import UsageError
from probe.base.wire import LARGEST_HEAD_BYTES
from probe.page.gateway import Gateway

HOST = "127.0.0.1"
_CONNECTIONS = 64
_BACKLOG = 64
_CLOSE_S = 1
_IDLE_S = 20
"""Longer than the page waits between two requests, so that a tab keeps its connection."""


def listener(port: int) -> socket.socket:
    """A socket that listens on this port of the loopback interface, 0 for any; raises `UsageError`."""
    found = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind((HOST, port))
        found.listen(_BACKLOG)
    except OSError as error:
        found.close()
        raise UsageError(
            f"cannot listen on {HOST}:{port}: {error.strerror}",
            hint="Leave out --port to use any free port.",
        ) from None
    return found


def serve(gateway: Gateway, listening: socket.socket, ready: Callable[[], None]) -> None:
    """Serve until SIGINT or SIGTERM. `ready` is called once the server accepts requests."""
    asyncio.run(_serve(gateway, listening, ready))


async def _serve(gateway: Gateway, listening: socket.socket, ready: Callable[[], None]) -> None:
    import uvicorn

    stopped = asyncio.Event()
    config = uvicorn.Config(
        gateway, http="h11", ws="none", lifespan="off", log_config=None, access_log=False,
        server_header=False, date_header=False, proxy_headers=False, limit_concurrency=_CONNECTIONS,
        h11_max_incomplete_event_size=LARGEST_HEAD_BYTES, timeout_keep_alive=_IDLE_S,
        timeout_graceful_shutdown=_CLOSE_S,
    )

    class Quiet(uvicorn.Server):
        """Leaves signals to this module: uvicorn would raise them again at its end. Also sleeps until it is
        stopped: uvicorn checks ten times a second whether to end."""

        async def main_loop(self) -> None:
            await self.on_tick(0)  # its headers
            await stopped.wait()

        @contextlib.contextmanager
        def capture_signals(self) -> Any:
            yield

    server = Quiet(config)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped.set)
    serving = asyncio.ensure_future(server.serve(sockets=[listening]))
    while not server.started and not serving.done():
        await asyncio.sleep(0.01)
    ready()
    await serving
