"""Jobs that need no interpreter start: forked from one process that has imported torch.

What `harness.Job` is for a new interpreter, `Forked` is for a fork; `tests/programs/nursery.py` is the
process. The agent is started by the start-up hook in each of them.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from harness import NO_SERVER, PATIENCE_S, PROGRAMS, ROOT, Job, Place, form_of_hooks

_GIVEN = "JOBS_OF_TESTS"
"""In the environment of pytest's workers: the address of their controller's nursery."""
_BACKLOG = 64


class Nursery:
    """The process that forks jobs: the one that listens at `address`, else one of our own."""

    def __init__(self, address: str = "") -> None:
        self._own: tuple[subprocess.Popen[bytes], int] | None = None
        self.address = address or self._start()

    def _start(self) -> str:
        address = f"probe-jobs-{os.getpid()}-{uuid.uuid4().hex}"
        quiet = {name: value for name, value in os.environ.items() if not name.startswith("PROBE")}
        quiet.update(form_of_hooks(), PYTHONPATH=str(ROOT))
        quiet.pop("PYTHONUNBUFFERED", None)
        theirs, life = os.pipe()  # ours is closed by our end, and by nothing before
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            listener.bind(_abstract(address))
            listener.listen(_BACKLOG)
            process = subprocess.Popen(
                [sys.executable, str(PROGRAMS / "nursery.py"), str(listener.fileno()), str(theirs)],
                env=quiet, pass_fds=[listener.fileno(), theirs], start_new_session=True,
                stdin=subprocess.DEVNULL,
            )
        os.close(theirs)
        self._own = process, life
        return address

    def fork(self, program: str, options: tuple[str, ...], environ: Mapping[str, str], errors: int) -> Fork:
        """A fork that runs the program."""
        wanted = {"program": program, "options": options, "environ": dict(environ)}
        read_in, write_in = os.pipe()
        read_out, write_out = os.pipe()
        read_status, write_status = os.pipe()
        theirs = [read_in, write_out, errors, write_status]
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as asking:
                asking.connect(_abstract(self.address))
                socket.send_fds(asking, [json.dumps(wanted).encode()], theirs)
        finally:
            for descriptor in (read_in, write_out, write_status):
                os.close(descriptor)
        return Fork(os.fdopen(write_in, "wb"), os.fdopen(read_out, "rb", 0), read_status)

    def close(self) -> None:
        """End the process, if it is our own; forks live on."""
        if self._own is not None:
            process, life = self._own
            os.close(life)
            process.wait(PATIENCE_S)


def _abstract(address: str) -> str:
    """The address of a socket that is in no folder: nothing is left of it."""
    return f"\0{address}"


@functools.cache
def shared() -> Nursery:
    """The one of all tests: of the first process that asks, and of its children, which are pytest's workers.
    It ends with that process, however that ends, and imports torch for its first job."""
    nursery = Nursery(os.environ.get(_GIVEN, ""))
    os.environ[_GIVEN] = nursery.address
    return nursery


class Fork:
    """As much of `subprocess.Popen` as a `Job` uses, for a process that is not our child."""

    def __init__(self, stdin: BinaryIO, stdout: Any, status: int) -> None:
        self.stdin = stdin
        self.stdout = stdout
        self._status = status
        self.returncode: int | None = None
        self._unread = b""
        self.pid = int(self._line(PATIENCE_S))

    def _line(self, timeout_s: float) -> bytes:
        while b"\n" not in self._unread:
            ready, _, _ = select.select([self._status], [], [], timeout_s)
            if not ready:
                raise subprocess.TimeoutExpired("a forked program", timeout_s)
            part = os.read(self._status, 100)
            assert part, "the nursery lost a program"
            self._unread += part
        line, _, self._unread = self._unread.partition(b"\n")
        return line

    def wait(self, timeout_s: float) -> int:
        """Exit code, negative for a signal."""
        if self.returncode is None:
            self.returncode = os.waitstatus_to_exitcode(int(self._line(timeout_s)))
            os.close(self._status)
        return self.returncode

    def poll(self) -> int | None:
        """Exit code, or None if it still runs."""
        try:
            return self.wait(0.0)
        except subprocess.TimeoutExpired:
            return None

    def send_signal(self, number: signal.Signals) -> None:
        """Send it, unless the process has ended."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)


class Forked(Job):
    """A program in a fork of the nursery; everything a `Job` can do."""

    def __init__(
        self, nursery: Nursery, program: str, *options: str, environ: Mapping[str, str], folder: Path
    ) -> None:
        with tempfile.NamedTemporaryFile("wb", dir=folder, prefix="stderr-", delete=False) as errors:
            self._errors = Path(errors.name)
            fork = nursery.fork(program, options, environ, errors.fileno())
        self._process: Any = fork
        self.pid = fork.pid
        self._unread = b""


@contextlib.contextmanager
def forked(
    nursery: Nursery, place: Place, *commands: tuple[str, ...], watched: bool = True, **environ: str
) -> Iterator[list[Forked]]:
    """Several programs at once; killed at the end of the block. With `**SERVER` their agents start one."""
    settings = {"PROBE": "1", **NO_SERVER} if watched else {}
    environment = place.environ(**{**settings, **environ})
    with contextlib.ExitStack() as stack:
        started = []
        for program, *options in commands:
            job = Forked(nursery, program, *options, environ=environment, folder=place.directory)
            stack.callback(job.kill)
            started.append(job)
        yield started


@contextlib.contextmanager
def ready(nursery: Nursery, place: Place, program: str, *options: str, **environ: str) -> Iterator[Forked]:
    """A program under probe that has made its first steps; killed at the end of the block."""
    with forked(nursery, place, (program, *options), watched=True, **environ) as [job]:
        job.wait_for("READY")
        yield job
