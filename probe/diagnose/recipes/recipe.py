"""Recipe: a question about a recording, what its answer means and what to do about it.

Plain data, made by `recipe_files.parse`; `Recipe.check` makes findings of the rows that its SQL gave. Who
runs the SQL is another matter: a query worker (`answers.recipe_runs`) or a connection (`local_query`). Any
thread. Standard library only.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from string import Formatter
from typing import Any

from probe.diagnose.finding import Finding, worst_first
from probe.diagnose.states import ALARM, INFO, NOTICE

SYMPTOMS = ("nan", "slow", "memory", "hang", "loss", "gradients", "data")
SEVERITIES = (INFO, NOTICE, ALARM)
RANK, JOB = "rank", "job"
SCOPES = (RANK, JOB)
DEEP = ("gradients", "activations", "histograms")
FOUND, CLEAR, UNKNOWN = "found", "clear", "unknown"
MOST_FINDINGS = 50
"""Rows of one recipe that are looked at: who has more wants the query, not the list."""

_ENDPOINT = "endpoint"
_FORMATTER = Formatter()


@dataclass(frozen=True)
class Parameter:
    """A threshold or a window: its value in force, its unit and who says so."""

    name: str
    value: float | int | str | bool
    unit: str
    source: str


@dataclass(frozen=True)
class Check:
    """One recipe, run once. Not a `Finding`: a recipe may find several things or nothing, and finding nothing
    (`clear`) differs from being unable to tell (`unknown`, with the `reason`)."""

    recipe: Recipe
    state: str
    findings: list[Finding] = field(default_factory=list)
    """The worst first."""
    reason: str = ""
    elapsed_ms: float = 0.0

    @property
    def summary(self) -> str:
        """What was found, or the reason, on one line; empty when the check is clear."""
        if self.state != FOUND:
            return self.reason
        more = len(self.findings) - 1
        return self.findings[0].what + (f" (and {more} more)" if more else "")


@dataclass(frozen=True)
class Recipe:
    """One recipe, as its file says; docs/recipes.md describes every field."""

    name: str
    title: str
    severity: str
    symptoms: tuple[str, ...]
    what: str
    sql: str
    file: Path
    order: int = 900
    scope: str = RANK
    holds_s: float = 0.0
    needs: str = ""
    why: tuple[str, ...] = ()
    next: tuple[str, ...] = ()
    false_positives: str = ""
    deepen: str | None = None
    follows: tuple[str, ...] = ()
    """Recipes of which this one's finding is a consequence, where they have found something too."""
    parameters: Mapping[str, Parameter] = field(default_factory=dict)
    placeholders: frozenset[str] = frozenset()
    """Parameters that the SQL itself names, as `$name`; the texts may name others."""
    built_in: bool = True

    def statement(self) -> tuple[str, dict[str, Any]]:
        """The SQL, and the values of its named parameters."""
        return self.sql, {name: self.parameters[name].value for name in sorted(self.placeholders)}

    def check(
        self, columns: Sequence[str], rows: Iterable[Sequence[Any]], endpoint: str, elapsed_ms: float = 0.0
    ) -> Check:
        """What the rows mean; `endpoint` goes into the commands. NaN and infinities are floats here."""
        missing = sorted(self.named() - {_ENDPOINT} - set(columns) - set(self.parameters))
        if missing:
            why = f"its texts name {{{missing[0]}}}, which its SELECT does not return"
            return self.unknown(why, elapsed_ms)
        found: list[Finding] = []
        reasons: list[str] = []
        for row in list(rows)[:MOST_FINDINGS]:
            values = dict(zip(columns, row, strict=True))
            reason = values.get("unknown")
            if reason is not None:
                reasons.append(str(reason))
            else:
                found.append(self._finding(values, endpoint))
        if found:
            return Check(self, FOUND, worst_first(found), elapsed_ms=elapsed_ms)
        if reasons:
            return self.unknown("; ".join(dict.fromkeys(reasons)), elapsed_ms)
        return Check(self, CLEAR, elapsed_ms=elapsed_ms)

    def unknown(self, why: str, elapsed_ms: float = 0.0) -> Check:
        """The check when the recipe cannot be run, or cannot tell."""
        needs = f" (needs {self.needs})" if self.needs else ""
        return Check(self, UNKNOWN, [], f"{why}{needs}", elapsed_ms)

    def named(self) -> frozenset[str]:
        """Names that the texts have in braces."""
        return frozenset(name for text in (self.what, *self.why, *self.next) for name in names_in(text))

    def _finding(self, values: dict[str, Any], endpoint: str) -> Finding:
        shown = {name: parameter.value for name, parameter in self.parameters.items()}
        shown.update(values)
        shown[_ENDPOINT] = shlex.quote(endpoint) if endpoint else ""
        severity = values.get("severity")
        subject = values.get("subject")
        return Finding(
            self.title,
            severity if severity in SEVERITIES else self.severity,
            rendered(self.what, shown),
            [rendered(line, shown) for line in self.why if not _lacks(line, shown)],
            [_command(rendered(line, shown)) for line in self.next if not _lacks(line, shown)],
            recipe=self.name,
            subject="" if subject is None else str(subject),
            step=_whole(values.get("step")),
            rank=_whole(values.get("rank")),
        )

    def as_dict(self) -> dict[str, Any]:
        """The recipe on the wire."""
        return {
            "name": self.name, "title": self.title, "severity": self.severity,
            "symptoms": list(self.symptoms), "order": self.order, "scope": self.scope,
            "holds_s": self.holds_s, "needs": self.needs, "what": self.what, "why": list(self.why),
            "next": list(self.next), "false_positives": self.false_positives, "deepen": self.deepen,
            "follows": list(self.follows),
            "parameters": [vars(parameter) for parameter in self.parameters.values()],
            "sql": self.sql, "file": str(self.file), "built_in": self.built_in,
        }


# Texts -------------------------------------------------------------------------------


def names_in(text: str) -> list[str]:
    """The names in braces. Raises `ValueError` for braces that are not just a name and a format."""
    names = []
    for _, name, spec, conversion in _FORMATTER.parse(text):
        if name is None:
            continue
        if conversion or "{" in (spec or "") or not name.isidentifier():
            raise ValueError(f"{{{name}}} is no name of a column; a brace itself is written {{{{ or }}}}")
        names.append(name)
    return names


def rendered(text: str, values: Mapping[str, Any]) -> str:
    """The text with its braces filled in: `?` for NULL, the value as it is where its format does not fit."""
    parts: list[str] = []
    for literal, name, spec, _ in _FORMATTER.parse(text):
        parts.append(literal)
        if name is not None:
            parts.append(_shown(values.get(name), spec or ""))
    return "".join(parts)


def _shown(value: Any, spec: str) -> str:
    if value is None:
        return "?"
    if isinstance(value, float) and math.isnan(value):
        return "NaN"
    if isinstance(value, float) and not spec:
        spec = ".6g"  # nobody wants 0.30000000000000004
    try:
        return format(value, spec)
    except (ValueError, TypeError):  # such as a text where a number was expected
        return str(value)


def _command(text: str) -> str:
    """A command of the only process there is has no endpoint, and one space where it would be."""
    return text.replace("probe  ", "probe ")


def _lacks(text: str, values: Mapping[str, Any]) -> bool:
    return any(values.get(name) is None for name in names_in(text))


def _whole(value: Any) -> int | None:
    """A step or a rank; SQL's arithmetic makes floats of them."""
    try:
        return None if value is None else int(value)
    except (ValueError, TypeError, OverflowError):
        return None
