"""The recipes of a fleet: their files, the cases beside them, and one archive that they are run on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import duckdb
import pytest

from probe.diagnose.recipes import library
from probe.diagnose.recipes.recipe import UNKNOWN
from probe.fleet.archived_tables import ARCHIVED, make_empty
from recipes.recipe_cases import Case, Cases, cases_beside, misfits

FOLDER = library.built_in_folder() / "fleet"
LIBRARY = library.load([FOLDER])
CASES = [case for recipe in LIBRARY.values() for case in cases_beside(recipe.file)]


class FleetCases(Cases):
    """A database with the tables of an archive."""

    common: ClassVar = {
        "job": "'job'", "run": "'case'", "attempt": "0", "rank": "0", "host": "'h0'", "pid": "1",
        "process": "'p'", "date": "DATE '2026-03-01'",
    }

    def __init__(self) -> None:
        self.connection = duckdb.connect(":memory:", config={"threads": 1})
        make_empty(self.connection, ARCHIVED)


@pytest.fixture(scope="module")
def database() -> Iterator[Cases]:
    cases = FleetCases()
    yield cases
    cases.connection.close()


def test_every_recipe_of_a_fleet_can_be_used_and_is_none_of_a_run() -> None:
    assert [str(problem) for problem in LIBRARY.problems] == []
    assert len(LIBRARY) >= 6
    assert not set(LIBRARY) & set(library.load([library.built_in_folder()]))


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.recipe}: {case.name}")
def test_a_recipe_says_of_a_case_what_the_case_expects(case: Case, database: Cases) -> None:
    assert misfits(case, database.judge(LIBRARY[case.recipe], case)) == []


@pytest.mark.parametrize("name", LIBRARY)
def test_a_recipe_has_cases_of_both_kinds_and_says_what_it_needs(name: str, database: Cases) -> None:
    fires = [case.fires for case in CASES if case.recipe == name]
    assert {True, False} <= set(fires)
    recipe = LIBRARY[name]
    assert recipe.needs and recipe.false_positives and recipe.why and recipe.next
    assert all(parameter.source for parameter in recipe.parameters.values())
    nothing = database.judge(recipe, Case(name, "no rows at all", False, {}, {}, {}))
    assert (nothing.state, nothing.failed) == (UNKNOWN, ""), nothing
