"""Code that server and query worker share: frames on the socket, the worker's environment and start.

Standard library only: the worker imports it before it enters its sandbox.
"""

from __future__ import annotations

import os
import socket
import struct
import sys
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from probe.boot import launch

if TYPE_CHECKING:
    import subprocess

LENGTH = struct.Struct("<I")
"""A frame is this number, followed by that many bytes."""


def send(connection: socket.socket, data: bytes) -> None:
    """Send one frame."""
    connection.sendall(LENGTH.pack(len(data)) + data)


def receive(connection: socket.socket) -> bytes | None:
    """Receive one frame; None when the other side is gone."""
    head = _exactly(connection, LENGTH.size)
    return None if head is None else _exactly(connection, LENGTH.unpack(head)[0])


def _exactly(connection: socket.socket, size: int) -> bytes | None:
    parts: list[bytes] = []
    while size:
        part = connection.recv(min(size, 1 << 20))
        if not part:
            return None
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def python_paths() -> list[Path]:
    """Folders of this interpreter and its libraries that the worker needs."""
    found = [Path(sys.prefix), Path(sys.base_prefix)]
    found += [Path(entry) for entry in sys.path if "python" in entry and "lib" in Path(entry).parts]
    for name in ("probe", "duckdb", "_duckdb", "numpy"):
        spec = find_spec(name)
        if spec is not None and spec.submodule_search_locations:
            found += [Path(place) for place in spec.submodule_search_locations]
        elif spec is not None and spec.origin:
            found.append(Path(spec.origin))
    return [path for path in found if path != Path("/")]


def environment() -> dict[str, str]:
    """The environment of a worker: the variables it needs to start, and none of the user's others."""
    wanted = ("PATH", "LD_LIBRARY_PATH", "PYTHONHOME")
    kept = {name: os.environ[name] for name in wanted if name in os.environ}
    return {
        **kept,
        "LANG": "C.UTF-8", "HOME": "/nonexistent", "PYTHONSAFEPATH": "1", "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONPATH": os.pathsep.join(launch.import_paths(("probe", "duckdb", "numpy"))),
        "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "2",
        "ARROW_DEFAULT_MEMORY_POOL": "system",  # others reserve address space, which is limited
    }


def start(module: str, words: Iterable[str]) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """Start a worker; returns its process and the server's end of the socket. Its arguments are the
    descriptor of its own end, the server's pid, and `words`. Does not wait."""
    import subprocess  # not in the worker, which imports this module as well

    ours, theirs = socket.socketpair()
    try:
        process = subprocess.Popen(
            [sys.executable, "-m", module, str(theirs.fileno()), str(os.getpid()), *words],
            pass_fds=[theirs.fileno()], env=environment(), cwd="/", start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )
    except BaseException:
        ours.close()
        raise
    finally:
        theirs.close()
    return process, ours
