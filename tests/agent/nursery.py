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
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from harness import NO_SERVER, PATIENCE_S, PROGRAMS, ROOT, Job, Place, form_of_hooks


class Nursery:
    """The process that forks jobs; one for all tests. `environ`: more for it, such as PROBE_COMPILED, which
    its forks cannot choose again."""

    def __init__(self, **environ: str) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        quiet = {name: value for name, value in os.environ.items() if not name.startswith("PROBE")}
        quiet.update(form_of_hooks(), PYTHONPATH=str(ROOT), **environ)
        quiet.pop("PYTHONUNBUFFERED", None)
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, str(PROGRAMS / "nursery.py"), str(theirs.fileno())], env=quiet,
                pass_fds=[theirs.fileno()], start_new_session=True, stdin=subprocess.DEVNULL,
            )
        self._requests = ours

    def fork(self, program: str, options: tuple[str, ...], environ: Mapping[str, str], errors: int) -> Fork:
        """A fork that runs the program."""
        wanted = {"program": program, "options": options, "environ": dict(environ)}
        read_in, write_in = os.pipe()
        read_out, write_out = os.pipe()
        read_status, write_status = os.pipe()
        theirs = [read_in, write_out, errors, write_status]
        try:
            socket.send_fds(self._requests, [json.dumps(wanted).encode()], theirs)
        finally:
            for descriptor in (read_in, write_out, write_status):
                os.close(descriptor)
        return Fork(os.fdopen(write_in, "wb"), os.fdopen(read_out, "rb", 0), read_status)

    def close(self) -> None:
        """End the process; forks live on."""
        self._requests.close()
        self.process.wait(PATIENCE_S)


@functools.cache
def shared() -> Nursery:
    """The one that all tests of this process share; made by the first that needs it."""
    return Nursery()


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
