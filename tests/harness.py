"""Real jobs for tests: started, waited for, asked, ended, and nothing left behind.

A `Place` is a private PROBE_DIR and PROBE_RINGS_DIR. Programs are those of
`tests/programs`; their handshake is a line on stdout, never a sleep.
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
"""Generous: a loaded machine is slow, a hung test is not what we wait for."""
REAL_SERVER = {"PROBE_SERVER_PYTHON": sys.executable}
"""In an environment: servers are processes of an interpreter of their own, as they are where nobody sets
this."""
UNSAID_SERVER = {"PROBE_SERVER_PYTHON": ""}
"""In an environment: the same, and whoever starts one looks first whether its Python has what that needs."""
SERVER = dict(REAL_SERVER)
"""In a job's environment: its agent starts a server. In tests it is a fork (`forked_servers`)."""
PACE = {"PROBE_DRAIN_INTERVAL_S": "0.25", "REST_S": "0.05"}
"""In every environment here: rows are sealed soon, and a training without an end rests between its steps.
Half a dozen servers and trainings live at a time: twice as often takes a tenth of a core more."""
DEPLOYED = {**REAL_SERVER, "REST_S": "0"}
"""In a job's environment: a server, and a training without an end takes no rest between its steps."""
NO_SERVER = {"PROBE_SERVER_PYTHON": "/bin/true"}
"""The default of a job's environment here: its agent starts no server, which costs as much processor time
as an import of torch. The first command that needs one starts it."""


def form_of_hooks() -> dict[str, str]:
    """The one setting that jobs get from the environment of the tests: PROBE_COMPILED, so that all of them
    run on either form of the hooks."""
    return {name: os.environ[name] for name in ("PROBE_COMPILED",) if name in os.environ}


