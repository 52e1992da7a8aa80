"""What a process is doing, seen from outside: for one that hangs, holds the GIL, or has no agent.

`look` gives a capture of the shape of `GET /v1/stacks`: Python stacks from py-spy, with the kernel's
view of each thread; `native` adds C and C++ frames from pystack. The process is stopped for
milliseconds, or not at all where stopping would hang (a thread in state D), fail (a stopped or traced
process) or cost too much (`looks`, which looks several times). Runs in the command and in the server,
on any thread. Standard library only; imports of the command are kept few.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from probe.base import package
from probe.base.clock import wall_ns
from probe.base.errors import EndpointUnknown, ProbeError, StacksUnavailable
from probe.outside.processes import tasks
from probe.outside.processes.target import check_tracing, examine
from probe.outside.processes.tasks import Task
from probe.outside.stacks import native, pyspy
from probe.recording.process import life

DEEPEST = 512
"""Frames of one thread that are kept, from the innermost."""
MOST_PROCESSES = 64
"""Processes of one look, the first included."""
AT_ONCE = 8
"""Processes that are read at the same time."""
MOVING_CPU_RATIO = 0.01
"""CPU time per time above which a thread moves though its stack stays. Waking up 200 times a second to
ask for the GIL costs a fifth of that; computing in C costs 1."""

_LIBRARY = re.compile(r"/(?:site|dist)-packages/|/lib(?:64)?/python\d(?:\.\d+)?t?/|/python\d+\.zip/")
_ROLES = (
    ("torch/utils/data/_utils/worker.py", "_worker_loop", "DataLoader worker"),
    ("torch/_inductor/compile_worker/__main__.py", "main", "compile worker"),
    ("torch/_inductor/compile_worker/subproc_pool.py", "main", "compile worker"),
    ("multiprocessing/resource_tracker.py", "main", "resource tracker"),
    ("multiprocessing/forkserver.py", "main", "fork server"),
    ("multiprocessing/managers.py", "serve_forever", "multiprocessing manager"),
    ("torch/distributed/run.py", "main", "torchrun"),
)
"""A frame of this file and function says what a process is for: a forked worker has its parent's command
line."""


class Wanted(NamedTuple):
    """What a look is to find out."""

    all_threads: bool
    native: bool
    locals: bool
    nonblocking: bool
    training_thread: int | None
    deadline: float

    @property
    def left_s(self) -> float:
        """Seconds until the look has to be over."""
        return self.deadline - time.monotonic()


class Seen(NamedTuple):
    """What was found in one process."""

    threads: list[dict[str, Any]]
    notes: list[str]
    tool: str | None
    main: Task | None


def look(
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
    """A capture of a process: its training thread, and the thread that owns the GIL when that is another.

    `training_thread` is the kernel's id of that thread, the main one by default. `all_threads` adds all
    others that run Python and, with `native`, those that run none. `locals` adds variables, without
    secrets. `workers` adds the processes below this one, each with its main thread. `nonblocking` never
    stops anything (then there are no native frames). Of a thread stuck in the kernel, `native` shows
    where in the kernel, to root. `notes` of the answer say how it was read and what
    is missing. Native frames of a large process may need a longer `timeout_s`, up to 10.

    Raises `EndpointUnknown` when there is no such process, `ProcessDead` for a zombie, `NotYours` and
    `TracingDenied` when the kernel does not let us, `StacksUnavailable` when it cannot be read.
    """
    deadline = time.monotonic() + timeout_s
    wanted = Wanted(all_threads, native, locals, nonblocking, training_thread or pid, deadline)
    found = _capture(pid)
    seen = _look_at(pid, wanted)
    found.update(tool=seen.tool, notes=seen.notes, threads=seen.threads)
    if workers:
        found["processes"] = [_process_line(pid, seen)]
        _add_descendants(found, pid, wanted._replace(training_thread=None))
    return found


def looks(
    pid: int,
    times: int,
    interval_s: float,
    *,
    all_threads: bool = False,
    locals: bool = False,
    workers: bool = False,
    training_thread: int | None = None,
    timeout_s: float = 5.0,
) -> dict[str, Any]:
    """The last of several looks that stop nothing; each thread says whether it moved in between.

    `moving`: its frames changed (`stack_moving`) or it used the CPU (`cpu_ratio`, of one core) more than
    `MOVING_CPU_RATIO`; None when it was seen only once. `timeout_s` is for each look. Raises what `look`
    raises; a look that fails between others is a note.
    """
    captures: list[dict[str, Any]] = []
    failed: StacksUnavailable | None = None
    clocks: list[dict[int, tuple[float, int]]] = []
    for turn in range(max(1, times)):
        if turn:
            time.sleep(interval_s)
        try:
            found = look(
                pid, all_threads=all_threads, locals=locals, workers=workers, nonblocking=True,
                training_thread=training_thread, timeout_s=timeout_s,
            )
        except StacksUnavailable as error:
            failed = error
            continue
        captures.append(found)
        clocks.append(_cpu_clocks({thread["process_id"] for thread in found["threads"]}))
    if not captures:
        raise failed or StacksUnavailable(f"process {pid} was not looked at")
    last = captures[-1]
    if failed is not None:
        last["notes"].append(f"one of the looks failed: {failed.message}")
    for thread in last["threads"]:
        _mark_moving(thread, captures, clocks)
    return last


def _capture(pid: int) -> dict[str, Any]:
    return {
        "capture_id": os.urandom(6).hex(), "t_ns": wall_ns(), "step": None, "phase": None,
        "source": "outside", "tool": None, "pid": pid, "notes": [], "threads": [],
    }


def _look_at(pid: int, wanted: Wanted) -> Seen:
    """One process. Raises as `look` does."""
    here = life(pid)
    if here is None or here.state in "ZX":
        check_tracing(examine(pid))
        raise EndpointUnknown(f"process {pid} has just come to be, or to an end")
    kernel = {task.tid: task for task in tasks.tasks(pid)}
    unseizable = _why_not_stopped(pid, kernel)
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
        notes.append("no native frames: they are not read without stopping the process")
    elif wanted.native:
        try:
            found = native.read(
                pid, kernel, all_threads=wanted.all_threads or bool(failed), locals=wanted.locals,
                timeout_s=wanted.left_s, notes=notes,
            )
            tool, threads = "pystack", _with_native(pid, threads, found, kernel, wanted)
            if not all(thread["merged"] for thread in found):
                notes.append("native frames between Python frames are missing: the two did not fit together")
        except native.NativeUnavailable as error:
            notes.append(f"no native frames: {error}")
    if wanted.native:
        _add_kernel_frames(threads)
    if failed and tool == "py-spy":
        raise _explained(pid, kernel, failed)
    if failed:
        notes.append(f"py-spy could not read it ({failed}): names are short, who owns the GIL may be missing")
    return Seen(_chosen(pid, threads, kernel, wanted, notes), notes, tool, kernel.get(pid))


def _why_not_stopped(pid: int, kernel: Mapping[int, Task]) -> str | None:
    """Why threads of the process must not be seized; None when they may."""
    for state in ("uninterruptible", "traced", "stopped"):
        at = [task for task in kernel.values() if task.state == state]
        if at:
            place = f" in {at[0].wchan}" if at[0].wchan else ""
            return f"{len(at)} of {len(kernel)} threads {state}{place}"
    tracer = tasks.tracer(pid)
    return f"process {tracer} ({tasks.name_of(tracer) or 'hidden'}) traces it" if tracer else None


def _explained(pid: int, kernel: Mapping[int, Task], said: str) -> ProbeError:
    """The error that says why a process could not be read."""
    if life(pid) is None:
        return EndpointUnknown(f"process {pid} ended while it was read")
    # A thread that reads a page from the disk is uninterruptible for a moment: stuck is who still is.
    waited = {task.tid for task in kernel.values() if task.state == "uninterruptible"}
    stuck = [task for task in tasks.tasks(pid) if task.state == "uninterruptible" and task.tid in waited]
    if stuck:  # nothing more is read of it: that may wait for the same lock
        return StacksUnavailable(
            f"the memory of process {pid} cannot be read while thread {stuck[0].tid} is stuck in the kernel"
            f" ({stuck[0].wchan or 'unknown call'}): {said}",
            hint=f"As root, /proc/{pid}/task/{stuck[0].tid}/stack says where in the kernel it is.",
        )
    try:
        check_tracing(examine(pid))
    except ProbeError as error:
        return error
    if tasks.is_python(pid) is False:
        return StacksUnavailable(
            f"process {pid} ({tasks.name_of(pid)}) is not a Python process",
            hint="A launcher or a shell is often the parent of the job: see `ps --forest`.",
        )
    return StacksUnavailable(
        f"the stacks of process {pid} could not be read: {said}",
        hint="It may be starting, ending, or too busy: ask again, or with --native, which reads differently.",
    )


def _python_threads(
    pid: int, raw: list[dict[str, Any]], kernel: Mapping[int, Task], wanted: Wanted
) -> list[dict[str, Any]]:
    """What py-spy saw, in our shape."""
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
        # Between vfork and exec a child has its parent's memory: those threads are the parent's.
        if tid is not None or thread.get("os_thread_id") is None
    ]


def _thread(
    pid: int, tid: int, task: Task | None, wanted: Wanted, name: str | None = None
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
    file = raw["filename"]
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

    Judged by the parts of its path: the process may run another Python than ours."""
    return not (file.startswith(("<", package.FOLDER)) or _LIBRARY.search(file))


