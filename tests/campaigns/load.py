"""Load: many jobs on one host for a long time, or a busy machine: no growth and no wrong answers.

Parts (`--part`): `many` runs 64 jobs with steps of a millisecond and one of 2,000 modules (`many-8`: 8 jobs);
`busy` runs four jobs and one of two ranks next to 20 processes that always want a core (`busy-4`: 4
processes). A round is half a minute; twenty are ten minutes. Steps sleep so that two cores can carry all
jobs. Measures memory, disk, processor time, descriptors and threads of server and jobs, and the times of
`ps` and `query`; checks states, verdicts and rows: all jobs train. The control plants a server that takes a
job for dead after a millisecond.
"""

from __future__ import annotations

import contextlib
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from agent.nursery import Forked, Nursery, forked
from campaigns.campaign import Campaign
from campaigns.kill_ledger import Server
from harness import DEPLOYED, PATIENCE_S, ROOT, Place, probe_process
from probe.base.errors import LimitReached, ProbeError
from probe.diagnose import states
from probe.recording import places
from probe.recording.segments import COMPACT_FILES
from probe.recording.tables import TABLES
from ranks import running_ranks

JOBS, SPINNERS = 64, 20
ROUND_S = 30.0
SEALED_S = 900.0
REST_MS = 3.0
"""Sleep per step and job: all jobs together use most of two cores."""
LARGEST_GROWTH_RATIO, LARGEST_GROWTH_BYTES = 1.25, 32 << 20
"""From the second quarter of the rounds to the last: an increase beyond both counts as growth."""
TRUE_OF_A_BUSY_MACHINE = frozenset({states.STARVED, states.SWAPPING, states.RUNNING_AGAIN})
"""States in which an alarm is correct for a training job that gets too little of the machine."""
BLAME = frozenset({states.STRAGGLER, states.MISSING_RANK, states.DEAD_RANK, states.IMBALANCE})
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class Reading(NamedTuple):
    """Figures of one process from /proc."""

    rss_bytes: int
    descriptors: int
    threads: int
    cpu_s: float


def reading(pid: int) -> Reading:
    """Read a live process; raises `OSError` if it is gone."""
    folder = Path(f"/proc/{pid}")
    fields = (folder / "stat").read_text().rpartition(")")[2].split()
    pages = int((folder / "statm").read_text().split()[1])
    return Reading(
        pages * os.sysconf("SC_PAGE_SIZE"), len(os.listdir(folder / "fd")), int(fields[17]),
        (int(fields[11]) + int(fields[12])) / _TICKS_PER_S,
    )


def files_of(folder: Path) -> tuple[int, int]:
    """Number and bytes of the files in a folder."""
    count = size = 0
    for top, _, found in os.walk(folder):
        for name in found:
            with contextlib.suppress(FileNotFoundError):
                count, size = count + 1, size + os.stat(os.path.join(top, name)).st_blocks * 512
    return count, size


