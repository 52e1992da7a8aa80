"""Where the commands of the documents are run: a folder with a job of its own.

What stands for something else in a document is replaced before it is run. Nothing else is:

    PID, ENDPOINT          the job's process id, and so is the number after `probe` or `kill -KILL`
                           in a `console` block
    JOB                    the job's name; in the pages of `OF_RANKS` a job of two ranks
    ID                     the id of an action that was just done, and so is such an id after `undo`
    COMMAND, NAME, …       (in the text only) `ps`, `python.steps`, nothing
    train.py               tests/docs/train.py
    slow.sql, look.py      a query, a snippet
    train.log              what a training printed
    kept                   a folder, for checkpoints
    /shared/probe          an archive of three runs of one job
    127.0.0.1:7130         where the server listens, in the pages of `LISTENING`

What ends the job (`ENDS`) is done to another one, that there is something left to ask. What changes nothing
(`ONCE`) is run once for a page that gives it twice.

`CHECKOUT` lists what is run in the checkout itself, and how a test shortens it.

A new interpreter takes a third of a second of processor time, with torch two seconds. So only README.md's job
has one (elsewhere it is a fork), and of the commands that need no shell the first of a page is a process, and
the others run in this one. `cli/test_end_to_end` has a process for each kind of answer.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from agent.nursery import Forked, shared
from docs.documents import ROOT, Shown
from fleet.written_archive import Simulated, write
from harness import PATIENCE_S, SERVER, Job, Place, run_probe
from probe_cli.command_table import COMMANDS
from ranks import running_ranks

TRAIN = Path(__file__).with_name("train.py")
FILES = {
    "slow.sql": "SELECT step, wall_s FROM python.steps ORDER BY wall_s DESC LIMIT 5\n",
    "train.log": "".join(f"Step {step}: loss={2.5 - step / 100}, lr=1e-4\n" for step in range(10, 100, 10)),
    "look.py": "for name, parameter in model.named_parameters():\n    print(name, tuple(parameter.shape))\n",
}
KEPT = "kept"
JOB = "train"
OF_RANKS = ("ranks.md", "checkpoint-ranks.md", "diagnose-ranks.md", "flamegraphs.md")
LISTENING = ("http.md",)
ADDRESS = "127.0.0.1:7130"
ARCHIVE = "/shared/probe"
ENDS = re.compile(r"probe (PID|\d+) (stop|detach)\b")
ONCE = re.compile(r"probe (PID|JOB) (diagnose|backtrace|health|ranks)\b|PROBE=1 python train\.py$")
SERVES = re.compile(r"probe (\S+ )?web\b")
"""Serves a page until Ctrl-C: it is ended once it has printed its link."""
NEVER_HERE = ("run", "attach", "mcp")
"""Commands that are always processes: they become the job, trace it, or speak on their own stdin."""
STARTS_INTERPRETERS = ("PROBE=1 torchrun --nproc-per-node 2 train.py", "probe run python train.py")
"""Commands whose jobs have interpreters of their own: in the campaign. Every day README's own job starts one
with PROBE=1, `cli/test_reference` starts a program with `probe run`, and the ranks of `ranks.py` have the
environment of torchrun."""
ITS_OWN = "its own environment"
LONG = "long"
"""Both in the campaign; what is protected every day by other tests, too: what the demo asks (README.md, and
`test_recording`), installing (`tests/run` itself, `startup/test_installation`), the generated pages
(`test_declarations`)."""
CHECKOUT: dict[str, tuple[str, str]] = {
    "./bench/demo": ("DEMO_SIZE=tiny DEMO_TRAINS_S=2 REST_S=0.1 ./bench/demo", ITS_OWN),
    "./tests/run": ("./tests/run --collect-only -q tests/docs", ITS_OWN),  # every day by whoever runs tests
    "./tests/run --quick": ("./tests/run --quick", ITS_OWN),
    "./tests/run -k hook": ("./tests/run --collect-only -q -k hook tests/startup", ITS_OWN),
    ".venv/bin/ruff check": ("ruff check tests/docs", ""),
    ".venv/bin/mypy": ("mypy cli/probe_cli/core/exit_codes.py", LONG),
    ".venv/bin/pytest tests/cli": ("pytest --collect-only -q tests/cli", LONG),
    "./tests/run --campaign tests": (
        "pytest --collect-only -q -m campaign tests/agent/test_endings.py", LONG,
    ),
    ".venv/bin/python docs/make_pages.py": ("python docs/make_pages.py --check", LONG),
    ".venv/bin/python bench/overhead.py": (
        "python bench/overhead.py --quick --rounds 1 --jobs millisecond", LONG,
    ),
    ".venv/bin/python bench/overhead.py --switch top": (
        "python bench/overhead.py --quick --rounds 1 --jobs millisecond --switch top", LONG,
    ),
    ".venv/bin/python bench/hooks.py": ("python bench/hooks.py --quick", LONG),
    ".venv/bin/python bench/hooks.py --loader": ("python bench/hooks.py --quick --loader", LONG),
    ".venv/bin/python bench/latency.py": ("python bench/latency.py --quick", LONG),
    ".venv/bin/python bench/page.py": ("python bench/page.py --seconds 2", LONG),
    ".venv/bin/python bench/attach.py": ("python bench/attach.py --quick", LONG),
    ".venv/bin/python bench/detach.py": ("python bench/detach.py --rounds 2 --steps 50", LONG),
    ".venv/bin/python bench/faults.py": ("python bench/faults.py --seeds 1 --only kill", LONG),
    ".venv/bin/python bench/faults.py --learning": (
        "python bench/faults.py --learning --seeds 1 --only forgotten", LONG,
    ),
    ".venv/bin/python bench/faults.py --silent --half held-out": (
        "python bench/silent.py --only every-step-skipped --programs unet", LONG,
    ),
    ".venv/bin/python bench/safepoint.py": ("python bench/safepoint.py --quick", LONG),
    ".venv/bin/python bench/collectives.py": ("python bench/collectives.py --calls 100 --blocks 2", LONG),
    ".venv/bin/python bench/nan_detector.py": (
        "python bench/nan_detector.py --blocks 4 --steps 20 --memory 10000000", LONG,
    ),
    ".venv/bin/python bench/scale.py": ("python bench/scale.py --quick", LONG),
    ".venv/bin/python bench/server_cost.py": ("python bench/server_cost.py --quick", LONG),
    ".venv/bin/python -X importtime -m probe_cli --help": ("python -X importtime -m probe_cli --help", ""),
    "pip install torch-probe": ("pip install --quiet --no-deps --target {scratch} .", LONG),
    "pip install .": ("pip install --quiet --no-deps --target {scratch} .", LONG),
}
IN_BROWSER = frozenset({".venv/bin/python bench/page.py"})
"""Those of `CHECKOUT` that draw pages."""
"""Command of a document without `--peers`, `--paired`, `--runs N`, `--rounds N`: (what is run, what it
takes)."""


def checkout_command(command: str) -> str | None:
    """The entry of `CHECKOUT` for a command; None when it is for a job. Fails for one that is in no list."""
    plain = re.sub(r" --(peers|quick|paired)\b| --(runs|rounds) \d+", "", command)
    for listed in (command, plain):
        if listed in CHECKOUT:
            return listed
    own = r"(\S+=\S+ )*(probe|python train\.py|torchrun|echo|kill|curl|export) ?"
    assert re.match(own, command), f"{command!r}: say in CHECKOUT of {__file__} how it is run"
    return None


def plain_words(command: str) -> list[str]:
    """What follows `probe` in a command that needs no shell; nothing for any other."""
    bare = re.sub(r"'[^']*'|\"[^\"$`\\]*\"", "", command)
    if not bare.startswith("probe ") or re.search(r"[|&;<>$`\\(){}*?~]", bare):
        return []
    return shlex.split(command, comments=True)[1:]


@contextlib.contextmanager
def working_in(folder: Path) -> Iterator[None]:
    """The block with this working directory."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


