"""A recipe's file: TOML in SQL comments at its top, then one SELECT.

    -- title = "loss is NaN or infinite"
    -- severity = "alarm"
    …
    SELECT … WHERE z > $sigmas

`parse` is strict: what is not understood is an error that names the file, the line and what is accepted,
so that a misspelt threshold is never ignored. Any thread. Standard library, and tomli where Python has no
tomllib.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from probe.base.errors import RecipeInvalid
from probe.diagnose.recipes.recipe import (
    DEEP,
    SCOPES,
    SEVERITIES,
    SYMPTOMS,
    Parameter,
    Recipe,
    names_in,
)
from probe.diagnose.stall_parameters import STALL_THRESHOLDS
from probe.recording import checked

LONGEST_BYTES = 64 << 10
_NAME = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")
_TOKEN = re.compile(
    r"--[^\n]*|/\*.*?(?:\*/|\Z)|'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"|\$\$.*?\$\$|\$\w+|\w+|\s+|.", re.S
)
"""Comments, texts and quoted names first: what they contain is no parameter and ends no statement."""
_BEGINNINGS = ("SELECT", "WITH", "FROM", "VALUES")
_REQUIRED = ("title", "severity", "symptoms", "what")
_OPTIONAL = (
    "order", "scope", "holds_s", "needs", "why", "next", "false_positives", "deepen", "follows",
    "parameters",
)
_OF_PARAMETER = ("value", "unit", "source")


class _File:
    """Where in which file something is wrong."""

    def __init__(self, path: Path, text: str) -> None:
        self.path = path
        self.lines = text.splitlines()

    def wrong(self, what: str, line: int | None = None) -> RecipeInvalid:
        """The error to raise."""
        at = "" if line is None else f", line {line}"
        return RecipeInvalid(f"{self.path}{at}: {what}")

    def line_of(self, key: str) -> int | None:
        """The line that sets a key of the front matter, or begins its table."""
        pattern = re.compile(rf"--\s*(?:\[\s*)?{re.escape(key)}\s*[=\]]")
        return next((number for number, line in enumerate(self.lines, 1) if pattern.match(line)), None)


def read(path: Path, built_in: bool) -> Recipe:
    """The recipe in a file; raises `RecipeInvalid`."""
    try:
        text = checked.read_bytes(path, 16 * LONGEST_BYTES)[: LONGEST_BYTES + 1].decode("utf-8")
    except OSError as error:
        raise RecipeInvalid(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise RecipeInvalid(f"{path} is not UTF-8 text (byte {error.start})") from None
    except ValueError as error:
        raise RecipeInvalid(f"{path} cannot be read: {error}") from None
    return parse(text, path, built_in)


def parse(text: str, path: Path, built_in: bool = True) -> Recipe:
    """The recipe that a file's text describes; raises `RecipeInvalid`, which names line and cure."""
    file = _File(path, text)
    if len(text.encode()) > LONGEST_BYTES:
        raise file.wrong(f"is longer than {LONGEST_BYTES} bytes")
    if _NAME.fullmatch(path.stem) is None:
        raise file.wrong("a recipe's name has lower-case letters, digits and hyphens, as in loss-nan.sql")
    matter, sql, first = _parted(file)
    _check_keys(file, matter)
    placeholders = _check_sql(file, sql, first)
    parameters = _parameters(file, matter)
    recipe = Recipe(
        name=path.stem,
        sql=sql,
        file=path,
        title=_text(file, matter, "title"),
        what=_template(file, matter, "what"),
        severity=_one_of(file, matter, "severity", SEVERITIES),
        symptoms=_symptoms(file, matter),
        order=_order(file, matter),
        scope=_one_of(file, matter, "scope", SCOPES) if "scope" in matter else "rank",
        holds_s=_seconds(file, matter),
        needs=_text(file, matter, "needs") if "needs" in matter else "",
        why=_templates(file, matter, "why"),
        next=_templates(file, matter, "next"),
        false_positives=_text(file, matter, "false_positives") if "false_positives" in matter else "",
        deepen=_one_of(file, matter, "deepen", DEEP) if "deepen" in matter else None,
        follows=_list(file, matter, "follows"),
        parameters=parameters,
        placeholders=placeholders,
        built_in=built_in,
    )
    _check_parameters(file, recipe)
    return recipe


