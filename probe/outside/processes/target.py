"""What /proc says about a process that somebody wants to read or attach to, and what stands in the way.

`examine` only reads; `check_tracing` and `check_attach` turn its facts into the error that fits, each
with its own cure, because the tools' own words are often wrong (a seccomp profile is reported as Yama,
a second tracer as missing rights). Runs in the command and in the server; standard library only.
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
from probe.recording.process import STATES

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
    threads: dict[int, str] = {}  # noqa: RUF012 - a default that nobody changes
    """Native tid to the letter of its state."""
    command: str = ""
    uids: tuple[int, ...] = ()
    """Real, effective, saved and file system uid."""
    our_uid: int = 0
    openable: bool = False
    """Whether the kernel lets us at its memory: the very check of ptrace, rules of all modules included."""
    is_python: bool | None = None
    version: tuple[int, int] | None = None
    tracer: int = 0
    """Pid of the process that traces it, 0 when there is none."""
    tracer_command: str = ""
    dumpable: bool = True
    inner_pid: int = 0
    """Its pid as it knows it itself (in its own pid namespace)."""
    same_files: bool | None = None
    """Whether paths mean the same to it as to us."""
    capabilities: int = 0
    """Those permitted to it."""
    our_capabilities: int = 0
    """Those effective here."""
    yama: int | None = None
    """kernel.yama.ptrace_scope; None where there is no Yama."""
    our_seccomp: int = 0
    """0: no filter, 2: a filter, as in /proc/self/status."""

    @property
    def stopped(self) -> bool:
        """Whether a signal or a debugger has stopped it."""
        return self.state in ("T", "t")

    @property
    def uninterruptible(self) -> list[int]:
        """Threads in D state: a debugger that waits for one of them waits for ever."""
        return [tid for tid, state in self.threads.items() if state == "D"]


def examine(pid: int) -> Target:
    """What /proc says about `pid`; never raises for a process that is gone or closed to us."""
    status = _status(pid)
    if status is None:
        return Target(pid, exists=False)
    ours = _status(os.getpid()) or {}
    uids = tuple(int(word) for word in status.get("Uid", "").split())
    tracer = int(status.get("TracerPid", "0"))
    is_python, version = _python(pid)
    return Target(
        pid, exists=True, state=status.get("State", "")[:1], threads=thread_states(pid),
        command=_command(pid), uids=uids, our_uid=os.geteuid(), openable=_openable(pid),
        is_python=is_python, version=version,
        tracer=tracer, tracer_command=_name(tracer) if tracer else "",
        dumpable=_dumpable(pid, uids), inner_pid=int(status.get("NSpid", str(pid)).split()[-1]),
        same_files=_same_files(pid),
        capabilities=int(status.get("CapPrm", "0"), 16), our_capabilities=int(ours.get("CapEff", "0"), 16),
        yama=_yama(), our_seccomp=int(ours.get("Seccomp", "0")),
    )


def thread_states(pid: int) -> dict[int, str]:
    """The state letter of every thread of `pid`; those that end meanwhile are left out."""
    found = {}
    try:
        tids = [int(name) for name in os.listdir(f"/proc/{pid}/task")]
    except OSError:
        return {}
    for tid in sorted(tids):
        try:
            text = Path(f"/proc/{pid}/task/{tid}/stat").read_bytes()
        except OSError:
            continue
        found[tid] = text.rpartition(b")")[2].split()[0].decode()
    return found


def in_another_pid_namespace(pid: int) -> bool:
    """Whether `pid` has a pid namespace of its own; False where that is not shown."""
    try:
        return os.readlink(f"/proc/{pid}/ns/pid") != os.readlink("/proc/self/ns/pid")
    except OSError:
        return False


def check_tracing(target: Target) -> None:
    """Raise the fitting error unless its memory may be read from outside.

    `EndpointUnknown` (no such process), `ProcessDead` (a zombie), `NotYours`, `TracingDenied`.
    """
    _check_alive(target)
    if not target.openable:
        raise why_denied(target)


def check_attach(target: Target) -> None:
    """Raise the fitting error unless it may be attached to as it is now.

    Those of `check_tracing`, and `AttachRefused` for what is stopped, traced, not Python, too old, or
    in a container of its own.
    """
    _check_alive(target)
    pid = target.pid
    owner = target.uids[1] if len(target.uids) > 1 else target.our_uid
    if owner != target.our_uid:
        raise NotYours(
            f"process {pid} belongs to {_user(owner)}, and you are {_user(target.our_uid)}",
            hint=f"The agent runs as the job's user and its folders are private. Attach as that user: "
            f"sudo -u {_user_name(owner)} probe {pid} attach",
        )
    if target.tracer:
        raise AttachRefused(
            f"process {pid} is already traced by {target.tracer_command or 'another process'} "
            f"(pid {target.tracer})",
            hint="A process has one tracer at a time: end that one, then attach.",
        )
    if target.stopped:
        raise AttachRefused(
            f"process {pid} is stopped, and code cannot be brought into a stopped process safely",
            hint=f"Continue it with `kill -CONT {pid}`, then attach. `probe {pid} backtrace` works as it is.",
        )
    if not target.openable:
        raise why_denied(target)
    _check_python(target)
    if target.same_files is False:
        raise AttachRefused(
            f"process {pid} sees other files than you do: it runs in a container "
            "(another mount namespace or root folder)",
            hint=f"Run probe inside that container, where it is pid {target.inner_pid}; as root also: "
            f"nsenter --target {pid} --mount --pid probe {target.inner_pid} attach. {_NO_RIGHTS}",
        )


def why_denied(target: Target) -> ProbeError:
    """The error for a process whose memory the kernel does not let us at: the reason, and its cure."""
    pid, able = target.pid, bool(target.our_capabilities & _SYS_PTRACE)
    if any(uid != target.our_uid for uid in target.uids) and not able:
        owner = target.uids[1]
        return NotYours(
            f"process {pid} belongs to {_user(owner)}, and you are {_user(target.our_uid)}",
            hint=f"Run probe as that user: sudo -u {_user_name(owner)} probe …",
        )
    if not target.dumpable and not able:
        return TracingDenied(
            f"process {pid} has closed itself to other processes (it is not dumpable: PR_SET_DUMPABLE, "
            "or its program file is not readable)",
            hint=f"Only who has CAP_SYS_PTRACE may look inside, as root has: sudo probe … {_NO_RIGHTS}",
        )
    if target.yama == 3:
        return TracingDenied(
            "no process of this machine may trace another (kernel.yama.ptrace_scope is 3)",
            hint=f"That cannot be changed before the next boot. {_NO_RIGHTS}",
        )
    if target.yama in (1, 2) and not able:
        cure = "sudo sysctl kernel.yama.ptrace_scope=0, or run probe as root"
        if target.yama == 2:
            cure = "run probe as root (CAP_SYS_PTRACE)"
        return TracingDenied(
            f"this machine lets nobody trace a process that is not their child "
            f"(kernel.yama.ptrace_scope is {target.yama})",
            hint=f"To allow it: {cure}. {_NO_RIGHTS}",
        )
    missing = target.capabilities & ~target.our_capabilities
    if missing and not able:
        return TracingDenied(
            f"process {pid} has rights that you have not (capabilities {missing:#x}): you may not trace it",
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
            hint="`probe ps` lists what is recorded. A pid from inside a container is another one outside.",
        )
    if target.state in ("Z", "X"):
        raise ProcessDead(
            f"process {pid} has ended; its parent has not asked for its exit code yet (a zombie)",
            hint="If it was recorded, its recording still answers `query`.",
        )


def _check_python(target: Target) -> None:
    if not target.is_python:
        raise AttachRefused(
            f"process {target.pid} ({target.command or 'unnamed'}) does not run Python",
            hint="A launcher or a shell is often the parent of the job: see `ps --forest`.",
        )
    if target.version is not None and target.version < versions.OLDEST_PYTHON:
        raise AttachRefused(
            f"process {target.pid} runs Python {versions.plain(target.version)}, and the agent needs "
            f"{versions.plain(versions.OLDEST_PYTHON)} or newer",
            hint=f"`probe {target.pid} backtrace` works with older ones too.",
        )


def _status(pid: int) -> dict[str, str] | None:
    """/proc/PID/status; None when there is no such process (a thread's tid is none)."""
    try:
        text = Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    fields = dict(line.split(":\t", 1) for line in text.splitlines() if ":\t" in line)
    return fields if fields.get("Tgid") == str(pid) else None


def _openable(pid: int) -> bool:
    try:
        descriptor = os.open(f"/proc/{pid}/mem", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    os.close(descriptor)
    return True


def _python(pid: int) -> tuple[bool | None, tuple[int, int] | None]:
    """Whether it runs Python, and which; None for what its closed memory map does not tell."""
    try:
        paths = {os.readlink(f"/proc/{pid}/exe"), *mapped_files(pid)}
    except OSError:
        return None, None
    names = [path.removesuffix(" (deleted)") for path in paths]
    found = [match for path in names if (match := _VERSION.search(_telling(path)))]
    if not found:
        return any(os.path.basename(path).startswith(("python", "libpython")) for path in names), None
    first = [word for word in found[0].groups() if word]
    return True, (int(first[0]), int(first[1]))


def _telling(path: str) -> str:
    """The part of a mapped file's path that can name a Python: a folder called python3.9 alone is nothing."""
    name = os.path.basename(path)
    return path if "/lib-dynload/" in path or "/site-packages/" in path else name if "python" in name else ""


def mapped_files(pid: int) -> set[str]:
    """Paths of the files in the memory map of `pid`. Raises `OSError` when it is closed to us."""
    text = Path(f"/proc/{pid}/maps").read_text(encoding="utf-8", errors="replace")
    fields = (line.split(maxsplit=5) for line in text.splitlines())
    return {field[5] for field in fields if len(field) == 6 and field[5].startswith("/")}


def _dumpable(pid: int, uids: tuple[int, ...]) -> bool:
    """A process that is not dumpable has its files in /proc owned by root; of root's own it is not seen."""
    try:
        owner = os.stat(f"/proc/{pid}/stat").st_uid
    except OSError:
        return True
    return len(uids) < 2 or owner == uids[1]


def _same_files(pid: int) -> bool | None:
    """Whether its mounts and its root folder are ours."""
    try:
        mounts = os.readlink(f"/proc/{pid}/ns/mnt") == os.readlink("/proc/self/ns/mnt")
        return mounts and os.path.samestat(os.stat(f"/proc/{pid}/root"), os.stat("/"))
    except OSError:
        return None


def _yama() -> int | None:
    try:
        return int(Path("/proc/sys/kernel/yama/ptrace_scope").read_text())
    except (OSError, ValueError):
        return None


def _may_trace() -> bool:
    """Whether a process of ours may use ptrace at all, by letting one try it on itself."""
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-c", _TRY_TRACING], stdin=subprocess.DEVNULL,
            capture_output=True, timeout=10.0, check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def _command(pid: int) -> str:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return ""
    from probe.base.redaction import command_line  # its patterns take 4 ms to compile

    safe = command_line(word.decode("utf-8", "replace") for word in words)
    return " ".join(safe).strip()[:120] or _name(pid)


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def state_word(letter: str) -> str:
    """`sleeping` for S and so on; the letter itself when it is unknown."""
    return STATES.get(letter, letter)


def _user(uid: int) -> str:
    name = _user_name(uid)
    return f"user {name}" if not name.startswith("#") else f"user id {uid}"


def _user_name(uid: int) -> str:
    import pwd

    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"#{uid}"
