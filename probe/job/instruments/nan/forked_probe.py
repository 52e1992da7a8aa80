"""Forked probe: a forked child that examines the job's state while training continues.

Forked on the training thread, in the middle of a step, the child has every tensor as it was then. It cannot
change the training: memory shared with the parent (shared memory, rings) becomes read-only in the child,
every descriptor except the pipe is closed, signals are blocked, and it is killed at its deadline. The parent
waits only for the fork itself; the agent's thread reads the pipe and reaps the child.

`refusal` gives the reason if forking this process would be risky or useless. Standard library only.
"""

from __future__ import annotations

import ctypes
import faulthandler
import functools
import json
import os
import resource
import signal
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from probe.base import accelerator, descriptors
from probe.base.isolation import capture, describe
from probe.job.instruments.core.host_memory import HostMemoryReader

DEADLINE_S = 60.0
"""Maximum run time of a child."""
LONGEST_ANSWER_BYTES = 2 << 20
ROOM_BYTES = 256 << 20
"""Free memory needed in addition to a second copy of the parent's memory."""
_NICE = 10
_NOT_FORKED_WITH = {
    "/dev/infiniband": "InfiniBand or RDMA memory is registered",
    "libibverbs": "an RDMA library is loaded",
    "libefa": "an RDMA library is loaded",
    "libmpi.so": "MPI is loaded",
    "/dev/nvidia": "a GPU is open",
    "/dev/kfd": "a ROCm device is open",
    "/dev/accel": "an accelerator is open",
}
_PROT_READ = 1
_PR_SET_PDEATHSIG = 1
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_FORBIDDEN = (
    "socket.",
    "subprocess.",
    "os.remove",
    "os.rename",
    "os.mkdir",
    "os.rmdir",
    "os.kill",
    "os.system",
    "os.exec",
    "os.fork",
    "os.posix_spawn",
    "os.truncate",
    "os.link",
    "os.symlink",
    "os.chmod",
    "os.chown",
    "os.utime",
    "shutil.",
    "tempfile.",
    "signal.pthread_kill",
    "pty.",
)
Send = Callable[[str, Any], None]


def ranks() -> tuple[int, int]:
    """Rank and world size from torch's process groups; (0, 1) without any."""
    distributed: Any = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return 0, 1
    return int(distributed.get_rank()), int(distributed.get_world_size())


def own_bytes() -> int:
    """Size of this process's private memory, of which a fork may need a second copy."""
    pages = descriptors.read_text("/proc/self/statm").split()
    return (int(pages[1]) - int(pages[2])) * os.sysconf("SC_PAGE_SIZE")


def refusal() -> str:
    """Why this process must not fork; empty if it may. Takes a millisecond, on the training thread."""
    if not hasattr(os, "fork") or sys.platform != "linux":
        return "only Linux is supported"
    device = accelerator.current()
    if device is not None:
        return f"a device ({device.kind}) is in use, which does not work in a fork"
    if not _known_child_handler():
        return "the program handles SIGCHLD itself"
    maps = descriptors.read_text("/proc/self/maps")
    for part, why in _NOT_FORKED_WITH.items():
        if part in maps:
            return why
    # All ranks of this host may fork at the same time.
    return _no_room(int(os.environ.get("LOCAL_WORLD_SIZE", "1") or 1))


def _no_room(local_ranks: int) -> str:
    """Why there is too little memory for a fork; empty if there is enough. The parent keeps writing: in the
    worst case all of its private memory exists twice."""
    available_bytes = HostMemoryReader().read()[0]
    needed_bytes = local_ranks * (own_bytes() + ROOM_BYTES)
    if available_bytes is None or available_bytes >= needed_bytes:
        return ""
    return f"{available_bytes >> 20} MB of memory are free, and a fork may need {needed_bytes >> 20} MB"


def _known_child_handler() -> bool:
    """Whether SIGCHLD has no handler other than that of torch's loaders, which checks only workers."""
    handler: Any = signal.getsignal(signal.SIGCHLD)
    if handler in (signal.SIG_DFL, signal.SIG_IGN):
        return True
    if getattr(handler, "__module__", "") != "torch.utils.data._utils.signal_handling":
        return False
    return all(cell.cell_contents is None for cell in handler.__closure__ or ())


