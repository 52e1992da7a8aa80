"""Wording: formats evidence as lines with figures, identical wherever a verdict is shown.

Pure functions. Standard library only.
"""

from __future__ import annotations

from collections.abc import Collection

from probe.diagnose.process.evidence import Evidence, Frame, Thread, Worker
from probe.diagnose.process.stack_patterns import Frames, innermost


def seconds(value: float) -> str:
    """A duration with as many digits as a reader needs."""
    if value < 0.9995:
        return f"{value * 1e3:.3g} ms"
    if value < 10:
        return f"{value:.1f} s"
    if value < 120:
        return f"{value:.0f} s"
    minutes, rest = divmod(round(value), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def percent(ratio: float) -> str:
    """A ratio in percent."""
    return f"{ratio * 100:.0f} %"


def gibibytes(size: int) -> str:
    """A size in GiB, or in MiB if small."""
    return f"{size / 2**30:.2f} GiB" if size >= 2**28 else f"{size / 2**20:.0f} MiB"


def verb(numbers: Collection[int], one: str, several: str) -> str:
    """The singular or plural verb for these ranks."""
    return one if len(numbers) == 1 else several


def at(frames: Frames) -> str:
    """The place of a stack: the frame to report, with its source line."""
    frame = innermost(frames)
    if frame is None:
        return "no Python frame"
    return f"{frame}: `{frame.line}`" if frame.line else str(frame)


def way_in(frames: Frames, most: int = 3) -> str | None:
    """The callers of the frame that `at` reports, nearest first; only user frames if that is a user frame."""
    frame = innermost(frames)
    if frame is None:
        return None
    callers = list(frames)[list(frames).index(frame) + 1 :]
    callers = [caller for caller in callers if caller.is_user] if frame.is_user else callers
    return " ← ".join(map(short, callers[:most])) or None


def progress_lines(e: Evidence, *, last_step: bool = True) -> list[str]:
    """Progress of training so far; `last_step=False` leaves out the line about the last step."""
    p = e.progress
    if p is None:
        return ["the process is not recorded, so its steps are unknown"]
    if p.step is None:
        lines = [f"no step has finished since recording began {seconds(p.recorded_s)} ago"]
    else:
        usual = f"; a step usually takes {seconds(p.usual_step_s)}" if p.usual_step_s is not None else ""
        lines = [f"last finished step: {p.step:,}, {seconds(p.last_step_s or 0.0)} ago{usual}"]
    if not last_step:
        lines = []
    if p.phase is not None and p.phase_s is not None and p.phase != "other":
        loader = f" ({p.pending_loader})" if p.pending_loader else ""
        lines.append(f"in phase {p.phase}{loader} for {seconds(p.phase_s)}")
    if p.longest_pause_s is not None and p.usual_step_s and p.longest_pause_s > 5 * p.usual_step_s:
        lines.append(f"longest step so far: {seconds(p.longest_pause_s)}")
    return lines


def thread_lines(e: Evidence, thread: Thread | None) -> list[str]:
    """Where a thread is, and the kernel's figures about it."""
    if thread is None:
        return list(e.missing)
    name = f"{thread.name or 'thread'} ({thread.tid})"
    lines = []
    if thread.frames:
        lines.append(f"{name} is at {at(thread.frames)}")
        callers = way_in(thread.frames)
        if callers:
            lines.append(f"called by {callers}")
    where = f" in {thread.call}" if thread.call else ""
    where += on(thread)
    where += f" ({thread.wchan})" if thread.wchan else ""
    figures = []
    if thread.cpu_ratio is not None:
        figures.append(f"CPU {percent(thread.cpu_ratio)}")
    if thread.switches_per_s is not None:
        figures.append(f"{thread.switches_per_s:.0f} context switches/s")
    if thread.run_delay_ratio is not None and thread.run_delay_ratio >= 0.1:
        figures.append(f"waiting for a CPU {percent(thread.run_delay_ratio)} of the time")
    over = f" over {seconds(e.window_s)}" if e.window_s else ""
    lines.append(f"{name} is {thread.state or 'in an unknown state'}{where}; {', '.join(figures)}{over}")
    if thread.changed is not None:
        moves = "changed" if thread.changed else "was the same"
        lines.append(f"its stack {moves} in {e.samples} samples")
    if e.still_s and e.watched_s and e.watched_s > 2 * (e.window_s or 0.0) and thread.training:
        lines.append(f"it has slept for at least {seconds(e.still_s)}")
    return lines + list(e.missing)


def on(thread: Thread) -> str:
    """` on /data/shard-3`: the target of a thread's system call."""
    return f" on {thread.waits_on}" if thread.waits_on else ""


def gil_lines(e: Evidence) -> list[str]:
    """Which thread holds the GIL and which wait for it."""
    if not e.samples:
        return []
    holder = next((thread for thread in e.threads if thread.held_gil), None)
    waiting = [f"{thread.name} ({thread.tid})" for thread in e.threads if thread.waits_for_gil]
    lines = []
    if holder is not None:
        lines.append(f"the GIL was held by {holder.name} ({holder.tid}) in all {e.samples} samples")
    elif any(thread.held_gil is not None for thread in e.threads):
        lines.append(f"the GIL is not stuck: no thread held it in all {e.samples} samples")
    if waiting:
        lines.append(f"waiting for the GIL: {', '.join(waiting[:8])}")
    p = e.progress
    if p is not None and p.sample_s is not None and p.sample_interval_s is not None and holder is not None:
        ran, due = seconds(p.sample_s), f"{p.sample_interval_s:g} s"
        lines.append(f"probe's own thread last ran {ran} ago (due every {due})")
    return lines


def worker_line(worker: Worker, frames: Frames | None = None) -> str:
    """One line about a child process: state and place."""
    where = f" in {worker.wchan}" if worker.wchan and worker.state != "running" else ""
    cpu = f", CPU {percent(worker.cpu_ratio)}" if worker.cpu_ratio is not None else ""
    place = f", at {at(frames or worker.frames)}" if worker.frames else ""
    return f"{worker.role or 'child process'} {worker.pid}: {worker.state}{where}{cpu}{place}"


def place_of(frames: Frames) -> str:
    """The frame to report, in short form."""
    return short(innermost(frames))


def short(frame: Frame | None) -> str:
    """A frame in short form: function, file name, line."""
    if frame is None:
        return "code without a Python frame"
    return f"{frame.func} ({frame.file.rpartition('/')[2]}:{frame.lineno})"


def short_with_caller(frame: Frame, frames: Frames) -> str:
    """A frame in short form; if it is not a user frame, with its nearest user caller."""
    names = [(one.func, one.file) for one in frames]
    if frame.is_user or (frame.func, frame.file) not in names:
        return short(frame)
    callers = frames[names.index((frame.func, frame.file)) + 1 :]
    caller = next((one for one in callers if one.is_user), None)
    return short(frame) if caller is None else f"{short(frame)}, called by {short(caller)}"
