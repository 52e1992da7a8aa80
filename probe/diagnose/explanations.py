"""Explanations: which findings are consequences of others, from `explains` of their recipes.

    of = explanations(checks)                   # {"layer-not-learning": "zero-grad-forgotten", …}
    findings = folded(findings, of)             # each cause, then its consequences

A recipe names the recipes whose findings its mechanism produces. A consequence belongs to the first cause in
the order of the checks. A cause that began after a finding does not explain it. Pure. Standard library only.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from probe.diagnose.finding import Finding, severity_level
from probe.diagnose.recipes.recipe import FOUND, Check
from probe.diagnose.states import INFO, OK

SLACK_STEPS = 50
"""Steps by which a cause may be dated after its consequence: sampled values show a change late, and medians
over blocks of steps date it early or late."""


def explanations(checks: Iterable[Check]) -> dict[str, str]:
    """Maps each recipe whose finding is a consequence to the recipe of its root cause.

    Findings of severity `info` explain nothing: they are not faults."""
    found = {one.recipe.name: one for one in checks if one.state == FOUND}
    causes = [one for one in found.values() if one.findings[0].severity not in (OK, INFO)]
    direct = {
        name: [cause for cause in causes if _explains(cause, name) and _can_be(cause, check)]
        for name, check in found.items()
    }
    names = {name: [one.recipe.name for one in explaining] for name, explaining in direct.items()}
    roots = {name: _root(name, names, list(found)) for name in found}
    return {name: root for name, root in roots.items() if root != name}


def _explains(cause: Check, name: str) -> bool:
    """Whether a recipe names another as a consequence, and one of its findings does not exclude that."""
    causes = [one.explains for one in cause.findings if one.severity not in (OK, INFO)]
    return name in cause.recipe.explains and any(names is None or name in names for names in causes)


def not_judged(check: Check, checks: Iterable[Check]) -> list[Check]:
    """The checks that could explain the findings of `check`, but did not complete."""
    return [one for one in checks if one.failed and check.recipe.name in one.recipe.explains]


def _root(name: str, causes: Mapping[str, Sequence[str]], order: Sequence[str]) -> str:
    """The root cause of `name`: the first finding that explains it, directly or through others, and has no
    cause itself. If the user's recipes explain each other in a cycle, the first of the cycle."""
    above: set[str] = set()
    waiting = [name]
    while waiting:
        one = waiting.pop()
        if one not in above:
            above.add(one)
            waiting += causes[one]
    return min(above, key=lambda one: (bool(causes[one]), order.index(one)))


def _can_be(cause: Check, effect: Check) -> bool:
    """Whether the times permit it: an event that is over does not cause a lasting finding, and a dated cause
    does not explain an earlier finding."""
    if cause.over and not effect.over:
        return False
    began = [one.step for one in cause.findings if one.step is not None]
    shown = [one.step for one in effect.findings if one.step is not None]
    if not (cause.recipe.dated and began and shown):
        return True
    return min(began) <= max(shown) + SLACK_STEPS


def folded(findings: Iterable[Finding], of: Mapping[str, str]) -> list[Finding]:
    """The findings in groups, causes before their consequences, with `explained_by` set."""
    return grouped(replace(one, explained_by=of.get(one.recipe, "")) for one in findings)


Shown = TypeVar("Shown", bound="Finding | dict[str, Any]")


def grouped(findings: Iterable[Shown]) -> list[Shown]:
    """Group findings (objects or dictionaries): a cause, then its consequences. The group with the worst
    finding comes first; otherwise the order is kept."""
    groups: dict[str, list[tuple[int, bool, Shown]]] = {}
    for one in findings:
        recipe, cause, severity = _about(one)
        groups.setdefault(cause or recipe, []).append((severity_level(severity), bool(cause), one))
    ordered = sorted(groups.values(), key=lambda group: -max(level for level, _, _ in group))
    return [one for group in ordered for _, _, one in sorted(group, key=lambda member: member[1])]


def worse_than(severity: str, findings: Iterable[Finding | dict[str, Any]]) -> int:
    """Number of findings to show before a state of this severity: whole groups, by their worst finding."""
    groups: dict[str, list[int]] = {}
    for one in findings:
        recipe, cause, level = _about(one)
        groups.setdefault(cause or recipe, []).append(severity_level(level))
    return sum(len(levels) for levels in groups.values() if max(levels) > severity_level(severity))


def _about(one: Finding | dict[str, Any]) -> tuple[str, str, str]:
    """Recipe, recipe of the cause, severity."""
    if isinstance(one, Finding):
        return one.recipe, one.explained_by, one.severity
    return one["recipe"], one.get("explained_by") or "", one["severity"]
