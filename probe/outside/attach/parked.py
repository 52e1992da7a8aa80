"""Threads that can be borrowed: those parked in a blocking system call.

Such a thread holds no lock of malloc, and its vector registers are dead (caller-saved), so a function can be
called on it, and afterwards it continues to wait. For a thread at any other place neither is known: injectors
that take any thread deadlocked in malloc or left wrong numbers behind (docs/attach.md). Runs in the command;
standard library only.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import NamedTuple

BETWEEN_LOOKS_S = 0.005
"""A thread that is at the same place this much later is parked."""

_X86_64 = {
    0: "read", 7: "poll", 23: "select", 34: "pause", 35: "nanosleep", 43: "accept", 45: "recvfrom",
    47: "recvmsg", 61: "wait4", 70: "msgrcv", 128: "rt_sigtimedwait", 130: "rt_sigsuspend",
    202: "futex", 208: "io_getevents", 219: "restart_syscall", 220: "semtimedop", 230: "clock_nanosleep",
    232: "epoll_wait", 247: "waitid", 270: "pselect6", 271: "ppoll", 281: "epoll_pwait", 288: "accept4",
    299: "recvmmsg", 441: "epoll_pwait2", 449: "futex_waitv",
}
_AARCH64 = {
    4: "io_getevents", 22: "epoll_pwait", 63: "read", 72: "pselect6", 73: "ppoll", 95: "waitid", 98: "futex",
    101: "nanosleep", 115: "clock_nanosleep", 128: "restart_syscall", 133: "rt_sigsuspend",
    137: "rt_sigtimedwait", 188: "msgrcv", 192: "semtimedop", 202: "accept", 207: "recvfrom", 212: "recvmsg",
    242: "accept4", 243: "recvmmsg", 260: "wait4", 441: "epoll_pwait2", 449: "futex_waitv",
}
BLOCKING = {"x86_64": _X86_64, "aarch64": _AARCH64}
"""Blocking system calls by machine and number (from the kernel's tables). After a stop a wait continues as
`restart_syscall`."""


class Parked(NamedTuple):
    """A thread in a blocking system call: the call's number, stack pointer and instruction pointer."""

    tid: int
    number: int
    stack: int
    code: int


def parked_threads(pid: int) -> list[Parked]:
    """Threads of `pid` that are in the same blocking call twice in a row; the main thread comes last.

    Empty where /proc does not show system calls, and on machines whose numbers are not listed here.
    """
    known = BLOCKING.get(os.uname().machine, {})
    first = {found.tid: found for tid in _tids(pid) if (found := where(pid, tid)) and found.number in known}
    if not first:
        return []
    time.sleep(BETWEEN_LOOKS_S)
    same = [found for tid, found in first.items() if where(pid, tid) == found]
    return sorted(same, key=lambda found: (found.tid == pid, found.tid))


def where(pid: int, tid: int) -> Parked | None:
    """The system call of a thread (number -1: stopped outside of any); None while it runs."""
    try:
        words = Path(f"/proc/{pid}/task/{tid}/syscall").read_text().split()
        return Parked(tid, int(words[0]), int(words[-2], 16), int(words[-1], 16))
    except (OSError, ValueError, IndexError):
        return None


def _tids(pid: int) -> list[int]:
    try:
        return sorted(int(name) for name in os.listdir(f"/proc/{pid}/task"))
    except OSError:
        return []
