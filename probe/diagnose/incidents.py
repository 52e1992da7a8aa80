"""Incidents: merge findings that recur in successive rounds into one problem with a start and an end.

Input: results of checks. Output: events (an incident opened, got worse, returned or was resolved).
`Event.tell` says whether to send a message: when an incident opens, gets worse or is resolved, but not for a
flapping one. Pure: no clock, no file; the caller passes the time (wall seconds) and uses one thread. Standard
library only.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple

from probe.diagnose.finding import Finding, severity_level
from probe.diagnose.recipes.recipe import FOUND, UNKNOWN, Check

OPENED, RAISED, RETURNED, RESOLVED = "opened", "raised", "returned", "resolved"
"""Kinds of events. `raised`: the severity is higher than before; `returned`: the finding recurred within the
cooldown."""
CLEAR_S = 30.0
CLEAR_ROUNDS = 5
"""An incident is resolved once it has not been found for both this time and this many rounds."""
COOLDOWN_S = 600.0
"""A finding that recurs within this time belongs to the same incident."""
AT_ONCE_COOLDOWN_S = 60.0
"""The cooldown for findings of the liveness checks."""


@dataclass
class Incident:
    """One problem, current or past. Times are wall seconds."""

    id: str
    finding: Finding
    """The latest finding of its recipe."""
    severity: str
    opened_s: float
    found_s: float
    """When it was found last."""
    resolved_s: float | None = None
    returned_s: float | None = None
    told_over: bool = False
    clear_since_s: float | None = None
    clear_rounds: int = 0

    @property
    def recipe(self) -> str:
        """The recipe or liveness check that found it."""
        return self.finding.recipe

    @property
    def is_open(self) -> bool:
        """Whether it is not resolved."""
        return self.resolved_s is None


class Event(NamedTuple):
    """A change of an incident; `tell`: whether to send a message about it."""

    kind: str
    incident: Incident
    tell: bool


class Incidents:
    """The incidents of one attempt of a run. Their ids derive from `run`, so they are unique and
    reproducible."""

    def __init__(
        self, run: str, *, clear_s: float = CLEAR_S, clear_rounds: int = CLEAR_ROUNDS,
        cooldown_s: float = COOLDOWN_S,
    ) -> None:
        self._run = run
        self._clear_s = clear_s
        self._clear_rounds = clear_rounds
        self._cooldown_s = cooldown_s
        self._latest: dict[str, Incident] = {}
        """The newest incident of each key, open or resolved."""
        self._pending: dict[str, tuple[str, float]] = {}
        """For each key that is not an incident yet: its recipe, and since when it is found continuously."""

    def open(self) -> list[Incident]:
        """Open incidents, worst first, then oldest first."""
        found = [one for one in list(self._latest.values()) if one.is_open]
        return sorted(found, key=lambda one: (-severity_level(one.severity), one.opened_s))

    def round(self, checks: Iterable[Check], now_s: float) -> list[Event]:
        """Process the checks of one round; checks without a result change nothing. An open incident whose
        event is over counts as not found."""
        events: list[Event] = []
        for check in checks:
            if check.state == UNKNOWN:
                continue
            keys = set()
            for finding in check.findings if check.state == FOUND else ():
                key = self._key(finding.recipe, finding.subject)
                known = self._latest.get(key)
                ended = finding.over and known is not None and known.is_open
                if key not in keys and not ended:
                    keys.add(key)
                    events += self._found(key, finding, check.recipe.holds_s, now_s)
            events += self._not_found(check.recipe.name, keys, now_s)
        return events

    def at_once(self, finding: Finding, now_s: float) -> list[Event]:
        """Process a finding of the liveness checks, which have their own hold time: opens at once, with a
        short cooldown."""
        cooldown_s = min(self._cooldown_s, AT_ONCE_COOLDOWN_S)
        return self._found(self._key(finding.recipe, finding.subject), finding, 0.0, now_s, cooldown_s)

    def over(self, recipe: str, subject: str, now_s: float, last: Finding | None = None) -> list[Event]:
        """Resolve an incident that is known to be over; `last`: a finding that says how it ended."""
        known = self._latest.get(self._key(recipe, subject))
        if known is None or not known.is_open:
            return []
        if last is not None:
            was = known.finding
            known.finding = replace(
                last, recipe=was.recipe, subject=was.subject, step=was.step, rank=was.rank
            )
        return [self._resolve(known, now_s)]

    def restore(self, incident: str, finding: Finding, now_s: float, *, is_open: bool) -> None:
        """Restore an incident from its journal records, applied in order; creates no events."""
        key = incident.rpartition("-")[0]
        known = self._latest.get(key)
        if known is None or known.id != incident:
            known = self._latest[key] = Incident(incident, finding, finding.severity, now_s, now_s)
        if is_open:
            known.returned_s = now_s if known.resolved_s is not None else known.returned_s
            known.severity = _worse(known.severity, finding.severity)
            known.finding, known.found_s, known.resolved_s = finding, now_s, None
        else:
            known.resolved_s, known.told_over = now_s, True

    # One key ----------------------------------------------------------------

    def _key(self, recipe: str, subject: str) -> str:
        text = "\0".join((self._run, recipe, subject))
        return hashlib.blake2s(text.encode("utf-8", "replace"), digest_size=5).hexdigest()

    def _found(
        self, key: str, finding: Finding, holds_s: float, now_s: float, cooldown_s: float | None = None
    ) -> list[Event]:
        cooldown_s = self._cooldown_s if cooldown_s is None else cooldown_s
        known = self._latest.get(key)
        if known is not None and known.is_open:
            return self._still(known, finding, now_s)
        if known is not None and _is_same_event(known, finding):
            return []
        _, since_s = self._pending.setdefault(key, (finding.recipe, now_s))
        if now_s - since_s < holds_s:
            return []
        del self._pending[key]
        if known is not None and now_s - (known.resolved_s or 0.0) < cooldown_s:
            return self._return(known, finding, now_s)
        number = 1 if known is None else int(known.id.rpartition("-")[2]) + 1
        opened = Incident(f"{key}-{number}", finding, finding.severity, now_s, now_s)
        self._latest[key] = opened
        return [Event(OPENED, opened, True)]

    def _still(self, known: Incident, finding: Finding, now_s: float) -> list[Event]:
        """Process a repeated finding of an open incident."""
        known.finding, known.found_s, known.clear_since_s, known.clear_rounds = finding, now_s, None, 0
        if _worse(known.severity, finding.severity) != known.severity:
            known.severity = finding.severity
            known.told_over = False
            return [Event(RAISED, known, True)]
        lasts = known.returned_s is not None and now_s - known.returned_s >= self._cooldown_s
        if lasts and known.told_over:  # the last message reported it as resolved
            known.told_over = False
            return [Event(RETURNED, known, True)]
        return []

    def _return(self, known: Incident, finding: Finding, now_s: float) -> list[Event]:
        known.resolved_s, known.returned_s = None, now_s
        worse = self._still(known, finding, now_s)
        return worse or [Event(RETURNED, known, False)]

    def _not_found(self, recipe: str, found: set[str], now_s: float) -> list[Event]:
        """Process a recipe that was judged and found only the keys in `found`."""
        events = []
        for key, known in self._latest.items():
            if known.recipe == recipe and known.is_open and key not in found:
                known.clear_since_s = now_s if known.clear_since_s is None else known.clear_since_s
                known.clear_rounds += 1
                long = now_s - known.clear_since_s >= self._clear_s
                if long and known.clear_rounds >= self._clear_rounds:
                    events.append(self._resolve(known, now_s))
        self._forget_pending(recipe, found)
        return events

    def _forget_pending(self, recipe: str, found: set[str]) -> None:
        """Restart the hold time of pending findings that were not found again."""
        gone = [key for key, (own, _) in self._pending.items() if own == recipe and key not in found]
        for key in gone:
            del self._pending[key]

    def _resolve(self, known: Incident, now_s: float) -> Event:
        tell = not known.told_over
        known.resolved_s, known.told_over = now_s, True
        known.clear_since_s, known.clear_rounds = None, 0
        return Event(RESOLVED, known, tell)


def _is_same_event(known: Incident, finding: Finding) -> bool:
    """Whether a finding is the same one-time event as a resolved incident, judged by its step."""
    was = known.finding.step
    return finding.step is not None and was is not None and finding.step <= was


def _worse(one: str, other: str) -> str:
    return max(one, other, key=severity_level)