class ForkedProbe:
    """One child and its findings. Created on the training thread; the agent's thread calls `collect`."""

    def __init__(self, examine: Callable[[Send], object], deadline_s: float = DEADLINE_S) -> None:
        """Fork; `examine(send)` runs in the child and sends its findings, each a name and plain values.

        Raises `OSError` when the fork fails."""
        self.begun_s = time.monotonic()
        self.found: dict[str, Any] = {}
        self._deadline_s = deadline_s
        self._unread = b""
        self._size = 0
        self.pid = 0
        self._answers, answer = descriptors.pipe()
        with answer:
            _, error = capture(lambda: self._fork(examine, answer.fileno()))
        self.took_ms = (time.monotonic() - self.begun_s) * 1e3
        if error is not None:
            self.end()
            raise error

    def _fork(self, examine: Callable[[Send], object], answer: int) -> None:
        # With signals blocked, no handler of the job runs or raises in the child.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            with warnings.catch_warnings():  # Python 3.12 warns about forking a process with threads
                warnings.simplefilter("ignore")
                self.pid = os.fork()
            if self.pid == 0:
                _run_child(examine, answer, self._deadline_s)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    # The agent's thread -----------------------------------------------------

    def collect(self) -> bool:
        """Read without waiting; returns whether the child is done. Kills it at its deadline."""
        if not self._answers.ours:
            self.end()
            return True
        if not self._read() and time.monotonic() - self.begun_s < self._deadline_s:
            return False
        self.end()
        return True

    def end(self) -> None:
        """Kill the child if it still runs, and reap it. By one thread at a time."""
        pid, self.pid = self.pid, 0
        if pid > 0:
            ended, error = capture(lambda: os.waitpid(pid, os.WNOHANG))
            # On an error it is already reaped, by a job that waits for any child or ignores SIGCHLD, and its
            # pid may belong to another process by now.
            if error is None and ended == (0, 0):
                capture(lambda: os.kill(pid, signal.SIGKILL))
                capture(lambda: os.waitpid(pid, 0))
        self._answers.close()

    def _read(self) -> bool:
        """Read what is there; returns whether the child has closed its end, or sent more than it may."""
        os.set_blocking(self._answers.fileno(), False)
        while self._size < LONGEST_ANSWER_BYTES:
            try:
                part = os.read(self._answers.fileno(), 1 << 16)
            except BlockingIOError:
                return False
            if not part:
                return True
            self._size += len(part)
            *lines, self._unread = (self._unread + part).split(b"\n")
            for line in lines:
                name, values = json.loads(line)
                self.found[name] = values
        return True


# In the child -----------------------------------------------------------------------


def _run_child(examine: Callable[[Send], object], answer: int, deadline_s: float) -> None:
    """Run `examine` in the child and exit; never returns."""

    def send(name: str, values: Any) -> None:
        data = json.dumps([name, values], default=str).encode() + b"\n"
        while data:
            data = data[os.write(answer, data) :]

    def run() -> None:
        _cut_off(answer, deadline_s)
        examine(send)
        send("whole", True)

    _, error = capture(run)
    if error is not None:
        capture(lambda: send("error", describe(error)))
    os._exit(0)


def _cut_off(answer: int, deadline_s: float) -> None:
    """Isolate this process from everything except the pipe. Raises if that fails."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if faulthandler.is_enabled():
        faulthandler.disable()
    for number in (
        signal.SIGALRM,
        signal.SIGSEGV,
        signal.SIGBUS,
        signal.SIGFPE,
        signal.SIGILL,
        signal.SIGABRT,
    ):
        signal.signal(number, signal.SIG_DFL)
    signal.alarm(int(deadline_s) + 1)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGALRM})
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.nice(_NICE)
    capture(lambda: Path("/proc/self/oom_score_adj").write_text("1000"))  # the OOM killer takes it first
    _protect_shared_memory(libc)
    nowhere = os.open("/dev/null", os.O_RDWR)
    for name in os.listdir("/proc/self/fd"):
        if int(name) not in (answer, nowhere):
            capture(functools.partial(_replace, int(name), nowhere))
    sys.addaudithook(_audit)


def _replace(descriptor: int, nowhere: int) -> None:
    os.fstat(descriptor)  # raises for the descriptor that listed the folder, which is closed
    os.dup2(nowhere, descriptor)


def _protect_shared_memory(libc: Any) -> None:
    """Make memory shared with the parent read-only: a write ends this process."""
    mprotect = libc.mprotect
    mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    for line in Path("/proc/self/maps").read_text().splitlines():
        place, rights, *_ = line.split(None, 2)
        if "w" in rights and rights.endswith("s"):
            first, _, end = place.partition("-")
            start, stop = int(first, 16), int(end, 16)
            if mprotect(start, stop - start, _PROT_READ) != 0:
                raise OSError(ctypes.get_errno(), f"shared memory at {place} cannot be protected")


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "open":
        flags = arguments[2] if len(arguments) > 2 else 0
        if isinstance(flags, int) and flags & _WRITING:
            raise PermissionError("a repeated forward writes no files")
    elif event.startswith(_FORBIDDEN):
        raise PermissionError(f"a repeated forward may not do that: {event}")
