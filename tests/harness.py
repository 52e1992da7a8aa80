"""Starts real jobs for tests, waits for them, ends them, and checks that nothing is left behind.

A `Place` is a private PROBE_DIR and PROBE_RINGS_DIR. Jobs run programs from `tests/programs`, which report
progress as lines on stdout, so tests never sleep.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hung_stacks import stacks_of_all
from probe.base.settings import Settings
from probe.boot.launch import ensure_server
from probe.boot.startup import run_environment
from probe.recording.journal import read_payloads
from probe.recording.places import home
from probe_cli.main import run

ROOT = Path(__file__).resolve().parents[1]
PROGRAMS = ROOT / "tests" / "programs"
_TRITONS_WORDS = re.compile(r"^nanobind: leaked .*?refleaks\.html\n*", re.MULTILINE | re.DOTALL)
PATIENCE_S = 120.0
"""Timeout for most waits; generous, because a loaded machine is slow."""
REAL_SERVER = {"PROBE_SERVER_PYTHON": sys.executable}
"""Environment in which servers start in a new interpreter, as in production."""
UNSAID_SERVER = {"PROBE_SERVER_PYTHON": ""}
"""The same, but the process that starts a server first checks that its Python has the server's packages."""
SERVER = dict(REAL_SERVER)
"""Environment in which a job's agent starts a server; conftest.py makes it a fork (`forked_servers`)."""
PACE = {"PROBE_DRAIN_INTERVAL_S": "0.25", "REST_S": "0.05"}
"""Part of every environment here: rows are sealed quickly, and endless trainings sleep between steps. With
half a dozen servers and trainings alive, doubling this rate would cost another 10 % of a core."""
DEPLOYED = {**REAL_SERVER, "REST_S": "0"}
"""Environment of a job as in production: it starts a server, and does not sleep between steps."""
NO_SERVER = {"PROBE_SERVER_PYTHON": "/bin/true"}
"""Default environment of jobs: the agent starts no server, since that costs as much processor time as
importing torch. The first command that needs a server starts it."""


def form_of_hooks() -> dict[str, str]:
    """PROBE_COMPILED, if set: the only setting jobs inherit from the tests' environment. It lets the whole
    suite run with the compiled or the Python hooks."""
    return {name: os.environ[name] for name in ("PROBE_COMPILED",) if name in os.environ}


