"""Watch of multi-rank jobs: which rank makes others wait, and which is slower than the others.

Part of thread `probe-watch`. A hang is diagnosed from the facts of all ranks of the job on this host, ended
ones included; one rank gets the alarm, and the rows of the others name it. The ranks of jobs that make
progress are compared now and then, less often the more that costs: a rank that is a straggler for several
steps gets a notice, and another one when it has caught up. May import what `probe.diagnose` may.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from probe.base import clock
from probe.diagnose import states
from probe.diagnose.finding import Finding
from probe.diagnose.process.evidence import Evidence
from probe.diagnose.process.progress import History
from probe.diagnose.ranks.job_rules import diagnose_job
from probe.diagnose.ranks.rank_evidence import Facts
from probe.diagnose.states import ALARM, NOTICE, OK
from probe.recording import places
from probe.recording.journal import read_journal
from probe.server.recordings import exit_report, server_journal
from probe.server.recordings.registry import Recorded, Registry
from probe.server.watch import rank_facts
from probe.server.watch.compare_pace import ComparePace
from probe.server.watch.latest_rows import RankRows

CAUGHT_UP_LOOKS = 3
"""A straggler has caught up when this many comparisons in a row found none."""

MISMATCHES = frozenset({
    states.OP_MISMATCH, states.SIZE_MISMATCH, states.DTYPE_MISMATCH, states.ORDER_MISMATCH,
})
_writing = threading.Lock()
Key = tuple[str, int]
"""Run and attempt."""


def key(recorded: Recorded) -> Key | None:
    """The multi-rank job that a recorded process belongs to; None for a single process."""
    return recorded.attempt if (recorded.meta.world_size or 1) > 1 else None


@dataclass
class _Job:
    """The state of one job whose ranks make progress."""

    pace: ComparePace = field(default_factory=ComparePace)
    slow: Recorded | None = None
    gone: int = 0
    rows: dict[tuple[Path, int], RankRows] = field(default_factory=dict)
    """The last calls and steps of each rank."""


class JobWatch:
    """The watch's state of multi-rank jobs."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._states: dict[Key, _Job] = {}

    def members(self, wanted: Key | None) -> list[Recorded]:
        """The ranks of a job on this host: the newest process of each, ended ones included."""
        latest: dict[int, Recorded] = {}
        for recorded in self._registry.processes():
            if key(recorded) == wanted:
                latest[recorded.meta.rank] = recorded
        return [latest[rank] for rank in sorted(latest)]

    def to_inspect(self, wanted: Key) -> list[Recorded]:
        """The ranks whose evidence is the most useful when one rank of the job is late."""
        members = self.members(wanted)
        chosen = {facts.rank for facts in rank_facts.to_inspect(self._rough(members))}
        return [recorded for recorded in members if recorded.meta.rank in chosen]

    def _rough(self, members: Sequence[Recorded]) -> list[Facts]:
        share = rank_facts.share_of(len(members))
        return [rank_facts.rough(self._registry, recorded, share=share) for recorded in members]

    def diagnose(self, wanted: Key, seen: Mapping[int, tuple[Evidence, Finding]]) -> Finding:
        """The verdict on a job; `seen` has the evidence and verdicts of some ranks."""
        facts = []
        members = self.members(wanted)
        for recorded, rough in zip(members, self._rough(members), strict=True):
            if recorded.meta.rank in seen and rough.lives:
                looked = seen[recorded.meta.rank]
                facts.append(rank_facts.with_evidence(self._registry, recorded, rough, *looked))
            else:
                facts.append(rough)
        return diagnose_job(facts)

    def ending(self, recorded: Recorded) -> None:
        """A rank has disappeared: if an exception ended it, write the cause before the process is gone, which
        can take seconds with torch."""
        wanted, status = key(recorded), self._registry.status(recorded)
        if wanted is None or status.how != exit_report.ENDING or status.state != exit_report.FAILED:
            return
        found = self.diagnose(wanted, {})
        if found.state != states.DEAD_RANK:
            self.note_cause(wanted, found)
        elif recorded.meta.rank in found.culprits:
            write(recorded, replace(found, state=states.FAILED))

    def note_cause(self, wanted: Key, found: Finding) -> None:
        """Write an alarm about what ended a job, at the rank that it names."""
        if found.severity == ALARM and found.culprits:
            for member in self.members(wanted):
                if member.meta.rank == found.culprits[0]:
                    write(member, found)

    # Jobs that make progress ---------------------------------------------------

    def compare(self, wanted: Key, ranks: Sequence[tuple[Recorded, History]]) -> None:
        """Compare the ranks of a job that all live, none of them late, if that is due and rows are new."""
        job = self._states.setdefault(wanted, _Job())
        now_s, began_s = time.monotonic(), time.thread_time()
        if len(ranks) < 2:
            return
        history = ranks[0][1]
        if not job.pace.is_due(now_s, history.usual_step_s, history.recent_step_s):
            return
        if self._read_rows(job, [recorded for recorded, _ in ranks]):
            facts = [
                rank_facts.rough(self._registry, recorded, history.read(), rows=job.rows[recorded.identity])
                for recorded, history in ranks
            ]
            self._note(job, [recorded for recorded, _ in ranks], diagnose_job(facts))
        job.pace.compared(now_s, time.thread_time() - began_s)

    def _read_rows(self, job: _Job, ranks: Sequence[Recorded]) -> bool:
        """Whether there is a new call or step of any of these ranks."""
        if job.rows.keys() != {recorded.identity for recorded in ranks}:
            many = rank_facts.rows_of_each(len(ranks))
            job.rows = {recorded.identity: RankRows(recorded.meta, *many) for recorded in ranks}
        return sum(rows.read() for rows in job.rows.values()) > 0  # reads all of them

    def forget(self, living: Iterable[Key]) -> None:
        """Drop the state of all other jobs."""
        for gone in self._states.keys() - set(living):
            del self._states[gone]

    def _note(self, job: _Job, ranks: Sequence[Recorded], found: Finding) -> None:
        by_rank = {recorded.meta.rank: recorded for recorded in ranks}
        state = found.state
        if state in MISMATCHES:  # perhaps nothing fails and the results are wrong
            write(by_rank.get(found.culprits[0], ranks[0]), found)
        slow = by_rank.get(found.culprits[0]) if state == states.STRAGGLER and found.culprits else None
        if slow is not None:
            job.gone = 0
            if slow != job.slow:
                job.slow = slow
                write(slow, found)
        elif job.slow is not None and state in (states.RUNNING, states.IMBALANCE):
            job.gone += 1
            if job.gone >= CAUGHT_UP_LOOKS:
                what = f"rank {job.slow.meta.rank} has caught up with the other ranks"
                write(job.slow, Finding(states.CAUGHT_UP, OK, what))
                job.slow = None


