"""Reads the stacks of a process from outside: for one that hangs, holds the GIL, or has no agent.

`read_stacks` returns a capture like `GET /v1/stacks` of the agent: Python stacks from py-spy, with the
kernel's view of each thread; `native` adds C and C++ frames from pystack. The process is stopped for
milliseconds; or not at all if stopping would hang (a thread in state D) or fail (a stopped or traced
process), or is not wanted. Runs in the command and in the server, on any thread. Standard library only, with
few imports, because the command imports this.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from probe.base import package
from probe.base.clock import wall_ns
from probe.base.errors import EndpointUnknown, ProbeError, StacksUnavailable
from probe.outside.processes import tasks
from probe.outside.processes.target import check_tracing, read_target
from probe.outside.processes.tasks import Task
from probe.outside.stacks import native, pyspy
from probe.recording.process import life

DEEPEST = 512
"""Frames kept of one thread, from the innermost."""
MOST_PROCESSES = 64
"""Processes in one capture, the first included."""
AT_ONCE = 8
"""Processes that are read at the same time."""
MOVING_CPU_RATIO = 0.01
"""CPU time per wall time above which a thread counts as moving although its stack is unchanged. Waking up 200
times a second to request the GIL costs a fifth of that; computing in C costs 1."""

_LIBRARY = re.compile(r"/(?:site|dist)-packages/|/lib(?:64)?/python\d(?:\.\d+)?t?/|/python\d+\.zip/")
_NAMED_PROBE = re.compile(r"(?=/probe/)")
_ROLES = (
    ("torch/utils/data/_utils/worker.py", "_worker_loop", "DataLoader worker"),
    ("torch/_inductor/compile_worker/__main__.py", "main", "compile worker"),
    ("torch/_inductor/compile_worker/subproc_pool.py", "main", "compile worker"),
    ("multiprocessing/resource_tracker.py", "main", "resource tracker"),
    ("multiprocessing/forkserver.py", "main", "fork server"),
    ("multiprocessing/managers.py", "serve_forever", "multiprocessing manager"),
    ("torch/distributed/run.py", "main", "torchrun"),
)
"""File and function of a frame that shows the role of a process: a forked worker has its parent's command
line."""


class Options(NamedTuple):
    """What to read, and until when."""

    all_threads: bool
    native: bool
    locals: bool
    nonblocking: bool
    training_thread: int | None
    deadline: float

    @property
    def left_s(self) -> float:
        """Seconds until the deadline."""
        return self.deadline - time.monotonic()


class ProcessStacks(NamedTuple):
    """The stacks of one process, and how they were read."""

    threads: list[dict[str, Any]]
    notes: list[str]
    tool: str | None
    main: Task | None


def read_stacks(
    pid: int,
    *,
    all_threads: bool = False,
    native: bool = False,
    locals: bool = False,
    workers: bool = False,
    nonblocking: bool = False,
    training_thread: int | None = None,
    timeout_s: float = 5.0,
) -> dict[str, Any]:
    """A capture of a process: its training thread, and the thread that owns the GIL if that is another.

    `training_thread` is the kernel's id of that thread, by default the main one. `all_threads` adds all
    others that run Python and, with `native`, those that do not. `locals` adds variables, without secrets.
    `workers` adds the descendants of this process, each with its main thread. `nonblocking` never stops
    anything (so there are no native frames). For a thread stuck in the kernel, `native` adds the kernel
    stack, for root only. `notes` in the answer say how it was read and what is missing. Native frames of a
    large process may need a longer `timeout_s`, up to 10.

    Raises `EndpointUnknown` when there is no such process, `ProcessDead` for a zombie, `NotYours` and
    `TracingDenied` when the kernel does not allow it, `StacksUnavailable` when it cannot be read.
    """
    deadline = time.monotonic() + timeout_s
    options = Options(all_threads, native, locals, nonblocking, training_thread or pid, deadline)
    t_ns = wall_ns()
    main = _read_process(pid, options)
    capture = {
        "capture_id": os.urandom(6).hex(), "t_ns": t_ns, "step": None, "phase": None, "source": "outside",
        "tool": main.tool, "pid": pid, "notes": main.notes, "threads": main.threads,
    }
    if workers:
        capture["processes"] = [_process_line(pid, main)]
        _add_descendants(capture, pid, options._replace(training_thread=None))
    return capture


def _read_process(pid: int, wanted: Options) -> ProcessStacks:
    """The stacks of one process. Raises like `read_stacks`."""
    here = life(pid)
    if here is None or here.state in "ZX":
        check_tracing(read_target(pid))
        raise EndpointUnknown(f"process {pid} has just started or ended")
    kernel = {task.tid: task for task in tasks.tasks(pid)}
    unseizable = why_not_stopped(pid, kernel)
    notes = [f"read without stopping it: {unseizable}"] if unseizable else []
    quiet = wanted.nonblocking or unseizable is not None
    tool, threads, failed = "py-spy", [], ""
    try:
        raw, said = pyspy.read(
            pid, nonblocking=quiet, was_stopped=any(task.state == "stopped" for task in kernel.values()),
            locals=wanted.locals, timeout_s=wanted.left_s,
        )
        notes += said
        threads = _python_threads(pid, raw, kernel, wanted)
    except pyspy.ReadFailed as error:
        failed = str(error)
    if wanted.native and wanted.nonblocking:
        notes.append("no native frames: they cannot be read without stopping the process")
    elif wanted.native:
        try:
            found = native.read(
                pid, kernel, all_threads=wanted.all_threads or bool(failed), locals=wanted.locals,
                timeout_s=wanted.left_s, notes=notes,
            )
            tool, threads = "pystack", _with_native(pid, threads, found, kernel, wanted)
            if not all(thread["merged"] for thread in found):
                notes.append("native frames between Python frames are missing: the stacks do not match")
        except native.NativeUnavailable as error:
            notes.append(f"no native frames: {error}")
    if wanted.native:
        _add_kernel_frames(threads)
    if failed and tool == "py-spy":
        raise _explained(pid, kernel, failed)
    if failed:
        notes.append(f"py-spy could not read it ({failed}): names are short, the GIL's owner may be missing")
    return ProcessStacks(_requested(pid, threads, kernel, wanted, notes), notes, tool, kernel.get(pid))


def why_not_stopped(pid: int, kernel: Mapping[int, Task] | None = None) -> str | None:
    """Why the process must not be stopped for a read; None if it may be. A thread that is in state D only for
    a moment counts too: a read without stopping costs nothing."""
    if kernel is None:
        kernel = {task.tid: task for task in tasks.tasks(pid)}
    for state in ("uninterruptible", "traced", "stopped"):
        at = [task for task in kernel.values() if task.state == state]
        if at:
            place = f" in {at[0].wchan}" if at[0].wchan else ""
            return f"{len(at)} of {len(kernel)} threads {state}{place}"
    tracer = tasks.tracer(pid)
    return f"process {tracer} ({tasks.name_of(tracer) or 'hidden'}) traces it" if tracer else None


def _explained(pid: int, kernel: Mapping[int, Task], said: str) -> ProbeError:
    """The error for a process that could not be read, with the reason."""
    if life(pid) is None:
        return EndpointUnknown(f"process {pid} ended while it was read")
    stuck = tasks.stuck(pid, kernel.values())
    if stuck:  # read nothing more from it: that may wait for the same lock
        return StacksUnavailable(
            f"the memory of process {pid} cannot be read while thread {stuck[0].tid} is stuck in the kernel"
            f" ({stuck[0].wchan or 'unknown call'}): {said}",
            hint=f"As root, read /proc/{pid}/task/{stuck[0].tid}/stack to see where in the kernel it is.",
        )
    try:
        check_tracing(read_target(pid))
    except ProbeError as error:
        return error
    if tasks.is_python(pid) is False:
        return StacksUnavailable(
            f"process {pid} ({tasks.name_of(pid)}) is not a Python process",
            hint="The job may be a child of this launcher or shell: see `ps --forest`.",
        )
    return StacksUnavailable(
        f"the stacks of process {pid} could not be read: {said}",
        hint="It may be starting, ending, or too busy: try again, or with --native, which uses another tool.",
    )


def _python_threads(
    pid: int, raw: list[dict[str, Any]], kernel: Mapping[int, Task], wanted: Options
) -> list[dict[str, Any]]:
    """py-spy's threads in the shape of a capture."""
    ids = pyspy.native_ids(pid, raw, kernel)
    return [
        {
            **_thread(pid, tid or thread["thread_id"], kernel.get(tid or 0), wanted, thread["thread_name"]),
            "owns_gil": thread.get("owns_gil"),
            "frames": [
                _frame(depth, frame) for depth, frame in enumerate(thread["frames"][:DEEPEST])
            ],
        }
        for tid, thread in zip(ids, raw, strict=True)
        # Between vfork and exec a child shares its parent's memory: those threads are the parent's.
        if tid is not None or thread.get("os_thread_id") is None
    ]


