"""Disk faults under a job and its server: full, no inodes, read-only or deleted; in a mount namespace.

Run as a program (`python -m campaigns.kill_disks FAULT WHERE WHEN SERVER CONTROL`) it runs one round inside
its own namespace and prints its findings as JSON.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from agent.asking import tell
from agent.nursery import Forked, Nursery
from campaigns.campaign import Campaign
from campaigns.kill_ledger import UNHURRIED, Server, compare, noted
from harness import PATIENCE_S, Place, probe_process
from probe.base.errors import ProbeError

FAULTS = ("full", "inodes", "readonly", "deleted")
ROUNDS = tuple(
    itertools.product(FAULTS, ("directory", "rings"), ("before", "while"), ("server", "no server"))
)
CAUSES = {
    "full": ("no space left", "no room", "bytes free", "kib free"),
    "inodes": ("no space left", "no room", "inodes"),
    "readonly": ("read-only",),
    "deleted": ("no such file", "was deleted", "is gone", "not there", "no recording", "no process"),
}
"""The error of a failing command must contain one of these words."""
_COMMAND_S = 60.0
_LOOK_S = 20.0


def lose_the_disk(campaign: Campaign, number: int, _nursery: Nursery) -> None:
    """Run one round in its own namespace."""
    dice = campaign.dice(number)
    chosen = dice.choice(ROUNDS)
    words = [*chosen, "control" if campaign.control else ""]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        ["unshare", "-m", sys.executable, "-m", "campaigns.kill_disks", *words],
        env=environ, capture_output=True, text=True, timeout=600, check=False,
    )
    campaign.count(f"disk {chosen[0]}")
    try:
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        campaign.found(number, f"{chosen}: {done.stdout[-500:]} {done.stderr[-2000:]}")
        return
    for what in found["found"]:
        campaign.found(number, f"{', '.join(chosen)}: {what}")
    for what, times in found["counts"].items():
        campaign.count(what, times)


class Disk:
    """One of a place's two folders as a small file system, and its fault."""

    def __init__(self, folder: Path, fault: str) -> None:
        self.folder = folder
        self._fault = fault
        if fault != "deleted":
            _run("mount", "-t", "tmpfs", "-o", "size=48m,nr_inodes=300,mode=700", "tmpfs", str(folder))
        self._bound = False
        self._ballast = folder / "ballast"

    def lose(self) -> None:
        """Cause the fault."""
        if self._fault == "deleted":
            shutil.rmtree(self.folder, ignore_errors=True)
        elif self._fault == "readonly":
            self._bound = subprocess.run(
                ["mount", "-o", "remount,ro", str(self.folder)], capture_output=True, check=False
            ).returncode != 0
            if self._bound:  # a process is writing there
                _run("mount", "--bind", str(self.folder), str(self.folder))
                _run("mount", "-o", "remount,bind,ro", str(self.folder))
        else:
            self._ballast.mkdir()
            with contextlib.suppress(OSError):
                if self._fault == "full":
                    with (self._ballast / "one").open("wb", buffering=0) as file:
                        while True:
                            file.write(bytes(4096))
                for number in itertools.count():
                    (self._ballast / str(number)).touch()

    def give_back(self) -> None:
        """Remove the fault."""
        if self._fault == "deleted":
            self.folder.mkdir(mode=0o700, exist_ok=True)
        elif self._fault == "readonly":
            words = ("umount", "-l") if self._bound else ("mount", "-o", "remount,rw")
            _run(*words, str(self.folder))
        else:
            shutil.rmtree(self._ballast)


def _run(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True)


