"""Starts an agent in a running process.

First check whether an agent answers already, and whether the process may be attached to (target.py). Then
inject a thread through a borrowed thread of the job (with Python 3.14's `sys.remote_exec`, else gdb.py, else
borrowed.py), which reports over a socket (meeting.py). There are two stages: *loaded*, when the injected
thread exists, and *running*, when it has the GIL. A job that holds the GIL for long starts its agent when it
releases it.

Runs in the command, on any thread; standard library only.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from probe.base import wire
from probe.base.errors import (
    BY_CODE,
    AttachFailed,
    AttachPending,
    AttachRefused,
    ProbeError,
    ServerUnavailable,
)
from probe.base.settings import Settings
from probe.boot.launch import ensure_server
from probe.outside.attach import borrowed, gdb, payload, remote
from probe.outside.attach.boot_library import place_library
from probe.outside.attach.meeting import Meeting
from probe.outside.attach.parked import parked_threads
from probe.outside.processes import tasks
from probe.outside.processes.target import Target, check_attach, check_tracing, read_target, why_denied
from probe.recording import places

LOADED_S = 10.0
"""Limit from the end of the injection to the injected thread's first message: it must be scheduled once."""
BOOT_THREAD = "probe-boot"
_TURN_S = 60.0
_TRIES = 4
_POLL_S = 0.02
_WAYS_IN = "Install gdb, or torch-probe[inject] where probe is installed; or start the job with PROBE=1."

Say = Callable[[str], object]


class Attached(NamedTuple):
    """The result. Times are from the start of the injection; None if there was an agent already."""

    pid: int
    how: str
    outcome: str
    """`started`, `already`, or `waiting for torch`: then recording begins when the job imports it."""
    loaded_s: float | None = None
    running_s: float | None = None
    paused_s: float | None = None
    """How long gdb stopped the process (pyinjector: the borrowed thread); None when that is not known."""


def attach(
    pid: int, settings: Mapping[str, str], *, directory: Path, wait_s: float = 15.0,
    say: Say = lambda _sentence: None,
) -> Attached:
    """Start the agent in process `pid` with `settings` (PROBE_… variables), recording into `directory`.

    `wait_s` limits each wait for the job: for the GIL, for the start, for the agent's socket. `say` receives
    sentences about the progress. Raises the errors of `check_attach`; `AttachRefused` when there is no safe
    way in, `AttachFailed` when one failed (the job continues unchanged), `AttachPending` when the agent does
    not run yet. On KeyboardInterrupt the job is released first.
    """
    target = read_target(pid)
    if _answers(directory, target):
        return Attached(pid, "", "already")
    check_tracing(target)
    folder = places.make_private(places.make_private(directory) / "boot")
    if tasks.in_other_namespace(pid, "pid"):  # a server started by the agent would see only that namespace
        with contextlib.suppress(ServerUnavailable):
            environ = {**os.environ, **settings, "PROBE_DIR": str(directory)}
            ensure_server(directory, Settings(environ), wait_s=0.0)
    with _turn(folder, target, say):
        target = read_target(pid)  # an earlier attempt may have traced it, or succeeded
        if _answers(directory, target):
            return Attached(pid, "", "already")
        check_attach(target)
        if is_pending(pid):
            say("an earlier attempt is loaded and waits for the GIL")
            _wait_for_agent(directory, target, wait_s)
            return Attached(pid, "", "already")
        return _attach(target, settings, directory, folder, wait_s, say)


def _attach(
    target: Target, settings: Mapping[str, str], directory: Path, folder: Path, wait_s: float, say: Say
) -> Attached:
    source = payload.source(settings, directory=directory)
    with Meeting(folder, target.pid, target.inner_pid, source) as meeting:
        done = _remote_exec(target, folder, meeting, source) or _inject(target, folder, meeting, source, say)
        for note in done.notes:
            say(note)
        if not meeting.until_loaded(wait_s if "pending" in done.how else LOADED_S):
            raise _silent(target, done)
        try:
            _wait_for_start(target, meeting, wait_s)
        except KeyboardInterrupt:
            say("the agent is already loaded and starts as soon as it gets the GIL")
            raise
        outcome = _outcome(target, meeting)
    if outcome != "waiting for torch":
        _wait_for_agent(directory, target, wait_s)
    return Attached(target.pid, done.how, outcome, meeting.loaded_s, meeting.running_s, done.stopped_s)


def _wait_for_start(target: Target, meeting: Meeting, wait_s: float) -> None:
    """Wait for the GIL, then for the outcome. Raises `AttachPending`."""
    if not meeting.until_running(wait_s):
        if meeting.outcome is None:
            _check_alive(target)
            raise _pending(target, "the agent is loaded and waits for the GIL")
    elif not meeting.until_over(wait_s):
        _check_alive(target)
        raise _pending(target, "the agent is starting and waits for the job")