def _parted(file: _File) -> tuple[dict[str, Any], str, int]:
    """Front matter, SQL, and the number of the SQL's first line."""
    count = 0
    for line in file.lines:
        if not (line.startswith("-- ") or line.rstrip() == "--"):
            break
        count += 1
    if not count:
        raise file.wrong("begins with no line of front matter, such as `-- title = \"…\"`", 1)
    matter = "\n".join(line[3:] for line in file.lines[:count])
    return _toml(file.path, matter), "\n".join(file.lines[count:]).strip() + "\n", count + 1


def _toml(path: Path, text: str) -> dict[str, Any]:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # a number or a depth beyond all bounds, too
        raise RecipeInvalid(f"{path}: {error}") from None


def _check_keys(file: _File, matter: Mapping[str, Any]) -> None:
    for key in matter:
        if key not in (*_REQUIRED, *_OPTIONAL):
            accepted = ", ".join((*_REQUIRED, *_OPTIONAL))
            raise file.wrong(f"`{key}` is not known; accepted are {accepted}", file.line_of(key))
    for key in _REQUIRED:
        if key not in matter:
            raise file.wrong(f"`{key}` is missing; required are {', '.join(_REQUIRED)}")


# SQL ---------------------------------------------------------------------------------


def _check_sql(file: _File, sql: str, first: int) -> frozenset[str]:
    """The `$names` in the SQL; raises unless it is one SELECT. The query worker asks DuckDB once more."""
    names: set[str] = set()
    beginning = ""
    ended = False
    line = first
    for token in _TOKEN.findall(sql):
        at, line = line, line + token.count("\n")
        if token.isspace() or token.startswith(("--", "/*")):
            continue
        if ended:
            raise file.wrong("more than one statement; a recipe is one SELECT", at)
        if token == ";":
            ended = True
        elif not beginning and token != "(":
            beginning = token.upper()
            if beginning not in _BEGINNINGS:
                raise file.wrong(f"the SQL begins with {token}; a recipe is one SELECT", at)
        elif token[0] in "$?" and token != "$" and not token.startswith("$$"):
            if not token[1:].isidentifier():
                raise file.wrong(f"{token}: parameters have names, such as $sigmas", at)
            names.add(token[1:])
    if not beginning:
        raise file.wrong("has no SQL after its front matter", first)
    return frozenset(names)


# Values ------------------------------------------------------------------------------


def _text(file: _File, matter: Mapping[str, Any], key: str) -> str:
    value = matter[key]
    if not isinstance(value, str) or not value.strip():
        raise file.wrong(f"`{key}` must be a text, is {value!r}", file.line_of(key))
    return value


def _one_of(file: _File, matter: Mapping[str, Any], key: str, accepted: tuple[str, ...]) -> str:
    value = _text(file, matter, key)
    if value not in accepted:
        raise file.wrong(f"`{key}` is {value!r}; accepted are {', '.join(accepted)}", file.line_of(key))
    return value


def _list(file: _File, matter: Mapping[str, Any], key: str) -> tuple[str, ...]:
    values = matter.get(key, [])
    if not isinstance(values, list) or any(not isinstance(value, str) or not value for value in values):
        raise file.wrong(f"`{key}` must be a list of texts, is {values!r}", file.line_of(key))
    return tuple(values)


def _symptoms(file: _File, matter: Mapping[str, Any]) -> tuple[str, ...]:
    found = _list(file, matter, "symptoms")
    wrong = [symptom for symptom in found if symptom not in SYMPTOMS]
    if wrong or not found:
        said = repr(wrong[0]) if wrong else "empty"
        raise file.wrong(
            f"`symptoms` is {said}; accepted are {', '.join(SYMPTOMS)}", file.line_of("symptoms")
        )
    return found


def _order(file: _File, matter: Mapping[str, Any]) -> int:
    value = matter.get("order", 900)
    if type(value) is not int or not 0 <= value < 1000:
        raise file.wrong(f"`order` must be a whole number below 1000, is {value!r}", file.line_of("order"))
    return value


def _seconds(file: _File, matter: Mapping[str, Any]) -> float:
    value = matter.get("holds_s", 0.0)
    if type(value) not in (int, float) or not 0 <= value < float("inf"):
        raise file.wrong(f"`holds_s` must be seconds from 0, is {value!r}", file.line_of("holds_s"))
    return float(value)


