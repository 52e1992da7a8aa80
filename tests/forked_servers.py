"""Fast server starts for tests: servers are forked from a process that has already imported their modules.

That process is `programs/server_nursery.py`. `python()` returns the executable to put in PROBE_SERVER_PYTHON;
tests of the server's start use the real Python instead. The process also forks query workers, on request at
`address()`.
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
"""Environment variable by which pytest's workers get the executable that their controller created."""


@functools.cache
def python() -> str:
    """Return the executable, which all workers share, and start the process behind it. That process imports
    when its first server is requested, and ends with this process, even if this one is killed."""
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
    quiet.update(OPENBLAS_NUM_THREADS="1", MALLOC_ARENA_MAX="2")  # as in query workers
    theirs, _ours = os.pipe()  # ours closes only when this process ends
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
    """Address of the socket of the process behind `python()`."""
    return str(Path(python()).with_name(SOCKET))
