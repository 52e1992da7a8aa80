"""Jobs that hang, each in its own way, all at once; and what is asked about them."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from agent.asking import query
from agent.nursery import Forked
from harness import PATIENCE_S, Job, Place
from probe.diagnose.finding import Finding
from probe.diagnose.process import kernel_waits, stall_thresholds
from probe.diagnose.process.evidence import Evidence, gather, stall_setting
from probe.diagnose.process.kernel_waits import Rested
from probe.diagnose.process.process_rules import diagnose_process
from probe.diagnose.process.progress import History, Progress
from probe.diagnose.process.settled import settled
from probe.recording import places
from probe.recording.journal import read_journal
from probe.server.recordings.registry import Recorded, Registry

STALL_S = 1.0
_T = TypeVar("_T")


class Seen(NamedTuple):
    """A job that hangs, and the verdict on it."""

    job: Forked
    recorded: Recorded
    evidence: Evidence
    verdict: Finding
    sooner: Evidence
    """What is gathered when somebody waits who knows that the training thread sleeps."""
    settled: bool
    """Whether half of that was enough."""

    @property
    def why(self) -> str:
        return "\n".join(self.verdict.why)


def until(condition: Callable[[], _T], what: str) -> _T:
    """The first true value of `condition`; fails when there is none in all patience."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        found = condition()
        if found:
            return found
        time.sleep(0.05)
    raise AssertionError(f"did not come about: {what}")


def recorded_of(place: Place, pid: int) -> Recorded:
    """The recording of a job."""
    return next(one for one in Registry(place.directory).processes() if one.meta.pid == pid)


def look(place: Place, job: Job, *, late: bool = True) -> tuple[Evidence, Finding]:
    """Evidence on a job and the verdict; with `late` only once its step is late."""
    registry = Registry(place.directory)
    recorded = recorded_of(place, job.pid)

    def is_late(progress: Progress | None) -> bool:
        quiet_s, stall_s = stall_thresholds.quiet_s(progress), stall_setting(recorded.meta)
        return quiet_s is not None and quiet_s > stall_thresholds.limit_s(stall_s, progress)

    def now() -> Evidence | None:
        if late:  # a look takes most of a second, the rings tell at once
            until(lambda: is_late(History(recorded.meta).read()), "a late step")
        found = gather(job.pid, recorded.meta, training_thread=registry.training_thread(recorded))
        return found if not late or is_late(found.progress) else None

    evidence = until(now, "a late step")
    assert evidence is not None
    return evidence, diagnose_process(evidence)


def look_soon(place: Place, job: Job) -> tuple[Evidence, bool]:
    """Evidence as `probe diagnose` gathers it, of a job that the server has watched for a while, and whether
    half of it was enough."""
    registry, recorded = Registry(place.directory), recorded_of(place, job.pid)
    thread = registry.training_thread(recorded)
    known = Rested(5.0, 5.0, 0.0, kernel_waits.switches(job.pid, thread or job.pid))
    said: list[bool] = []

    def enough(evidence: Evidence) -> bool:
        said.append(settled(evidence))
        return said[-1]

    found = gather(job.pid, recorded.meta, rested=known, training_thread=thread, enough=enough)
    return found, any(said)


def noted(recorded: Recorded) -> list[dict[str, Any]]:
    """Verdicts that the server wrote about a process by itself, from its file."""
    return [
        row
        for record in read_journal(places.journals(recorded.folder)[1])
        if record.get("table") == "probe.verdicts"
        for row in record["rows"]
    ]


def alarms(place: Place, pid: int) -> list[list[Any]]:
    """State, what and time of every alarm in probe.verdicts."""
    return query(
        place, pid, "SELECT state, what, t_ns FROM probe.verdicts WHERE severity = 'alarm' ORDER BY t_ns"
    )
