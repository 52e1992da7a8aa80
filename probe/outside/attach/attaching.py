"""Starting an agent in a process that runs already.

The order: is an agent there? is anything in the way (target.py)? then bring a thread of ours into the job on
a borrowed one (gdb.py, borrowed.py; Python 3.14's own way first), and talk to it (meeting.py). Two stages are
told apart: *loaded*, when the thread exists, and *running*, when it has the GIL. A job that holds the GIL for
long starts its agent by itself when it lets go.

Runs in the command, on its main thread or another; standard library only.
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
from probe.outside.processes.target import (
    Target,
    check_attach,
    check_tracing,
    examine,
    in_another_pid_namespace,
    thread_states,
    why_denied,
)
from probe.recording import places

LOADED_S = 10.0
"""From the end of the injection to the first word of our thread: it has to be scheduled once."""
BOOT_THREAD = "probe-boot"
_TURN_S = 60.0
_TRIES = 4
_LOOK_S = 0.02
_PATHS_TO_USE = "Install gdb, or torch-probe[inject] beside probe; or start the job with PROBE=1."

Say = Callable[[str], object]


class Attached(NamedTuple):
    """How it went. Times are from the start of the injection; None for an agent that was there already."""

    pid: int
    how: str
    outcome: str
    """`started`, `already`, or `waiting for torch`: then recording begins when the job imports it."""
    loaded_s: float | None = None
    running_s: float | None = None
    paused_s: float | None = None
    """How long gdb held the process (pyinjector: the borrowed thread); None when that is not known."""


def attach(
    pid: int, settings: Mapping[str, str], *, directory: Path, wait_s: float = 15.0,
    say: Say = lambda _sentence: None,
) -> Attached:
    """Start the agent in process `pid` with `settings` (PROBE_… variables), recording into `directory`.

    `wait_s` is how long each wait for the job may take: for the GIL, for the start, for the agent's socket.
    `say` is given sentences about what goes on. Raises what `check_attach` raises; `AttachRefused` when no
    safe way leads in, `AttachFailed` when one failed (the job goes on as before), `AttachPending` when the
    job has not let the agent run yet. On KeyboardInterrupt the job is let go first.
    """
    target = examine(pid)
    if _answers(directory, target):
        return Attached(pid, "", "already")
    check_tracing(target)
    folder = places.make_private(places.make_private(directory) / "boot")
    if in_another_pid_namespace(pid):  # a server that the agent started could see nobody outside of it
        with contextlib.suppress(ServerUnavailable):
            environ = {**os.environ, **settings, "PROBE_DIR": str(directory)}
            ensure_server(directory, Settings(environ), wait_s=0.0)
    with _turn(folder, target, say):
        target = examine(pid)  # whoever had the turn before may have traced it, and succeeded
        if _answers(directory, target):
            return Attached(pid, "", "already")
        check_attach(target)
        if _loaded_before(target):
            say("an earlier attempt is loaded and waits for the GIL")
            _wait_for_agent(directory, target, wait_s)
            return Attached(pid, "", "already")
        return _attach(target, settings, directory, folder, wait_s, say)


def _attach(
    target: Target, settings: Mapping[str, str], directory: Path, folder: Path, wait_s: float, say: Say
) -> Attached:
    source = payload.source(settings, directory=directory)
    with Meeting(folder, target.pid, target.inner_pid, source) as meeting:
        done = _by_itself(target, folder, meeting, source) or _bring_in(target, folder, meeting, source, say)
        for note in done.notes:
            say(note)
        if not meeting.until_loaded(wait_s if "pending" in done.how else LOADED_S):
            raise _silent(target, done)
        try:
            _hear_out(target, meeting, wait_s)
        except KeyboardInterrupt:
            say("the agent is loaded already, and starts by itself when the job lets it")
            raise
        outcome = _outcome(target, meeting)
    if outcome != "waiting for torch":
        _wait_for_agent(directory, target, wait_s)
    return Attached(target.pid, done.how, outcome, meeting.loaded_s, meeting.running_s, done.stopped_s)


def _hear_out(target: Target, meeting: Meeting, wait_s: float) -> None:
    """Wait for the GIL, then for the outcome. Raises `AttachPending`."""
    if not meeting.until_running(wait_s):
        if meeting.outcome is None:
            _check_alive(target)
            raise _pending(target, "the agent is loaded and waits for the GIL")
    elif not meeting.until_over(wait_s):
        _check_alive(target)
        raise _pending(target, "the agent is being started and waits for the job")


def _outcome(target: Target, meeting: Meeting) -> str:
    """The state that the job reports; raises what went wrong in it."""
    found = meeting.outcome or {}
    if "state" in found and found["state"] != "expired":
        return found["state"]
    kind = BY_CODE.get(found.get("code", ""), AttachFailed)
    words = found.get("error", "it came too late" if found else "the job did not say how it went")
    raise (kind if kind is not ProbeError else AttachFailed)(
        f"the agent could not be started in process {target.pid}: {words}", hint=found.get("hint") or None
    )


# Ways in --------------------------------------------------------------------


def _by_itself(target: Target, folder: Path, meeting: Meeting, source: str) -> gdb.Done | None:
    """Python 3.14's own way; None where there is none, or nothing came of it."""
    if target.version is None or target.version < remote.SINCE or _main_is_stuck(target):
        return None
    asked = payload.calling_source(source, str(meeting.path), expires_in_s=remote.PATIENCE_S)
    try:
        if remote.ask(target.pid, folder, asked) or not meeting.until_loaded(remote.PATIENCE_S):
            return None
    finally:
        remote.forget(target.pid, folder)
    return gdb.Done(how="by sys.remote_exec")