def _with_native(
    pid: int, threads: list[dict[str, Any]], found: list[dict[str, Any]], kernel: Mapping[int, Task],
    wanted: Wanted,
) -> list[dict[str, Any]]:
    """The threads py-spy saw, with the frames pystack saw; and those that only pystack saw."""
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


def _native_frame(raw: dict[str, Any], wanted: Wanted) -> dict[str, Any]:
    python = raw["frame_type"] == "Python"
    found = {**raw, "module": None, "is_user": python and is_user_code(raw["file"])}
    del found["locals"]
    if wanted.locals and python:
        found["locals"] = _variables(raw["locals"])
    return found


def _add_kernel_frames(threads: list[dict[str, Any]]) -> None:
    """Where in the kernel a thread is that is stuck there; only root may know."""
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
    """Give Python frames their qualified names, which only py-spy knows; where it saw the same frames."""
    python = [frame for frame in frames if frame["frame_type"] == "Python"]
    for frame, other in zip(reversed(python), reversed(named), strict=False):
        if (frame["file"], frame["func"]) != (other["file"], other["func"].rpartition(".")[2]):
            return
        frame["func"] = other["func"]


def _chosen(
    pid: int, threads: list[dict[str, Any]], kernel: Mapping[int, Task], wanted: Wanted, notes: list[str]
) -> list[dict[str, Any]]:
    """The threads that were asked for, the training thread first. That one is there even without frames."""
    training = kernel.get(wanted.training_thread or pid)
    if training is not None and not any(thread["thread_id"] == training.tid for thread in threads):
        threads = [_thread(pid, training.tid, training, wanted), *threads]
        notes.append(f"thread {training.tid} runs no Python now")
    chosen = [
        thread
        for thread in threads
        if wanted.all_threads or thread["owns_gil"] or training is None or thread["thread_id"] == training.tid
    ]
    others = len(threads) - len(chosen)
    if others and wanted.training_thread is not None:
        notes.append(f"{others} other threads run Python" if others > 1 else "another thread runs Python")
    return sorted(chosen, key=lambda thread: (not thread["training"], not thread["owns_gil"]))


