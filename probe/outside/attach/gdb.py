"""Runs gdb on a job and makes sure that it detaches, whatever happens.

gdb runs in its own session, so that Ctrl-C at a terminal reaches only the command: a gdb that dies with
breakpoints in the job, or in the middle of a call, kills the job. To end gdb early, the job is stopped with
SIGSTOP, which gdb intercepts and answers by detaching; never with SIGINT, which could reach the job. Runs in
the command, on any thread; standard library only.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import select
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from probe.outside.attach import symbols
from probe.outside.attach.parked import BLOCKING, Parked
from probe.outside.processes import tasks

BOUNDARY_S = 2.0
"""How long the job runs to a breakpoint before its threads are checked where they are."""
PHASE_LIMITS_S = {"": 20.0, "attaching": 15.0, "calling": 20.0, "called": 10.0, "stopped": 10.0}
"""Times after which a phase of gdb counts as hung. On an idle machine each takes well under a second;
attaching to a job with hundreds of threads or libraries takes longer."""
_ANSWER_S = 5.0
_INTERRUPT_S, _MOST_INTERRUPTS = 0.3, 20
_POLL_S = 0.1
_MOST_PARKED = 16
_HERE = Path(__file__).parent
_QUIET = (
    "set auto-solib-add off",  # reading all of torch's symbols stops the job for five seconds
    "set debuginfod enabled off", "set auto-load off", "set debug-file-directory /nonexistent",
    "set libthread-db-search-path /nonexistent",
)
_CALLED = (
    "dlopen", "dlsym", "dlerror", "mmap", "Py_AddPendingCall", "PyRun_SimpleString", "PyCallable_Check",
)
_ALLOCATE = ("malloc", "calloc", "realloc", "free")
_BETWEEN_BYTECODES = ("PyErr_CheckSignals", "PyCallable_Check")
_CLOSED = re.compile(rf"{symbols.ALLOCATORS.pattern}|{symbols.LOADERS.pattern}|/lib(?:pthread|dl)[.-]|^\[v")
"""Code whose threads may hold a lock that `dlopen` needs."""
_KEPT = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR")
_AT_ENTRY, _AT_MINSIGSTKSZ = 9, 51
_LARGEST_FRAME_BYTES = 4096
"""Signal frames above this hold more vector state than gdb 13 has room for (AVX-512 and PKRU: 3,632
bytes; with AMX 11,952)."""


class Done(NamedTuple):
    """The result of an injection. `problem` is empty when it succeeded."""

    how: str = ""
    problem: str = ""
    kind: str = ""
    """`Refused`: nothing was left in the job, try again. `Unloadable`: the job cannot load the library.
    `Unsaved`: this gdb cannot restore the registers that a call changes."""
    stopped_s: float | None = None
    """How long the job was stopped in total."""
    notes: tuple[str, ...] = ()


class Cancelled(Exception):
    """A signal ended this command; gdb has detached from the job. Carries the signal's number."""


