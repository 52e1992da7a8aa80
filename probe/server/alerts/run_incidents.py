"""The incidents of one run on this host: findings of recipes, verdicts of the watch and the exit watch.

The watch and the exit watch write their verdicts to the server's journal (`watch.bin`) and know nothing of
alerts; this module reads them from there, so a restarted server sees earlier ones too. Findings of recipes
are written there with the id of their incident. Blocks on files: called on the server's threads, one at a
time for each run. Standard library only.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from probe.base import clock
from probe.diagnose import states
from probe.diagnose.finding import Finding
from probe.diagnose.incidents import OPENED, RESOLVED, Event, Incident, Incidents
from probe.diagnose.recipes.recipe import Check
from probe.diagnose.states import ALARM, OK
from probe.recording import places
from probe.recording.journal import read_on
from probe.server.recordings import server_journal
from probe.server.recordings.registry import Recorded, Registry, latest_ranks

RESOLVED_STATE = "resolved"
"""State of the verdict that closes an incident."""
LATE_S = 600.0
"""A restarted server does not report verdicts that are older."""
_TOLD_NOTICES = frozenset({states.STRAGGLER})
"""Notices of the watch that are incidents; the others say which rank waits for which."""
_STALLS_END = frozenset({states.RUNNING_AGAIN})
_ENDS = frozenset({states.FAILED, states.DEAD, states.DEAD_RANK, states.FINISHED})
_VERDICTS, _ALERTS = "probe.verdicts", "probe.alerts"


def recipe_of(state: str) -> str:
    """A state of the watch as the name of a recipe: `missing-rank`."""
    return state.replace(" ", "-")


WATCHED = frozenset(recipe_of(state) for state in states.STATES)
"""Recipe names of the watch's states."""


class News(NamedTuple):
    """An event, its recording, and the destinations (as shown) that have already received its message."""

    event: Event
    recorded: Recorded
    known: frozenset[str] = frozenset()


@dataclass
class _Tailed:
    """One recording of the run, and how far its journal was read."""

    recorded: Recorded
    lives: bool
    offset: int = 0
    read_before: bool = False


