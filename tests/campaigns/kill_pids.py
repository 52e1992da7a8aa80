"""PID reuse, in a PID namespace where the next PID can be chosen.

Run as a program (`python -m campaigns.kill_pids CONTROL`) it runs one round as the first process of its own
namespace and prints its findings as JSON.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from agent.nursery import Forked, Nursery
from campaigns.campaign import Campaign
from campaigns.kill_ledger import UNHURRIED, Server, compare, noted
from harness import PATIENCE_S, Place, end_process, probe_process, wait_for_end
from probe.base.errors import ProbeError
from probe.recording import places

_NEXT = Path("/proc/sys/kernel/ns_last_pid")
_STEPS = "SELECT step, loss FROM python.steps ORDER BY step"
_ATTEMPTS = 50


class _Taken(Exception):
    """On a busy machine other threads got the PID each time: nothing was tested."""


def use_pids_again(campaign: Campaign, number: int, _nursery: Nursery) -> None:
    """Run one round in its own namespace."""
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    words = ["control"] if campaign.control else []
    done = subprocess.run(
        ["unshare", "--pid", "--fork", "--mount-proc", sys.executable, "-m", "campaigns.kill_pids", *words],
        env=environ, capture_output=True, text=True, timeout=600, check=False,
    )
    try:
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        campaign.found(number, f"{done.stdout[-500:]} {done.stderr[-2000:]}")
        return
    for what in found["found"]:
        campaign.found(number, what)
    for what, times in found["counts"].items():
        campaign.count(what, times)


class Round:
    """One round, in the namespace."""

    def __init__(self, control: bool) -> None:
        self.control = control
        self.found: list[str] = []
        self.counts: dict[str, int] = {}
        self.place = Place()
        self.server = Server(self.place)
        self.nursery = Nursery()

    def _job(self, name: str, *options: str, server: bool = True, **environ: str) -> Forked:
        settings = {"PROBE": "1", "PROBE_SERVER_PYTHON": sys.executable if server else "/nonexistent"}
        words = ("--file", str(self.place.directory / name), *options)
        environment = self.place.environ(**UNHURRIED, **settings, **environ)
        return Forked(self.nursery, "steps_on_file", *words, environ=environment, folder=self.place.directory)

    def _killed(self, name: str, *, server: bool = True) -> Forked:
        """A recorded job that was killed and reaped, so that its PID is free."""
        job = self._job(name, "--forever", server=server)
        job.wait_for("READY")
        job.kill()
        deadline = time.monotonic() + PATIENCE_S
        while Path(f"/proc/{job.pid}").exists():
            assert time.monotonic() < deadline, "the killed job is not gone"
            time.sleep(0.01)
        return job

    def _again(self, pid: int, start: Callable[[], tuple[int, Callable[[], None]]]) -> Callable[[], None]:
        """Call `start` until its process has this PID; returns the function that ends it."""
        for _ in range(_ATTEMPTS):
            _NEXT.write_text(str(pid - 1))
            found, end = start()
            if found == pid:
                self._count("pids used again")
                return end
            end()
        raise _Taken

    def _stranger(self) -> tuple[int, Callable[[], None]]:
        """Start a process unrelated to probe."""
        process = subprocess.Popen(["sleep", "1000"])

        def end() -> None:
            process.kill()
            process.wait()

        return process.pid, end

    def run(self) -> None:
        """Run all cases one after the other."""
        for case in (self.a_stranger, self.another_job, self.a_stranger_without_server, self.a_server):
            try:
                case()
            except _Taken:
                self._count("pids that others took")
            except (AssertionError, ProbeError, OSError, ValueError, KeyError) as error:
                self.found.append(f"{case.__name__}: {type(error).__name__}: {error}")

    def a_stranger(self) -> None:
        """A stranger has the PID of a killed job: the job must count as dead, the stranger be unaffected."""
        self.server.states()
        job = self._killed("first")
        end = self._again(job.pid, self._stranger)
        try:
            if self.control:  # a recording that takes the stranger for its own process
                _take_over(self.place, job.pid)
            self._is_dead(job)
        finally:
            end()

    def a_stranger_without_server(self) -> None:
        """The same if no server saw the end: the socket and the rings still exist."""
        pid = self.place.server_pid()
        if pid is not None:
            end_process(pid)
        job = self._killed("second", server=False)
        end = self._again(job.pid, self._stranger)
        try:
            self._is_dead(job)
        finally:
            end()

    def _is_dead(self, job: Forked) -> None:
        state = self.server.states()[job.pid]
        if state != "dead":
            self.found.append(f"pid {job.pid} is a stranger's and its job is {state}")
        before = Path(f"/proc/{job.pid}/status").read_text()
        for words in (
            ["lr", "--scale", "0.5"], ["eval", "1 + 1"], ["pause"], ["backtrace"], ["diagnose"], ["detach"],
        ):
            done = probe_process(self.place, str(job.pid), *words, timeout_s=60.0)
            said = done.stdout + done.stderr
            told = any(word in said for word in ("ended", "dead", "died", "killed", "without an agent"))
            if words[0] in ("lr", "eval", "pause") and done.returncode == 0:
                self.found.append(f"`{' '.join(words)}` was done to a stranger: {said}")
            if "Traceback" in said or not told:
                self.found.append(f"`{' '.join(words)}` of a killed job: {said}")
            if "sleep" in done.stdout:
                self.found.append(f"`{' '.join(words)}` shows the stranger as the job: {said}")
        same = ("State:", "TracerPid:", "SigCgt:")
        after = Path(f"/proc/{job.pid}/status").read_text()
        for line in same:
            if _line(before, line) != _line(after, line):
                self.found.append(f"the stranger was {_line(before, line)} and is {_line(after, line)}")
        self._compare(job.pid, "first" if (self.place.directory / "second").exists() is False else "second")

    def another_job(self) -> None:
        """Another job has the PID of a killed job: each must have its own rows and its own address."""
        old = self._killed("old")
        new: list[Forked] = []

        def start() -> tuple[int, Callable[[], None]]:
            # The fork server and its minder take two pids before the job does.
            _NEXT.write_text(str(old.pid - 2))
            job = self._job("new", "--forever", PROBE_NAME="another")
            new.append(job)
            return job.pid, job.kill

        end = self._again(old.pid, start)
        job = new[-1]
        try:
            job.wait_for("READY")
            listed = self.server.ask("GET", "/v1/processes?all=1")["processes"]
            both = {one["job"]: one["state"] for one in listed if one["pid"] == job.pid}
            if both.get("another") != "running" or both.get("steps_on_file") != "dead":
                self.found.append(f"two jobs of one pid: {both}")
            folder = next(one["folder"] for one in listed
                          if one["pid"] == job.pid and one["job"] == "steps_on_file")
            for endpoint, name in ((folder, "old"), ("another", "new")):
                self._compare(endpoint, name)
            done = probe_process(self.place, folder, "lr", "--scale", "0.5", timeout_s=60.0)
            if done.returncode == 0:
                self.found.append(f"the dead job was acted on: {done.stdout}")
            done = probe_process(self.place, str(job.pid), "eval", "1 + 1", timeout_s=60.0)
            if done.returncode != 0 or done.stdout.strip() != "2":
                self.found.append(f"the living job does not answer under its pid: {done.stdout}{done.stderr}")
        finally:
            end()

    def _compare(self, endpoint: object, name: str) -> None:
        before = noted(self.place.directory / name)
        rows, notes = self.server.query(endpoint, _STEPS)
        kept = [row for row in rows if int(row[0]) < len(before)]
        for line in compare(before, kept, None, notes):
            self.found.append(f"{endpoint}: {line}")

    def a_server(self) -> None:
        """A stranger has the PID of a killed server: a new server starts, the stranger is left alone."""
        self.server.states()
        pid = self.place.server_pid()
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        assert wait_for_end(pid, PATIENCE_S)
        deadline = time.monotonic() + PATIENCE_S
        while Path(f"/proc/{pid}").exists():
            with contextlib.suppress(ChildProcessError):
                os.waitpid(-1, os.WNOHANG)  # this is the first process here: it inherits orphans
            assert time.monotonic() < deadline
        end = self._again(pid, self._stranger)
        try:
            self.server.states()
            name = Path(f"/proc/{pid}/comm").read_text().strip()
            if self.place.server_pid() == pid or name != "sleep":
                self.found.append("the stranger with the server's pid is not what it was")
        finally:
            end()

    def _count(self, what: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1

    def close(self) -> None:
        """End all processes and remove the files."""
        self.nursery.close()
        self.place.close()
        self.place.remove()


def _line(status: str, name: str) -> str:
    return next((line for line in status.splitlines() if line.startswith(name)), "")


def _take_over(place: Place, pid: int) -> None:
    """For the control: make the recording claim the process that has the PID now."""
    ticks = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    for folder in places.process_folders(place.directory):
        facts = json.loads((folder / "meta.json").read_text())
        if facts["pid"] == pid:
            (folder / "end.json").unlink(missing_ok=True)
            (folder / "meta.json").write_text(json.dumps({**facts, "start_ticks": ticks}))
    server = place.server_pid()
    if server is not None:
        os.kill(server, signal.SIGKILL)


def one_round(control: bool) -> dict[str, Any]:
    """Run a round; returns its findings and counts."""
    this = Round(control)
    for step in (this.run, this.close):
        try:
            step()
        except (AssertionError, ProbeError, OSError, subprocess.SubprocessError, ValueError) as error:
            this.found.append(f"{type(error).__name__}: {error}")
    return {"found": this.found, "counts": this.counts}


if __name__ == "__main__":
    print(json.dumps(one_round(sys.argv[1:] == ["control"])))
