"""Ledger jobs: programs that note every step themselves, compared with their recordings after a kill.

The oracle of the campaign `kills`: a step is acknowledged once the program has written it into its own file.
The tables must contain each step once and no others; rows that a ring lost before it was sealed must be
counted in probe.rings and reported in the query's notes.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from agent.nursery import Forked, Nursery, forked
from campaigns.campaign import Campaign
from harness import DEPLOYED, PATIENCE_S, Place, wait_for_end
from probe.base import wire
from probe.base.errors import AgentUnreachable, ProbeError, QueryWorkerDied
from probe.base.settings import Settings
from probe.boot import launch
from probe.recording import places

SMALL_RINGS = "1200000"
"""Rings of a hundred steps: a job of short steps overwrites them many times a second."""
UNHURRIED = {"PROBE_QUERY_TIMEOUT_S": "60"}
"""On a busy machine a query would miss its default deadline, and the round would test nothing."""
SETTINGS: tuple[dict[str, str], ...] = tuple({**UNHURRIED, **more} for more in (
    {},
    {"PROBE_RINGS_BYTES": SMALL_RINGS},
    {"PROBE_RINGS_BYTES": SMALL_RINGS, "PROBE_DRAIN_INTERVAL_S": "0.02"},
    {"PROBE_RINGS_BYTES": "2000000", "PROBE_DRAIN_INTERVAL_S": "0.02", "PROBE_SEAL_INTERVAL_S": "0.05"},
))
JOBS_AT_ONCE = 20
KILLS_OF_A_ROUND = 10
_STEPS = "SELECT step, loss FROM python.steps ORDER BY step"
_LOSSES = "SELECT step, loss FROM python.losses ORDER BY step"
_WRITTEN_OVER, _DELETED = "overwritten", "were deleted before they were sealed"
"""Phrases by which a query's notes report missing rows."""

Noted = list[tuple[int, float]]


@contextlib.contextmanager
def ground(campaign: Campaign, number: int) -> Iterator[Place]:
    """A private PROBE_DIR; leftovers, and exceptions that end the round, become findings."""
    place = Place()
    try:
        yield place
        left = {what: found for what, found in place.close().items() if found}
        if left:
            campaign.found(number, f"left behind: {left}")
    except (AssertionError, ProbeError, OSError, KeyError, ValueError) as error:
        campaign.found(number, f"{type(error).__name__}: {error}")
    finally:
        place.remove()


def noted(file: Path) -> Noted:
    """Steps and losses noted by the program; a truncated line does not count."""
    lines = file.read_text().splitlines(keepends=True) if file.exists() else []
    words = [line.split() for line in lines if line.endswith("\n")]
    return [(int(step), float.fromhex(loss)) for step, loss, *_ in words]