def _process_line(pid: int, seen: Seen | None) -> dict[str, Any]:
    """One line of `processes`; the command line only of one that does not keep its memory locked."""
    threads = tasks.tasks(pid)
    main = seen.main if seen is not None else next(iter(threads), None)
    stuck = any(task.state == "uninterruptible" for task in threads)
    return {
        "pid": pid,
        "parent_pid": tasks.parent_of(pid),
        "command": (None if stuck else tasks.command(pid)) or tasks.name_of(pid),
        "role": _role(seen.threads) if seen is not None else None,
        "state": main.state if main is not None else None,
        "wchan": main.wchan if main is not None else None,
    }


def _role(threads: list[dict[str, Any]]) -> str | None:
    """What a process is for, by where it is; None for one like any other."""
    places = [(str(frame["file"]), frame["func"]) for thread in threads for frame in thread["frames"]]
    for ending, func, role in _ROLES:
        if any(file.endswith(ending) and name.rpartition(".")[2] == func for file, name in places):
            return role
    return None


def _add_descendants(found: dict[str, Any], pid: int, wanted: Wanted) -> None:
    """The processes below, several at a time, all within the deadline of the look."""
    from concurrent.futures import ThreadPoolExecutor

    below = tasks.children(pid)
    if len(below) >= MOST_PROCESSES:
        found["notes"].append(f"{MOST_PROCESSES - 1} of {len(below)} processes below were looked at")
        below = below[: MOST_PROCESSES - 1]
    with ThreadPoolExecutor(min(AT_ONCE, len(below) or 1), "probe-look") as pool:
        for one, (seen, note) in zip(below, pool.map(lambda one: _try_at(one, wanted), below), strict=True):
            if seen is not None:
                found["threads"] += seen.threads
                found["notes"] += [f"process {one}: {line}" for line in seen.notes]
            if note is not None:
                found["notes"].append(note)
            if tasks.name_of(one) is not None:
                found["processes"].append(_process_line(one, seen))