class Place:
    """A private folder for recordings and sockets, and one for rings."""

    def __init__(self) -> None:
        self._before = set(os.listdir("/proc"))
        """Processes that existed before this place, so none of them can belong to it."""
        self.failures_expected = False
        """Set by tests that break a hook on purpose. In all other tests a failing hook fails the test."""
        self.directory = Path(tempfile.mkdtemp(prefix="probe-test-"))
        memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
        self.rings = Path(tempfile.mkdtemp(prefix="probe-test-", dir=memory))

    def environ(self, **more: str) -> dict[str, str]:
        """This process's environment, with probe's settings replaced by those of this place."""
        quiet = {name: value for name, value in os.environ.items() if not name.startswith("PROBE")}
        quiet.update(form_of_hooks())
        places = {"PROBE_DIR": str(self.directory), "PROBE_RINGS_DIR": str(self.rings)}
        return {**quiet, **places, **SERVER, **PACE, **more}

    def watched(self, **more: str) -> dict[str, str]:
        """Environment in which Python starts an agent; with `**SERVER` the agent also starts a server."""
        return run_environment(self.environ(**{**NO_SERVER, **more}), sys.executable)

    def start_server(self, **environ: str) -> None:
        """Start a server unless one answers."""
        settings = Settings(self.environ(**environ))
        ensure_server(home(settings), settings, wait_s=PATIENCE_S)

    def server_pid(self) -> int | None:
        """The PID in server.json, or None without a server."""
        try:
            return int(json.loads((self.directory / "server.json").read_bytes())["pid"])
        except (FileNotFoundError, ValueError):
            return None

    def ring_files(self) -> list[str]:
        """Rings with rows that are not sealed yet."""
        # os.walk tolerates that the server removes folders meanwhile.
        found = [os.path.join(folder, name) for folder, _, names in os.walk(self.rings) for name in names]
        return sorted(found)

    def agent_sockets(self) -> list[str]:
        """Control sockets of agents, including killed ones."""
        return sorted(str(path) for path in (self.directory / "agents").glob("*.sock"))

    def close(self) -> dict[str, list[str]]:
        """After all jobs have ended: end the server and return what is left. All lists should be empty.

        A running server seals and removes the rings of ended jobs and the sockets of killed ones, so this
        waits for it. Without a server they stay; that is how a recording survives.
        """
        pid = self.server_pid()
        rings: list[str] = []
        sockets: list[str] = []
        if pid is not None:
            deadline = time.monotonic() + PATIENCE_S
            while True:
                rings, sockets = self.ring_files(), self.agent_sockets()
                if not (rings or sockets) or time.monotonic() > deadline or wait_for_end(pid, 0.02):
                    break
            end_process(pid)
        deadline = time.monotonic() + PATIENCE_S
        while (processes := self.processes()) and time.monotonic() < deadline:
            late = self.server_pid()  # it was still starting when the last job ended
            if late is not None and late != pid:
                end_process(late)
            wait_for_end(int(processes[0].split()[0]), 0.1)
        sockets += sorted(str(path) for path in self.directory.rglob("*.sock") if answers(path))
        failures = [] if self.failures_expected else self.failures()
        return {"processes": processes, "sockets": sockets, "rings": rings, "failures": failures}

    def failures(self) -> list[str]:
        """Exceptions of probe's own code inside jobs recorded here, from their journals. A hook that fails
        three times is switched off, and its data is missing from then on."""
        found = []
        for journal in sorted(self.directory.glob("recordings/*/*/*/journal.bin")):
            payloads, _ = read_payloads(journal)
            for payload in payloads:
                record = json.loads(payload) if b'"failure"' in payload else {}
                if record.get("event") == "failure":
                    found.append(f"{record['instrument']}: {record['error']}")
        return found

    def processes(self) -> list[str]:
        """`pid command` of every process with this place in its environment or command line, or with stderr
        in it (forks have the environment and command line of the process they were forked from)."""
        mark = os.fsencode(self.directory)
        found = []
        for name in set(os.listdir("/proc")) - self._before:
            folder = Path("/proc", name)
            with contextlib.suppress(OSError):
                command = (folder / "cmdline").read_bytes()
                texts = [command, (folder / "environ").read_bytes()]
                with contextlib.suppress(FileNotFoundError):  # stderr is closed
                    texts.append(os.fsencode(os.readlink(folder / "fd" / "2")))
                if command and any(mark in text for text in texts):
                    found.append(f"{folder.name} {command.replace(bytes(1), b' ').decode(errors='replace')}")
        return found

    def remove(self) -> None:
        """End the server if there is one, and delete both folders."""
        pid = self.server_pid()
        if pid is not None:
            end_process(pid)
        shutil.rmtree(self.directory, ignore_errors=True)
        shutil.rmtree(self.rings, ignore_errors=True)


@contextlib.contextmanager
def private_place() -> Iterator[Place]:
    """A private PROBE_DIR. Afterwards its server is stopped; leftover processes or files fail the test."""
    place = Place()
    try:
        yield place
        left = place.close()
        assert not any(left.values()), left
    finally:
        place.remove()