def _outcome(target: Target, meeting: Meeting) -> str:
    """The state that the job reported; raises the error that it reported."""
    found = meeting.outcome or {}
    if "state" in found and found["state"] != "expired":
        return found["state"]
    kind = BY_CODE.get(found.get("code", ""), AttachFailed)
    words = found.get("error", "the attempt has expired" if found else "the job did not report a result")
    raise (kind if kind is not ProbeError else AttachFailed)(
        f"the agent could not be started in process {target.pid}: {words}", hint=found.get("hint") or None
    )


# Ways in --------------------------------------------------------------------


def _remote_exec(target: Target, folder: Path, meeting: Meeting, source: str) -> gdb.Done | None:
    """Use `sys.remote_exec` of Python 3.14; None if there is none, or it did not run."""
    # A main thread that waits in a system call reaches no bytecode.
    waits = any(found.tid == target.pid for found in parked_threads(target.pid))
    if target.version is None or target.version < remote.SINCE or waits:
        return None
    script = payload.calling_source(source, str(meeting.path), expires_in_s=remote.PATIENCE_S)
    try:
        if remote.execute(target.pid, folder, script) or not meeting.until_loaded(remote.PATIENCE_S):
            return None
    finally:
        remote.remove_script(target.pid, folder)
    return gdb.Done(how="by sys.remote_exec")


def _inject(target: Target, folder: Path, meeting: Meeting, source: str, say: Say) -> gdb.Done:
    """Start the injected thread in the job; raises if that is impossible or failed."""
    library, problem = place_library(folder)
    program = shutil.which("gdb")
    if library is None:
        say(f"{problem}: using a pending call instead, which waits for the main thread")
    done = gdb.Done(problem="no safe moment was found", kind="Refused")
    for attempt in range(_TRIES):
        stuck = tasks.stuck(target.pid)
        parked = parked_threads(target.pid)
        if program and not stuck:
            done = _with_gdb(program, target, library, meeting, source, patient=attempt == 0)
        elif library is not None and borrowed.available():
            done = borrowed.inject(target.pid, parked, library)
        else:
            raise _no_way_in(target, stuck, library is not None)
        for note in done.notes:
            say(note)
        if done.kind == "Unloadable" and library is not None:
            say(f"{done.problem}: using a pending call instead, which waits for the main thread")
            library = None
        elif done.kind == "Unsaved" and library is not None and borrowed.available():
            say(f"{done.problem}: using pyinjector instead")
            program = None
        elif not done.problem:
            return done
        elif done.kind != "Refused":
            break
    raise _injection_failed(target, done, bool(program))


def _with_gdb(
    program: str, target: Target, library: Path | None, meeting: Meeting, source: str, *, patient: bool
) -> gdb.Done:
    able = gdb.has_python(program)
    parked = parked_threads(target.pid)
    if not able and (library is None or not parked):
        return gdb.Done(problem="no thread is parked, and this gdb was built without Python", kind="Refused")
    text = "" if library is not None else payload.calling_source(source, str(meeting.path))
    try:
        done = gdb.run(
            program, target.pid, parked, library, text, breakpoints=not (patient and parked), plain=not able
        )
    except gdb.Cancelled as cancelled:
        number = cancelled.args[0]
        if number == signal.SIGINT:
            raise KeyboardInterrupt from None
        raise SystemExit(128 + number) from None
    return done if library is not None or done.problem else done._replace(how="a pending call")


# Errors --------------------------------------------------------------------------


def _no_way_in(target: Target, stuck: list[tasks.Task], has_library: bool) -> ProbeError:
    pid = target.pid
    if stuck:
        return AttachRefused(
            f"thread {stuck[0].tid} of process {pid} is stuck in the kernel (state D), and a debugger would "
            "hang until it returns",
            hint=f"`probe {pid} backtrace` shows where, without stopping it. torch-probe[inject] "
            "(pyinjector) can attach despite such a thread.",
        )
    missing = "gdb and pyinjector are not installed" if has_library else "there is no gdb, and no C compiler"
    return AttachRefused(f"no tool here can inject code into a running process: {missing}", hint=_WAYS_IN)


