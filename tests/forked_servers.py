"""Servers that need no interpreter start: forked from a process that has imported what they import.

`python()` stands for a Python where a server is started, in PROBE_SERVER_PYTHON; `programs/server_nursery.py`
is the process. A test of how a server starts names the real Python there instead. `address()` is where that
process forks query workers as well.
"""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
NURSERY = ROOT / "tests" / "programs" / "server_nursery.py"
SOCKET = "nursery.sock"
_BACKLOG = 64
_GIVEN = "SERVERS_OF_TESTS"
"""In the environment of pytest's workers: the executable that their controller made."""


@functools.cache
def python() -> str:
    """The executable, one for all workers; the process behind it is started now, imports at its first server,
    and ends with this process, however that ends."""
    if _GIVEN in os.environ:
        return os.environ[_GIVEN]
    folder = Path(tempfile.mkdtemp(prefix="probe-servers-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    address = folder / SOCKET
    executable = folder / "python"
    words = f'"{sys.executable}" -ISE "{NURSERY}" ask "{address}" "{sys.executable}"'
    executable.write_text(f'#!/bin/sh\nexec {words} "$@"\n')
    executable.chmod(0o755)
    quiet = {name: value for name, value in os.environ.items() if not name.startswith("PROBE")}
    quiet.update(PYTHONPATH=str(ROOT), PYTHONSAFEPATH="1")
    quiet.update(OPENBLAS_NUM_THREADS="1", MALLOC_ARENA_MAX="2")  # as query workers have it from their start
    theirs, _ours = os.pipe()  # ours is closed by our end, and by nothing before
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(address))
        listener.listen(_BACKLOG)
        subprocess.Popen(
            [sys.executable, str(NURSERY), str(listener.fileno()), str(theirs)], env=quiet,
            pass_fds=[listener.fileno(), theirs], start_new_session=True, stdin=subprocess.DEVNULL,
        )
    os.close(theirs)
    os.environ[_GIVEN] = str(executable)
    return str(executable)


def address() -> str:
    """Of the socket of the process behind `python()`."""
    return str(Path(python()).with_name(SOCKET))
