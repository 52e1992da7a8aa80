"""The sandbox that a query worker enters before it loads DuckDB.

Order matters: the limits must be in force before `duckdb.connect`, or its own threads are not covered. A
restriction that the kernel does not support is reported but not fatal: the worker is still a separate process
with read-only data. Runs once, on the worker's only thread. Standard library only.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import struct
from collections.abc import Iterable
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_PR_SET_NO_NEW_PRIVS = 38

_LANDLOCK_CREATE_RULESET = 444
_LANDLOCK_ADD_RULE = 445
_LANDLOCK_RESTRICT_SELF = 446
_RULESET_VERSION = 1
_RULE_PATH_BENEATH = 1
_READ_FILE = 1 << 2
_READ_DIR = 1 << 3
_RIGHTS_BY_ABI = {1: 13, 2: 14, 3: 15, 4: 15, 5: 16}
"""Number of file rights in each Landlock version."""
_NET_TCP = 0b11
_SCOPES = 0b11

SYSTEM_PATHS = (
    "/usr", "/lib", "/lib64", "/etc/ld.so.cache", "/etc/localtime", "/dev/null", "/dev/urandom",
    "/proc/self/cgroup", "/proc/self/mountinfo", "/proc/stat", "/proc/meminfo", "/proc/cpuinfo",
    "/sys/fs/cgroup", "/sys/devices/system/cpu",
)
"""Files that Python and DuckDB read; without the cgroup files `connect` aborts."""


def enter(
    readable: Iterable[Path | str], memory_bytes: int, parent: int, open_files: int = 256
) -> list[str]:
    """Drop every right that a query does not need; returns the restrictions that are not in force.

    `readable` are the files and folders that stay readable, `memory_bytes` limits the address space, this
    process ends when `parent` does, and `open_files` limits the files open at once.
    """
    missing: list[str] = []
    _write("/proc/self/oom_score_adj", "1000")
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        raise SystemExit("the process that started this worker has ended")
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        missing.append("no_new_privs")
    if libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0) != 0:
        missing.append("dumpable")
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for limit, value in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_NOFILE, open_files),
        (resource.RLIMIT_AS, memory_bytes),
    ):
        _lower(limit, value)
    if not _restrict_files(libc, [*SYSTEM_PATHS, *readable]):
        missing.append("landlock")
    return missing


def _write(path: str, text: str) -> None:
    with contextlib.suppress(OSError):
        Path(path).write_text(text)


def _lower(limit: int, value: int) -> None:
    _, hard = resource.getrlimit(limit)
    if hard != resource.RLIM_INFINITY:
        value = min(value, hard)
    resource.setrlimit(limit, (value, value))


def _restrict_files(libc: ctypes.CDLL, readable: Iterable[Path | str]) -> bool:
    version = libc.syscall(_LANDLOCK_CREATE_RULESET, None, ctypes.c_size_t(0), _RULESET_VERSION)
    if version < 1:
        return False
    rights = (1 << _RIGHTS_BY_ABI.get(version, 16)) - 1
    attributes = struct.pack(
        "<QQQ", rights, _NET_TCP if version >= 4 else 0, _SCOPES if version >= 6 else 0
    )
    size = 24 if version >= 6 else 16 if version >= 4 else 8
    rules = libc.syscall(_LANDLOCK_CREATE_RULESET, attributes, ctypes.c_size_t(size), 0)
    if rules < 0:
        return False
    try:
        for path in readable:
            _allow(libc, rules, path)
        return bool(libc.syscall(_LANDLOCK_RESTRICT_SELF, rules, 0) == 0)
    finally:
        os.close(rules)


def _allow(libc: ctypes.CDLL, rules: int, path: Path | str) -> None:
    try:
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    try:
        access = _READ_FILE | _READ_DIR if os.path.isdir(path) else _READ_FILE
        rule = struct.pack("<Qi", access, place)
        libc.syscall(_LANDLOCK_ADD_RULE, rules, _RULE_PATH_BENEATH, rule, 0)
    finally:
        os.close(place)
