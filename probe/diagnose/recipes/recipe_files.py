"""Parses a recipe's file: TOML in SQL comments at its top, then one SELECT.

    -- title = "loss is NaN or infinite"
    -- severity = "alarm"
    …
    SELECT … WHERE z > $sigmas

Anything unknown is an error that names the file, the line and the accepted values: a misspelt threshold must
not be ignored. Any thread. Imports pydantic, and tomli if Python has no tomllib.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, TypeAdapter, ValidationError

import probe
from probe.base.errors import RecipeInvalid
from probe.diagnose.recipes.recipe import (
    KNOWN_RECIPES,
    SHOWN,
    FrontMatter,
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
"""Comments, strings and quoted names first: their contents are not parameters and do not end a statement."""
_BEGINNINGS = ("SELECT", "WITH", "FROM", "VALUES")


def built_in_folder() -> Path:
    """The folder of the built-in recipes: in the package, or next to it in a checkout."""
    package = Path(probe.__file__).resolve().parent
    packaged = package / "recipes"
    return packaged if packaged.is_dir() else package.parent / "recipes"


class _File:
    """A recipe's file, for errors with line numbers."""

    def __init__(self, path: Path, text: str) -> None:
        self.path = path
        self.lines = text.splitlines()

    def wrong(self, what: str, line: int | None = None) -> RecipeInvalid:
        """The error to raise."""
        at = "" if line is None else f", line {line}"
        return RecipeInvalid(f"{self.path}{at}: {what}")

    def invalid(self, error: ValidationError) -> RecipeInvalid:
        """The error to raise for front matter that pydantic rejects."""
        keys = [str(key) for key in error.errors()[0]["loc"]]
        if keys[0] != "parameters":
            return self.wrong(f"`{keys[0]}` {_reason(error, FrontMatter)}", self.line_of(keys[0]))
        table, key = ".".join(keys[:2]), ".".join(keys[2:])
        line = self.line_of(key, after=self.line_of(table)) or self.line_of(table)
        return self.wrong(f"[{table}] {key} {_reason(error, Parameter)}", line)

    def line_of(self, key: str, after: int | None = None) -> int | None:
        """The line that sets a key of the front matter, or begins its table."""
        pattern = re.compile(rf"--\s*(?:\[\s*)?{re.escape(key)}\s*[=\]]")
        numbered = list(enumerate(self.lines, 1))[after or 0 :]
        return next((number for number, line in numbered if pattern.match(line)), None)


def _reason(error: ValidationError, model: type[FrontMatter | Parameter] | None = None) -> str:
    """The first error as text: `is 'bad', but should be 'info', 'notice' or 'alarm'`."""
    first = error.errors()[0]
    if first["type"] == "missing":
        return "is missing"
    if first["type"] == "extra_forbidden" and model is not None:
        return f"is not known; accepted are {', '.join(model.model_fields)}"
    if first["type"] == "value_error":
        return f"is invalid: {first['ctx']['error']}"
    return f"is {first['input']!r}, but {first['msg'].removeprefix('Input ')}"