class Place:
    """A private folder for recordings and sockets, and one for rings."""

    def __init__(self) -> None:
        self._before = set(os.listdir("/proc"))
        """The processes that were there before: none of them can name what has no name yet."""
        self.failures_expected = False
        """Set by tests that break a hook of ours on purpose: everywhere else a failure fails the test."""
        self.directory = Path(tempfile.mkdtemp(prefix="probe-test-"))
        memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
        self.rings = Path(tempfile.mkdtemp(prefix="probe-test-", dir=memory))

    def environ(self, **more: str) -> dict[str, str]:
        """This process's environment without settings of probe, plus this place's."""
        quiet = {name: value for name, value in os.environ.items() if not name.startswith("PROBE")}
        quiet.update(form_of_hooks())
        places = {"PROBE_DIR": str(self.directory), "PROBE_RINGS_DIR": str(self.rings)}
        return {**quiet, **places, **SERVER, **PACE, **more}

    def watched(self, **more: str) -> dict[str, str]:
        """The environment in which this Python starts an agent; with `**SERVER` also a server."""
        return run_environment(self.environ(**{**NO_SERVER, **more}), sys.executable)

    def start_server(self, **environ: str) -> None:
        """See to it that a server answers here."""
        settings = Settings(self.environ(**environ))
        ensure_server(home(settings), settings, wait_s=PATIENCE_S)

    def server_pid(self) -> int | None:
        """The pid in server.json, None without a server."""
        try:
            return int(json.loads((self.directory / "server.json").read_bytes())["pid"])
        except (FileNotFoundError, ValueError):
            return None

    def ring_files(self) -> list[str]:
        """Rings that hold rows nobody has sealed yet."""
        # os.walk: the server removes folders while we look.
        found = [os.path.join(folder, name) for folder, _, names in os.walk(self.rings) for name in names]
        return sorted(found)

    def agent_sockets(self) -> list[str]:
        """Control sockets of agents, of killed ones too."""
        return sorted(str(path) for path in (self.directory / "agents").glob("*.sock"))

    def close(self) -> dict[str, list[str]]:
        """Once all jobs have ended: end the server, and say what is still there. All lists are to be empty.

        A living server seals the rings of ended jobs and removes them, and the sockets of killed
        ones: it is given the time. Without a server they stay, which is how a recording survives.
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
            late = self.server_pid()  # one that was only starting when the last job ended
            if late is not None and late != pid:
                end_process(late)
            wait_for_end(int(processes[0].split()[0]), 0.1)
        sockets += sorted(str(path) for path in self.directory.rglob("*.sock") if answers(path))
        failures = [] if self.failures_expected else self.failures()
        return {"processes": processes, "sockets": sockets, "rings": rings, "failures": failures}

    def failures(self) -> list[str]:
        """What of ours raised inside a job that was recorded here, as its journal tells: a hook that fails
        three times is switched off, and what it records is missing from then on."""
        found = []
        for journal in sorted(self.directory.glob("recordings/*/*/*/journal.bin")):
            payloads, _ = read_payloads(journal)
            for payload in payloads:
                record = json.loads(payload) if b'"failure"' in payload else {}
                if record.get("event") == "failure":
                    found.append(f"{record['instrument']}: {record['error']}")
        return found

    def processes(self) -> list[str]:
        """`pid command` of every process that has this place in its environment or command line, or writes
        its errors into it: the environment and command line of a fork are those of its nursery."""
        mark = os.fsencode(self.directory)
        found = []
        for name in set(os.listdir("/proc")) - self._before:
            folder = Path("/proc", name)
            with contextlib.suppress(OSError):
                command = (folder / "cmdline").read_bytes()
                texts = [command, (folder / "environ").read_bytes()]
                with contextlib.suppress(FileNotFoundError):  # it closed its stderr
                    texts.append(os.fsencode(os.readlink(folder / "fd" / "2")))
                if command and any(mark in text for text in texts):
                    found.append(f"{folder.name} {command.replace(bytes(1), b' ').decode(errors='replace')}")
        return found

    def remove(self) -> None:
        """Delete both folders, whatever happened before."""
        pid = self.server_pid()
        if pid is not None:
            end_process(pid)
        shutil.rmtree(self.directory, ignore_errors=True)
        shutil.rmtree(self.rings, ignore_errors=True)


@contextlib.contextmanager
def private_place() -> Iterator[Place]:
    """A private PROBE_DIR. Afterwards its server is stopped and nothing may be left of it."""
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
        """`before`: what runs the program, such as a command that enters a network namespace; `python`: its
        interpreter, where it is not this one."""
        with tempfile.NamedTemporaryFile("w", dir=folder, prefix="stderr-", delete=False) as errors:
            self._errors = Path(errors.name)
            self._process = subprocess.Popen(
                [*before, python, str(PROGRAMS / f"{program}.py"), *options], env=dict(environ),
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, start_new_session=True,
            )
        self.pid = self._process.pid
        self._unread = b""

    def wait_for(self, word: str) -> str:
        """The first line that starts with `word`; fails when the program ends or hangs before it."""
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
                raise AssertionError(f"the program {why} before {word}; its stderr:\n{self.errors()}")
            self._unread += part

    def result(self) -> dict[str, Any]:
        """The program's own counts; with --hold it lives on."""
        found: dict[str, Any] = json.loads(self.wait_for("RESULT").removeprefix("RESULT "))
        return found

    def errors(self) -> str:
        """What it wrote to stderr so far, but for what triton's binding says at the end of any process
        that was forked after its import, with probe or without."""
        return _TRITONS_WORDS.sub("", self._errors.read_text(errors="replace"))

    def go_on(self) -> None:
        """End one wait for a line on stdin."""
        assert self._process.stdin is not None
        self._process.stdin.write(b"\n")
        self._process.stdin.flush()

    def let_go(self) -> int:
        """End the wait of --hold; returns the exit code."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        return self._process.wait(PATIENCE_S)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the program alone."""
        self._process.send_signal(number)

    def wait(self) -> int:
        """Exit code, once it has ended."""
        return self._process.wait(PATIENCE_S)

    def status(self) -> int | None:
        """Exit code if it has ended."""
        return self._process.poll()

    def kill(self) -> None:
        """SIGKILL for the program and its children (they share its session)."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        code = self._process.wait(PATIENCE_S)
        print(f"process {self.pid} ended with {code}; its stderr:\n{self.errors()}")  # shown if a test fails
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()


@contextlib.contextmanager
def running(place: Place, program: str, *options: str, **environ: str) -> Iterator[Job]:
    """A program under probe that has made its first steps; killed at the end of the block."""
    job = Job(program, *options, environ=place.watched(**environ), folder=place.directory)
    try:
        job.wait_for("READY")
        yield job
    finally:
        job.kill()


def run_program(
    place: Place, program: str, *options: str, watched: bool, **environ: str
) -> tuple[dict[str, Any], str]:
    """Run a program to its end, with probe or without; returns its result and its stderr."""
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
    """Run the command `probe` to its end, in this process: a process of its own takes a fifth of a second of
    processor time for its imports (`probe_process`). `server`: see to it that there is one before; some
    commands answer without it when it comes too late."""
    if server:
        place.start_server(**environ)
    out, err = io.StringIO(), io.StringIO()
    code = run(words, place.environ(**environ), out, err, io.StringIO(stdin))
    return subprocess.CompletedProcess(["probe", *words], code, out.getvalue(), err.getvalue())


def probe_process(
    place: Place, *words: str, stdin: str = "", timeout_s: float = PATIENCE_S, **environ: str
) -> subprocess.CompletedProcess[str]:
    """Run the command `probe` as a user does: this environment's, else from the sources."""
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
    """Whether somebody listens on a unix socket; the file of a process killed by SIGKILL stays behind."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        return connection.connect_ex(str(path)) == 0


def wait_for_end(pid: int, timeout_s: float) -> bool:
    """Whether the process ended in time; any process, not only a child."""
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
    """SIGTERM, and SIGKILL for one that does not go."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
        if wait_for_end(pid, 20.0):
            return
