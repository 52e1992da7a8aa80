"""Incidents: what recipes and the watch find, round after round, as one thing with a beginning and an end.

Checks of rounds go in, events come out: an incident opened, got worse, came back or is over. `Event.tell`
says whether that is worth a message: one when it opens, one when it gets worse, one when it is over, and no
more for one that comes and goes. Pure: no clock, no file; whoever calls hands the time in (wall seconds) and
calls from one thread. Standard library only.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple

from probe.diagnose.finding import Finding, severity_level
from probe.diagnose.recipes.recipe import FOUND, UNKNOWN, Check

OPENED, RAISED, RETURNED, RESOLVED = "opened", "raised", "returned", "resolved"
"""What an event says; `raised`: the severity is higher than any told before, `returned`: it was over and is
back within the cooldown."""
CLEAR_S = 30.0
CLEAR_ROUNDS = 5
"""An incident is over when it was not found for so long and in so many rounds: both."""
COOLDOWN_S = 600.0
"""What comes back within this time after it was over is the same incident."""
AT_ONCE_COOLDOWN_S = 60.0
"""The same for what was not found by a recipe."""


@dataclass
class Incident:
    """One thing that is wrong, or was. Times are wall seconds."""

    id: str
    finding: Finding
    """The latest, of its recipe."""
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
        """What found it: a recipe, or the name of a state that the watch saw."""
        return self.finding.recipe

    @property
    def is_open(self) -> bool:
        """Whether it is not over."""
        return self.resolved_s is None


class Event(NamedTuple):
    """Something that happened to an incident; `tell`: send a message about it."""

    kind: str
    incident: Incident
    tell: bool


class Incidents:
    """The incidents of one run (one attempt of it). `run` makes their names: unique, and the same again when
    the same rows are read again."""

    def __init__(
        self, run: str, *, clear_s: float = CLEAR_S, clear_rounds: int = CLEAR_ROUNDS,
        cooldown_s: float = COOLDOWN_S,
    ) -> None:
        self._run = run
        self._clear_s = clear_s
        self._clear_rounds = clear_rounds
        self._cooldown_s = cooldown_s
        self._latest: dict[str, Incident] = {}
        """The newest incident of each key, open or over."""
        self._pending: dict[str, tuple[str, float]] = {}
        """The recipe of a key that is no incident yet, and since when it has been found without a break."""

    def open(self) -> list[Incident]:
        """Those that are not over, worst first and then the oldest."""
        found = [one for one in list(self._latest.values()) if one.is_open]
        return sorted(found, key=lambda one: (-severity_level(one.severity), one.opened_s))

    def round(self, checks: Iterable[Check], now_s: float) -> list[Event]:
        """Take in one round of recipes; a recipe that is not among them changes nothing."""
        events: list[Event] = []
        for check in checks:
            if check.state == UNKNOWN:
                continue
            keys = set()
            for finding in check.findings if check.state == FOUND else ():
                key = self._key(finding.recipe, finding.subject)
                if key not in keys:
                    keys.add(key)
                    events += self._found(key, finding, check.recipe.holds_s, now_s)
            events += self._not_found(check.recipe.name, keys, now_s)
        return events

    def at_once(self, finding: Finding, now_s: float) -> list[Event]:
        """A finding that counts without waiting: whoever found it has waited already (the watch), and what
        comes again is hardly less news than what came first."""
        cooldown_s = min(self._cooldown_s, AT_ONCE_COOLDOWN_S)
        return self._found(self._key(finding.recipe, finding.subject), finding, 0.0, now_s, cooldown_s)

    def over(self, recipe: str, subject: str, now_s: float, last: Finding | None = None) -> list[Event]:
        """It is over, and known to be; `last` says how."""
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
        """Take in what was written down about an incident before, in its order: nothing comes of it."""
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
        """An open incident is found again."""
        known.finding, known.found_s, known.clear_since_s, known.clear_rounds = finding, now_s, None, 0
        if _worse(known.severity, finding.severity) != known.severity:
            known.severity = finding.severity
            known.told_over = False
            return [Event(RAISED, known, True)]
        lasts = known.returned_s is not None and now_s - known.returned_s >= self._cooldown_s
        if lasts and known.told_over:  # the last that was said of it is that it is over, and it is not
            known.told_over = False
            return [Event(RETURNED, known, True)]
        return []

    def _return(self, known: Incident, finding: Finding, now_s: float) -> list[Event]:
        known.resolved_s, known.returned_s = None, now_s
        worse = self._still(known, finding, now_s)
        return worse or [Event(RETURNED, known, False)]

    def _not_found(self, recipe: str, found: set[str], now_s: float) -> list[Event]:
        """The keys of a recipe that could be judged and did not find them."""
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
        """What waited to be an incident and is not found any more begins anew."""
        gone = [key for key, (own, _) in self._pending.items() if own == recipe and key not in found]
        for key in gone:
            del self._pending[key]

    def _resolve(self, known: Incident, now_s: float) -> Event:
        tell = not known.told_over
        known.resolved_s, known.told_over = now_s, True
        known.clear_since_s, known.clear_rounds = None, 0
        return Event(RESOLVED, known, tell)


def _is_same_event(known: Incident, finding: Finding) -> bool:
    """Whether a finding is what an incident that is over was about: it happened once, at a step."""
    was = known.finding.step
    return finding.step is not None and was is not None and finding.step <= was


def _worse(one: str, other: str) -> str:
    return max(one, other, key=severity_level)