class Round:
    """One round, in the namespace."""

    def __init__(self, fault: str, where: str, when: str, server: str, control: bool) -> None:
        self.fault, self.when, self.served, self.control = fault, when, server == "server", control
        self.found: list[str] = []
        self.counts: dict[str, int] = {}
        self.agentless = False
        """Whether a command reported a missing agent: then the job itself must say why, once."""
        self.place = Place()
        self.own = Path(tempfile.mkdtemp(prefix="probe-test-own-"))
        self.disk = Disk(self.place.directory if where == "directory" else self.place.rings, fault)
        self.nursery = Nursery()

    def job(self, name: str, *options: str, watched: bool = True) -> Forked:
        """Start a job whose own files are elsewhere."""
        settings = {"PROBE": "1", "PROBE_SERVER_PYTHON": sys.executable, "PROBE_RINGS_BYTES": "2000000"}
        environ = self.place.environ(**UNHURRIED, **(settings if watched else {}))
        words = ("--file", str(self.own / name), "--hold", *options)
        job = Forked(self.nursery, "rates_on_file", *words, environ=environ, folder=self.own)
        job.wait_for("READY")
        return job

    def run(self) -> None:
        """Run the round."""
        if self.served:
            Server(self.place).states()
        if self.when == "before":
            self.disk.lose()
        job = self.job("steps", "--forever", "--pace-ms", "5")
        if self.when == "while":
            self._until_steps("steps", 50)
            self.disk.lose()
        self._until_steps("steps", len(noted(self.own / "steps")) + 50)
        for words in (
            ["ps", "--all"], ["PID", "query", "SELECT count(*) FROM python.steps"], ["PID", "backtrace"],
            ["PID", "diagnose"], ["PID", "lr", "--scale", "0.5"],
            ["PID", "checkpoint", str(self.place.directory / "saved.pt")], ["doctor"],
        ):
            self._ask(job, words)
        self._until_steps("steps", len(noted(self.own / "steps")) + 400)
        self.disk.give_back()
        self._recovers(job)
        self._ends(job)

    def _until_steps(self, name: str, steps: int) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while len(noted(self.own / name)) < steps:
            assert time.monotonic() < deadline, f"training does not go on after {steps} steps"
            time.sleep(0.02)

    def _ask(self, job: Forked, words: list[str]) -> None:
        """Run a command during the fault: it must answer, or report an error that names the cause."""
        words = [str(job.pid) if word == "PID" else word for word in words]
        try:
            done = probe_process(self.place, *words, timeout_s=_COMMAND_S, **UNHURRIED)
        except subprocess.TimeoutExpired:
            self.found.append(f"`{' '.join(words)}` gives no answer in {_COMMAND_S:g} s")
            return
        said = f"{done.stdout}\n{done.stderr}"
        if self.control:
            said, done.returncode = "something went wrong", 3
        self._count("commands answered" if done.returncode == 0 else "commands that say why not")
        if "Traceback" in said or "internal error" in said:
            self.found.append(f"`{' '.join(words)}`: {said[-1500:]}")
        elif "runs without an agent" in said:
            self.agentless = True
        elif done.returncode != 0 and not any(word in said.lower() for word in CAUSES[self.fault]):
            self.found.append(f"`{' '.join(words)}` does not say the cause: {said[-600:]}")

    def _count(self, what: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1

    def _recovers(self, job: Forked) -> None:
        """After the fault: commands answer, a recording reports its lost rows, a new job is recorded."""
        server = Server(self.place)
        with self._noting("the next job is not recorded"):
            second = self.job("second", "--steps", "60")
            second.result()
            rows, notes = server.query(second.pid, "SELECT step, loss FROM python.steps ORDER BY step")
            wrong = compare(noted(self.own / "second"), rows, None, notes)
            assert not wrong and len(rows) >= 59, (wrong, len(rows))
            assert second.let_go() == 0
        state = server.states().get(job.pid)
        self._count(f"recordings of the job: {state or 'none'}")
        if state is not None:
            with self._noting("its recording"):
                before = noted(self.own / "steps")
                rows, notes = server.query(
                    job.pid, f"SELECT step, loss FROM python.steps WHERE step < {len(before)} ORDER BY step"
                )
                if self.fault == "deleted" and rows:  # its recording ends where the rings were deleted
                    before = before[: int(rows[-1][0]) + 1]
                    notes = ["overwritten"] * (len(rows) < len(before))
                wrong = compare(before, rows, None, notes)
                assert not wrong, wrong

    @contextlib.contextmanager
    def _noting(self, what: str) -> Any:
        try:
            yield
        except (AssertionError, ProbeError, OSError, ValueError) as error:
            self.found.append(f"{what}: {type(error).__name__}: {error}")

    def _ends(self, job: Forked) -> None:
        """End the job. Its results must equal a run without probe bit for bit; stderr may hold one line."""
        deadline = time.monotonic() + _LOOK_S
        while self.agentless and not job.errors() and time.monotonic() < deadline:
            time.sleep(0.1)  # the agent looks after its files every five seconds
        tell(job)
        result = job.result()
        status = job.let_go()
        said = job.errors().splitlines()
        causes = any(word in line.lower() for line in said for word in CAUSES[self.fault])
        if self.agentless and not causes:
            self.found.append(f"the job has no agent and did not say why: {said}")
        if status != 0 or len(said) > 1 or any(not line.startswith("probe") for line in said):
            self.found.append(f"the job ended with {status} and said {said}")
        plain = self.job("again", "--replay", str(self.own / "steps"), watched=False)
        expected = plain.result()
        plain.let_go()
        for name in ("losses", "parameters_sha256"):
            if result[name] != expected[name]:
                self.found.append(f"{name} differ from those of a training without probe")

    def close(self) -> None:
        """End all processes and remove the files."""
        self.nursery.close()
        self.place.close()
        shutil.rmtree(self.own, ignore_errors=True)
        with contextlib.suppress(OSError, subprocess.CalledProcessError):
            _run("umount", "-l", str(self.disk.folder))
        self.place.remove()


def one_round(words: list[str]) -> dict[str, Any]:
    """Run a round; returns its findings and counts."""
    fault, where, when, server, control = words
    this = Round(fault, where, when, server, control == "control")
    steps: tuple[Callable[[], None], ...] = (this.run, this.close)
    for step in steps:
        try:
            step()
        except (AssertionError, ProbeError, OSError, subprocess.SubprocessError, ValueError) as error:
            this.found.append(f"{type(error).__name__}: {error}")
    return {"found": this.found, "counts": this.counts}


if __name__ == "__main__":
    print(json.dumps(one_round(sys.argv[1:])))
