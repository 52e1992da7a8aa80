"""Cases of a recipe: tables written as SELECTs, and what the recipe must say of them.

    [[case]]
    name = "a loss that goes up once"
    fires = true                                  # true, false or "unknown"
    [case.expect]                                 # of the findings, any of which may fit
    step = 7
    [case.tables]
    "python.steps" = "SELECT i AS step, 2.0 AS loss FROM range(500) t(i)"
    [case.parameters]                             # other than the recipe's own
    sigmas = 4.0

The columns of a SELECT are inserted by their names; rank is 0, run, attempt and pid are there, the rest is
NULL. A list of SELECTs makes one table of several.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, NamedTuple

import duckdb

from probe.archive.dataset import PROCESSES
from probe.diagnose.recipes.local_query import make_tables, run_on
from probe.diagnose.recipes.recipe import Check, Recipe
from probe.recording.tables import BY_NAME

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

EXPECTED = ("step", "subject", "severity", "rank", "over", "count", "what", "reason")
_KEYS = {"name", "fires", "expect", "tables", "parameters"}
_COMMON = {"rank": "0", "run": "'case'", "attempt": "0", "pid": "1"}


class Case(NamedTuple):
    """One case of one recipe."""

    recipe: str
    name: str
    fires: bool | str
    expect: dict[str, Any]
    tables: dict[str, list[str]]
    parameters: dict[str, Any]


def cases_beside(recipe: Path) -> list[Case]:
    """The cases in the file beside a recipe; none when there is no file."""
    file = recipe.with_suffix(".cases.toml")
    if not file.exists():
        return []
    given = tomllib.loads(file.read_text(encoding="utf-8"))
    assert set(given) <= {"case"}, f"{file}: only [[case]] is known"
    return [_case(file, recipe.stem, one) for one in given.get("case", [])]


def _case(file: Path, recipe: str, given: dict[str, Any]) -> Case:
    assert set(given) <= _KEYS, f"{file}: of a case, accepted are {sorted(_KEYS)}, not {sorted(given)}"
    assert given["fires"] in (True, False, "unknown"), f"{file}: fires is true, false or \"unknown\""
    expect = given.get("expect", {})
    assert set(expect) <= set(EXPECTED), f"{file}: of expect, accepted are {EXPECTED}"
    tables = {
        name: [sql] if isinstance(sql, str) else list(sql) for name, sql in given.get("tables", {}).items()
    }
    known = {*BY_NAME, PROCESSES.full_name}  # the last is of recipes of a fleet
    assert set(tables) <= known, f"{file}: no tables are {sorted(set(tables) - known)}"
    return Case(recipe, given["name"], given["fires"], expect, tables, given.get("parameters", {}))


class Cases:
    """A database in which cases are judged, one after the other."""

    common = _COMMON
    """What a row has that a case does not say."""

    def __init__(self) -> None:
        self.connection = duckdb.connect(":memory:", config={"threads": 1})
        make_tables(self.connection)

    def judge(self, recipe: Recipe, case: Case) -> Check:
        """What the recipe says of the case's tables, which are gone afterwards."""
        known = recipe.parameters
        changed = {
            name: known[name].model_copy(update={"value": value}) for name, value in case.parameters.items()
        }
        recipe = recipe.model_copy(update={"parameters": {**known, **changed}})
        self.connection.execute("BEGIN")
        try:
            self.fill(case)
            (check,) = run_on(self.connection, [recipe], "JOB")
            return check
        finally:
            self.connection.execute("ROLLBACK")

    def fill(self, case: Case) -> None:
        """Insert a case's rows."""
        for table, statements in case.tables.items():
            for sql in statements:
                self._insert(table, sql)

    def _insert(self, table: str, sql: str) -> None:
        given = set(self.connection.sql(sql).columns)
        added = "".join(f", {value} AS {name}" for name, value in self.common.items() if name not in given)
        self.connection.execute(f"INSERT INTO {table} BY NAME SELECT *{added} FROM ({sql})")


def misfits(case: Case, check: Check) -> list[str]:
    """What differs from what the case expects; nothing when it fits."""
    wanted = {True: "found", False: "clear"}.get(case.fires, case.fires)
    said = f"{check.reason} {[one.what for one in check.findings]}"
    if check.state != wanted:
        return [f"is {check.state}, should be {wanted}: {said}"]
    expect = dict(case.expect)
    wrong = []
    if "count" in expect and expect.pop("count") != len(check.findings):
        wrong.append(f"{len(check.findings)} findings: {said}")
    if "reason" in expect and expect.pop("reason") not in check.reason:
        wrong.append(f"another reason: {said}")
    if expect and not any(_fits(one, expect) for one in check.findings):
        found = [(one.step, one.subject, one.rank, one.severity) for one in check.findings]
        wrong.append(f"no finding fits {expect}: {found} {said}")
    return wrong


def _fits(finding: Any, expect: dict[str, Any]) -> bool:
    said = {
        "step": finding.step, "subject": finding.subject, "rank": finding.rank,
        "severity": finding.severity, "over": finding.over,
    }
    what = expect.get("what", "")
    return what in finding.what and all(
        said[name] == value for name, value in expect.items() if name != "what"
    )
