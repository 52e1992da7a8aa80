"""Evidence: plain facts about one process, gathered within two seconds, whatever state it is in.

`gather` combines the rings (`progress`), the kernel's figures at the start and end of a short window
(`kernel_waits`), and up to four stack samples taken from outside without stopping the process
(`outside_view`). The process does not take part, so a held GIL makes no difference; without a recording only
the progress is missing. A fact that was not measured is None. Blocks for up to two seconds: runs in threads
of the server, or in the command. May import numpy (through the ring reader).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from probe.base.errors import ProbeError
from probe.base.settings import BY_NAME
from probe.diagnose.process import kernel_waits
from probe.diagnose.process.handled import Handled, handled
from probe.diagnose.process.kernel_waits import Rested, Snapshot
from probe.diagnose.process.pause_owner import HELD, Held, who_holds
from probe.diagnose.process.progress import History, Progress
from probe.diagnose.process.source_lines import line_of
from probe.outside.processes import tasks
from probe.outside.stacks import outside_view
from probe.recording.process import alive
from probe.recording.recording import Meta

AT_S = (0.0, 0.2, 0.5, 0.75)
"""Times of the samples: enough to detect movement, within the second a user is willing to wait."""
WINDOW_S = AT_S[-1]
SAMPLE_TIMEOUT_S = 0.8
"""Timeout of one sample; it takes 10-40 ms."""
SAMPLING_TIMEOUT_S = 1.2
"""Timeout of all samples: none begins after this time."""
GIL_WAITER_SWITCHES_PER_S = 50.0
"""A thread that waits for the GIL wakes every 5 ms to request it (sys.getswitchinterval): 200 times a
second. A thread that waits for anything else wakes rarely."""
_GIL_WAITER_CPU_RATIO = 0.1


@dataclass(frozen=True)
class Frame:
    """A Python frame. `line`: text of the line in the file as it is now; None if not read."""

    func: str
    file: str
    lineno: int | None
    is_user: bool = False
    line: str | None = None

    def __str__(self) -> str:
        return f"{self.func} ({self.file}:{self.lineno})"


@dataclass(frozen=True)
class Thread:
    """A Python thread during the window. `frames`: its frames in the last sample, innermost first."""

    tid: int
    name: str | None = None
    training: bool = False
    frames: tuple[Frame, ...] = ()
    state: str | None = None
    wchan: str | None = None
    call: str | None = None
    """The system call it is in."""
    waits_on: str | None = None
    """The target of that call's descriptor: a file, a pipe, a socket."""
    cpu_ratio: float | None = None
    """CPU time divided by elapsed time, in cores."""
    run_delay_ratio: float | None = None
    """Time it was runnable without a core, divided by elapsed time."""
    switches_per_s: float | None = None
    """Context switches; 0 means that it slept (or ran) during the whole window."""
    changed: bool | None = None
    """Whether its stack changed between samples."""
    held_gil: bool | None = None
    """Whether it held the GIL in every sample."""
    waits_for_gil: bool | None = None
    stays_in: Frame | None = None
    """The innermost frame present in every sample and called from the same lines: the call that does not
    return. None with fewer than two samples."""
    in_torch: bool | None = None
    """Whether any sample was in a module, a backward pass, an optimizer or a loader."""

    @property
    def wanted_ratio(self) -> float:
        """The share of one core that it used or was runnable for without getting it."""
        return (self.cpu_ratio or 0.0) + (self.run_delay_ratio or 0.0)

    @property
    def still(self) -> bool:
        """Whether it is known to have slept during the whole window. A thread that lacks a CPU did not."""
        return (
            self.switches_per_s == 0 and self.cpu_ratio == 0 and not self.changed and self.state != "running"
        )


@dataclass(frozen=True)
class Worker:
    """A descendant process. `frames`: frames of its main thread; empty if it does not run Python."""

    pid: int
    role: str | None = None
    command: str | None = None
    state: str | None = None
    wchan: str | None = None
    cpu_ratio: float | None = None
    changed: bool | None = None
    frames: tuple[Frame, ...] = ()