class Session:
    """One document's folder and, from its first need on, its job."""

    def __init__(
        self, place: Place, folder: Path, world_size: int = 1, *, interpreter: bool = False,
        address: str = "",
    ) -> None:
        """`interpreter`: the job has one of its own, as a user's. `address`: where its server listens."""
        self.place = place
        self.folder = folder
        self._interpreter = interpreter
        self._server = {**SERVER, **({"PROBE_LISTEN": address} if address else {})}
        self._address = address or ADDRESS
        self._said: dict[str, str] = {}
        """What commands of `ONCE` printed."""
        self._was_process = False
        """Whether one command of the page was a process."""
        self._world_size = world_size
        self._stack = contextlib.ExitStack()
        self._job: Job | None = None
        (folder / "train.py").symlink_to(TRAIN)
        (folder / KEPT).mkdir()
        for name, text in FILES.items():
            (folder / name).write_text(text)

    def close(self) -> None:
        """End the job."""
        self._stack.close()

    def job(self) -> Job:
        """The job, training; of several ranks the first."""
        if self._job is None and self._world_size > 1:
            ways = ("--way", "ddp", "--forever", "--pace-ms", "20")
            ranks = running_ranks(self.place, self._world_size, "parallel", *ways, name=JOB, **self._server)
            self._job = self._stack.enter_context(ranks)[0]
        if self._job is None:
            self._job = self._start(JOB)
            self._stack.callback(self._job.kill)
        return self._job

    def _start(self, name: str) -> Job:
        environ = self.place.watched(TRAIN_ON="1", REST_S="0.1", PROBE_NAME=name, **self._server)
        program, folder = str(self.folder / "train"), self.place.directory
        job: Job
        if self._interpreter:
            job = Job(program, environ=environ, folder=folder)
        else:
            job = Forked(shared(), program, environ=environ, folder=folder)
        job.wait_for("READY")
        return job

    def environ(self) -> dict[str, str]:
        """What a shell of somebody who has installed probe holds."""
        environ = self.place.watched(**self._server)
        del environ["PROBE"]
        environ.update(XDG_DATA_HOME=str(self.folder / "share"), SHELL="/bin/bash")  # of `completion install`
        beside = str(Path(sys.executable).parent)
        return {**environ, "PATH": os.pathsep.join([beside, environ.get("PATH", "")])}

    def run(self, shown: Shown, pids_are_numbers: bool) -> str:
        """Run one command of a document and return what it printed; fails when it fails."""
        if ONCE.match(shown.command):
            if shown.command not in self._said:
                self._said[shown.command] = self._run(shown, pids_are_numbers)
            return self._said[shown.command]
        return self._run(shown, pids_are_numbers)

    def _run(self, shown: Shown, pids_are_numbers: bool) -> str:
        if shown.command.endswith(" &"):
            assert shown.command in ("PROBE=1 python train.py &", "probe run python train.py &"), shown
            assert self._job is None, "one job for each document"
            self.job()
            if self._interpreter:
                self._said[shown.command.removesuffix(" &")] = ""
            return ""
        if ENDS.match(shown.command):
            other = self._start("another")
            try:
                return self._shell(shown, self.meant(shown.command, pids_are_numbers, other.pid))
            finally:
                other.kill()
        if SERVES.match(shown.command):
            return self._served(self.meant(shown.command, pids_are_numbers, self.job().pid))
        pid = self.job().pid if re.search(r"\bprobe\b|\bkill\b|\bPID\b", shown.command) else None
        return self._shell(shown, self.meant(shown.command, pids_are_numbers, pid))

    def _shell(self, shown: Shown, command: str) -> str:
        words = plain_words(command)
        name = next((word for word in words if word in COMMANDS), "")
        if name and name not in NEVER_HERE and self._was_process:
            with working_in(self.folder):
                done = run_probe(self.place, *words, server=False, **self.environ())
            assert done.returncode == 0, f"line {shown.line}: {shown.command}\n{done.stdout}\n{done.stderr}"
            return done.stdout
        self._was_process |= bool(name)
        done = subprocess.run(
            ["bash", "-euc", command], cwd=self.folder, env=self.environ(), stdin=subprocess.DEVNULL,
            capture_output=True, text=True, timeout=PATIENCE_S, check=False,
        )
        assert done.returncode == 0, f"line {shown.line}: {shown.command}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def _served(self, command: str) -> str:
        process = subprocess.Popen(
            ["bash", "-euc", f"exec {command}"], cwd=self.folder, env=self.environ(), text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )
        with process:
            assert process.stdout is not None and process.stderr is not None
            link = process.stdout.readline()
            process.send_signal(signal.SIGINT)
            said = process.stderr.read()
            assert link.startswith("http://127.0.0.1:"), f"{command}\n{said}"
            assert process.wait(PATIENCE_S) == 0, f"{command}\n{said}"
        return link

    def meant(self, command: str, pids_are_numbers: bool, job: int | None) -> str:
        """The command with what stands for something else replaced, where it is about `job`."""
        pid = "" if job is None else str(job)
        if re.search(r"\bundo \S*(\bID\b|\d-\d)", command):
            command = re.sub(r"\bundo \S+", f"undo {self._action()}", command)
        if pids_are_numbers:
            command = re.sub(r"\b(probe|kill -KILL) \d+\b", rf"\1 {pid}", command)
        command = re.sub(r"\b(PID|ENDPOINT)\b", pid, command)
        return self._archived(re.sub(r"\bJOB\b", JOB, command).replace(ADDRESS, self._address))

    def _archived(self, text: str) -> str:
        """The text with an archive in this folder, made when it is first named."""
        place = self.folder / "archive"
        if ARCHIVE in text and not place.exists():
            hosts = "node1", "node2"
            write(place, [Simulated("gpt", f"gpt-000{day}", hosts, 2, day=day) for day in (1, 2, 3)], 20)
        return text.replace(ARCHIVE, str(place))

    def _action(self) -> str:
        """The id of an action that was just done and can be undone."""
        endpoint = str(self.job().pid) if self._world_size == 1 else JOB
        done = run_probe(self.place, endpoint, "lr", "--scale", "0.9", "--format", "json")
        assert done.returncode == 0, done.stderr
        return str(json.loads(done.stdout)["id"])

    def query(self, sql: str) -> str:
        """The answer to a query as JSON; fails when there is none, or one with a note."""
        done = run_probe(self.place, str(self.job().pid), "query", "--format", "json", stdin=sql)
        assert done.returncode == 0 and done.stderr == "", f"{sql}\n{done.stderr}"
        return done.stdout

    def program(self, text: str) -> None:
        """Run Python as somebody would who has installed probe."""
        done = subprocess.run(
            [sys.executable, "-c", self._archived(text)], cwd=self.folder, env=self.environ(),
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PATIENCE_S, check=False,
        )
        assert done.returncode == 0, f"{text}\n{done.stderr}"


def in_checkout(command: str, scratch: Path) -> None:
    """Run a command of `CHECKOUT` as its entry says, with the programs of this environment."""
    meant, _ = CHECKOUT[command]
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PROBE")}
    environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), environ.get("PATH", "")])
    environ.pop("PYTEST_CURRENT_TEST", None)
    done = subprocess.run(
        ["bash", "-euc", meant.format(scratch=scratch)], cwd=ROOT, env=environ, stdin=subprocess.DEVNULL,
        capture_output=True, text=True, timeout=900, check=False,
    )
    said = f"{meant}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    assert done.returncode == 0, said
    assert "(exit code " not in done.stdout, said  # what the demo says of a question that failed