class Load:
    """The jobs and the server of the campaign."""

    def __init__(self, campaign: Campaign, place: Place, jobs: list[Forked]) -> None:
        self.campaign = campaign
        self.place = place
        self.jobs = jobs
        self.server = Server(place)
        self.last: dict[int, Reading] = {}
        self.series: dict[str, list[float]] = {}
        self.most_files = 0
        self.steps: dict[int, int] = {}
        self._seen = 0
        """Time of the newest verdict checked."""
        self.job_of_ranks = ""
        """Name of the job of two ranks, if there is one."""

    def note(self, what: str, value: float) -> None:
        """Add a reading that must not grow without bound."""
        self.series.setdefault(what, []).append(value)
        self.campaign.measure(what, value)

    def round(self, number: int) -> None:
        """Send requests for half a minute, then measure the cost."""
        dice = self.campaign.dice(number)
        until = time.monotonic() + ROUND_S
        began = time.monotonic()
        while time.monotonic() < until:
            self._ask(number, dice)
            time.sleep(dice.uniform(0.0, 1.0))
        self._read(time.monotonic() - began)
        self._verdicts(number)

    # Answers ----------------------------------------------------------------------

    def _ask(self, number: int, dice: random.Random) -> None:
        kinds = ["ps", "query", "query", "command", "diagnose", "backtrace"]
        kind = dice.choice([*kinds, "ranks"] if self.job_of_ranks else kinds)
        job = dice.choice(self.jobs)
        began = time.monotonic()
        try:
            wrong = getattr(self, f"_{kind}")(job)
        except LimitReached as error:  # it reports that it was limited
            self.campaign.count(f"{kind} refused: {error.code}")
            return
        except (ProbeError, OSError, subprocess.TimeoutExpired, ValueError) as error:
            wrong = f"{type(error).__name__}: {error}"
        self.campaign.measure(f"{kind}, s", time.monotonic() - began)
        if wrong:
            self.campaign.found(number, f"{kind} of pid {job.pid}: {wrong}")

    def _ps(self, _job: Forked) -> str:
        listed = self.server.ask("GET", "/v1/processes")["processes"]
        states = {one["pid"]: (one["state"], one["how"]) for one in listed}
        wrong = [
            f"{job.pid} is {states.get(job.pid, 'not there')}" for job in self.jobs
            if states.get(job.pid, ("", ""))[0] not in ("running", "starting")
            and states.get(job.pid, ("", ""))[1] not in TRUE_OF_A_BUSY_MACHINE
        ]
        for one in listed:
            step = one["step"] or 0
            if step < self.steps.get(one["pid"], 0):
                wrong.append(f"pid {one['pid']} went from step {self.steps[one['pid']]} to {step}")
            self.steps[one["pid"]] = step
        return "; ".join(wrong)

    def _query(self, job: Forked) -> str:
        before = self.steps.get(job.pid, 0)
        sql = "SELECT count(*), count(DISTINCT step), max(step) FROM python.steps"
        rows, notes = self.server.query(job.pid, sql)
        [[count, distinct, highest]] = rows
        if count != distinct:
            return f"{count} rows, {distinct} steps"
        if (highest or 0) < before:
            return f"the last step is {highest}, `ps` said {before}"
        if count != (highest or -1) + 1 and not notes:
            return f"{count} rows up to step {highest} and no note"
        return ""

    def _command(self, job: Forked) -> str:
        done = probe_process(self.place, "ps", timeout_s=PATIENCE_S)
        return "" if done.returncode == 0 and str(job.pid) in done.stdout else done.stdout + done.stderr

    def _diagnose(self, job: Forked) -> str:
        answer = self.server.ask("GET", f"/v1/diagnose?endpoint={job.pid}")
        alarm = answer["severity"] == states.ALARM and answer["state"] not in TRUE_OF_A_BUSY_MACHINE
        self.campaign.count(f"diagnosed: {answer['state']}")
        return f"{answer['state']}: {answer['what']} {answer['why']}" if alarm else ""

    def _ranks(self, _job: Forked) -> str:
        """Diagnose two equal ranks: a late one lacks a core and must not be blamed."""
        answer = self.server.ask("GET", f"/v1/diagnose?endpoint={self.job_of_ranks}")
        self.campaign.count(f"two ranks diagnosed: {answer['state']} ({answer['severity']})")
        said = " ".join([answer["what"], *answer["why"]])
        blamed = answer["state"] in BLAME and answer["severity"] in (states.ALARM, states.NOTICE)
        return f"{answer['state']}: {said}" if blamed and "core" not in said else ""

    def _backtrace(self, job: Forked) -> str:
        answer = self.server.ask("GET", f"/v1/backtrace?endpoint={job.pid}")
        self.campaign.count(f"stacks from: {answer['source']}")
        return "" if answer["threads"] else "no threads"

    def _verdicts(self, number: int) -> None:
        """Check the verdicts written by the server since the last round."""
        everything = places.recordings(self.place.directory)
        try:
            sql = f"SELECT t_ns, pid, state, severity, what FROM probe.verdicts WHERE t_ns > {self._seen}"
            rows, _ = self.server.query(everything, sql)
        except ProbeError as error:
            self.campaign.count(f"verdicts not read: {error.code}")
            return
        for t_ns, pid, state, severity, what in rows:
            self._seen = max(self._seen, int(t_ns))
            self.campaign.count(f"verdict: {state} ({severity})")
            if severity == states.ALARM and state not in TRUE_OF_A_BUSY_MACHINE:
                self.campaign.found(number, f"pid {pid}: {state}: {what}")

    # Cost -------------------------------------------------------------------------

    def _read(self, took_s: float) -> None:
        pid = self.place.server_pid()
        assert pid is not None
        server = reading(pid)
        workers = [reading(one) for one in _children(pid)]
        self.note("server's memory, MiB", server.rss_bytes / 2**20)
        self.note("server's descriptors", server.descriptors)
        self.note("server's threads", server.threads)
        self.note("query workers", len(workers))
        self.campaign.measure("query workers' memory, MiB", sum(one.rss_bytes for one in workers) / 2**20)
        jobs = {job.pid: reading(job.pid) for job in self.jobs}
        memory_bytes = statistics.median(one.rss_bytes for one in jobs.values())
        self.note("a job's memory, median, MiB", memory_bytes / 2**20)
        self.note("a job's descriptors, most", max(one.descriptors for one in jobs.values()))
        self.note("a job's threads, most", max(one.threads for one in jobs.values()))
        if pid in self.last:
            self.campaign.measure("server's cores", (server.cpu_s - self.last[pid].cpu_s) / took_s)
            used_s = sum(one.cpu_s - self.last[job].cpu_s for job, one in jobs.items() if job in self.last)
            self.campaign.measure("cores of all jobs", used_s / took_s)
        self.last = {pid: server, **jobs}
        count, size = files_of(self.place.directory)
        self.campaign.measure("files in PROBE_DIR", count)
        self.most_files = max(self.most_files, count)
        self.campaign.measure("PROBE_DIR, MiB", size / 2**20)
        self.note("rings, MiB", files_of(self.place.rings)[1] / 2**20)

    def growth(self) -> Iterator[str]:
        """Report values still growing in the last quarter, and too many files: each minute adds one file per
        table with new rows, and `COMPACT_FILES` of one size are merged into one."""
        most = len(self.jobs) * len(TABLES) * COMPACT_FILES
        if self.most_files > most:
            yield f"{self.most_files} files in PROBE_DIR; {len(self.jobs)} jobs should make {most} at most"
        for what, values in self.series.items():
            quarter = len(values) // 4
            if quarter < 2:
                continue
            early = statistics.median(values[quarter : 2 * quarter])
            late = statistics.median(values[-quarter:])
            spare = LARGEST_GROWTH_BYTES / 2**20 if what.endswith("MiB") else 8.0
            if late > early * LARGEST_GROWTH_RATIO and late - early > spare:
                yield f"{what} grows: {early:.0f}, then {late:.0f}; all: {[round(one) for one in values]}"