def _bring_in(target: Target, folder: Path, meeting: Meeting, source: str, say: Say) -> gdb.Done:
    """Get our thread into the job; raises when that cannot be done, or could not."""
    library, problem = place_library(folder)
    program = shutil.which("gdb")
    if library is None:
        say(f"{problem}: taking the slow way, which waits for the main thread")
    done = gdb.Done(problem="no safe moment was found", kind="Refused")
    for attempt in range(_TRIES):
        stuck = _uninterruptible(target.pid)
        parked = parked_threads(target.pid)
        if program and not stuck:
            done = _with_gdb(program, target, library, meeting, source, patient=attempt == 0)
        elif library is not None and borrowed.available():
            done = borrowed.bring_in(target.pid, parked, library)
        else:
            raise _no_way(target, stuck, library is not None)
        for note in done.notes:
            say(note)
        if done.kind == "Unloadable" and library is not None:
            say(f"{done.problem}: taking the slow way, which waits for the main thread")
            library = None
        elif not done.problem:
            return done
        elif done.kind != "Refused":
            break
    raise _not_in(target, done, bool(program))


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


def _main_is_stuck(target: Target) -> bool:
    """Whether the main thread waits in a system call: it reaches no bytecode then."""
    return any(found.tid == target.pid for found in parked_threads(target.pid))


def _uninterruptible(pid: int) -> list[int]:
    """Threads in D state at two looks: a debugger that attaches waits for them. A read of a disk passes."""
    first = [tid for tid, state in thread_states(pid).items() if state == "D"]
    if not first:
        return []
    time.sleep(_LOOK_S)
    again = thread_states(pid)
    return [tid for tid in first if again.get(tid) == "D"]


# What is said when it does not go well ------------------------------------------


def _no_way(target: Target, stuck: list[int], has_library: bool) -> ProbeError:
    pid = target.pid
    if stuck:
        return AttachRefused(
            f"thread {stuck[0]} of process {pid} is stuck in the kernel (state D), and a debugger would wait "
            "for it as long as it stays there",
            hint=f"`probe {pid} backtrace` shows where, without stopping it. With torch-probe[inject] "
            "(pyinjector) one can attach beside such a thread.",
        )
    missing = "there is neither gdb nor pyinjector" if has_library else "there is no gdb, and no compiler"
    return AttachRefused(f"nothing here can bring code into a running process: {missing}", hint=_PATHS_TO_USE)