@dataclass(frozen=True)
class Evidence:
    """Everything measured about a process, without interpretation."""

    pid: int
    stall_s: float
    """PROBE_STALL_S as set for it."""
    state: str | None = None
    """State of the process according to the kernel; None if it is gone."""
    window_s: float | None = None
    how: str | None = None
    """How it ended, if known."""
    closed: bool | None = None
    """Whether it closed its recording."""
    progress: Progress | None = None
    held: Held | None = None
    """The action that holds the training thread, if the journal names one."""
    handled: Handled | None = None
    """The exception that the training thread catches repeatedly while no step ends."""
    world_size: int | None = None
    threads: tuple[Thread, ...] = ()
    workers: tuple[Worker, ...] = ()
    still_s: float | None = None
    """How long the training thread has been asleep without a break, within the observed time."""
    watched_s: float | None = None
    """The observed time."""
    used_s: float | None = None
    """CPU time of the training thread in the observed time: a lower bound since the last sign of training."""
    cpu_ratio: float | None = None
    """CPU time of all threads divided by elapsed time, in cores."""
    major_faults_per_s: float | None = None
    swap_bytes: int | None = None
    rss_bytes: int | None = None
    throttled_ratio: float | None = None
    """Share of scheduling periods in which its control group was throttled."""
    memory_limit_bytes: int | None = None
    memory_usage_bytes: int | None = None
    tracer_pid: int | None = None
    tracer_name: str | None = None
    samples: int = 0
    missing: tuple[str, ...] = ()
    """Measurements that failed, and why."""
    capture: Mapping[str, Any] | None = None
    """The last sample, in the format of a capture."""

    @property
    def training(self) -> Thread | None:
        """The training thread; None if no thread could be read."""
        return next((thread for thread in self.threads if thread.training), None)


def stall_setting(meta: Meta | None) -> float:
    """PROBE_STALL_S of a recorded process, in seconds; the default for a process without a recording."""
    setting = BY_NAME["stall_s"]
    try:
        return float(setting.parse((meta.settings.get("stall_s") if meta else None) or setting.default))
    except ValueError:
        return float(setting.default)


def gather(
    pid: int,
    meta: Meta | None = None,
    *,
    history: History | None = None,
    rested: Rested | None = None,
    training_thread: int | None = None,
    how: str | None = None,
    closed: bool | None = None,
    folder: Path | None = None,
    enough: Callable[[Evidence], bool] | None = None,
) -> Evidence:
    """Observe a process for up to a second. Raises nothing: `missing` lists what failed.

    `meta`: if it is recorded; `history`: if its rings were read before; `rested`: the training thread's rest
    so far, if it was watched before; `training_thread`: its native ID, if known; `how`, `closed`: if it is
    known to have ended; `folder`: its recording; `enough`: whether the evidence after the second sample is
    already sufficient, which skips the other two."""
    rings = history or (None if meta is None else History(meta))
    found = Evidence(
        pid, stall_setting(meta), how=how, closed=closed, progress=rings.read() if rings else None,
        world_size=None if meta is None else meta.world_size,
    )
    if how is not None or (meta is not None and not alive(meta.pid, meta.start_ticks, meta.boot_id)):
        return replace(found, state=_zombie(pid, meta))
    before = kernel_waits.snapshot(pid)
    if before.state is None:
        return found
    if rested is not None:
        rested = rested.as_of(before.tasks.get(training_thread or pid))
    captures: list[dict[str, Any]] = []
    missing: list[str] = []
    for begins_s in AT_S:
        time.sleep(max(0.0, before.monotonic_s + begins_s - time.monotonic()))
        if time.monotonic() > before.monotonic_s + SAMPLING_TIMEOUT_S:
            missing.append(f"only {len(captures)} of {len(AT_S)} stack samples: reading one took long")
            break
        ends = begins_s == WINDOW_S or (enough is not None and begins_s == AT_S[1])
        _add_sample(pid, captures, missing, workers=ends or begins_s == 0.0)
        if enough is not None and begins_s == AT_S[1]:
            seen = _seen(found, before, captures, missing, training_thread, rested, rings, folder)
            if enough(seen):
                return seen
    return _seen(found, before, captures, missing, training_thread, rested, rings, folder)