@dataclass
class RunIncidents:
    """The incidents of one attempt of a run."""

    run: str
    attempt: int
    began_ns: int
    """When the monitor started; earlier verdicts were another server's to report."""
    incidents: Incidents = field(init=False)
    tailed: dict[str, _Tailed] = field(default_factory=dict)
    own: dict[str, Recorded] = field(default_factory=dict)
    """The recording that holds each incident, by the incident's id."""

    def __post_init__(self) -> None:
        self.incidents = Incidents(f"{self.run}/{self.attempt}")

    @property
    def recorded(self) -> list[Recorded]:
        """Its recordings on this host: the newest process of each rank, in order of rank."""
        return latest_ranks(one.recorded for one in list(self.tailed.values()))

    @property
    def lives(self) -> bool:
        """Whether any of its processes lives."""
        return any(one.lives for one in list(self.tailed.values()))

    def read_news(self, registry: Registry, recorded: Recorded) -> tuple[list[News], bool]:
        """The new verdicts on a process, and whether it has just ended."""
        one = self.tailed.get(str(recorded.folder))
        if one is None:
            one = self.tailed[str(recorded.folder)] = _Tailed(recorded, True)
        lives = registry.lives(recorded)  # first, so that the verdict on its end is read then
        ended, one.lives = one.lives and not lives, lives
        path = places.journals(recorded.folder)[1]
        try:
            grown = path.stat().st_size > one.offset
        except OSError:
            return [], ended
        if not grown and one.read_before:
            return [], ended
        records, one.offset = read_on(path, one.offset)
        first, one.read_before = not one.read_before, True
        return self._read(one.recorded, records, first), ended

    def _read(self, recorded: Recorded, records: list[dict[str, Any]], first: bool) -> list[News]:
        told = _told(records) if first else {}
        news: list[News] = []
        for row in server_journal.rows_of(records, _VERDICTS):
            for event in self._row(recorded, row, first):
                incident = event.incident
                self.own.setdefault(incident.id, recorded)
                if event.tell and int(row["t_ns"]) > self.began_ns - LATE_S * 1e9:
                    known = frozenset(told.get((incident.id, event.kind), ()))
                    news.append(News(event, recorded, known))
        return news

    def _row(self, recorded: Recorded, row: dict[str, Any], first: bool) -> list[Event]:
        """Process one row of probe.verdicts."""
        now_s = int(row["t_ns"]) / 1e9
        found = _finding(row, recorded.meta.rank)
        if row.get("incident"):
            return self._restored(row, found, now_s) if first else []
        subject = f"rank {recorded.meta.rank}"
        if found.state in _STALLS_END or found.state in _ENDS:
            over = self._ends_stalls(subject, now_s, found, tell=found.state in _STALLS_END)
            if found.severity != ALARM:
                return over
        elif found.state == states.CAUGHT_UP:
            return self.incidents.over(recipe_of(states.STRAGGLER), subject, now_s, found)
        else:
            over = []
        if found.severity == ALARM or found.state in _TOLD_NOTICES:
            # The step is not part of its identity: the next stall at the same step is the same incident.
            found = replace(found, recipe=recipe_of(found.state), subject=subject, step=None)
            return [*over, *self.incidents.at_once(found, now_s)]
        return over

    def _restored(self, row: dict[str, Any], finding: Finding, now_s: float) -> list[Event]:
        """Restore an incident of a recipe that an earlier server wrote."""
        is_open = row.get("state") != RESOLVED_STATE
        known = {one.id for one in self.incidents.open()}
        name = str(row["incident"])
        self.incidents.restore(name, finding, now_s, is_open=is_open)
        for incident in self.incidents.open():
            if incident.id == name:
                return [] if name in known else [Event(OPENED, incident, True)]
        return []

    def _ends_stalls(self, subject: str, now_s: float, found: Finding, *, tell: bool) -> list[Event]:
        """A rank makes progress again, or has ended: close its stalls."""
        events: list[Event] = []
        for incident in self.incidents.open():
            if incident.finding.subject == subject and incident.recipe in WATCHED:
                events += self.incidents.over(incident.recipe, subject, now_s, found if tell else None)
        return [event._replace(tell=event.tell and tell) for event in events]

    # Findings of recipes ----------------------------------------------------------

    def take_round(self, checks: Iterable[Check]) -> list[News]:
        """Process a round of recipes, and write the events."""
        now_ns = clock.wall_ns()
        return [self._write(event, now_ns) for event in self.incidents.round(checks, now_ns / 1e9)]

    def _write(self, event: Event, t_ns: int) -> News:
        incident = event.incident
        ranks = self.recorded
        where = next((one for one in ranks if one.meta.rank == incident.finding.rank), ranks[0])
        recorded = self.own.setdefault(incident.id, where)
        row = {
            **of_event(event).row(t_ns, incident.finding.step),
            "recipe": incident.recipe, "incident": incident.id,
        }
        server_journal.note_rows(recorded.folder, _VERDICTS, [row])
        return News(event, recorded)


def of_event(event: Event) -> Finding:
    """The finding to write or send about an event."""
    found = event.incident.finding
    if event.kind != RESOLVED:
        return found
    if found.state in _STALLS_END or found.state == states.CAUGHT_UP:
        return found
    return Finding(RESOLVED_STATE, OK, f"over: {found.what}")


def _finding(row: dict[str, Any], rank: int) -> Finding:
    """A row of probe.verdicts as a finding."""
    return Finding(
        str(row["state"]), str(row["severity"]), str(row["what"]),
        str(row.get("why") or "").splitlines(), str(row.get("next") or "").splitlines(),
        recipe=str(row.get("recipe") or ""), step=row.get("step"), rank=rank,
    )


def _told(records: Iterable[dict[str, Any]]) -> dict[tuple[str, str], set[str]]:
    """By incident and event: the destinations that an earlier server has handled."""
    found: dict[tuple[str, str], set[str]] = {}
    for row in server_journal.rows_of(records, _ALERTS):
        found.setdefault((str(row["incident"]), str(row["event"])), set()).add(str(row["destination"]))
    return found


def as_dict(incident: Incident, recorded: Recorded, *, lives: bool) -> dict[str, Any]:
    """An incident as in an answer."""
    found, meta = incident.finding, recorded.meta
    return {
        "incident": incident.id, "job": meta.job, "run": meta.run, "attempt": meta.attempt, "pid": meta.pid,
        "rank": found.rank, "host": meta.host, "recipe": incident.recipe,
        "subject": found.subject, "severity": incident.severity, "state": found.state,
        "step": found.step, "what": found.what, "why": found.why, "next": found.next,
        "opened_ns": int(incident.opened_s * 1e9), "found_ns": int(incident.found_s * 1e9), "lives": lives,
    }
