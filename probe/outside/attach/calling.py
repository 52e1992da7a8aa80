"""The boot library's conversation in Python, for jobs that cannot load it. Its text is sent (payload.py).

`call` runs on the job's main thread as a pending call, so it must be short and never raise.
"""

import os
import socket
import time


def call(address: str, source: str, expires_s: float) -> None:
    """Say that the job is loaded and running, and run `source` with what to report to.

    It may come late, when who asked has gone: then nobody is told."""
    if time.monotonic() > expires_s:
        return
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(2.0)
            if connection.connect_ex(address) == 0:
                connection.send(b"L\nR\n", socket.MSG_NOSIGNAL)
                connection.setblocking(True)
                run(connection.fileno(), source)
                return
        with open(os.devnull, "wb") as nobody:
            run(nobody.fileno(), source)
    except (OSError, ImportError, SyntaxError, RuntimeError, ValueError):
        return  # the command hears nothing, and says so


def run(descriptor: int, source: str) -> None:
    """Run it with names of its own."""
    exec(source, {"probe_fd": descriptor, "__name__": "probe_inside"})