@functools.cache
def has_python(program: str) -> bool:
    """Whether that gdb was built with Python."""
    try:
        done = subprocess.run(
            [program, "-batch", "-nx", "-ex", "python print(1)"], stdin=subprocess.DEVNULL,
            capture_output=True, timeout=20.0, check=False, env=_environment({}),
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.stdout.strip() == b"1"


def run(
    program: str, pid: int, parked: list[Parked], library: Path | None, source: str, *,
    breakpoints: bool, plain: bool = False,
) -> Done:
    """Have gdb load `library` (or queue `source` as a pending call) on one of the `parked` threads.

    `breakpoints`: if none of them is parked any more, wait for a thread that is between two calls. `plain`
    is for a gdb without Python, which supports neither that nor a pending call. Raises `Cancelled`.
    """
    options = [word for line in _QUIET for word in ("-iex", line)]
    try:
        found = symbols.addresses(pid, (*_CALLED, *_BETWEEN_BYTECODES), _ALLOCATE)
        maps = symbols.mapped(pid)
        entry = _auxiliary(pid).get(_AT_ENTRY, 0)
    except OSError as error:
        return Done(problem=f"its memory map cannot be read: {error.strerror}")
    functions = {name: found[name][0] for name in _CALLED if name in found}
    missing = ", ".join(sorted({*_CALLED} - {*functions}))
    if missing:
        return Done(
            problem=f"it does not export {missing}, or the file of its C library or Python was replaced"
        )
    if plain and large_vector_state():
        return Done(
            problem="this gdb, built without Python, cannot restore the vector registers of this processor",
            kind="Unsaved",
        )
    if plain:
        commands, environ = _plain_commands(pid, parked, library, functions), {}
    else:
        plan = {
            "pid": pid, "parked": [list(found) for found in parked[:_MOST_PARKED]], "source": source,
            "library": str(library) if library else "", "breakpoints": breakpoints, "boundary_s": BOUNDARY_S,
            "by_hand": large_vector_state(), "entry": entry,
            "functions": functions, "blocking": list(BLOCKING.get(os.uname().machine, {})),
            "boundaries": [at for name in (*_ALLOCATE, *_BETWEEN_BYTECODES) for at in found.get(name, [])],
            "loader": _areas(maps, symbols.LOADERS), "closed": _areas(maps, _CLOSED),
        }
        commands, environ = ["-x", str(_HERE / "in_gdb.py")], {"ATTACH_PLAN": json.dumps(plan)}
    process = subprocess.Popen(
        [program, "-batch", "-nx", "-quiet", *options, *commands], env=_environment(environ),
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
    )
    with _Session(process, pid) as session, _deferred_signals() as arrived:
        done = session.follow(arrived)
    if arrived:
        raise Cancelled(arrived[0])
    return done


def large_vector_state() -> bool:
    """Whether the vector registers of this processor are too large for gdb 13.

    It fails to write them back after a call (`Couldn't write extended state status`), and the job
    dies. Newer versions are treated alike: none could be tried."""
    if os.uname().machine != "x86_64":
        return False
    return _auxiliary(os.getpid()).get(_AT_MINSIGSTKSZ, 0) > _LARGEST_FRAME_BYTES


def _auxiliary(pid: int) -> dict[int, int]:
    """The auxiliary vector that the kernel gave a process."""
    words = memoryview(Path(f"/proc/{pid}/auxv").read_bytes()).cast("L")
    return dict(zip(words[::2], words[1::2], strict=True))


def _areas(maps: list[symbols.Mapped], path: re.Pattern[str]) -> list[tuple[int, int]]:
    return [(line.low, line.high) for line in maps if path.search(line.path)]


def _plain_commands(
    pid: int, parked: list[Parked], library: Path | None, functions: Mapping[str, int]
) -> list[str]:
    chosen = parked[0]
    lines = [
        "set confirm off", "set pagination off", "set unwindonsignal on",
        "handle all nostop noprint pass", "handle SIGINT nostop noprint pass",
        "handle SIGSTOP stop print nopass", f"attach {pid}",
        f"set $probe_dlopen = {functions['dlopen']}", f"set $probe_dlsym = {functions['dlsym']}",
        f"set $probe_stack = {chosen.stack}", f"set $probe_code = {chosen.code}", "set $probe_called = 0",
        f"set $probe_library = {json.dumps(str(library))}",
    ]
    return [word for line in lines for word in ("-ex", line)] + ["-x", str(_HERE / "plain.gdb")]


def _environment(more: Mapping[str, str]) -> dict[str, str]:
    """A small environment: gdb's own Python must not use this process's paths."""
    return {name: os.environ[name] for name in _KEPT if name in os.environ} | dict(more)


@contextlib.contextmanager
def _deferred_signals() -> Iterator[list[int]]:
    """Collect signals that would end this process: gdb must detach first."""
    arrived: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield arrived
        return
    before = {
        number: signal.signal(number, lambda number, _frame: arrived.append(number))
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    }
    try:
        yield arrived
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _Session:
    """One run of gdb: reads its output, interrupts it when it takes too long or must end."""

    def __init__(self, process: subprocess.Popen[bytes], pid: int) -> None:
        self._process = process
        self._pid = pid
        self._phase = ""
        self._said: dict[str, Any] = {}
        self._other: list[str] = []
        self._unread = b""
        self._interrupts = 0
        self._stopped_it = False
        self._was_stopped = tasks.stop_pending(pid)

    def __enter__(self) -> _Session:
        return self

    def __exit__(self, *_: object) -> None:
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()

    def follow(self, arrived: list[int]) -> Done:
        """Read until gdb has ended; signals in `arrived` mean that it must end early."""
        deadline = time.monotonic() + PHASE_LIMITS_S[""]
        given_up = False
        while self._read():
            now = time.monotonic()
            phase = self._said.pop("phase", None)
            if phase is not None:
                self._phase = phase
                deadline = now + self._said.pop("stop_after_s", PHASE_LIMITS_S.get(phase, _ANSWER_S))
                self._interrupts = 0
            if arrived and not given_up:
                given_up = True
                self._tell_to_give_up()
                if self._phase == "waiting":
                    deadline = now
            if now >= deadline and self._phase == "waiting" and self._interrupts < _MOST_INTERRUPTS:
                self._interrupt()  # more than once: gdb sometimes mistakes a SIGSTOP for its own
                deadline = now + _INTERRUPT_S
            elif now >= deadline:
                self._end()
                break
            elif tasks.stop_pending(self._process.pid):
                self._process.send_signal(signal.SIGCONT)  # somebody stopped gdb while it holds the job
            elif self._process.poll() is not None and not self._unread and not self._more():
                break  # a child of gdb may keep its output open
        if self._ended(_ANSWER_S):
            while self._more() and self._read():
                pass
        notes = self._continue_job()
        problem = str(self._said.get("failed", ""))
        if not problem and self._phase != "detached":
            last = " ".join(self._other[-3:])
            problem = f"gdb ended while {self._phase or 'starting'}: {last or 'no output'}"
        return Done(
            str(self._said.get("how", "")), problem, str(self._said.get("kind", "")),
            self._said.get("stopped_s"), tuple(notes),
        )

    def _read(self) -> bool:
        """Process at most one line; False once gdb has closed its output."""
        if b"\n" not in self._unread:
            stream = self._process.stdout
            assert stream is not None
            if not select.select([stream], [], [], _POLL_S)[0]:
                return True
            part = os.read(stream.fileno(), 1 << 16)
            if not part:
                return False
            self._unread += part
        if b"\n" in self._unread:
            line, _, self._unread = self._unread.partition(b"\n")
            self._take(line.decode(errors="replace"))
        return True

    def _more(self) -> bool:
        """Whether a read would not block."""
        stream = self._process.stdout
        return stream is not None and bool(b"\n" in self._unread or select.select([stream], [], [], 0)[0])

    def _take(self, line: str) -> None:
        if not line.startswith("probe: "):
            self._other.append(line.strip())
            return
        with contextlib.suppress(ValueError):
            self._said.update(json.loads(line.removeprefix("probe: ")))

    def _tell_to_give_up(self) -> None:
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.write(b"x")
                self._process.stdin.flush()

    def _interrupt(self) -> None:
        """Stop the job, which gdb notices; only while gdb traces it."""
        if tasks.tracer(self._pid) == self._process.pid:
            self._interrupts += 1
            self._stopped_it = True
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGSTOP)

    def _end(self) -> None:
        """Interrupt a gdb that hangs. It may be killed only before it has changed anything in the job."""
        self._interrupt()
        if self._ended(_ANSWER_S):
            return
        if self._phase in ("", "attaching", "detached"):
            self._process.kill()
        if not self._ended(_ANSWER_S):
            self._said["failed"] = f"gdb (pid {self._process.pid}) hangs in the job and was left alone"

    def _ended(self, timeout_s: float) -> bool:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout_s)
            return True
        return False

    def _continue_job(self) -> list[str]:
        """Continue a job that this run left stopped."""
        if self._was_stopped or tasks.tracer(self._pid) or not tasks.stop_pending(self._pid):
            return []
        if self._phase == "detached" and not self._stopped_it:
            return []  # somebody else stopped it just now
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGCONT)
        return ["the job was left stopped and has been continued (SIGCONT)"]
