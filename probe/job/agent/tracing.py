"""Allows the server to trace this process if Yama restricts that.

With `kernel.yama.ptrace_scope` 1 (Debian's and Ubuntu's default) only a process's ancestors may trace it, so
the server could not read a job that hangs. The job may allow one more process and its children
(PR_SET_PTRACER). The agent's thread. Standard library only.
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
    """Allow the server of `directory` to trace, unless `named` is its pid already; returns the allowed pid.

    0 for none: there is no Yama, it does not restrict tracing, or no server runs. The pid comes from the
    kernel; one from a file may belong to another process by now."""
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
