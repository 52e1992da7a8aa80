"""Checks whether a process can be read or attached to, from /proc.

`read_target` gathers facts; `check_tracing` and `check_attach` raise the error that fits them, with its own
hint, because the tools' messages are often wrong (they report a seccomp profile as Yama, or a second tracer
as missing rights). Runs in the command and in the server; standard library only.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from probe.base import versions
from probe.base.errors import AttachRefused, EndpointUnknown, NotYours, ProbeError, ProcessDead, TracingDenied
from probe.outside.processes import tasks

_SYS_PTRACE = 1 << 19
_NO_RIGHTS = "A job that is started with PROBE=1 has its agent from the start and needs no such right."
_VERSION = re.compile(r"(?:lib)?python(\d)\.(\d+)|/python(\d)\.(\d+)/(?:lib-dynload|site-packages)/")
_TRY_TRACING = (
    "import ctypes, sys; libc = ctypes.CDLL(None, use_errno=True); "
    "sys.exit(libc.ptrace(0, 0, 0, 0) != 0)"
)


class Target(NamedTuple):
    """Facts about one process; None where they could not be read."""

    pid: int
    exists: bool
    state: str = ""
    """Letter of the main thread's state in /proc/PID/stat."""
    command: str = ""
    uids: tuple[int, ...] = ()
    """Real, effective, saved and file system uid."""
    our_uid: int = 0
    openable: bool = False
    """Whether the kernel allows opening its memory: the same check as ptrace, security modules included."""
    is_python: bool | None = None
    version: tuple[int, int] | None = None
    tracer: int = 0
    """Pid of the process that traces it, 0 when there is none."""
    tracer_command: str = ""
    dumpable: bool = True
    inner_pid: int = 0
    """Its pid in its own pid namespace."""
    same_files: bool | None = None
    """Whether it has the same mount namespace and root folder as this process."""
    capabilities: int = 0
    """Its permitted capabilities."""
    our_capabilities: int = 0
    """Our effective capabilities."""
    yama: int | None = None
    """kernel.yama.ptrace_scope; None where there is no Yama."""
    our_seccomp: int = 0
    """0: no filter, 2: a filter, as in /proc/self/status."""

    @property
    def stopped(self) -> bool:
        """Whether a signal or a debugger has stopped it."""
        return self.state in ("T", "t")


def read_target(pid: int) -> Target:
    """The facts about process `pid`; never raises for a process that is gone or cannot be read."""
    status = tasks.status_of(f"/proc/{pid}")
    if status.get("Tgid") != str(pid):  # gone, or the tid of another thread
        return Target(pid, exists=False)
    ours = tasks.status_of("/proc/self")
    uids = tuple(int(word) for word in status.get("Uid", "").split())
    tracer = int(status.get("TracerPid", "0"))
    is_python, version = _python(pid)
    return Target(
        pid, exists=True, state=status.get("State", "")[:1],
        command=(tasks.command(pid) or tasks.name_of(pid) or "")[:120],
        uids=uids, our_uid=os.geteuid(), openable=_openable(pid), is_python=is_python, version=version,
        tracer=tracer, tracer_command=(tasks.name_of(tracer) or "") if tracer else "",
        dumpable=_dumpable(pid, uids), inner_pid=int(status.get("NSpid", str(pid)).split()[-1]),
        same_files=_same_files(pid),
        capabilities=int(status.get("CapPrm", "0"), 16), our_capabilities=int(ours.get("CapEff", "0"), 16),
        yama=_yama(), our_seccomp=int(ours.get("Seccomp", "0")),
    )


def check_tracing(target: Target) -> None:
    """Raise unless its memory may be read from outside.

    `EndpointUnknown` (no such process), `ProcessDead` (a zombie), `NotYours`, `TracingDenied`.
    """
    _check_alive(target)
    if not target.openable:
        raise why_denied(target)


def check_attach(target: Target) -> None:
    """Raise unless it can be attached to in its current state.

    The errors of `check_tracing`, and `AttachRefused` for a process that is stopped, traced, not Python,
    too old, or in another container.
    """
    _check_alive(target)
    pid = target.pid
    owner = target.uids[1] if len(target.uids) > 1 else target.our_uid
    if owner != target.our_uid:
        raise NotYours(
            f"process {pid} belongs to {_user(owner)}, and you are {_user(target.our_uid)}",
            hint=f"The agent runs as the job's user, and its folders are private. Attach as that user: "
            f"sudo -u {_user_name(owner)} probe {pid} attach",
        )
    if target.tracer:
        raise AttachRefused(
            f"process {pid} is already traced by {target.tracer_command or 'another process'} "
            f"(pid {target.tracer})",
            hint="A process can have only one tracer: end that one, then attach.",
        )
    if target.stopped:
        raise AttachRefused(
            f"process {pid} is stopped, and code cannot be injected safely into a stopped process",
            hint=f"Continue it with `kill -CONT {pid}`, then attach. `probe {pid} backtrace` works already.",
        )
    if not target.openable:
        raise why_denied(target)
    _check_python(target)
    if target.same_files is False:
        raise AttachRefused(
            f"process {pid} runs in a container and sees other files than you do "
            "(another mount namespace or root folder)",
            hint=f"Run probe inside that container, where it is pid {target.inner_pid}; or, as root: "
            f"nsenter --target {pid} --mount --pid probe {target.inner_pid} attach. {_NO_RIGHTS}",
        )