def victim(own: Finding | None, found: Finding) -> Finding:
    """The verdict on a rank that waits for the ranks at fault, which it names."""
    what = own.what if own is not None and own.state == states.IN_COLLECTIVE else "waits for other ranks"
    return Finding(
        states.IN_COLLECTIVE, found.severity, f"{what}; the cause: {found.what}",
        [*(own.why if own is not None else []), *found.why[:4]], found.next,
    )


def as_row(verdict: Finding) -> Finding:
    """A verdict on a waiting rank as it is written: one alarm is enough."""
    return replace(verdict, severity=NOTICE) if verdict.severity == ALARM else verdict


def write(recorded: Recorded, verdict: Finding) -> None:
    """Write a verdict without stacks; an alarm that is there already is not repeated."""
    with _writing:
        if verdict.severity != ALARM or not is_written(recorded, verdict.state):
            server_journal.note_rows(recorded.folder, "probe.verdicts", [verdict.row(clock.wall_ns(), None)])


def is_written(recorded: Recorded, state: str) -> bool:
    """Whether the rank has an alarm of that name. A mismatch is noticed either by the watch or by the exit
    watch, whichever is first."""
    records = read_journal(places.journals(recorded.folder)[1])
    return any(
        row.get("state") == state and row.get("severity") == ALARM
        for row in server_journal.rows_of(records, "probe.verdicts")
    )