def _injection_failed(target: Target, done: gdb.Done, has_gdb: bool) -> ProbeError:
    """The error after a failed injection: the current state explains more than the tool's message."""
    now = read_target(target.pid)
    try:
        check_attach(now)
    except ProbeError as error:
        return error
    if "not permitted" in done.problem:
        return why_denied(now)
    if done.kind == "Refused":
        hint = "Try again later, when it is doing something else."
        if not has_gdb:
            hint = f"gdb could wait for a safe moment in a busy thread. {_WAYS_IN}"
        return AttachRefused(
            f"no thread of process {target.pid} could be borrowed safely: {done.problem}", hint=hint
        )
    without = f"`probe {target.pid} backtrace` works without attaching; with PROBE=1 no attach is needed."
    instead = "Install torch-probe[inject] where probe is installed: it needs no gdb. "
    return AttachFailed(
        f"process {target.pid} could not be attached to ({done.problem}); it continues unchanged",
        hint=(instead if done.kind == "Unsaved" else "") + without,
    )


def _silent(target: Target, done: gdb.Done) -> ProbeError:
    """The error when the injected thread did not connect."""
    if "pending" in done.how:
        return _pending(target, "the start is queued for the main thread, which has not reached bytecode")
    now = read_target(target.pid)
    with contextlib.suppress(AttachRefused):
        check_attach(now)
    return AttachFailed(
        f"the thread started in process {target.pid} ({done.how}) did not connect within "
        f"{LOADED_S:g} s; the process's state is {now.state or 'gone'} now",
        hint="The job was just stopped, or no CPU was free: try again.",
    )


def _pending(target: Target, what: str) -> AttachPending:
    holder = gil_holder(target.pid)
    held = f", held by {holder}" if holder else ""
    return AttachPending(
        f"{what}{held}; it continues as soon as it can (within {payload.EXPIRES_S / 60:g} minutes)",
        hint=f"`probe {target.pid} backtrace --native` shows what delays it.",
    )


def gil_holder(pid: int) -> str:
    """The holder of the GIL, `MainThread in train (train.py:88)`, from outside; empty when it is unknown."""
    from probe.outside.stacks.outside_view import read_stacks

    try:
        found: dict[str, Any] = read_stacks(pid, all_threads=True, nonblocking=True)
    except ProbeError:
        return ""
    for thread in found["threads"]:
        if thread.get("owns_gil"):
            name = thread.get("thread_name") or f"thread {thread.get('thread_id')}"
            frames = thread["frames"]
            if not frames:
                return str(name)
            inner = frames[0]
            return f"{name} in {inner['func']} ({os.path.basename(inner['file'])}:{inner['lineno']})"
    return ""


# The agent's socket, and turns -----------------------------------------------------


def _answers(directory: Path, target: Target) -> bool:
    """Whether an agent of that process accepts connections."""
    if not target.exists:
        return False
    try:
        with wire.connect_unix(places.agent_socket(directory, target.pid), 0.5) as connection:
            return wire.peer_of(connection).pid == target.pid
    except (OSError, ProbeError):
        return False


def _wait_for_agent(directory: Path, target: Target, wait_s: float) -> None:
    deadline = time.monotonic() + wait_s
    while not _answers(directory, target):
        if time.monotonic() >= deadline:
            raise _pending(target, "the agent was started and does not answer yet: it waits for the GIL")
        _check_alive(target)
        time.sleep(_POLL_S)


def _check_alive(target: Target) -> None:
    """Raise `AttachFailed` if the process has ended."""
    if not os.path.exists(f"/proc/{target.pid}/task/{target.pid}"):
        raise AttachFailed(f"process {target.pid} ended while probe was attaching")


def is_pending(pid: int) -> bool:
    """Whether a thread of an attach to this process waits for the GIL, with a source that has not expired."""
    for folder in Path(f"/proc/{pid}/task").glob("*"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            if (folder / "comm").read_text().strip() != BOOT_THREAD:
                continue
            ticks = int((folder / "stat").read_bytes().rpartition(b")")[2].split()[19])
            age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
            if age_s < payload.EXPIRES_S:
                return True
    return False


@contextlib.contextmanager
def _turn(folder: Path, target: Target, say: Say) -> Iterator[None]:
    """Allow one attempt at a time. The lock ends with its process, and the file with the attempt."""
    path = folder / f"{target.inner_pid}.lock"
    descriptor = _locked(path, target.pid, say)
    try:
        yield
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        os.close(descriptor)


def _locked(path: Path, pid: int, say: Say) -> int:
    """A descriptor that holds the lock of the file at `path`."""
    deadline = time.monotonic() + _TURN_S
    told = False
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(descriptor), os.stat(path)):  # it was not removed just now
                return descriptor
        os.close(descriptor)
        if not told:
            say("another command is attaching to it; waiting")
            told = True
        if time.monotonic() >= deadline:
            raise AttachRefused(
                f"another command has been attaching to process {pid} for {_TURN_S:g} s",
                hint="Check for a `probe` or gdb that hangs: ps -ef | grep gdb",
            )
        time.sleep(_POLL_S)