def _seen(
    found: Evidence, before: Snapshot, captures: Sequence[dict[str, Any]], missing: Sequence[str],
    training_thread: int | None, rested: Rested | None, rings: History | None, folder: Path | None,
) -> Evidence:
    """The evidence about a live process from the samples taken so far."""
    pid = found.pid
    after = kernel_waits.snapshot(pid)
    if after.state is None:  # it ended while being observed
        return replace(found, missing=tuple(missing))
    limit, usage = kernel_waits.memory_limit(pid)
    window_s = after.monotonic_s - before.monotonic_s
    threads = _threads(pid, captures, before, after, training_thread)
    training = next((thread for thread in threads if thread.training), None)
    still_s = 0.0 if training is None or not training.still else window_s
    watched_s = window_s
    if rested is not None and still_s:
        still_s, watched_s = still_s + rested.still_s, watched_s + rested.watched_s
    used_s = None if training is None or training.cpu_ratio is None else training.cpu_ratio * window_s
    if rested is not None and used_s is not None:
        used_s += rested.used_s
    progress = rings.read() if rings else None
    phase = progress.phase if progress is not None else None
    since_s = (progress.last_step_s if progress is not None else None) or 0.0
    return replace(
        found,
        handled=handled(pid, folder, since_s) if folder is not None and since_s > found.stall_s else None,
        progress=progress, held=who_holds(folder, phase) if folder is not None and phase in HELD else None,
        state=after.state, window_s=window_s, threads=threads, workers=_workers(captures, before, after),
        still_s=None if training is None else still_s, watched_s=watched_s, used_s=used_s,
        cpu_ratio=_cpu_ratio(before, after, window_s),
        major_faults_per_s=_rate(before.major_faults, after.major_faults, window_s),
        swap_bytes=after.swap_bytes, rss_bytes=after.rss_bytes,
        throttled_ratio=_throttled(before, after), memory_limit_bytes=limit, memory_usage_bytes=usage,
        tracer_pid=after.tracer or None, tracer_name=tasks.name_of(after.tracer) if after.tracer else None,
        samples=len(captures), missing=tuple(missing), capture=_capture(captures, threads),
    )


def _zombie(pid: int, meta: Meta | None) -> str | None:
    """`zombie` (or `dead`) if the process's entry still exists, else None."""
    found = kernel_waits.snapshot(pid).state
    return found if found in ("zombie", "dead") else None


# From outside -----------------------------------------------------------------


def _add_sample(pid: int, captures: list[dict[str, Any]], missing: list[str], *, workers: bool) -> None:
    """Add a capture, or the reason why there is none. The kernel's figures need the window either way."""
    try:
        captures.append(
            outside_view.read_stacks(
                pid, all_threads=True, workers=workers, nonblocking=True, timeout_s=SAMPLE_TIMEOUT_S
            )
        )
    except ProbeError as error:
        line = f"no stacks: {error.message}"
        if line not in missing:
            missing.append(line)


def _threads(
    pid: int, captures: Sequence[Mapping[str, Any]], before: Snapshot, after: Snapshot,
    training_thread: int | None,
) -> tuple[Thread, ...]:
    """The threads of the process, the training thread first."""
    if training_thread not in after.tasks:
        training_thread = None
    if not captures:  # only the kernel's figures
        tid = training_thread or pid
        return (_with_kernel(pid, Thread(tid, training=True), before, after),) if tid in after.tasks else ()
    found = [
        _with_kernel(pid, _over_samples(raw, captures), before, after)
        for raw in captures[-1]["threads"]
        if raw["process_id"] == pid
    ]
    training = training_thread or _training_tid(pid, found)
    found = [replace(thread, training=thread.tid == training) for thread in found]
    found = [
        thread if str(thread.name).startswith("probe-")
        else replace(thread, frames=_with_source(pid, thread.frames))
        for thread in found
    ]
    return tuple(sorted(found, key=lambda thread: not thread.training))


