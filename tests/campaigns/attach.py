"""Attaches and detaches in every state of a job: the answers must be right and the job unharmed.

Each part is a state; its rounds are spread over several fresh processes. A round attaches (directly, twice at
once, or through the command), checks that the agent answers, and detaches. Afterwards threads and descriptors
must be as before, and nothing of the recording open. At its end each process's own sums and exit status must
be right. The control leaks a descriptor, or makes a number wrong, through a snippet.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from campaigns.campaign import Campaign
from harness import PATIENCE_S, PROGRAMS, ROOT, Job, Place
from probe.base import wire
from probe.base.errors import AttachRefused, NotYours, ProbeError
from probe.outside.attach.attaching import attach
from probe.recording import places

NOBODY = 65534
AS_NOBODY = (
    "setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups",
    # Needed to run a Python below /root; the attaching process has it too.
    "--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search",
)
STATES: dict[str, tuple[str, tuple[str, ...]]] = {
    "sleep": ("sleep", ()), "torch-loop": ("trains", ()), "malloc-loop": ("allocate", ()),
    "lock-held": ("lock", ()), "DataLoader-workers": ("loader", ()), "500-threads": ("threads", ()),
    "seccomp": ("seccomp", ()), "no-new-privs": ("no_new_privs", ()),
    "mount-namespace": ("trains", ("unshare", "--mount")),
    "pid-namespace": ("trains", ("unshare", "--pid", "--fork", "--kill-child")),
    "non-root": ("trains", AS_NOBODY),
}
"""For each state: the job's activity, and the command that runs it."""
ROUNDS_EACH, ROUNDS_A_PROCESS = 50, 25
SETTLED_S = 30.0
STATUS = 17
YAMA = Path("/proc/sys/kernel/yama/ptrace_scope")
LEAK = "import os, sys; sys.modules['__main__'].kept = os.dup(0)"
WRONG = "import sys; sys.modules['__main__'].REFERENCE[0] += 1.0"


