"""Reads the threads and descendants of a process, from /proc alone.

Nothing here stops, signals or traces the process, so it also works on one that hangs in the kernel. The
exception is /proc/PID/cmdline: reading it waits for a lock that a thread in state D may hold, so `command`
must not be used for processes with `stuck` threads. Runs in the command and in the server, on any thread.
Standard library only.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from probe.recording.process import STATES

STUCK_S = 0.02
"""A thread in state D for this long without a context switch is stuck, not waiting for a disk."""
_TICK_S = 1.0 / os.sysconf("SC_CLK_TCK")
_SIGSTOP_BIT = 1 << 18


class Task(NamedTuple):
    """One thread. Values that cannot be read are None.

    `inner_tid` is its id in its own pid namespace; `state` a word of `probe.recording.process.STATES`;
    `wchan` the kernel function it sleeps in; `syscall` the number of its system call (depends on the
    machine), None while it runs; `user_ticks` and `system_ticks` are CPU time in ticks of `tick_s()`;
    `voluntary` and `involuntary` count context switches; `run_ns` is CPU time (from the ticks where the
    kernel has no finer count); `run_delay_ns` is time spent ready, waiting for a CPU.
    """

    tid: int
    inner_tid: int
    name: str
    state: str
    wchan: str | None
    syscall: int | None
    user_ticks: int
    system_ticks: int
    voluntary: int | None
    involuntary: int | None
    run_ns: int
    run_delay_ns: int | None

    @property
    def ticks(self) -> int:
        """CPU ticks, user and system."""
        return self.user_ticks + self.system_ticks

    @property
    def switches(self) -> int | None:
        """Context switches of both kinds; while the number stays, it sleeps, or runs without interruption."""
        if self.voluntary is None or self.involuntary is None:
            return None
        return self.voluntary + self.involuntary


def tick_s() -> float:
    """Seconds of one CPU tick."""
    return _TICK_S


def tasks(pid: int) -> list[Task]:
    """All threads of a process, the main one first; none when there is no such process."""
    try:
        tids = sorted(int(name) for name in os.listdir(f"/proc/{pid}/task"))
    except OSError:
        return []
    found = [_task(pid, tid) for tid in tids]
    return sorted((task for task in found if task is not None), key=lambda task: task.tid != pid)


def run_delay_ratio(first: Task, last: Task, window_s: float) -> float | None:
    """Share of the time between two samples of a thread in which it was ready but had no CPU.

    The kernel adds a wait to `run_delay_ns` only when it ends. A thread that was ready in both samples and
    never left the run queue in between has waited all the time that it did not run. None: the kernel does not
    say."""
    ready = first.state == last.state == "running" and first.switches is not None
    if ready and first.switches == last.switches:
        return max(0.0, 1.0 - (last.run_ns - first.run_ns) / 1e9 / window_s)
    if first.run_delay_ns is None or last.run_delay_ns is None:
        return None
    return min(1.0, (last.run_delay_ns - first.run_delay_ns) / 1e9 / window_s)


def stuck(pid: int, before: Iterable[Task] | None = None) -> list[Task]:
    """Threads that are stuck in the kernel: in state D in `before` (by default now) and still in it `STUCK_S`
    later, without a context switch in between.

    A thread that waits for a disk is also in that state, repeatedly, each time for a moment."""
    waiting = {
        task.tid: task.voluntary
        for task in (tasks(pid) if before is None else before) if task.state == "uninterruptible"
    }
    if not waiting:
        return []
    time.sleep(STUCK_S)
    return [
        task for task in tasks(pid)
        if task.state == "uninterruptible" and waiting.get(task.tid, -1) == task.voluntary
    ]


def in_other_namespace(pid: int, kind: str) -> bool | None:
    """Whether a process is in another namespace of this kind (`pid`, `mnt`); None if it cannot be read."""
    try:
        return os.readlink(f"/proc/{pid}/ns/{kind}") != os.readlink(f"/proc/self/ns/{kind}")
    except OSError:
        return None


def children(pid: int) -> list[int]:
    """All descendants of a process, parents before their children."""
    below: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            parent = parent_of(int(name))
            if parent is not None:
                below.setdefault(parent, []).append(int(name))
    found: list[int] = []
    waiting = [pid]
    while waiting:
        here = sorted(below.pop(waiting.pop(0), []))
        found += here
        waiting += here
    return found


def parent_of(pid: int) -> int | None:
    """The pid of its parent; None when there is no such process."""
    fields = _stat(f"/proc/{pid}")
    return None if fields is None else int(fields[2])


def name_of(pid: int) -> str | None:
    """The short name of a process, at most 15 characters."""
    fields = _stat(f"/proc/{pid}")
    return None if fields is None else fields[0]


def command(pid: int) -> str | None:
    """The command line without its secrets, joined by spaces; None when it has none or is gone.

    Waits for the process's memory lock: must not be used for a process with stuck threads."""
    words = _read(f"/proc/{pid}/cmdline")
    if not words:
        return None
    from probe.base.redaction import command_line  # its patterns take 4 ms to compile

    return " ".join(command_line(words.split("\0"))).strip() or None