def _over_samples(raw: Mapping[str, Any], captures: Sequence[Mapping[str, Any]]) -> Thread:
    """One thread over all samples."""
    who = (raw["process_id"], raw["thread_id"])
    seen = [
        one
        for capture in captures
        for one in capture["threads"]
        if (one["process_id"], one["thread_id"]) == who
    ]
    owners = [one["owns_gil"] for one in seen]
    return Thread(
        tid=raw["thread_id"], name=raw["thread_name"], training=bool(raw["training"]), frames=_frames(raw),
        changed=_changed(seen),
        held_gil=None if None in owners else len(seen) == len(captures) and all(owners),
        waits_for_gil=raw["waits_for_gil"], stays_in=_stays_in([_frames(one) for one in seen]),
        in_torch=any(
            name in frame["file"] for one in seen for frame in one["frames"] for name in _TRAINING_FILES
        ),
    )


def _stays_in(stacks: Sequence[tuple[Frame, ...]]) -> Frame | None:
    """The innermost frame common to all stacks whose callers are at the same lines in all of them."""
    if len(stacks) < 2:
        return None
    found = None
    for level in zip(*(stack[::-1] for stack in stacks), strict=False):
        if len({(frame.func, frame.file) for frame in level}) > 1:
            break
        found = level[-1]
        if len({frame.lineno for frame in level}) > 1:
            break
    return found


def _changed(seen: Sequence[Mapping[str, Any]]) -> bool | None:
    stacks = [[(frame["func"], frame["lineno"]) for frame in one["frames"]] for one in seen]
    return any(stack != stacks[0] for stack in stacks) if len(stacks) > 1 else None


def _frames(raw: Mapping[str, Any]) -> tuple[Frame, ...]:
    return tuple(
        Frame(frame["func"], frame["file"], frame["lineno"], bool(frame["is_user"]))
        for frame in raw["frames"]
        if frame["frame_type"] == "Python"
    )


_TRAINING_FILES = (
    "torch/optim/", "torch/autograd/", "torch/nn/modules/module.py", "torch/utils/data/dataloader.py",
)
_WAITING_FUNCTIONS = ("join", "wait", "_wait_for_tstate_lock", "result")


def _training_tid(pid: int, threads: Sequence[Thread]) -> int:
    """The training thread: the main thread, unless it only waits for another thread that is inside torch."""
    main = next((thread for thread in threads if thread.tid == pid), None)
    waits = main is None or (
        bool(main.frames)
        and main.frames[0].file.endswith(("threading.py", "concurrent/futures/_base.py"))
        and main.frames[0].func.rpartition(".")[2] in _WAITING_FUNCTIONS
    )
    if waits:
        for thread in threads:
            inside = any(name in frame.file for frame in thread.frames for name in _TRAINING_FILES)
            if inside and thread.tid != pid:
                return thread.tid
    return pid


# From the kernel --------------------------------------------------------------


