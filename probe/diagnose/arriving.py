"""Streams findings while recipes finish one by one: each as soon as no outstanding check can explain it.

    arriving = Arriving(recipes)
    for checks in …:
        findings = arriving.add(checks)      # findings to show now, causes before their consequences

A finding is the same as in the complete answer; only the order differs. Pure. Standard library only.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from probe.base.errors import QueryTimeout
from probe.diagnose.diagnosis import in_groups
from probe.diagnose.finding import Finding
from probe.diagnose.recipes.recipe import Check, Recipe


class Arriving:
    """The results of `recipes` so far."""

    def __init__(self, recipes: Sequence[Recipe]) -> None:
        self._order = [one.name for one in recipes]
        explained_by = {
            name: [one.name for one in recipes if name in one.explains and one.name != name]
            for name in self._order
        }
        self._above = {name: _reached(name, explained_by) for name in self._order}
        self._judged: dict[str, Check] = {}
        self._shown: set[str] = set()

    @property
    def judged(self) -> int:
        """How many recipes have a result."""
        return len(self._judged)

    def add(self, checks: Iterable[Check]) -> list[Finding]:
        """Add results and return the findings that can be shown now. A check that timed out runs again."""
        self._judged.update((one.recipe.name, one) for one in checks if one.failed != QueryTimeout.code)
        settled = {
            name for name in self._judged.keys() - self._shown if self._above[name] <= self._judged.keys()
        }
        self._shown |= settled
        known = [self._judged[name] for name in self._order if name in self._judged]
        return [one for one in in_groups(known) if one.recipe in settled]


def in_causal_order(recipes: Sequence[Recipe]) -> list[Recipe]:
    """The recipes, each after those that may explain its findings; recipes of a cycle keep their order."""
    left, done, ordered = list(recipes), set[str](), list[Recipe]()
    names = {one.name for one in recipes}
    while left:
        waits = {name for one in left for name in one.explains if name in names and name != one.name}
        ready = [one for one in left if one.name not in waits] or left[:1]
        ordered += ready
        done |= {one.name for one in ready}
        left = [one for one in left if one.name not in done]
    return ordered


def _reached(name: str, above: Mapping[str, Sequence[str]]) -> set[str]:
    """All recipes that may explain `name`, directly or through others."""
    found: set[str] = set()
    waiting = list(above[name])
    while waiting:
        one = waiting.pop()
        if one not in found:
            found.add(one)
            waiting += above[one]
    return found - {name}