def _not_in(target: Target, done: gdb.Done, has_gdb: bool) -> ProbeError:
    """The error after a failed injection: what is so now counts more than the tool's words."""
    now = examine(target.pid)
    try:
        check_attach(now)
    except ProbeError as error:
        return error
    if "not permitted" in done.problem:
        return why_denied(now)
    if done.kind == "Refused":
        hint = "Try again when it does something else."
        if not has_gdb:
            hint = f"gdb could wait for a safe moment in a busy thread. {_PATHS_TO_USE}"
        return AttachRefused(
            f"no thread of process {target.pid} could be borrowed safely: {done.problem}", hint=hint
        )
    return AttachFailed(
        f"process {target.pid} could not be attached to ({done.problem}); it goes on as before",
        hint=f"`probe {target.pid} backtrace` works without attaching; with PROBE=1 a job needs none.",
    )


def _silent(target: Target, done: gdb.Done) -> ProbeError:
    """Brought in, and not heard of."""
    if "pending" in done.how:
        return _pending(target, "the start is queued for the main thread, which has not reached bytecode")
    now = examine(target.pid)
    with contextlib.suppress(AttachRefused):
        check_attach(now)
    return AttachFailed(
        f"the thread that was started in process {target.pid} ({done.how}) did not call back within "
        f"{LOADED_S:g} s; the process is {now.state or 'gone'} now",
        hint="A job that was just stopped, or a machine without a free processor: try again.",
    )


def _pending(target: Target, what: str) -> AttachPending:
    holder = gil_holder(target.pid)
    held = f", held by {holder}" if holder else ""
    return AttachPending(
        f"{what}{held}; it goes on by itself as soon as it can (for {payload.EXPIRES_S / 60:g} minutes)",
        hint=f"`probe {target.pid} backtrace --native` shows meanwhile what holds it up.",
    )


def gil_holder(pid: int) -> str:
    """`MainThread in train (train.py:88)`: who holds the GIL, from outside; empty when that is not seen."""
    from probe.outside.stacks.outside_view import look

    try:
        found: dict[str, Any] = look(pid, all_threads=True, nonblocking=True)
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
        time.sleep(_LOOK_S)


def _check_alive(target: Target) -> None:
    """Raise `AttachFailed` when the process has ended meanwhile."""
    if not os.path.exists(f"/proc/{target.pid}/task/{target.pid}"):
        raise AttachFailed(f"process {target.pid} ended while it was attached to")


def is_pending(pid: int) -> bool:
    """Whether an attach to this process is loaded and waits for the GIL."""
    return _loaded_before(examine(pid))


def _loaded_before(target: Target) -> bool:
    """Whether a thread of an earlier attempt waits in the job, with a source that has not expired."""
    for tid in target.threads:
        with contextlib.suppress(OSError, ValueError, IndexError):
            folder = Path(f"/proc/{target.pid}/task/{tid}")
            if (folder / "comm").read_text().strip() != BOOT_THREAD:
                continue
            ticks = int((folder / "stat").read_bytes().rpartition(b")")[2].split()[19])
            age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
            if age_s < payload.EXPIRES_S:
                return True
    return False


@contextlib.contextmanager
def _turn(folder: Path, target: Target, say: Say) -> Iterator[None]:
    """One attempt at a time: the file's lock ends with whoever holds it, and the file with the attempt."""
    path = folder / f"{target.inner_pid}.lock"
    descriptor = _locked(path, target.pid, say)
    try:
        yield
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        os.close(descriptor)


def _locked(path: Path, pid: int, say: Say) -> int:
    """A descriptor that holds the lock of the file that is at `path` then."""
    deadline = time.monotonic() + _TURN_S
    told = False
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(descriptor), os.stat(path)):  # not one that was just taken away
                return descriptor
        os.close(descriptor)
        if not told:
            say("somebody else is attaching to it just now; waiting")
            told = True
        if time.monotonic() >= deadline:
            raise AttachRefused(
                f"somebody else has been attaching to process {pid} for {_TURN_S:g} s",
                hint="Look for another `probe` or gdb that hangs: ps -ef | grep gdb",
            )
        time.sleep(_LOOK_S)
