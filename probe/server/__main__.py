"""The server's process: sets up the log, takes the lock, and then runs the server.

    python -m probe.server        started by probe.boot.launch; settings come from the environment

The lock is taken before the imports that take half a second: if many servers are started at the same time,
all but one end at once. Exit status: 0 when it ended by itself or by a signal, or another server holds the
lock; 2 for an invalid setting; 6 for a folder that cannot be used. The main thread runs the event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
import resource
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from probe.base.errors import ProbeError, ServerUnavailable
from probe.base.settings import Settings
from probe.boot import launch
from probe.recording import places

_log = logging.getLogger("probe.server")
_LOCK_WAIT_S = 3.0


class _CappedLog(logging.StreamHandler):  # type: ignore[type-arg]
    """Logs to stderr, which is server.log, and truncates it when it has grown too long."""

    def emit(self, record: logging.LogRecord) -> None:
        with contextlib.suppress(OSError):
            if os.fstat(2).st_size > launch.LARGEST_LOG_BYTES:
                os.ftruncate(2, 0)
        super().emit(record)


def main() -> int:
    """Run the server until it is no longer needed; returns the exit status."""
    _close_inherited()
    _allow_descriptors()
    _set_up_log()
    try:
        settings = Settings()
        directory = places.make_home(settings)
        with _lock(directory) as is_ours:
            from probe.server.runtime import supervision
            from probe.server.serve import Server

            threading.excepthook = supervision.quiet_end
            server = Server(directory, settings, is_ours)
            asyncio.run(server.run())
        if server.successor:
            command = [sys.executable, "-m", "probe.server"]
            os.execve(sys.executable, command, {**os.environ, **server.successor})
    except ServerUnavailable as error:
        _log.info("%s", error.message)
        return 0
    except ProbeError as error:
        _log.error("%s. %s", error.message, error.hint)
        return error.exit_code
    return 0


def _close_inherited() -> None:
    """Close all other descriptors: the parent closed those it knew of, but another of its threads may have
    opened more, and a server must not keep a job's files or devices open for hours."""
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2:
            with contextlib.suppress(OSError):
                os.close(int(name))


def _allow_descriptors() -> None:
    """Raise the limit on open files to its hard limit: the sealer keeps the rings of living jobs open."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _set_up_log() -> None:
    handler = _CappedLog()
    handler.setFormatter(logging.Formatter("%(asctime)s %(process)d %(levelname)s %(name)s: %(message)s"))
    logging.getLogger().addHandler(handler)
    logging.getLogger().setLevel(logging.WARNING)
    logging.getLogger("probe").setLevel(logging.INFO)
    logging.getLogger("uvicorn").setLevel(logging.ERROR)


@contextlib.contextmanager
def _lock(directory: Path) -> Iterator[Callable[[], bool]]:
    """One server per PROBE_DIR; raises `ServerUnavailable` for any other.

    Waits a moment: a server that is just ending has removed its socket and still holds the lock. Yields a
    function that says whether the lock still belongs to this folder: if its file or the folder is deleted,
    another server can take a new lock, and two would seal the same rows."""
    descriptor = os.open(launch.lock_path(directory), launch.LOCK_FLAGS, 0o600)
    try:
        deadline = time.monotonic() + _LOCK_WAIT_S
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline or places.server_socket(directory).exists():
                    raise ServerUnavailable("another server is running already") from None
                time.sleep(0.05)
        yield lambda: _is_at(descriptor, launch.lock_path(directory))
    finally:
        os.close(descriptor)


def _is_at(descriptor: int, path: Path) -> bool:
    """Whether an open file is the one at `path` now."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path, follow_symlinks=False))
    except OSError:
        return False


if __name__ == "__main__":
    status = main()
    logging.shutdown()
    # Not sys.exit: that waits for threads that wait for agents, and runs the destructors of an engine
    # that the drain thread may be using. Nothing is left to do.
    os._exit(status)