def _template(file: _File, matter: Mapping[str, Any], key: str) -> str:
    return _checked(file, _text(file, matter, key), key)


def _templates(file: _File, matter: Mapping[str, Any], key: str) -> tuple[str, ...]:
    return tuple(_checked(file, text, key) for text in _list(file, matter, key))


def _checked(file: _File, text: str, key: str) -> str:
    try:
        names_in(text)
    except ValueError as error:
        raise file.wrong(f"`{key}`: {error}", file.line_of(key)) from None
    return text


# Parameters --------------------------------------------------------------------------


def _parameters(file: _File, matter: Mapping[str, Any]) -> dict[str, Parameter]:
    given = matter.get("parameters", {})
    if not isinstance(given, dict):
        line = file.line_of("parameters")
        raise file.wrong("`parameters` must be tables such as [parameters.sigmas]", line)
    return {name: _parameter(file, name, value) for name, value in given.items()}


def _parameter(file: _File, name: str, given: Any) -> Parameter:
    line = file.line_of(f"parameters.{name}")
    said = f"[parameters.{name}]"
    if not name.isidentifier() or not isinstance(given, dict) or set(given) != set(_OF_PARAMETER):
        accepted = ", ".join(_OF_PARAMETER)
        raise file.wrong(f"{said} must have a plain name, and exactly {accepted}", line)
    if type(given["value"]) not in (int, float, str, bool):
        raise file.wrong(f"{said}: value must be a number, a text, true or false", line)
    for key in ("unit", "source"):
        if not isinstance(given[key], str) or not given[key].strip():
            raise file.wrong(f"{said}: {key} must be a text that is not empty", line)
    return Parameter(name, given["value"], given["unit"], given["source"])


def _check_parameters(file: _File, recipe: Recipe) -> None:
    for name in sorted(recipe.placeholders - set(recipe.parameters)):
        raise file.wrong(f"the SQL names ${name}, and there is no [parameters.{name}]")
    for name in recipe.parameters:
        if name not in recipe.placeholders | recipe.named():
            line = file.line_of(f"parameters.{name}")
            raise file.wrong(f"[parameters.{name}] is used neither in the SQL (${name}) nor in a text", line)


# Overrides ---------------------------------------------------------------------------

OVERRIDES = "parameters.toml"


def overrides(
    path: Path, known: Mapping[str, Mapping[str, Parameter]], report: Callable[[RecipeInvalid], None]
) -> dict[str, dict[str, Parameter]]:
    """The parameters that `path` changes ([loss-spike] sigmas = 8), of each section all; `known` are the
    sections that there may be. What is wrong is reported, and the rest is read."""
    try:
        given = _toml(path, checked.read_bytes(path, 16 * LONGEST_BYTES).decode("utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        report(RecipeInvalid(f"{path} cannot be read: {error}"))
        return {}
    except RecipeInvalid as error:
        report(error)
        return {}
    changed: dict[str, dict[str, Parameter]] = {}
    for name, values in given.items():
        if name not in known or not isinstance(values, dict):
            report(RecipeInvalid(f"{path}: [{name}] is no recipe; `probe recipes` lists them"))
            continue
        changed[name] = dict(known[name])
        for key, value in values.items():
            try:
                changed[name][key] = _overridden(path, name, known[name], key, value)
            except RecipeInvalid as error:
                report(error)
    return changed


def _overridden(path: Path, name: str, known: Mapping[str, Parameter], key: str, value: Any) -> Parameter:
    if key not in known:
        accepted = ", ".join(known) or "none"
        raise RecipeInvalid(f"{path}: [{name}] has no parameter {key}; accepted are {accepted}")
    was = known[key]
    kind = type(was.value)
    if kind is float and type(value) is int:
        value = float(value)
    if type(value) is not kind:
        words = {float: "a number", int: "a whole number", str: "a text", bool: "true or false"}[kind]
        raise RecipeInvalid(f"{path}: [{name}] {key} must be {words}, is {value!r}")
    if name == STALL_THRESHOLDS and not 0 < float(value) < math.inf:
        raise RecipeInvalid(f"{path}: [{name}] {key} must be a finite number above 0, is {value!r}")
    return replace(was, value=value, source=f"{path}; else {was.value} ({was.source})")