def read(path: Path, built_in: bool, known: Collection[str] | None = None) -> Recipe:
    """Read a recipe from a file; raises `RecipeInvalid`. `known`: the names of all recipes, to check
    `explains`."""
    try:
        text = checked.read_bytes(path, 16 * LONGEST_BYTES)[: LONGEST_BYTES + 1].decode("utf-8")
    except OSError as error:
        raise RecipeInvalid(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise RecipeInvalid(f"{path} is not UTF-8 text (byte {error.start})") from None
    except ValueError as error:
        raise RecipeInvalid(f"cannot read {path}: {error}") from None
    return parse(text, path, built_in, known)


def parse(
    text: str, path: Path, built_in: bool = True, known: Collection[str] | None = None
) -> Recipe:
    """Parse a recipe from a file's text; raises `RecipeInvalid`, which names the line and the fix."""
    file = _File(path, text)
    if len(text.encode()) > LONGEST_BYTES:
        raise file.wrong(f"longer than {LONGEST_BYTES} bytes")
    if _NAME.fullmatch(path.stem) is None:
        raise file.wrong("a recipe's name consists of lower-case letters, digits and hyphens: loss-nan.sql")
    matter, sql, first = _split(file)
    try:
        FrontMatter.model_validate(matter, context={KNOWN_RECIPES: known})
    except ValidationError as error:
        raise file.invalid(error) from None
    placeholders = _placeholders(file, sql, first)
    recipe = _with_shared(
        file,
        Recipe(**matter, name=path.stem, sql=sql, file=path, placeholders=placeholders, built_in=built_in),
    )
    for name in sorted(placeholders - set(recipe.parameters)):
        raise file.wrong(f"the SQL uses ${name}, but there is no [parameters.{name}]")
    of_zone: frozenset[str] = frozenset()
    if recipe.zone is not None:
        line = file.line_of("zone")
        of_zone = _placeholders(file, recipe.zone.sql, line or 1)
        named = of_zone.difference(SHOWN).union(names_in(recipe.zone.words))
        for name in sorted(named.difference(recipe.parameters)):
            raise file.wrong(f"the zone uses {name}, but there is no [parameters.{name}]", line)
    for name in recipe.parameters:
        if name not in placeholders | of_zone | recipe.named():
            line = file.line_of(f"parameters.{name}")
            raise file.wrong(f"[parameters.{name}] is used neither in the SQL (${name}) nor in a text", line)
    return recipe


def _split(file: _File) -> tuple[dict[str, Any], str, int]:
    """Front matter, SQL, and the number of the SQL's first line."""
    count = 0
    for line in file.lines:
        if not (line.startswith("-- ") or line.rstrip() == "--"):
            break
        count += 1
    if not count:
        raise file.wrong("does not begin with front matter such as `-- title = \"…\"`", 1)
    matter = "\n".join(line[3:] for line in file.lines[:count])
    return _toml(file.path, matter), "\n".join(file.lines[count:]).strip() + "\n", count + 1


def _with_shared(file: _File, recipe: Recipe) -> Recipe:
    """The recipe with the shared queries that its SQL and its zone's SQL use added as CTEs."""
    if not recipe.uses:
        return recipe
    folder = built_in_folder() / "shared"
    shared: dict[str, str] = {}
    for name in recipe.uses:
        try:
            shared[name] = (folder / f"{name}.sql").read_text(encoding="utf-8").strip()
        except OSError:
            known = ", ".join(sorted(one.stem for one in folder.glob("*.sql")))
            why = f"`uses` names {name}, but there are only {known}"
            raise file.wrong(why, file.line_of("uses")) from None
    changed: dict[str, Any] = {"sql": _beginning_with(shared, recipe.sql)}
    if recipe.zone is not None:
        zone = recipe.zone.model_copy(update={"sql": _beginning_with(shared, recipe.zone.sql)})
        changed["zone"] = zone
    return recipe.model_copy(update=changed)


def _beginning_with(shared: Mapping[str, str], sql: str) -> str:
    """The SQL with the shared queries that it uses as its first CTEs."""
    text = sql
    needed: list[str] = []
    for name, query in reversed(list(shared.items())):
        if re.search(rf"\b{name}\b", text):
            needed.insert(0, f"{name} AS (\n{query}\n)")
            text += query
    if not needed:
        return sql
    rest, own = re.subn(r"\A\s*WITH\b", "", sql, count=1, flags=re.I)
    return f"WITH {', '.join(needed)}{',' if own else ''} {rest.lstrip()}"


def _toml(path: Path, text: str) -> dict[str, Any]:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # also huge numbers and deep nesting
        raise RecipeInvalid(f"{path}: {error}") from None


def _placeholders(file: _File, sql: str, first: int) -> frozenset[str]:
    """The `$names` in the SQL; raises unless it is one SELECT. DuckDB checks it again in the query worker."""
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
                raise file.wrong(f"{token}: parameters are named, e.g. $sigmas", at)
            names.add(token[1:])
    if not beginning:
        raise file.wrong("there is no SQL after the front matter", first)
    return frozenset(names)


# Overrides ---------------------------------------------------------------------------

OVERRIDES = "parameters.toml"
_THRESHOLD = TypeAdapter(Annotated[float, Field(gt=0, allow_inf_nan=False)])


def overrides(
    path: Path, known: Mapping[str, Mapping[str, Parameter]], report: Callable[[RecipeInvalid], None]
) -> dict[str, dict[str, Parameter]]:
    """All parameters of each section that `path` overrides ([loss-spike] sigmas = 8). `known`: the possible
    sections. Errors are reported and skipped."""
    try:
        given = _toml(path, checked.read_bytes(path, 16 * LONGEST_BYTES).decode("utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        report(RecipeInvalid(f"cannot read {path}: {error}"))
        return {}
    except RecipeInvalid as error:
        report(error)
        return {}
    changed: dict[str, dict[str, Parameter]] = {}
    for name, values in given.items():
        if name not in known or not isinstance(values, dict):
            report(RecipeInvalid(f"{path}: [{name}] is not a recipe; `probe recipes` lists them"))
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
    kind = _THRESHOLD if name == STALL_THRESHOLDS else TypeAdapter(type(was.value))
    try:
        value = kind.validate_python(value, strict=True)
    except ValidationError as error:
        raise RecipeInvalid(f"{path}: [{name}] {key} {_reason(error)}") from None
    source = f"{path}; default {was.value} ({was.source})"
    return was.model_copy(update={"value": value, "source": source})