def _thread(
    pid: int, tid: int, task: Task | None, wanted: Options, name: str | None = None
) -> dict[str, Any]:
    return {
        "process_id": pid,
        "thread_id": tid,
        "thread_name": name or (task.name if task is not None else None),
        "training": tid == wanted.training_thread,
        "state": task.state if task is not None else None,
        "wchan": task.wchan if task is not None else None,
        "owns_gil": None,
        "waits_for_gil": None,
        "moving": None,
        "frames": [],
    }


def _frame(depth: int, raw: Mapping[str, Any]) -> dict[str, Any]:
    file = package.without_detour(raw["filename"])
    found: dict[str, Any] = {
        "depth": depth, "func": raw["name"], "file": file, "lineno": raw["line"] or None,
        "frame_type": "Python", "module": None, "is_user": is_user_code(file),
    }
    if raw.get("locals") is not None:
        found["locals"] = _variables((one["name"], one["repr"] or "") for one in raw["locals"])
    return found


def _variables(pairs: Iterable[tuple[str, str]]) -> list[dict[str, str]]:
    from probe.base import redaction  # its patterns take 4 ms to compile

    return [{"name": name, "value": redaction.shown(name, value)} for name, value in pairs]


def is_user_code(file: str) -> bool:
    """Whether a file is the user's own: not the standard library, an installed package, or probe.

    Decided by its path: the process may run another Python than this one, and another copy of probe."""
    if file.startswith(("<", package.FOLDER)) or _LIBRARY.search(file):
        return False
    return not any(_is_probe(file[: found.start()] + "/probe") for found in _NAMED_PROBE.finditer(file))