def is_python(pid: int, *, by_name_only: bool = False) -> bool | None:
    """Whether this is a CPython process; None when that cannot be read, or is not clear from its name.

    Reading more than the name waits for the process's memory lock: `by_name_only` for a process with stuck
    threads. A static interpreter in a program with another name is not recognised."""
    try:
        if os.path.basename(os.readlink(f"/proc/{pid}/exe")).startswith("python"):
            return True
        if by_name_only:
            return None
        return "libpython" in Path(f"/proc/{pid}/maps").read_text(errors="replace")
    except OSError:
        return None


def tracer(pid: int) -> int:
    """The pid of its tracer; 0 for none."""
    return int(status_of(f"/proc/{pid}").get("TracerPid", "0"))


def stop_pending(pid: int) -> bool:
    """Whether a thread is stopped, or will be as soon as it leaves the kernel."""
    for task in tasks(pid):
        if task.state == "stopped":
            return True
        status = status_of(f"/proc/{pid}/task/{task.tid}")
        if any(int(status.get(name, "0"), 16) & _SIGSTOP_BIT for name in ("SigPnd", "ShdPnd")):
            return True
    return False


def kernel_stack(pid: int, tid: int) -> list[str]:
    """The kernel stack of a thread, innermost first; empty unless this process is root's."""
    lines = (_read(f"/proc/{pid}/task/{tid}/stack") or "").splitlines()
    return [line.rpartition(" ")[2].partition("+")[0] for line in lines if "+" in line]


def _task(pid: int, tid: int) -> Task | None:
    folder = f"/proc/{pid}/task/{tid}"
    fields = _stat(folder)
    if fields is None:
        return None
    status = status_of(folder)
    ticks = (int(fields[12]), int(fields[13]))
    run_ns, run_delay_ns = _schedule(folder)
    return Task(
        tid=tid,
        inner_tid=_number(status.get("NSpid", "").rpartition("\t")[2]) or tid,
        name=fields[0],
        state=STATES.get(fields[1], fields[1]),
        wchan=_wchan(folder),
        syscall=_syscall(folder),
        user_ticks=ticks[0],
        system_ticks=ticks[1],
        voluntary=_number(status.get("voluntary_ctxt_switches")),
        involuntary=_number(status.get("nonvoluntary_ctxt_switches")),
        run_ns=run_ns if run_ns is not None else int(sum(ticks) * _TICK_S * 1e9),
        run_delay_ns=run_delay_ns,
    )


def _stat(folder: str) -> list[str] | None:
    """Fields of `stat` from the name on; the name may hold spaces and brackets."""
    text = _read(f"{folder}/stat")
    if not text:
        return None
    head, _, rest = text.rpartition(")")
    return [head.partition("(")[2], *rest.split()]


def status_of(folder: str) -> dict[str, str]:
    """The fields of `status` of a process or thread, by its folder in /proc; empty when it is gone."""
    lines = (_read(f"{folder}/status") or "").splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def _wchan(folder: str) -> str | None:
    found = (_read(f"{folder}/wchan") or "").strip()
    return None if found in ("", "0") else found


def _syscall(folder: str) -> int | None:
    """None also for -1: a thread that is blocked outside of a system call (a page fault)."""
    words = (_read(f"{folder}/syscall") or "").split()
    number = _number(words[0]) if words else None
    return None if number is None or number < 0 else number


def _schedule(folder: str) -> tuple[int | None, int | None]:
    """Nanoseconds on a CPU, and ready but waiting for one."""
    words = (_read(f"{folder}/schedstat") or "").split()
    return (_number(words[0]), _number(words[1])) if len(words) > 1 else (None, None)


def _number(text: str | None) -> int | None:
    try:
        return None if text is None else int(text)
    except ValueError:
        return None


def _read(path: str) -> str | None:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:  # gone, or not readable
        return None