def _with_kernel(pid: int, thread: Thread, before: Snapshot, after: Snapshot) -> Thread:
    """The thread with the kernel's figures added; unchanged if it has ended."""
    last = after.tasks.get(thread.tid)
    if last is None:
        return thread
    call = kernel_waits.syscall_name(last.syscall)
    thread = replace(
        thread, state=last.state, wchan=last.wchan, call=call,
        waits_on=kernel_waits.waits_on(pid, thread.tid, call), name=thread.name or last.name,
    )
    first = before.tasks.get(thread.tid)
    if first is None:
        return thread
    window_s = after.monotonic_s - before.monotonic_s
    switches = _rate(first.switches, last.switches, window_s)
    cpu_ratio = (last.run_ns - first.run_ns) / 1e9 / window_s
    waits = thread.waits_for_gil
    if waits is None and switches is not None and not thread.held_gil:
        asks_again = switches >= GIL_WAITER_SWITCHES_PER_S and cpu_ratio < _GIL_WAITER_CPU_RATIO
        waits = asks_again and call in ("futex", None)  # None: read between two of its waits
    return replace(
        thread, cpu_ratio=cpu_ratio, switches_per_s=switches, waits_for_gil=waits,
        run_delay_ratio=tasks.run_delay_ratio(first, last, window_s),
    )


def _rate(first: int | None, last: int | None, window_s: float) -> float | None:
    return None if first is None or last is None else (last - first) / window_s


def _cpu_ratio(before: Snapshot, after: Snapshot, window_s: float) -> float:
    both = before.tasks.keys() & after.tasks.keys()
    return sum(after.tasks[tid].run_ns - before.tasks[tid].run_ns for tid in both) / 1e9 / window_s


def _throttled(before: Snapshot, after: Snapshot) -> float | None:
    if after.periods is None or after.throttled is None:
        return None
    periods = after.periods - (before.periods or 0)
    throttled = after.throttled - (before.throttled or 0)
    return throttled / periods if periods > 0 else None


def _workers(
    captures: Sequence[Mapping[str, Any]], before: Snapshot, after: Snapshot
) -> tuple[Worker, ...]:
    """The child processes, including those without stacks."""
    window_s = after.monotonic_s - before.monotonic_s
    lines = {line["pid"]: line for capture in captures for line in capture.get("processes", ())}
    found = []
    for pid, (state, ticks) in after.children.items():
        line = lines.get(pid, {})
        mains = [
            thread for capture in captures for thread in capture["threads"]
            if thread["process_id"] == pid and thread["thread_id"] == pid
        ]
        began = before.children.get(pid)
        found.append(
            Worker(
                pid, role=line.get("role"), command=line.get("command"), state=state, wchan=line.get("wchan"),
                cpu_ratio=None if began is None else (ticks - began[1]) * tasks.tick_s() / window_s,
                changed=_changed(mains), frames=_frames(mains[-1]) if mains else (),
            )
        )
    return tuple(found)


# Sources and captures ---------------------------------------------------------


def _with_source(pid: int, frames: tuple[Frame, ...]) -> tuple[Frame, ...]:
    """The frames, with source lines added to the innermost frame and the innermost user frame."""
    if not frames:
        return frames
    wanted = {0, next((depth for depth, frame in enumerate(frames) if frame.is_user), 0)}
    return tuple(
        replace(frame, line=line_of(pid, frame.file, frame.lineno)) if depth in wanted else frame
        for depth, frame in enumerate(frames)
    )


def _capture(
    captures: Sequence[Mapping[str, Any]], threads: tuple[Thread, ...]
) -> Mapping[str, Any] | None:
    """The last sample, plus facts that need several samples: `moving` and the training thread."""
    if not captures:
        return None
    ours = {thread.tid: thread for thread in threads}
    known = [
        {
            **raw,
            "training": thread.training, "moving": moving(thread), "waits_for_gil": thread.waits_for_gil,
        }
        if raw["process_id"] == captures[-1]["pid"] and (thread := ours.get(raw["thread_id"]))
        else raw
        for raw in captures[-1]["threads"]
    ]
    return {**captures[-1], "threads": sorted(known, key=lambda one: not one["training"])}


def moving(thread: Thread | Worker) -> bool | None:
    """Whether it moved during the window: its stack changed or it used the CPU."""
    signs = [
        thread.changed,
        None if thread.cpu_ratio is None else thread.cpu_ratio >= outside_view.MOVING_CPU_RATIO,
    ]
    return None if signs == [None, None] else any(signs)