@lru_cache(maxsize=64)
def _is_probe(folder: str) -> bool:
    """Whether a folder named `probe` is a copy of this package, for example in a shared volume."""
    return os.path.isfile(os.path.join(folder, "boot", "path", "sitecustomize.py"))


def _with_native(
    pid: int, threads: list[dict[str, Any]], found: list[dict[str, Any]], kernel: Mapping[int, Task],
    wanted: Options,
) -> list[dict[str, Any]]:
    """py-spy's threads with pystack's frames, and the threads that only pystack found."""
    by_id = {thread["thread_id"]: thread for thread in threads}
    for one in found:
        tid = one["tid"]
        thread = by_id.setdefault(tid, _thread(pid, tid, kernel.get(tid), wanted))
        thread["waits_for_gil"] = one["waits_for_gil"]
        if thread["owns_gil"] is None:
            thread["owns_gil"] = one["holds_gil"]
        frames = [_native_frame(frame, wanted) for frame in one["frames"]]
        was = thread["frames"]
        if not was or any(frame["frame_type"] == "Python" for frame in frames):
            _qualify(frames, was)
            thread["frames"] = frames[:DEEPEST]
    return list(by_id.values())


def _native_frame(raw: dict[str, Any], wanted: Options) -> dict[str, Any]:
    python = raw["frame_type"] == "Python"
    found = {**raw, "module": None, "is_user": python and is_user_code(raw["file"])}
    del found["locals"]
    if wanted.locals and python:
        found["locals"] = _variables(raw["locals"])
    return found


