"""Stacks of the threads of this process, as plain data.

Runs on the agent's thread. `sys._current_frames()` is one consistent snapshot under the GIL; the frames keep
running while they are read, so a line may be slightly old. Only Python frames. Standard library only.
"""

from __future__ import annotations

import os
import sys
import threading
import uuid
from collections.abc import Callable
from types import FrameType
from typing import Any

from probe.base import package
from probe.base.clock import wall_ns
from probe.job.introspection import python_frames

DEEPEST = 512
"""Frames of one thread that are kept, from the innermost."""


def capture(
    training_thread: int | None,
    step: int | None,
    phase: str,
    module_path: Callable[[Any], str | None],
    *,
    all_threads: bool,
) -> dict[str, Any]:
    """A capture in the shape of docs/protocols.md (`GET /v1/stacks`).

    The training thread comes first; without `all_threads` it is the only one. `module_path` gives the path of
    a module, None when it has none."""
    names = {thread.ident: thread for thread in threading.enumerate()}
    threads = []
    for ident, frame in sys._current_frames().items():
        training = ident == training_thread
        if training or all_threads:
            thread = names.get(ident)
            name = thread.name if thread is not None else f"thread {ident}"
            number = (native_id(thread) if thread is not None else None) or ident
            threads.append(thread_entry(number, name, training, frames(frame, module_path)))
    threads.sort(key=lambda entry: not entry["training"])
    return captured(step, phase, threads)


def native_id(thread: threading.Thread) -> int | None:
    """The kernel's number of a thread. In a forked child the only thread that is left is the process's
    first, but `Thread.native_id` still has its number in the parent (Python 3.10 to 3.13)."""
    number = thread.native_id
    known = number is None or os.path.isdir(f"/proc/self/task/{number}")
    return number if known else os.getpid()


def captured(step: int | None, phase: str, threads: list[dict[str, Any]]) -> dict[str, Any]:
    """A capture of these threads, now."""
    return {
        "capture_id": uuid.uuid4().hex[:12], "t_ns": wall_ns(), "step": step, "phase": phase,
        "threads": threads,
    }


def thread_entry(
    thread_id: int | None, name: str, training: bool, found: list[dict[str, Any]]
) -> dict[str, Any]:
    """A thread of a capture, with its frames."""
    return {
        "process_id": os.getpid(), "thread_id": thread_id, "thread_name": name, "training": training,
        "frames": found,
    }


def frames(frame: FrameType | None, module_path: Callable[[Any], str | None]) -> list[dict[str, Any]]:
    """A frame and its callers, the innermost first, as plain data."""
    return [
        describe(depth, one, one.f_lineno, module_path)
        for depth, one in zip(range(DEEPEST), python_frames.walk(frame), strict=False)
    ]


def whereabouts(taken: dict[str, Any]) -> str:
    """One line that says where the training thread is in a capture: `train (train.py:41), in wait (…)`."""
    found = [frame for thread in taken["threads"] if thread["training"] for frame in thread["frames"]]
    if not found:
        return "no thread has trained yet" if taken["step"] in (0, None) else "the training thread has ended"
    user = next((frame for frame in found if frame["is_user"]), found[0])
    line = f"the training thread is in {_place(user)}"
    if user is not found[0]:
        line += f", inside {_place(found[0])}"
    step = "before its first step" if taken["step"] in (0, None) else f"in step {taken['step']}"
    return f"{line}, {step}, phase {taken['phase']}"


def _place(frame: dict[str, Any]) -> str:
    return f"{frame['func']} ({os.path.basename(frame['file'])}:{frame['lineno']})"


def describe(
    depth: int, frame: FrameType, line: int | None, module_path: Callable[[Any], str | None]
) -> dict[str, Any]:
    """A frame as plain data; `line` is where it is, or where it was left."""
    file = package.without_detour(frame.f_code.co_filename)
    return {
        "depth": depth,
        "func": python_frames.function_name(frame),
        "file": file,
        "lineno": line,
        "frame_type": "Python",
        "module": _module_of(frame, module_path),
        "is_user": python_frames.is_user_code(file),
    }


def _module_of(frame: FrameType, module_path: Callable[[Any], str | None]) -> str | None:
    """Path of the module whose forward this frame is."""
    if frame.f_code.co_name != "forward" or frame.f_code.co_varnames[:1] != ("self",):
        return None
    return module_path(python_frames.variables(frame).get("self"))
