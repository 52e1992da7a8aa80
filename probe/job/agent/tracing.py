"""Naming the server as the process that may read this one, where Yama asks for that.

With `kernel.yama.ptrace_scope` 1 (Debian's and Ubuntu's default) only a process's
ancestors may trace it: the server, which is nobody's parent, could not read a job
that hangs. The job may name one more (PR_SET_PTRACER); it and its children may then.
The agent's thread; standard library only, ctypes inside.
"""

from __future__ import annotations

from pathlib import Path

from probe.base import descriptors, wire
from probe.base.errors import ProbeError
from probe.recording import places

SCOPE = Path("/proc/sys/kernel/yama/ptrace_scope")
_PR_SET_PTRACER = 0x59616D61
_CONNECT_S = 0.5


def name_tracer(directory: Path, named: int) -> int:
    """Name the server of `directory`, unless it is `named` already; the pid that is named afterwards.

    0 when nobody is: there is no Yama, it does not ask for names, or no server runs. Its pid is the kernel's
    word on who listens: one that a file names may be somebody else's by now."""
    try:
        if descriptors.read(SCOPE).strip() != b"1":
            return 0
        with wire.connect_unix(places.server_socket(directory), _CONNECT_S) as connection:
            server = wire.peer_of(connection).pid
    except (OSError, ProbeError):
        return 0
    if server in (0, named):
        return server
    import ctypes

    done = ctypes.CDLL(None).prctl(_PR_SET_PTRACER, ctypes.c_ulong(server), 0, 0, 0)
    return server if done == 0 else 0