def _add_kernel_frames(threads: list[dict[str, Any]]) -> None:
    """Add the kernel stack of threads in state D, which only root can read."""
    for thread in threads:
        if thread["state"] == "uninterruptible":
            inside = [
                {
                    "func": name, "file": "[kernel]", "lineno": None, "frame_type": "Native", "module": None,
                    "is_user": False,
                }
                for name in tasks.kernel_stack(thread["process_id"], thread["thread_id"])
            ]
            frames = [*inside, *thread["frames"]]
            thread["frames"] = [{**frame, "depth": depth} for depth, frame in enumerate(frames)]


def _qualify(frames: list[dict[str, Any]], named: list[dict[str, Any]]) -> None:
    """Give Python frames their qualified names, which only py-spy knows, as far as the stacks agree."""
    python = [frame for frame in frames if frame["frame_type"] == "Python"]
    for frame, other in zip(reversed(python), reversed(named), strict=False):
        if (frame["file"], frame["func"]) != (other["file"], other["func"].rpartition(".")[2]):
            return
        frame["func"] = other["func"]


def _requested(
    pid: int, threads: list[dict[str, Any]], kernel: Mapping[int, Task], wanted: Options, notes: list[str]
) -> list[dict[str, Any]]:
    """The requested threads, the training thread first, which is included even without frames."""
    training = kernel.get(wanted.training_thread or pid)
    if training is not None and not any(thread["thread_id"] == training.tid for thread in threads):
        threads = [_thread(pid, training.tid, training, wanted), *threads]
        notes.append(f"thread {training.tid} runs no Python code now")
    chosen = [
        thread
        for thread in threads
        if wanted.all_threads or thread["owns_gil"] or training is None or thread["thread_id"] == training.tid
    ]
    others = len(threads) - len(chosen)
    if others and wanted.training_thread is not None:
        notes.append(f"{others} other threads run Python" if others > 1 else "another thread runs Python")
    return sorted(chosen, key=lambda thread: (not thread["training"], not thread["owns_gil"]))


def _process_line(pid: int, seen: ProcessStacks | None) -> dict[str, Any]:
    """One line of `processes`; with the command line only if reading it cannot hang."""
    main = seen.main if seen is not None else next(iter(tasks.tasks(pid)), None)
    return {
        "pid": pid,
        "parent_pid": tasks.parent_of(pid),
        "command": (None if tasks.stuck(pid) else tasks.command(pid)) or tasks.name_of(pid),
        "role": _role(seen.threads) if seen is not None else None,
        "state": main.state if main is not None else None,
        "wchan": main.wchan if main is not None else None,
    }


def _role(threads: list[dict[str, Any]]) -> str | None:
    """The role of a process, from its frames; None when it has no special one."""
    places = [(str(frame["file"]), frame["func"]) for thread in threads for frame in thread["frames"]]
    for ending, func, role in _ROLES:
        if any(file.endswith(ending) and name.rpartition(".")[2] == func for file, name in places):
            return role
    return None


def _add_descendants(found: dict[str, Any], pid: int, wanted: Options) -> None:
    """Add the descendants, several at a time, all within the deadline."""
    from concurrent.futures import ThreadPoolExecutor

    below = tasks.children(pid)
    if len(below) >= MOST_PROCESSES:
        found["notes"].append(f"{MOST_PROCESSES - 1} of {len(below)} child processes were read")
        below = below[: MOST_PROCESSES - 1]
    with ThreadPoolExecutor(min(AT_ONCE, len(below) or 1), "probe-look") as pool:
        read = pool.map(lambda one: _try_to_read(one, wanted), below)
        for one, (seen, note) in zip(below, read, strict=True):
            if seen is not None:
                found["threads"] += seen.threads
                found["notes"] += [f"process {one}: {line}" for line in seen.notes]
            if note is not None:
                found["notes"].append(note)
            if tasks.name_of(one) is not None:
                found["processes"].append(_process_line(one, seen))


def _try_to_read(pid: int, wanted: Options) -> tuple[ProcessStacks | None, str | None]:
    """The stacks of a descendant, or a note on why there are none. Neither for one without Python."""
    if tasks.is_python(pid, by_name_only=bool(tasks.stuck(pid))) is False:
        return None, None
    try:
        return _read_process(pid, wanted), None
    except EndpointUnknown:
        return None, None
    except ProbeError as error:
        return None, f"process {pid}: {error.message}"
