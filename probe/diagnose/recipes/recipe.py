"""Recipe: a query over a recording, with the meaning of its rows and the commands to run next.

`recipe_files.parse` creates a recipe from its file; pydantic checks its fields. `Recipe.check` turns the rows
of its SQL into findings. The SQL runs in a query worker (`answers.recipe_runs`) or on a connection
(`local_query`). Any thread. Imports pydantic.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from string import Formatter
from typing import Annotated, Any, Literal, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    PlainValidator,
    StringConstraints,
    ValidationInfo,
)

from probe.diagnose.finding import Finding, worst_first

Symptom = Literal["nan", "slow", "memory", "hang", "loss", "gradients", "data"]
SYMPTOMS: tuple[str, ...] = get_args(Symptom)
Severity = Literal["info", "notice", "alarm"]
RANK, JOB = "rank", "job"
FOUND, CLEAR, UNKNOWN = "found", "clear", "unknown"
MOST_FINDINGS = 50
"""Maximum number of rows used from a recipe's result."""

_ENDPOINT = "endpoint"
_FORMATTER = Formatter()


def names_in(text: str) -> list[str]:
    """The names in braces. Raises `ValueError` for anything in braces other than a name and a format."""
    names = []
    for _, name, spec, conversion in _FORMATTER.parse(text):
        if name is None:
            continue
        if conversion or "{" in (spec or "") or not name.isidentifier():
            raise ValueError(f"{{{name}}} is not a column name; write a literal brace as {{{{ or }}}}")
        names.append(name)
    return names


def _checked_template(text: str) -> str:
    names_in(text)
    return text


def _checked_scalar(value: object) -> object:
    if type(value) not in (float, int, str, bool):
        raise ValueError("must be a number, a string or a boolean")
    return value


Text = Annotated[str, StringConstraints(min_length=1, strip_whitespace=True)]
Template = Annotated[Text, AfterValidator(_checked_template)]
Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_]\w*$")]
KNOWN_RECIPES = "recipes"
"""Key of the validation context with the names of all installed recipes."""


def _installed(name: str, info: ValidationInfo) -> str:
    known = (info.context or {}).get(KNOWN_RECIPES)
    if known is not None and name not in known:
        raise ValueError(f"no recipe is named {name!r}")
    return name


RecipeName = Annotated[Text, AfterValidator(_installed)]
_STRICT = ConfigDict(extra="forbid", frozen=True, strict=True)


class Parameter(BaseModel):
    """A threshold or a window: its current value, its unit and the source of the value."""

    model_config = _STRICT

    value: Annotated[float | int | str | bool, PlainValidator(_checked_scalar)]
    unit: Text
    source: Text


class Zone(BaseModel):
    """The normal range of a curve on the page, bounded by the recipe's own thresholds."""

    model_config = _STRICT

    of: Literal["loss", "grad_norm", "lr", "rate", "rss", "allocated"]
    """The shaded curve in the view Run."""
    words: Template
    sql: Text
    """Returns rows of `ms`, `low` and `high`: from `ms` on, values between the two are normal; NULL means no
    bound. Its parameters are the recipe's and those in `SHOWN`."""


SHOWN = ("rank", "from_ms", "to_ms", "width_ms")
"""Parameters that the page passes to a zone's SQL: the rank, the displayed time range, and the width of its
buckets; one bound per bucket is enough."""


class FrontMatter(BaseModel):
    """The keys at the top of a recipe's file, described in docs/recipes.md."""

    model_config = _STRICT

    title: Text
    severity: Severity
    symptoms: Annotated[list[Symptom], Field(min_length=1)]
    what: Template
    order: Annotated[int, Field(ge=0, lt=1000)] = 900
    scope: Literal["rank", "job"] = "rank"
    holds_s: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    needs: Text = ""
    why: list[Template] = []
    next: list[Template] = []
    false_positives: Text = ""
    deepen: Literal["gradients", "activations", "histograms"] | None = None
    explains: list[RecipeName] = []
    """Recipes whose findings are consequences of this one's; a column `explains` may narrow it."""
    dated: bool = False
    """Whether its step is the start of the problem: it explains nothing that began earlier."""
    effect: bool = False
    """Whether it measures an effect that many mistakes have, such as a loss that stands still: it is never
    called a cause."""
    uses: list[Name] = []
    """Queries of `recipes/shared` available to the SQL as CTEs; each may use those before it."""
    parameters: dict[Name, Parameter] = {}
    zone: Zone | None = None