class Target:
    """One process in a state."""

    def __init__(self, state: str, place: Place, loops: str) -> None:
        does, before = STATES[state]
        self.state = state
        self.place = place
        self._job = Job(
            "attached_often", does, loops, environ=place.environ(), folder=place.directory, before=before
        )
        self._job.wait_for("READY")
        self.pid = self._job.pid
        if "--fork" in before:
            [child] = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
            self.pid = int(child)
        self.before = self.counts()

    def counts(self) -> tuple[int, int]:
        """Number of threads and descriptors."""
        return len(os.listdir(f"/proc/{self.pid}/task")), len(os.listdir(f"/proc/{self.pid}/fd"))

    def ours(self) -> list[str]:
        """Traces of probe in the process: open files of the recording, mapped rings, threads."""
        marks = (os.fspath(self.place.directory / "recordings"), os.fspath(self.place.rings))
        found = []
        for link in Path(f"/proc/{self.pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                found.append(os.readlink(link))
        found += [line.split()[-1] for line in Path(f"/proc/{self.pid}/maps").read_text().splitlines()]
        names = []
        for comm in Path(f"/proc/{self.pid}/task").glob("*/comm"):
            with contextlib.suppress(OSError):
                names.append(comm.read_text().strip())
        return [name for name in found if name.startswith(marks)] + [
            name for name in names if name.startswith("probe-")
        ]

    def left(self) -> str:
        """What remains after a detach, with time to clean up; empty if nothing does."""
        deadline = time.monotonic() + SETTLED_S
        while True:
            now, ours = self.counts(), self.ours()
            if now == self.before and not ours:
                return ""
            if time.monotonic() > deadline:
                return f"threads and descriptors were {self.before}, are {now}; of ours: {ours}"
            time.sleep(0.02)

    def end(self) -> str:
        """Release the process; returns what is wrong with its end, else empty."""
        try:
            os.kill(self.pid, signal.SIGUSR1)
            result = self._job.result()
            status = self._job.wait()
        except (AssertionError, subprocess.TimeoutExpired) as error:
            return f"it did not come to its end: {error}"
        except ProcessLookupError:
            return f"it has ended before, with {self._job.wait()}; its stderr: {self._job.errors()!r}"
        errors = self._job.errors().strip()
        if result["wrong"] or result["rounds"] < 2 or result["threads"] or status != STATUS or errors:
            return f"it ended with {status}, {result}, stderr {errors!r}"
        return ""

    def kill(self) -> None:
        """Kill the process, in any state."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        self._job.kill()


class Round:
    """One round with one process; `wrong` runs it and returns what went wrong."""

    def __init__(self, campaign: Campaign, target: Target, dice: random.Random) -> None:
        self._campaign = campaign
        self._target = target
        self._dice = dice
        self._socket = places.agent_socket(target.place.directory, target.pid)

    def wrong(self) -> str:
        """Run the round."""
        time.sleep(self._dice.random() * 0.1)  # at a random moment
        try:
            refused = self._refusal()
            if refused is not None:
                return refused
            began = time.monotonic()
            said = self._attach()
            if said:
                return said
            self._campaign.measure("attach, s", time.monotonic() - began)
            time.sleep(self._dice.choice((0.0, 0.02, 0.2)))
            if self._target.state != "non-root":  # its agent accepts root, but root refuses its socket
                health = wire.call(self._socket, "GET", "/v1/health", timeout_s=PATIENCE_S)
                if health["pid"] != self._target.pid or health["failures"]:
                    return f"the agent says {health}"
            if self._campaign.control:
                code = self._dice.choice((LEAK, WRONG))
                body = {"code": code, "when": "now"}
                wire.call(self._socket, "POST", "/v1/eval", body, timeout_s=PATIENCE_S)
            began = time.monotonic()
            said = self._detach()
            self._campaign.measure("detach, s", time.monotonic() - began)
        except (ProbeError, OSError, subprocess.TimeoutExpired) as error:
            return f"{type(error).__name__}: {getattr(error, 'message', error)}"
        return said or self._target.left()

    def _refusal(self) -> str | None:
        """For states that must refuse an attach from here: what is wrong with the refusal, or None."""
        expected: tuple[type[ProbeError], str]
        if self._target.state == "mount-namespace":
            expected = AttachRefused, "sees other files than you do"
        elif self._target.state == "non-root" and self._dice.random() < 0.5:
            expected = NotYours, "belongs to user"
        else:
            return None
        if self._target.state == "mount-namespace" and self._dice.random() < 0.5:
            return None
        self._campaign.count("refused with the cause")
        with tempfile.TemporaryDirectory(prefix="probe-test-") as directory:  # our own, not the user's
            try:
                attach(self._target.pid, {}, directory=Path(directory), wait_s=PATIENCE_S)
            except expected[0] as error:
                right = expected[1] in error.message and self._target.counts() == self._target.before
                return "" if right else f"refused with {error.message!r}"
        return "it was not refused"

    def _attach(self) -> str:
        place, pid = self._target.place, self._target.pid
        ways = ("itself", "itself", "itself", "two at once", "the command")
        inside = self._target.state in ("mount-namespace", "non-root")
        way = "the command" if inside else self._dice.choice(ways)
        self._campaign.count(f"attached by {way}")
        if way == "the command":
            return self._command("attach", f"(pid {pid})")

        def once(_number: int) -> str:
            settings = {"PROBE_DIR": str(place.directory), "PROBE_RINGS_DIR": str(place.rings)}
            return attach(pid, settings, directory=place.directory, wait_s=PATIENCE_S).outcome

        number = 2 if way == "two at once" else 1
        with ThreadPoolExecutor(number) as pool:
            outcomes = sorted(pool.map(once, range(number)))
        return "" if outcomes == ["already", "started"][2 - number :] else f"outcomes {outcomes}"

    def _detach(self) -> str:
        if self._target.state != "non-root" and self._dice.random() < 0.9:
            found = wire.call(self._socket, "POST", "/v1/stop", {}, timeout_s=PATIENCE_S)
            return "" if found["stopped"] else f"detach says {found}"
        return self._command("detach", "detached from")

    def _command(self, word: str, expected: str) -> str:
        before: tuple[str, ...] = AS_NOBODY if self._target.state == "non-root" else ()
        if self._target.state == "mount-namespace":
            before = ("nsenter", "--target", str(self._target.pid), "--mount", f"--wd={ROOT}")
        done = subprocess.run(
            [*before, sys.executable, "-m", "probe_cli", str(self._target.pid), word],
            env={**self._target.place.environ(), "PYTHONPATH": f"{ROOT}:{ROOT / 'cli'}"}, cwd=ROOT, text=True,
            stdin=subprocess.DEVNULL, capture_output=True, timeout=PATIENCE_S * 2, check=False,
        )
        if done.returncode or expected not in done.stdout:
            return f"`probe {word}` ended with {done.returncode}: {done.stdout.strip()} {done.stderr.strip()}"
        return ""


@contextlib.contextmanager
def place_of(state: str) -> Iterator[Place]:
    """Folders that the process of that state can use; finally ends everything that runs there."""
    place = Place()
    try:
        if state == "non-root":
            for folder in (place.directory, place.rings):
                os.chown(folder, NOBODY, NOBODY)
        yield place
        left = place.close()
        if any(left.values()):
            raise AssertionError(f"left behind: {json.dumps(left)}")
    finally:
        place.remove()


def main() -> int:
    campaign = Campaign("attach", __doc__, rounds=ROUNDS_EACH * len(STATES))
    states = [campaign.part] if campaign.part else list(STATES)
    each = -(-campaign.rounds // len(states))
    if campaign.part and campaign.rounds == ROUNDS_EACH * len(STATES):
        campaign.rounds = each = ROUNDS_EACH
    scope = YAMA.read_text().strip() if YAMA.exists() else "this kernel has no Yama"
    print(f"ptrace_scope: {scope}", flush=True)
    with contextlib.ExitStack() as folders:
        loops = compiled(folders)
        target: Target | None = None
        last = -1
        with contextlib.ExitStack() as stack:
            for number in campaign:
                state = states[min(number // each, len(states) - 1)]
                if target is None or target.state != state or number % ROUNDS_A_PROCESS == 0:
                    end(campaign, last, target)
                    target = None  # it has ended, even if the next one fails to start
                    stack.close()
                    target = begin(campaign, number, state, loops, stack)
                    if target is None:
                        continue
                last = number
                campaign.count(f"rounds: {state}")
                wrong = Round(campaign, target, campaign.dice(number)).wrong()
                if wrong:
                    campaign.found(number, f"{state}: {wrong}")
                    # Further rounds with a broken process are meaningless.
                    end(campaign, number, target)
                    target = None
            end(campaign, last, target)
    return campaign.end()


def begin(
    campaign: Campaign, number: int, state: str, loops: str, stack: contextlib.ExitStack
) -> Target | None:
    """Start a fresh process in that state; None, and a finding, if it does not reach it."""
    place = stack.enter_context(place_of(state))
    try:
        target = Target(state, place, loops)
    except AssertionError as error:
        campaign.found(number, f"{state}: it could not be started: {error}")
        return None
    stack.callback(target.kill)
    campaign.count("processes")
    return target


def end(campaign: Campaign, number: int, target: Target | None) -> None:
    """Let a process report its sums and end."""
    if target is not None:
        wrong = target.end()
        if wrong:
            campaign.found(number, f"{target.state}: {wrong}")


def compiled(stack: contextlib.ExitStack) -> str:
    """Compile attach_loops.c."""
    place = Place()
    stack.callback(place.remove)
    made = str(place.directory / "loops.so")
    subprocess.run(
        [shutil.which("cc") or "cc", "-O2", "-shared", "-fPIC", "-o", made, str(PROGRAMS / "attach_loops.c")],
        check=True,
    )
    return made
