"""The incidents of one run on this host: what recipes find, what the watch and the ends of processes say.

The watch and the exit watch write their verdicts beside each recording (`watch.bin`); they are read from
there as they come, so that what writes them knows nothing of alerts, and a server that starts anew reads
what there was. What recipes find is written there too, with the name of its incident. Blocks on files:
called on the server's threads, for one run by one at a time. Standard library only.
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
from probe.server.recordings.registry import LIVE, Recorded, Registry

RESOLVED_STATE = "resolved"
"""State of the verdict that says that an incident is over."""
LATE_S = 600.0
"""What was written so long ago is not told any more: by a server that starts anew."""
_TOLD_NOTICES = frozenset({states.STRAGGLER})
"""Of the watch's notices those that are incidents; the others are facts about who waits for whom."""
_STALLS_END = frozenset({states.RUNNING_AGAIN})
_ENDS = frozenset({states.FAILED, states.DEAD, states.DEAD_RANK, states.FINISHED})
_VERDICTS, _ALERTS = "probe.verdicts", "probe.alerts"


def recipe_of(state: str) -> str:
    """The watch's state as the name of a recipe: `missing-rank`."""
    return state.replace(" ", "-")


WATCHED = frozenset(recipe_of(state) for state in states.STATES)
"""Names that what the watch finds has among the recipes."""


class News(NamedTuple):
    """An event, whose recording it is kept in, and the destinations (as shown) that have its message."""

    event: Event
    recorded: Recorded
    known: frozenset[str] = frozenset()


@dataclass
class _Tailed:
    """One recording of the run, and how far its notes were read."""

    recorded: Recorded
    lives: bool
    offset: int = 0
    read_before: bool = False


@dataclass
class RunIncidents:
    """What is known of one run (one attempt of it)."""

    run: str
    attempt: int
    began_ns: int
    """When the monitor began: what was written before was another server's to tell."""
    incidents: Incidents = field(init=False)
    tailed: dict[str, _Tailed] = field(default_factory=dict)
    own: dict[str, Recorded] = field(default_factory=dict)
    """The recording that an incident is kept in."""

    def __post_init__(self) -> None:
        self.incidents = Incidents(f"{self.run}/{self.attempt}")

    @property
    def recorded(self) -> list[Recorded]:
        """Its recordings here, by rank, the newest life of each."""
        latest: dict[int, Recorded] = {}
        every = [one.recorded for one in list(self.tailed.values())]
        for one in sorted(every, key=lambda one: one.meta.started_ns):
            latest[one.meta.rank] = one
        return [latest[rank] for rank in sorted(latest)]

    @property
    def lives(self) -> bool:
        """Whether any of its processes does."""
        return any(one.lives for one in list(self.tailed.values()))

    def look(self, registry: Registry, recorded: Recorded) -> tuple[list[News], bool]:
        """What was noted about a process since the last look, and whether it has just ended."""
        one = self.tailed.get(str(recorded.folder))
        if one is None:
            one = self.tailed[str(recorded.folder)] = _Tailed(recorded, True)
        lives = registry.status(recorded).state in LIVE  # first: what is noted of its end is read then
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
        for record in records:
            for row in record.get("rows", ()) if record.get("table") == _VERDICTS else ():
                for event in self._row(recorded, row, first):
                    incident = event.incident
                    self.own.setdefault(incident.id, recorded)
                    if event.tell and int(row["t_ns"]) > self.began_ns - LATE_S * 1e9:
                        known = frozenset(told.get((incident.id, event.kind), ()))
                        news.append(News(event, recorded, known))
        return news

    def _row(self, recorded: Recorded, row: dict[str, Any], first: bool) -> list[Event]:
        """Take in one row of probe.verdicts."""
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
            # The step is where it stands, not what tells it from the next one that stands there.
            found = replace(found, recipe=recipe_of(found.state), subject=subject, step=None)
            return [*over, *self.incidents.at_once(found, now_s)]
        return over

    def _restored(self, row: dict[str, Any], finding: Finding, now_s: float) -> list[Event]:
        """An incident of a recipe that an earlier server wrote down."""
        is_open = row.get("state") != RESOLVED_STATE
        known = {one.id for one in self.incidents.open()}
        name = str(row["incident"])
        self.incidents.restore(name, finding, now_s, is_open=is_open)
        for incident in self.incidents.open():
            if incident.id == name:
                return [] if name in known else [Event(OPENED, incident, True)]
        return []

    def _ends_stalls(self, subject: str, now_s: float, found: Finding, *, tell: bool) -> list[Event]:
        """A rank goes on, or has ended: what the watch said about its standing still is over."""
        events: list[Event] = []
        for incident in self.incidents.open():
            if incident.finding.subject == subject and incident.recipe in WATCHED:
                events += self.incidents.over(incident.recipe, subject, now_s, found if tell else None)
        return [event._replace(tell=event.tell and tell) for event in events]

    # What recipes find ------------------------------------------------------------

    def take_round(self, checks: Iterable[Check]) -> list[News]:
        """Take in a round of recipes; what comes of it is written down."""
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
    """The finding to write or to send about an event."""
    found = event.incident.finding
    if event.kind != RESOLVED:
        return found
    if found.state in _STALLS_END or found.state == states.CAUGHT_UP:
        return found
    return Finding(RESOLVED_STATE, OK, f"over: {found.what}")


def _finding(row: dict[str, Any], rank: int) -> Finding:
    """A row of probe.verdicts as the finding that it was made from."""
    return Finding(
        str(row["state"]), str(row["severity"]), str(row["what"]),
        str(row.get("why") or "").splitlines(), str(row.get("next") or "").splitlines(),
        recipe=str(row.get("recipe") or ""), step=row.get("step"), rank=rank,
    )


def _told(records: Iterable[dict[str, Any]]) -> dict[tuple[str, str], set[str]]:
    """By incident and event: the destinations that an earlier server has dealt with."""
    found: dict[tuple[str, str], set[str]] = {}
    for record in records:
        for row in record.get("rows", ()) if record.get("table") == _ALERTS else ():
            found.setdefault((str(row["incident"]), str(row["event"])), set()).add(str(row["destination"]))
    return found


def as_dict(incident: Incident, recorded: Recorded, *, lives: bool) -> dict[str, Any]:
    """An incident on the wire."""
    found, meta = incident.finding, recorded.meta
    return {
        "incident": incident.id, "job": meta.job, "run": meta.run, "attempt": meta.attempt, "pid": meta.pid,
        "rank": found.rank, "host": meta.host, "recipe": incident.recipe,
        "subject": found.subject, "severity": incident.severity, "state": found.state,
        "step": found.step, "what": found.what, "why": found.why, "next": found.next,
        "opened_ns": int(incident.opened_s * 1e9), "found_ns": int(incident.found_s * 1e9), "lives": lives,
    }
