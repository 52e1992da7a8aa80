"""Naming the server as the process that may read this one, where Yama asks for that.

With `kernel.yama.ptrace_scope` 1 (Debian's and Ubuntu's default) only a process's
ancestors may trace it: the server, which is nobody's parent, could not read a job
that hangs. The job may name one more (PR_SET_PTRACER); it and its children may then.
The agent's thread; standard library only, ctypes inside.
"""

from __future__ import annotations

from pathlib import Path

from probe import descriptors
from probe.recording import checked

SCOPE = Path("/proc/sys/kernel/yama/ptrace_scope")
_PR_SET_PTRACER = 0x59616D61
_LARGEST_PID = 1 << 31


def name_tracer(directory: Path, named: int) -> int:
    """Name the server of `directory`, unless it is `named` already; the pid that is named afterwards.

    0 when nobody is: there is no Yama, it does not ask for names, or no server runs."""
    try:
        if descriptors.read(SCOPE).strip() != b"1":
            return 0
    except OSError:
        return 0
    server = server_of(directory)
    if server in (0, named):
        return server
    import ctypes

    done = ctypes.CDLL(None).prctl(_PR_SET_PTRACER, ctypes.c_ulong(server), 0, 0, 0)
    return server if done == 0 else 0


def server_of(directory: Path) -> int:
    """The pid of the server of `directory`, as its server.json says; 0 where that says nothing."""
    try:
        pid = checked.read_sealed(directory / "server.json")["pid"]
    except (OSError, ValueError, KeyError):
        return 0
    return pid if type(pid) is int and 0 < pid < _LARGEST_PID else 0