def _try_at(pid: int, wanted: Wanted) -> tuple[Seen | None, str | None]:
    """A process below: what was seen, or why nothing was. There is nothing to say of one without Python."""
    stuck = any(task.state == "uninterruptible" for task in tasks.tasks(pid))
    if tasks.is_python(pid, by_name_only=stuck) is False:
        return None, None
    try:
        return _look_at(pid, wanted), None
    except EndpointUnknown:
        return None, None
    except ProbeError as error:
        return None, f"process {pid}: {error.message}"


def _cpu_clocks(pids: set[int]) -> dict[int, tuple[float, int]]:
    """Per thread id: when, and how many nanoseconds of CPU it had used."""
    now = time.monotonic()
    return {task.tid: (now, task.run_ns) for pid in pids for task in tasks.tasks(pid)}


def _mark_moving(
    thread: dict[str, Any], captures: list[dict[str, Any]], clocks: list[dict[int, tuple[float, int]]]
) -> None:
    who = (thread["process_id"], thread["thread_id"])
    stacks = [
        [(frame["func"], frame["lineno"]) for frame in one["frames"]]
        for capture in captures
        for one in capture["threads"]
        if (one["process_id"], one["thread_id"]) == who
    ]
    times = [clock[thread["thread_id"]] for clock in clocks if thread["thread_id"] in clock]
    thread["stack_moving"] = any(stack != stacks[0] for stack in stacks) if len(stacks) > 1 else None
    thread["cpu_ratio"] = None
    if len(times) > 1:
        (begun, first_ns), (ended, last_ns) = times[0], times[-1]
        thread["cpu_ratio"] = round((last_ns - first_ns) / 1e9 / (ended - begun), 3)
    signs = [thread["stack_moving"], thread["cpu_ratio"] and thread["cpu_ratio"] >= MOVING_CPU_RATIO]
    thread["moving"] = any(signs) if len(stacks) > 1 else None
