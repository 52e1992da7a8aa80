"""Processes that somebody attached to before they imported torch: their agent starts when they do.

The job keeps a note of it, `PROBE_DIR/boot/PID.waiting` (its pid as it knows it itself), and takes it away
when it begins to start the agent. Who takes it away before has withdrawn the attach: the job then starts
nothing. Nobody has to get into the job for that, whatever state it is in. The note says which life of the
pid it is about, for it outlives a process that is killed, and one that runs another program.

Written by the start-up hook (`probe/boot/torch_probe_boot.py`). Standard library only; any thread.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import NamedTuple

SUFFIX = ".waiting"
_START_TICKS, _STACK = 19, 25
"""Places in /proc/PID/stat behind the name: when the process began, and where its stack does, which another
program run by the same process has somewhere else."""


class Waiting(NamedTuple):
    """A process (its pid as seen from here) and its note."""

    pid: int
    note: Path


def waiting(directory: Path, pid: int) -> Waiting | None:
    """The process `pid` if it waits for torch to record into `directory`."""
    inner = _inner_pid(pid)
    if inner is None:
        return None
    found = Waiting(pid, directory / "boot" / f"{inner}{SUFFIX}")
    return found if _is_of(found.note, pid) else None


def all_waiting(directory: Path) -> list[Waiting]:
    """Every process of this pid namespace that waits; notes of those that have ended are removed."""
    found = []
    for note in sorted((directory / "boot").glob(f"*{SUFFIX}")):
        name = note.name.removesuffix(SUFFIX)
        if name.isdigit() and _is_of(note, int(name)):
            found.append(Waiting(int(name), note))
        elif name.isdigit() and _namespace(note) == _own_namespace():
            withdraw(Waiting(int(name), note))
    return found


def withdraw(one: Waiting) -> bool:
    """Have it start nothing. False when it has begun to start already."""
    try:
        os.unlink(one.note)
    except FileNotFoundError:
        return False
    return True


def _is_of(note: Path, pid: int) -> bool:
    """Whether the process that has this pid now is the one that wrote the note."""
    try:
        start_ticks, stack, namespace = note.read_text(encoding="ascii").split()
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        now = (fields[_START_TICKS].decode(), os.readlink(f"/proc/{pid}/ns/pid"))
        stack_now = fields[_STACK].decode()
    except (OSError, ValueError, IndexError):
        return False
    same_program = stack == stack_now or "0" in (stack, stack_now)  # 0: not shown to us, or not to the job
    return now == (start_ticks, namespace) and same_program


def _inner_pid(pid: int) -> int | None:
    try:
        with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as status:
            for line in status:
                if line.startswith("NSpid:"):
                    return int(line.split()[-1])
    except (OSError, ValueError):
        return None
    return pid


def _namespace(note: Path) -> str:
    with contextlib.suppress(OSError, ValueError, IndexError):
        return note.read_text(encoding="ascii").split()[2]
    return ""


def _own_namespace() -> str:
    with contextlib.suppress(OSError):
        return os.readlink("/proc/self/ns/pid")
    return ""