class Server:
    """A client of a place's server, which it starts if there is none."""

    def __init__(self, place: Place, **environ: str) -> None:
        self._directory = place.directory
        self._settings = Settings(place.environ(**{**UNHURRIED, **environ}))
        self.skips = False
        """For the control: drop the middle row of each answer."""

    def ask(self, method: str, target: str, body: object = None) -> Any:
        """Send a request and return the answer; retries if the server died during the request."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            launch.ensure_server(self._directory, self._settings, wait_s=PATIENCE_S)
            try:
                return wire.call(places.server_socket(self._directory), method, target, body, timeout_s=60.0)
            except AgentUnreachable:
                raise
            except (OSError, ProbeError) as error:
                cut = isinstance(error, OSError) or "cut short" in error.message or "empty" in error.message
                if not cut or time.monotonic() > deadline:
                    raise

    def query(self, endpoint: object, sql: str) -> tuple[list[list[Any]], list[str]]:
        """Run a query; returns rows and notes."""
        body = {"endpoint": str(endpoint), "sql": sql, "limit": 10**6}
        answer = self.ask("POST", "/v1/query", body)
        assert not answer["truncated"]
        rows: list[list[Any]] = answer["rows"]
        if self.skips and len(rows) > 1:
            del rows[len(rows) // 2]
        return rows, answer["notes"]

    def states(self) -> dict[int, str]:
        """State of every recorded process by PID."""
        found = self.ask("GET", "/v1/processes?all=1")["processes"]
        return {one["pid"]: one["state"] for one in found}


def compare(file: Noted, rows: list[list[Any]], dropped: int | None, notes: list[str]) -> list[str]:
    """Differences between the steps of a table and those that the program noted."""
    wrong = []
    steps = [int(step) for step, _ in rows]
    if len(set(steps)) != len(steps):
        twice = sorted({step for step in steps if steps.count(step) > 1})
        wrong.append(f"{len(twice)} steps are there twice, such as {twice[:5]}")
    true = dict(file)
    # The row is written inside optimizer.step(), the note after it: the table may be one step ahead.
    invented = [step for step in steps if step not in true and step != len(file)]
    if invented:
        wrong.append(f"steps that were not made: {invented[:5]}")
    changed = [step for step, loss in rows if int(step) in true and true[int(step)] != loss]
    if changed:
        wrong.append(f"{len(changed)} losses differ, such as that of step {changed[0]}")
    missing = set(true) - set(steps)
    if dropped is not None and len(missing) != dropped:
        wrong.append(f"{len(missing)} steps are missing, such as {min(missing, default=None)}, "
                     f"and probe.rings says {dropped}")
    told = any(_WRITTEN_OVER in note or _DELETED in note for note in notes)
    if bool(missing) != told:
        wrong.append(f"{len(missing)} steps are missing and the answer's notes are {notes}")
    return wrong


def dropped_of(server: Server, pid: int, table: str) -> int:
    """Number of dropped rows according to probe.rings."""
    [[dropped]], _ = server.query(pid, f"SELECT rows_dropped FROM probe.rings WHERE table_name = '{table}'")
    return int(dropped)


def check(campaign: Campaign, number: int, server: Server, job: Forked, file: Path, *, dead: bool) -> None:
    """Compare the tables of a job with what it noted."""
    before = noted(file)
    if dead:
        state = server.states().get(job.pid)
        if state != "dead":
            campaign.found(number, f"pid {job.pid} was killed and is {state}")
    for table, sql in (("python.steps", _STEPS), ("python.losses", _LOSSES)):
        rows, notes = server.query(job.pid, sql)
        after = before if dead else noted(file)
        kept = [row for row in rows if dead or int(row[0]) < len(before)]
        dropped = dropped_of(server, job.pid, table) if dead else None
        known = before if dead else after[: len(before)]
        if table == "python.losses" and dead:
            # A backward call of an unfinished step has a row but no note.
            kept = [row for row in kept if int(row[0]) <= len(known)]
        notes = notes if dead else [_WRITTEN_OVER] * (len(kept) < len(known))  # a live job may lose more rows
        for line in compare(known, kept, dropped, notes):
            campaign.found(number, f"pid {job.pid}, {table}: {line}")
        campaign.count(f"rows of {table} compared", len(kept))
        campaign.count(f"rows of {table} written over and told", dropped or 0)


def seal_everything(place: Place, server: Server, jobs: list[Forked]) -> None:
    """Wait until the server has sealed the rows left in the killed jobs' rings."""
    deadline = time.monotonic() + PATIENCE_S
    server.states()
    while place.ring_files() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not place.ring_files(), f"rings of {[job.pid for job in jobs]} are not sealed"


def plant(campaign: Campaign, place: Place, server: Server, dice: random.Random) -> None:
    """For the control: plant rows sealed twice, or a reader that skips a row."""
    if dice.random() < 0.5:
        pattern = "run=*/attempt=*/table=python.steps/rank=*/*.parquet"
        file = dice.choice(sorted(places.recordings(place.directory).glob(pattern)))
        pid, first, last = file.stem.split("-")
        shutil.copy(file, file.with_name(f"{pid}-{int(first) + 1:012d}-{int(last) + 1:012d}.parquet"))
        campaign.count("planted: rows sealed twice")
    else:
        server.skips = True
        campaign.count("planted: a row skipped")


# Rounds -----------------------------------------------------------------------


def kill_jobs(campaign: Campaign, number: int, nursery: Nursery) -> None:
    """Run several jobs of short steps at once, and kill each at a random moment."""
    dice = campaign.dice(number)
    with ground(campaign, number) as place:
        chosen = dice.choice(SETTINGS)
        server = Server(place, **chosen)
        files = [place.directory / f"steps-{one}" for one in range(JOBS_AT_ONCE)]
        commands = [("steps_on_file", "--forever", "--file", str(file)) for file in files]
        with forked(nursery, place, *commands, **DEPLOYED, **chosen) as jobs:
            for job in jobs:
                job.wait_for("READY")
            until = time.monotonic()
            for job in jobs:
                until += dice.uniform(0.0, 0.3)
                threading.Event().wait(max(0.0, until - time.monotonic()))
                job.signal(signal.SIGKILL)
                job.wait()
                campaign.count("jobs killed")
            early = dice.random() < 0.5  # query at once, from the rings, or only when all is sealed
            for job, file in zip(jobs, files, strict=True):
                if early:
                    check(campaign, number, server, job, file, dead=True)
            seal_everything(place, server, jobs)
            if campaign.control:
                plant(campaign, place, server, dice)
            for job, file in zip(jobs, files, strict=True):
                check(campaign, number, server, job, file, dead=True)