def _children(pid: int) -> list[int]:
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):
            found += map(int, (task / "children").read_text().split())
    return found


@contextlib.contextmanager
def _busy(count: int) -> Iterator[None]:
    """Run this many busy processes, each in its own session, because the kernel shares cores between
    sessions."""
    processes = [
        subprocess.Popen(["/bin/sh", "-c", "while :; do :; done"], start_new_session=True)
        for _ in range(count)
    ]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


IMPATIENT = """
from probe.base import clock
from probe.server.recordings.registry import Registry
status = Registry.status

def impatient(registry, recorded):
    found = status(registry, recorded)
    now_ns = clock.wall_ns()
    late = found.ended_ns is None and now_ns - (found.last_step_ns or 0) > 1_000_000
    return found._replace(state="dead", ended_ns=now_ns) if late else found

Registry.status = impatient
from probe.server.__main__ import main
main()
"""


def _start_impatient_server(place: Place) -> None:
    """For the control: start a server that takes a job without a step for a millisecond for dead."""
    process = subprocess.Popen(
        [sys.executable, "-c", IMPATIENT], env=place.environ(PYTHONPATH=str(ROOT)), stderr=subprocess.DEVNULL
    )
    while place.server_pid() != process.pid:
        time.sleep(0.05)


def main() -> int:
    """Run the load; 0 if nothing grew and no answer was wrong."""
    campaign = Campaign("load", __doc__, rounds=20)
    part, _, count = (campaign.part or "many").partition("-")
    jobs = int(count) if part == "many" and count else JOBS if part == "many" and not campaign.control else 4
    spinners = 0 if part == "many" else int(count or SPINNERS)
    if campaign.control:
        campaign.rounds = min(campaign.rounds, 2)
    rest_ms = str(REST_MS * jobs)
    commands = [("one_millisecond_step", "--forever", "--rest-ms", rest_ms)] * jobs
    commands.append(("two_thousand_modules", "--forever"))
    nursery, place = Nursery(), Place()
    print(f"{jobs} jobs that rest {rest_ms} ms a step, one of 2,000 modules, {spinners} busy processes; "
          f"load average before: {os.getloadavg()}", flush=True)
    try:
        if campaign.control:
            _start_impatient_server(place)
        with forked(nursery, place, *commands, **DEPLOYED) as started, contextlib.ExitStack() as stack:
            for job in started:
                job.wait_for("READY")
            load = Load(campaign, place, started)
            if part == "busy":
                words = ("--way", "reduce", "--forever", "--pace-ms", "20")
                ranks = stack.enter_context(running_ranks(place, 2, "parallel", *words))
                load.job_of_ranks = ranks.name
            stack.enter_context(_busy(spinners))
            for number in campaign:
                began_s = time.monotonic()
                load.round(number)
                campaign.measure("rounds, s", time.monotonic() - began_s)
                print(f"round {number}: load average {os.getloadavg()[0]:.0f}, "
                      f"{ {what: round(values[-1]) for what, values in load.series.items()} }", flush=True)
            for line in load.growth():
                campaign.found(campaign.rounds - 1, line)
            for job in started:
                if job.errors():
                    campaign.found(campaign.rounds - 1, f"pid {job.pid} said {job.errors()}")
        began_s = time.monotonic()
        while place.ring_files() and time.monotonic() < began_s + SEALED_S:
            time.sleep(0.5)  # the sealer has the lowest priority: slow on a busy machine
        campaign.measure("until all jobs that ended were sealed, s", time.monotonic() - began_s)
        left = {what: found for what, found in place.close().items() if found}
        if left:
            campaign.found(campaign.rounds - 1, f"left behind: {left}")
    finally:
        nursery.close()
        place.remove()
    return campaign.end()
