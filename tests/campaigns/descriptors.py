"""Stresses jobs: they close and exhaust descriptors, fork, exec, change user, root, limits and signals.

Each round draws some of the treatments of `tests/programs/treats_itself.py`, places them between and into
training steps in random order, and runs the program without and with probe, while the agent receives
requests. Files, results, exit status and stderr must be the same. Every fifth round also reads the recording:
every step must be there once.
"""

from __future__ import annotations

import contextlib
import os
import signal
import tempfile
import threading
from pathlib import Path

from agent.asking import ask, query
from agent.nursery import Forked, Nursery, forked
from agent.treated import both, difference, once
from campaigns.campaign import Campaign
from harness import DEPLOYED, Place
from probe.base.errors import ProbeError

STEPS = 120
BUSY_TRIES = 10
ENDS = ("normal", "normal", "normal", "exception", "_exit", "exec", "abort")
ASKED = ("/v1/health", "/v1/stacks", "/v1/stacks?all_threads=1", "/v1/actions")
ABORT_LIMIT = (-signal.SIGABRT, -signal.SIGSEGV)
"""Accepted exit statuses of an abort: faulthandler reads stacks of running threads, see docs/limits.md."""
PLAIN_AGAIN = 12
"""Further runs without probe, to check whether a difference is the program's own: some treatments race."""
LEAVES = frozenset({"leaves_probe", "comes_back_to_probe"})
"""Treatments after which a single recording does not contain all steps."""


class Asker:
    """Sends one request after the other to a job's agent, until the job has ended."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._done = threading.Event()
        self._threads: list[threading.Thread] = []
        self.answers = 0

    def begin(self, job: Forked) -> None:
        """Start sending requests to this job."""
        thread = threading.Thread(target=self._ask, args=(job.pid,))
        thread.start()
        self._threads.append(thread)

    def end(self) -> None:
        """Stop sending requests."""
        self._done.set()
        for thread in self._threads:
            thread.join()

    def _ask(self, pid: int) -> None:
        while not self._done.wait(0.02):
            for target in ASKED:
                with contextlib.suppress(OSError, ProbeError):
                    ask(self._place, pid, "GET", target, timeout_s=1.0)
                    self.answers += 1


def one_round(campaign: Campaign, number: int, nursery: Nursery) -> None:
    dice = campaign.dice(number)
    words = [
        "--step-s", "0.001", "--seed", f"{campaign.seed}/{number}", "--end", dice.choice(ENDS),
        "--treatments", *["random"] * dice.randint(1, 7),
    ]
    if campaign.control:
        words = ["--plant", "--end", "normal", "--treatments", "closes_low"]
    place = Place()
    asker = Asker(place)
    try:
        with tempfile.TemporaryDirectory(prefix="probe-campaign-") as top, contextlib.ExitStack() as stack:
            os.chmod(top, 0o755)
            jobs: list[Forked] = []

            def fork(*command: str, watched: bool) -> Forked:
                [job] = stack.enter_context(forked(nursery, place, command, watched=watched, **DEPLOYED))
                jobs.append(job)
                return job

            def folder() -> Path:
                return Path(tempfile.mkdtemp(dir=top))

            plain, watched = both(fork, folder, *words, steps=STEPS, during=asker.begin)
            campaign.count("pairs of runs")
            campaign.count(f"ended with {plain['code']}")
            if (plain["code"], watched["code"]) == ABORT_LIMIT:
                campaign.count("aborts that died of SIGSEGV, the stated limit")
                return
            wrong = difference(plain, watched)
            if wrong and any(
                difference(plain, once(fork, folder, *words, watched=False, steps=STEPS))
                for _ in range(PLAIN_AGAIN)
            ):
                campaign.count("programs that differ from themselves")
            elif wrong:
                campaign.found(number, f"{' '.join(words)}: {wrong}")
            elif number % 5 == 0 and not LEAVES & set(plain["result"].get("treated", LEAVES)):
                _read(campaign, number, place, jobs[1].pid)
    finally:
        asker.end()
        campaign.count("answers of agents", asker.answers)
        place.close()
        place.remove()


def _read(campaign: Campaign, number: int, place: Place, pid: int) -> None:
    for attempt in range(BUSY_TRIES):
        try:
            rows = query(place, pid, "SELECT step FROM python.steps ORDER BY step")
            break
        except AssertionError as error:  # on a busy machine the query may time out
            campaign.count("queries that came too late")
            if attempt == BUSY_TRIES - 1:
                campaign.found(number, f"no answer: {error}")
                return
    steps = [step for [step] in rows]
    campaign.count("recordings read")
    if steps != list(range(STEPS)):
        campaign.found(number, f"the recording of {pid} has the steps {steps}")


def main() -> int:
    """Run the campaign."""
    campaign = Campaign("descriptors", __doc__, rounds=300)
    nursery = Nursery()
    try:
        for number in campaign:
            one_round(campaign, number, nursery)
    finally:
        nursery.close()
    return campaign.end()
