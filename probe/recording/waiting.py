"""Processes attached to before they imported torch: their agent starts with that import.

The job writes a note, `PROBE_DIR/boot/PID.waiting` (its pid in its own namespace), and removes it when it
starts the agent. Removing the note earlier withdraws the attach, without entering the job. A note outlives a
process that is killed or runs another program, so it says which process it belongs to.

Written by the start-up hook (`probe/boot/torch_probe_boot.py`). Standard library only; any thread.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import NamedTuple

SUFFIX = ".waiting"
_START_TICKS, _STACK = 19, 25
"""Fields of /proc/PID/stat after the name: start time, and start of the stack, which differs after an
exec."""


class Waiting(NamedTuple):
    """A process (its pid as seen from here) and its note."""

    pid: int
    note: Path


def waiting(directory: Path, pid: int) -> Waiting | None:
    """The process `pid` if it waits for torch, to be recorded in `directory`."""
    inner = _inner_pid(pid)
    if inner is None:
        return None
    found = Waiting(pid, directory / "boot" / f"{inner}{SUFFIX}")
    return found if _is_of(found.note, pid) else None


def all_waiting(directory: Path) -> list[Waiting]:
    """All waiting processes of this pid namespace; removes notes of ended ones."""
    found = []
    for note in sorted((directory / "boot").glob(f"*{SUFFIX}")):
        name = note.name.removesuffix(SUFFIX)
        if name.isdigit() and _is_of(note, int(name)):
            found.append(Waiting(int(name), note))
        elif name.isdigit() and _namespace(note) == _own_namespace():
            withdraw(Waiting(int(name), note))
    return found


def withdraw(one: Waiting) -> bool:
    """Withdraw the attach. False when the agent is already starting."""
    try:
        os.unlink(one.note)
    except FileNotFoundError:
        return False
    return True


def _is_of(note: Path, pid: int) -> bool:
    """Whether the process that has this pid wrote the note."""
    try:
        start_ticks, stack, namespace = note.read_text(encoding="ascii").split()
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        now = (fields[_START_TICKS].decode(), os.readlink(f"/proc/{pid}/ns/pid"))
        stack_now = fields[_STACK].decode()
    except (OSError, ValueError, IndexError):
        return False
    same_program = stack == stack_now or "0" in (stack, stack_now)  # 0: hidden from us or from the job
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
