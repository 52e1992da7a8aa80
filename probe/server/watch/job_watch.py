"""What the watch sees of jobs of several ranks: who keeps whom waiting, and who is slower than the others.

Part of thread `probe-watch`. A hang is judged from the facts of all ranks of the job on this host, those
that have ended too; one rank gets the alarm, the rows of the others name it. Now and then, more rarely the
more it costs, the ranks of jobs that get on are compared: a straggler gets a notice when it is one for
several steps, and another when it is no more. May import what `probe.diagnose` may.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from probe.base import clock
from probe.diagnose import states
from probe.diagnose.finding import Finding
from probe.diagnose.process.evidence import Evidence
from probe.diagnose.ranks.job_rules import diagnose_job
from probe.diagnose.ranks.rank_evidence import Facts
from probe.diagnose.states import ALARM, NOTICE, OK
from probe.recording import places
from probe.recording.journal import read_journal
from probe.server.recordings import exit_report, server_journal
from probe.server.recordings.registry import Recorded, Registry
from probe.server.watch import rank_facts

COMPARE_S = 1.0
"""Ranks that get on are compared this often: a straggler is to be noticed within five seconds, of which
two are the steps that it must be one for."""
COMPARE_COST = 20.0
"""…and never more often than every so many times the CPU time that it takes: a twentieth of a core."""
GONE_LOOKS = 3
"""A straggler is none any more when so many looks in a row found none."""

MISMATCHES = frozenset({
    states.OP_MISMATCH, states.SIZE_MISMATCH, states.DTYPE_MISMATCH, states.ORDER_MISMATCH,
})
_writing = threading.Lock()
Key = tuple[str, int]
"""Run and attempt."""


def key(recorded: Recorded) -> Key | None:
    """The job that a recorded process is a rank of; None for one that is alone."""
    meta = recorded.meta
    return (meta.run, meta.attempt) if (meta.world_size or 1) > 1 else None


@dataclass
class _Pace:
    """What is remembered of one job whose ranks get on."""

    due_s: float = 0.0
    slow: Recorded | None = None
    since_step: int | None = None
    gone: int = 0


class JobWatch:
    """What the watch remembers of jobs of several ranks."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._paces: dict[Key, _Pace] = {}

    def members(self, wanted: Key | None) -> list[Recorded]:
        """The ranks of a job on this host, the newest life of each, those that have ended too."""
        latest: dict[int, Recorded] = {}
        for recorded in self._registry.processes():
            if key(recorded) == wanted:
                latest[recorded.meta.rank] = recorded
        return [latest[rank] for rank in sorted(latest)]

    def to_look_at(self, wanted: Key) -> list[Recorded]:
        """The ranks that a longer look at would tell most about, when one of the job is late."""
        members = self.members(wanted)
        chosen = {facts.rank for facts in rank_facts.to_look_at(self._rough(members))}
        return [recorded for recorded in members if recorded.meta.rank in chosen]

    def _rough(self, members: Sequence[Recorded]) -> list[Facts]:
        share = rank_facts.share_of(len(members))
        return [rank_facts.rough(self._registry, recorded, share=share) for recorded in members]

    def diagnose(self, wanted: Key, seen: Mapping[int, tuple[Evidence, Finding]]) -> Finding:
        """The verdict on a job; `seen` is what a longer look at some ranks found."""
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
        """A rank is seen no more: where an exception has ended it, say who is the cause before the process is
        gone, which with torch in it can take seconds."""
        wanted, status = key(recorded), self._registry.status(recorded)
        if wanted is None or status.how != exit_report.ENDING or status.state != exit_report.FAILED:
            return
        found = self.diagnose(wanted, {})
        if found.state != states.DEAD_RANK:
            self.note_cause(wanted, found)
        elif recorded.meta.rank in found.culprits:
            write(recorded, replace(found, state=states.FAILED))

    def note_cause(self, wanted: Key, found: Finding) -> None:
        """Keep an alarm about what ended a job at the rank that it names."""
        if found.severity == ALARM and found.culprits:
            for member in self.members(wanted):
                if member.meta.rank == found.culprits[0]:
                    write(member, found)

    # Ranks that get on ---------------------------------------------------------

    def compare(self, wanted: Key, ranks: Sequence[Recorded]) -> None:
        """Compare the ranks of a job of which all live and none is late, if that is due again."""
        pace = self._paces.setdefault(wanted, _Pace())
        now_s, began_s = time.monotonic(), time.thread_time()
        if len(ranks) < 2 or now_s < pace.due_s:
            return
        found = diagnose_job(self._rough(ranks))
        self._note(pace, ranks, found)
        pace.due_s = now_s + max(COMPARE_S, COMPARE_COST * (time.thread_time() - began_s))

    def forget(self, living: Iterable[Key]) -> None:
        """Forget the jobs that are not among these."""
        for gone in self._paces.keys() - set(living):
            del self._paces[gone]

    def _note(self, pace: _Pace, ranks: Sequence[Recorded], found: Finding) -> None:
        by_rank = {recorded.meta.rank: recorded for recorded in ranks}
        state = found.state
        if state in MISMATCHES:  # it may be that nothing fails, and what they compute is wrong
            write(by_rank.get(found.culprits[0], ranks[0]), found)
        slow = by_rank.get(found.culprits[0]) if state == states.STRAGGLER and found.culprits else None
        if slow is not None:
            pace.gone = 0
            if slow != pace.slow:
                pace.slow = slow
                write(slow, found)
        elif pace.slow is not None and state in (states.RUNNING, states.IMBALANCE):
            pace.gone += 1
            if pace.gone >= GONE_LOOKS:
                what = f"rank {pace.slow.meta.rank} is no slower than the others any more"
                write(pace.slow, Finding(states.CAUGHT_UP, OK, what))
                pace.slow = None


def victim(own: Finding | None, found: Finding) -> Finding:
    """The verdict on a rank that waits for the ranks at fault: it names them and is no alarm of its own."""
    what = own.what if own is not None and own.state == states.IN_COLLECTIVE else "waits for other ranks"
    return Finding(
        states.IN_COLLECTIVE, found.severity, f"{what}; the cause: {found.what}",
        [*(own.why if own is not None else []), *found.why[:4]], found.next,
    )


def as_row(verdict: Finding) -> Finding:
    """A verdict on a victim as it is written down: one alarm is enough."""
    return replace(verdict, severity=NOTICE) if verdict.severity == ALARM else verdict


def write(recorded: Recorded, verdict: Finding) -> None:
    """Keep a verdict that no stacks belong to; an alarm that is there already is not written again."""
    with _writing:
        if verdict.severity != ALARM or not is_written(recorded, verdict.state):
            server_journal.note_rows(recorded.folder, "probe.verdicts", [verdict.row(clock.wall_ns(), None)])


def is_written(recorded: Recorded, state: str) -> bool:
    """Whether the rank has got an alarm of that name. What does not fit is seen by whoever looks first: the
    watch, or who sees the ranks end."""
    return any(
        row.get("state") == state and row.get("severity") == ALARM
        for record in read_journal(places.journals(recorded.folder)[1])
        if record.get("table") == "probe.verdicts"
        for row in record["rows"]
    )