def kill_servers(campaign: Campaign, number: int, nursery: Nursery) -> None:
    """Kill the server repeatedly at random moments, while a job trains and a client queries."""
    dice = campaign.dice(number)
    with ground(campaign, number) as place:
        chosen = dice.choice(SETTINGS)
        server = Server(place, **chosen)
        file = place.directory / "steps"
        command = ("steps_on_file", "--forever", "--file", str(file))
        with forked(nursery, place, command, **DEPLOYED, **chosen) as [job]:
            job.wait_for("READY")
            for _ in range(KILLS_OF_A_ROUND):
                server.states()
                asking = threading.Thread(target=_asks, args=(server, job.pid), daemon=True)
                asking.start()
                time.sleep(dice.uniform(0.0, 0.5))
                pid = place.server_pid()
                assert pid is not None
                os.kill(pid, signal.SIGKILL)
                assert wait_for_end(pid, PATIENCE_S)
                campaign.count("servers killed")
                began = time.monotonic()
                check(campaign, number, server, job, file, dead=False)
                campaign.measure("first answers after a server's death, s", time.monotonic() - began)
                asking.join(PATIENCE_S)
            job.signal(signal.SIGKILL)
            job.wait()
            if campaign.control:
                seal_everything(place, server, [job])
                plant(campaign, place, server, dice)
            check(campaign, number, server, job, file, dead=True)
            servers = [one for one in place.processes() if "probe.server" in one and ".worker" not in one]
            if len(servers) != 1:
                campaign.found(number, f"servers: {servers}")


def _asks(server: Server, pid: int) -> None:
    """Query while the server is killed; the answer does not matter."""
    with contextlib.suppress(ProbeError, OSError, ValueError):
        server.query(pid, _STEPS)


LONG_SQL = "SELECT count(*), sum(a.step), (SELECT max(range) FROM range(300000000)) FROM python.steps a"
"""At least half a second of work, with a known result."""


def kill_workers(campaign: Campaign, number: int, nursery: Nursery) -> None:
    """Kill the query worker during a query: the answer must be right or report the death."""
    dice = campaign.dice(number)
    with ground(campaign, number) as place:
        server = Server(place, **UNHURRIED)
        file = place.directory / "steps"
        command = ("steps_on_file", "--steps", "500", "--hold", "--file", str(file))
        with forked(nursery, place, command, **DEPLOYED, **UNHURRIED) as [job]:
            job.result()
            steps = len(noted(file))
            right = [steps, steps * (steps - 1) // 2, 299999999]
            server.query(job.pid, "SELECT 1")
            served = place.server_pid()
            for _ in range(KILLS_OF_A_ROUND):
                answers: list[Any] = []
                asking = threading.Thread(target=_keep_answer, args=(server, job.pid, answers))
                asking.start()
                for _ in range(dice.choice((1, 1, 6))):  # with six, one hits the replacement worker
                    time.sleep(dice.uniform(0.0, 0.4))
                    for pid in _workers(place):
                        with contextlib.suppress(ProcessLookupError):
                            os.kill(pid, signal.SIGKILL)
                            campaign.count("query workers killed")
                asking.join(PATIENCE_S)
                [answer] = answers or ["no answer"]
                if campaign.control and isinstance(answer, list):
                    answer = [answer[0] - 1, *answer[1:]]  # a reader that skips a row
                told = isinstance(answer, QueryWorkerDied)
                campaign.count("answers that say that it died" if told else "answers all the same")
                if not told and answer != right:
                    campaign.found(number, f"answered {answer!r}, right is {right}")
                rows, notes = server.query(job.pid, _STEPS)
                for line in compare(noted(file), rows, 0, notes):
                    campaign.found(number, f"the next query: {line}")
            if place.server_pid() != served:
                campaign.found(number, "the server is another one")
            if len(_workers(place)) > 4:
                campaign.found(number, f"{len(_workers(place))} workers are left")
            job.let_go()


def _keep_answer(server: Server, pid: int, answers: list[Any]) -> None:
    try:
        [row], _ = server.query(pid, LONG_SQL)
        answers.append([int(value) for value in row])
    except (ProbeError, OSError) as error:
        answers.append(error)


def _workers(place: Place) -> list[int]:
    """Query workers (children) of the place's server."""
    parent = place.server_pid()
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            if int(fields[1]) == parent and b"probe.server.sql.worker" in (folder / "cmdline").read_bytes():
                found.append(int(folder.name))
    return found