class Job:
    """A program under probe; ends with the test."""

    def __init__(
        self, program: str, *options: str, environ: Mapping[str, str], folder: Path,
        before: Sequence[str] = (), python: str = sys.executable,
    ) -> None:
        """`before`: a command prefix, for example one that enters a network namespace; `python`: interpreter,
        if not this one."""
        with tempfile.NamedTemporaryFile("w", dir=folder, prefix="stderr-", delete=False) as errors:
            self._errors = Path(errors.name)
            self._process = subprocess.Popen(
                [*before, python, str(PROGRAMS / f"{program}.py"), *options], env=dict(environ),
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, start_new_session=True,
            )
        self.pid = self._process.pid
        self._unread = b""

    def wait_for(self, word: str) -> str:
        """Wait for the first line that starts with `word`. Fails if the program ends or hangs first."""
        deadline = time.monotonic() + PATIENCE_S
        stream = self._process.stdout
        assert stream is not None
        while True:
            while b"\n" in self._unread:
                line, _, self._unread = self._unread.partition(b"\n")
                if line.startswith(word.encode()):
                    return line.decode()
            ready, _, _ = select.select([stream], [], [], max(0.0, deadline - time.monotonic()))
            part = os.read(stream.fileno(), 1 << 16) if ready else b""
            if not part:
                why = "ended" if ready else f"was silent for {PATIENCE_S:g} s"
                stacks = "" if ready else stacks_of_all(self.pid)
                said = f"{self.errors()}\n{stacks}"
                raise AssertionError(f"the program {why} before {word}; its stderr:\n{said}")
            self._unread += part

    def result(self) -> dict[str, Any]:
        """Wait for the program's result line; with --hold the program keeps running."""
        found: dict[str, Any] = json.loads(self.wait_for("RESULT").removeprefix("RESULT "))
        return found

    def errors(self) -> str:
        """Its stderr so far, without the lines that triton's binding prints at the end of every process
        forked after its import, also without probe."""
        return _TRITONS_WORDS.sub("", self._errors.read_text(errors="replace"))

    def go_on(self) -> None:
        """Write a line to its stdin, which ends one wait of the program."""
        assert self._process.stdin is not None
        self._process.stdin.write(b"\n")
        self._process.stdin.flush()

    def let_go(self) -> int:
        """End the wait of --hold and return the exit code."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        return self._process.wait(PATIENCE_S)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the program, not to its children."""
        self._process.send_signal(number)

    def wait(self) -> int:
        """Wait until it has ended and return the exit code."""
        return self._process.wait(PATIENCE_S)

    def status(self) -> int | None:
        """The exit code, or None if it is still running."""
        return self._process.poll()

    def kill(self) -> None:
        """Send SIGKILL to the program and its children, which share its session."""
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except ProcessLookupError:  # it has ended, or it is a fork that has no session yet
            if self._process.poll() is None:
                self._process.send_signal(signal.SIGKILL)
        code = self._process.wait(PATIENCE_S)
        print(f"process {self.pid} ended with {code}; its stderr:\n{self.errors()}")  # shown if a test fails
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()


@contextlib.contextmanager
def running(place: Place, program: str, *options: str, **environ: str) -> Iterator[Job]:
    """A program under probe that has completed its first steps; killed at the end of the block."""
    job = Job(program, *options, environ=place.watched(**environ), folder=place.directory)
    try:
        job.wait_for("READY")
        yield job
    finally:
        job.kill()


def run_program(
    place: Place, program: str, *options: str, watched: bool, **environ: str
) -> tuple[dict[str, Any], str]:
    """Run a program to its end, with or without probe, and return its result and stderr."""
    environment = place.watched(**environ) if watched else place.environ(**environ)
    job = Job(program, *options, environ=environment, folder=place.directory)
    try:
        result = job.result()
        code = job.let_go()
        assert code == 0, f"{program} ended with {code}; its stderr:\n{job.errors()}"
        return result, job.errors()
    finally:
        job.kill()


def run_probe(
    place: Place, *words: str, stdin: str = "", server: bool = True, **environ: str
) -> subprocess.CompletedProcess[str]:
    """Run the command `probe` in this process, which saves the 0.2 s of processor time that the imports of
    `probe_process` take. `server`: start a server first, since some commands would answer without one
    instead of waiting for it."""
    if server:
        place.start_server(**environ)
    out, err = io.StringIO(), io.StringIO()
    code = run(words, place.environ(**environ), out, err, io.StringIO(stdin))
    return subprocess.CompletedProcess(["probe", *words], code, out.getvalue(), err.getvalue())


def probe_process(
    place: Place, *words: str, stdin: str = "", timeout_s: float = PATIENCE_S, **environ: str
) -> subprocess.CompletedProcess[str]:
    """Run the command `probe` as a process: this environment's if it is installed, else from the sources."""
    installed = Path(sys.executable).parent / "probe"
    command = [str(installed)] if installed.exists() else [sys.executable, "-m", "probe_cli"]
    environment = place.environ(**environ)
    paths = [str(ROOT), str(ROOT / "cli"), environment.get("PYTHONPATH", "")]
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    return subprocess.run(
        [*command, *words], env=environment, input=stdin, capture_output=True, text=True,
        timeout=timeout_s, check=False,
    )


def answers(path: Path) -> bool:
    """Whether a process listens on a Unix socket; the file alone may be left by a killed process."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        return connection.connect_ex(str(path)) == 0


def wait_for_end(pid: int, timeout_s: float) -> bool:
    """Whether the process ends in time; works for any process, not only children."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        ready, _, _ = select.select([descriptor], [], [], max(0.0, timeout_s))
        return bool(ready)
    finally:
        os.close(descriptor)


def end_process(pid: int) -> None:
    """Send SIGTERM, then SIGKILL if the process does not end."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
        if wait_for_end(pid, 20.0):
            return