@dataclass(frozen=True)
class Check:
    """The result of one recipe: `found` with findings, `clear`, or `unknown` with the reason."""

    recipe: Recipe
    state: str
    findings: list[Finding] = field(default_factory=list)
    """Worst first."""
    reason: str = ""
    elapsed_ms: float = 0.0
    failed: str = ""
    """The code of the error that stopped it: it is unknown for that reason, not because data was not
    recorded."""

    @property
    def over(self) -> bool:
        """Whether all findings are over."""
        return bool(self.findings) and all(one.over for one in self.findings)

    @property
    def summary(self) -> str:
        """The finding or the reason in one line; empty if the check is clear."""
        if self.state != FOUND:
            return self.reason
        more = len(self.findings) - 1
        return self.findings[0].what + (f" (and {more} more)" if more else "")


class Recipe(FrontMatter):
    """One recipe."""

    name: str
    sql: str
    file: Path
    placeholders: frozenset[str] = frozenset()
    """Parameters used in the SQL, as `$name`; the texts may use others."""
    built_in: bool = True

    def statement(self) -> tuple[str, dict[str, Any]]:
        """The SQL and the values of its named parameters."""
        return self.sql, {name: self.parameters[name].value for name in sorted(self.placeholders)}

    def check(
        self, columns: Sequence[str], rows: Iterable[Sequence[Any]], endpoint: str, elapsed_ms: float = 0.0
    ) -> Check:
        """Judge the rows; `endpoint` is inserted into the commands. NaN and infinities are floats here."""
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
        """The check of a recipe that cannot be judged."""
        needs = f" (needs {self.needs})" if self.needs else ""
        return Check(self, UNKNOWN, [], f"{why}{needs}", elapsed_ms)

    def not_run(self, why: str, code: str, elapsed_ms: float = 0.0) -> Check:
        """The check of a recipe that did not complete; `code`: code of the error."""
        return Check(self, UNKNOWN, [], why, elapsed_ms, failed=code)

    def named(self) -> frozenset[str]:
        """The names in braces in the texts."""
        return frozenset(name for text in (self.what, *self.why, *self.next) for name in names_in(text))

    def _finding(self, values: dict[str, Any], endpoint: str) -> Finding:
        shown = {**self._thresholds(), **values}
        shown[_ENDPOINT] = shlex.quote(endpoint) if endpoint else ""
        severity = values.get("severity")
        subject, explains = values.get("subject"), values.get("explains")
        return Finding(
            self.title,
            str(severity) if severity in get_args(Severity) else self.severity,
            rendered(self.what, shown),
            [rendered(line, shown) for line in self.why if not _lacks(line, shown)],
            [_command(rendered(line, shown)) for line in self.next if not _lacks(line, shown)],
            recipe=self.name,
            subject="" if subject is None else str(subject),
            step=_whole(values.get("step")),
            rank=_whole(values.get("rank")),
            over=values.get("over") is True,
            explains=None if explains is None else tuple(str(explains).split(", ")),
        )

    def as_dict(self) -> dict[str, Any]:
        """The recipe as a JSON object."""
        found = {
            **self.model_dump(mode="json", exclude={"placeholders"}),
            "parameters": listed(self.parameters),
        }
        if self.zone is not None:
            found["zone"]["words"] = rendered(self.zone.words, self._thresholds())
        return found

    def _thresholds(self) -> dict[str, Any]:
        return {name: parameter.value for name, parameter in self.parameters.items()}


def listed(parameters: Mapping[str, Parameter]) -> list[dict[str, Any]]:
    """Parameters as JSON objects."""
    return [{"name": name, **one.model_dump()} for name, one in parameters.items()]


# Texts -------------------------------------------------------------------------------


def rendered(text: str, values: Mapping[str, Any]) -> str:
    """The text with its braces filled in: `?` for NULL, the plain value if the format does not fit."""
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
        spec = ".6g"  # avoids 0.30000000000000004
    try:
        return format(value, spec)
    except (ValueError, TypeError):  # such as a text where a number was expected
        return str(value)


def _command(text: str) -> str:
    """Remove the double space that an empty endpoint leaves in a command."""
    return text.replace("probe  ", "probe ")


def _lacks(text: str, values: Mapping[str, Any]) -> bool:
    return any(values.get(name) is None for name in names_in(text))


def _whole(value: Any) -> int | None:
    """A step or a rank as an integer; SQL arithmetic may have turned it into a float."""
    try:
        return None if value is None else int(value)
    except (ValueError, TypeError, OverflowError):
        return None