def why_denied(target: Target) -> ProbeError:
    """The error for a process whose memory the kernel does not allow to open: the reason, and what to do."""
    pid, able = target.pid, bool(target.our_capabilities & _SYS_PTRACE)
    if any(uid != target.our_uid for uid in target.uids) and not able:
        owner = target.uids[1]
        return NotYours(
            f"process {pid} belongs to {_user(owner)}, and you are {_user(target.our_uid)}",
            hint=f"Run probe as that user: sudo -u {_user_name(owner)} probe …",
        )
    if not target.dumpable and not able:
        return TracingDenied(
            f"process {pid} does not let other processes trace it (it is not dumpable: PR_SET_DUMPABLE, "
            "or its program file is not readable)",
            hint=f"Tracing it needs CAP_SYS_PTRACE, which root has: sudo probe … {_NO_RIGHTS}",
        )
    if target.yama == 3:
        return TracingDenied(
            "no process on this machine may trace another (kernel.yama.ptrace_scope is 3)",
            hint=f"This cannot be changed before the next boot. {_NO_RIGHTS}",
        )
    if target.yama in (1, 2) and not able:
        cure = "sudo sysctl kernel.yama.ptrace_scope=0, or run probe as root"
        if target.yama == 2:
            cure = "run probe as root (CAP_SYS_PTRACE)"
        return TracingDenied(
            f"a process on this machine may trace only its own children "
            f"(kernel.yama.ptrace_scope is {target.yama})",
            hint=f"To allow it: {cure}. {_NO_RIGHTS}",
        )
    missing = target.capabilities & ~target.our_capabilities
    if missing and not able:
        return TracingDenied(
            f"process {pid} has capabilities that you do not have ({missing:#x}), so you may not trace it",
            hint="Run probe with CAP_SYS_PTRACE: in a container started with --cap-add=SYS_PTRACE "
            "(Kubernetes: securityContext.capabilities.add: [SYS_PTRACE]), or as the host's root. "
            f"{_NO_RIGHTS}",
        )
    if target.our_seccomp and not _may_trace():
        return TracingDenied(
            "the container's seccomp profile forbids ptrace",
            hint="Start the container with --cap-add=SYS_PTRACE, or with a profile that allows ptrace "
            f"(--security-opt seccomp=…). {_NO_RIGHTS}",
        )
    return TracingDenied(
        f"the kernel does not let you trace process {pid} (a security module, or another user namespace)",
        hint=f"Run probe where the job runs, as the same user or as root. {_NO_RIGHTS}",
    )


def _check_alive(target: Target) -> None:
    pid = target.pid
    if not target.exists:
        raise EndpointUnknown(
            f"there is no process {pid} here",
            hint="`probe ps` lists what is recorded. A process in a container has another pid outside of it.",
        )
    if target.state in ("Z", "X"):
        raise ProcessDead(
            f"process {pid} has ended; its parent has not collected its exit status yet (a zombie)",
            hint="If it was recorded, `query` still works on its recording.",
        )


def _check_python(target: Target) -> None:
    if not target.is_python:
        raise AttachRefused(
            f"process {target.pid} ({target.command or 'unnamed'}) does not run Python",
            hint="The job may be a child of this launcher or shell: see `ps --forest`.",
        )
    if target.version is not None and target.version < versions.OLDEST_PYTHON:
        raise AttachRefused(
            f"process {target.pid} runs Python {versions.plain(target.version)}, and the agent needs "
            f"{versions.plain(versions.OLDEST_PYTHON)} or newer",
            hint=f"`probe {target.pid} backtrace` works with older versions too.",
        )


def _openable(pid: int) -> bool:
    try:
        descriptor = os.open(f"/proc/{pid}/mem", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    os.close(descriptor)
    return True


def _python(pid: int) -> tuple[bool | None, tuple[int, int] | None]:
    """Whether it runs Python, and which version; None if its memory map cannot be read or does not tell."""
    try:
        program = os.readlink(f"/proc/{pid}/exe")
        maps = Path(f"/proc/{pid}/maps").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None, None
    fields = (line.split(maxsplit=5) for line in maps.splitlines())
    paths = {program, *(field[5] for field in fields if len(field) == 6 and field[5].startswith("/"))}
    names = [path.removesuffix(" (deleted)") for path in paths]
    found = [match for path in names if (match := _VERSION.search(_telling(path)))]
    if not found:
        return any(os.path.basename(path).startswith(("python", "libpython")) for path in names), None
    first = [word for word in found[0].groups() if word]
    return True, (int(first[0]), int(first[1]))


def _telling(path: str) -> str:
    """The part of a mapped file's path that can name a Python version: a folder named python3.9 does not."""
    name = os.path.basename(path)
    return path if "/lib-dynload/" in path or "/site-packages/" in path else name if "python" in name else ""


def _dumpable(pid: int, uids: tuple[int, ...]) -> bool:
    """Whether a process is dumpable: else its /proc files belong to root. True for root's own processes."""
    try:
        owner = os.stat(f"/proc/{pid}/stat").st_uid
    except OSError:
        return True
    return len(uids) < 2 or owner == uids[1]


def _same_files(pid: int) -> bool | None:
    """Whether it has the same mount namespace and root folder as this process."""
    if tasks.in_other_namespace(pid, "mnt"):
        return False
    try:
        return os.path.samestat(os.stat(f"/proc/{pid}/root"), os.stat("/"))
    except OSError:
        return None


def _yama() -> int | None:
    try:
        return int(Path("/proc/sys/kernel/yama/ptrace_scope").read_text())
    except (OSError, ValueError):
        return None


def _may_trace() -> bool:
    """Whether probe's processes may use ptrace at all: a child process tries PTRACE_TRACEME."""
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-c", _TRY_TRACING], stdin=subprocess.DEVNULL,
            capture_output=True, timeout=10.0, check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def _user(uid: int) -> str:
    name = _user_name(uid)
    return f"user {name}" if not name.startswith("#") else f"user id {uid}"


def _user_name(uid: int) -> str:
    import pwd

    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"#{uid}"
