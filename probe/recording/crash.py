"""Crash: parses the stacks that faulthandler writes on a fatal signal.

    Fatal Python error: Segmentation fault

    Current thread 0x00007f… [python] (most recent call first):
      File "train.py", line 12 in main

Only Python frames, at most a hundred per thread, and the interpreter's own thread numbers. Standard library
only; the server reads it when a process has ended.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any, NamedTuple

LARGEST_BYTES = 1 << 20
"""Read at most: more than a hundred threads of a hundred frames."""
_SIGNALS = {
    "Segmentation fault": "SIGSEGV", "Aborted": "SIGABRT", "Floating point exception": "SIGFPE",
    "Floating-point exception": "SIGFPE", "Bus error": "SIGBUS", "Illegal instruction": "SIGILL",
}
_FATAL = re.compile(r"^Fatal Python error: (?P<what>.*)$")
_THREAD = re.compile(
    r"^(?P<current>Current thread|Thread) 0x(?P<ident>[0-9a-f]{1,16})(?: \[(?P<name>.*)\])?(?: \[.*\])? "
    r"\(most recent call first\):"
)
_FRAME = re.compile(r'^  File "(?P<file>.*)", line (?P<line>\d{1,9}|\?\?\?) in (?P<func>.*)$')


class CrashThread(NamedTuple):
    """One thread: the interpreter's number, its name if written, its frames innermost first."""

    ident: int
    name: str
    current: bool
    frames: list[dict[str, Any]]


class Crash(NamedTuple):
    """A fatal signal: its name (None if unknown), its text, the threads."""

    signal: str | None
    what: str
    threads: list[CrashThread]


def read_crash(path: Path) -> Crash | None:
    """The crash in a file; None if it is missing or holds none."""
    try:
        with open(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb") as file:
            text = file.read(LARGEST_BYTES).decode("utf-8", "replace")
    except OSError:
        return None
    return parse_crash(text)


def parse_crash(text: str) -> Crash | None:
    """The last fatal error in faulthandler's output; None without one."""
    what: str | None = None
    threads: list[CrashThread] = []
    inside = False
    for line in text.splitlines():
        if found := _FATAL.match(line):
            what, threads, inside = found["what"], [], False
        elif found := _THREAD.match(line):
            inside = True
            threads.append(
                CrashThread(
                    int(found["ident"], 16), found["name"] or "", found["current"] == "Current thread", []
                )
            )
        elif inside and (found := _FRAME.match(line)):
            frames = threads[-1].frames
            number = found["line"]
            frames.append(
                {
                    "depth": len(frames), "func": found["func"], "file": found["file"],
                    "lineno": int(number) if number.isdigit() else None,
                }
            )
        elif not line.startswith(" "):
            inside = False
    if what is None:
        return None
    return Crash(_SIGNALS.get(what.strip()), what.strip(), threads)


def user_frame(thread: CrashThread) -> dict[str, Any] | None:
    """The innermost frame outside of libraries, as far as paths tell; else the innermost."""
    for frame in thread.frames:
        if is_user_path(frame["file"]):
            return frame
    return thread.frames[0] if thread.frames else None


def is_user_path(file: str) -> bool:
    """Whether a path looks like the user's own code; a dead process's library folders are unknown."""
    parts = ("/site-packages/", "/dist-packages/", "/lib/python", "/probe/base/", "/probe/job/")
    return not file.startswith("<") and not any(part in file for part in parts)
