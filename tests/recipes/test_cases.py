"""Every recipe that comes with probe: its file, and the cases beside it."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest

from probe.base.errors import ProbeError
from probe.diagnose.recipes import library
from probe.diagnose.recipes.recipe import CLEAR, UNKNOWN, rendered
from probe.diagnose.states import INFO
from probe.job.snippets.guard.classify import classify
from probe.job.snippets.guard.rules import REFUSED
from probe_cli.command_group import command_group
from probe_cli.command_table import VOCABULARY
from probe_cli.core.arguments import read
from probe_cli.main import click_exception
from recipes.recipe_cases import Case, Cases, cases_beside, misfits

FOLDER = library.built_in_folder()
LIBRARY = library.load([FOLDER])
CASES = {name: cases_beside(recipe.file) for name, recipe in LIBRARY.items()}


@pytest.fixture(scope="module")
def database() -> Iterator[Cases]:
    cases = Cases()
    yield cases
    cases.connection.close()


def test_every_built_in_recipe_can_be_used() -> None:
    assert [str(problem) for problem in LIBRARY.problems] == []


def test_no_built_in_recipe_is_explained_by_what_it_explains() -> None:
    explains = {name: set(recipe.explains) for name, recipe in LIBRARY.items()}
    while True:  # the transitive closure
        more = {name: of.union(*(explains[one] for one in of)) for name, of in explains.items()}
        if more == explains:
            break
        explains = more
    assert [name for name, of in explains.items() if name in of] == []


def test_every_file_of_cases_has_its_recipe() -> None:
    names = {path.name.removesuffix(".cases.toml") for path in FOLDER.glob("*.cases.toml")}
    assert names <= {path.stem for path in FOLDER.glob("*.sql")}


def test_the_result_of_a_built_in_recipe_follows_from_the_rows_alone(database: Cases) -> None:
    """Or a query worker could not keep it for as long as the rows stay the same."""
    found = database.connection.execute(
        "SELECT DISTINCT function_name FROM duckdb_functions() WHERE stability <> 'CONSISTENT'"
    ).fetchall()
    # range() over integers is as consistent as before; over times with a zone it is not, since duckdb 2.0.1.
    called = {"age", *(name for (name,) in found)} - {"range"}
    words = {"current_date", "current_time", "current_timestamp", "localtime", "tablesample"}
    assert {"now", "random"} <= called
    for name, recipe in LIBRARY.items():
        text = recipe.sql.lower()
        assert not called.intersection(re.findall(r"(\w+)\s*\(", text)), name
        assert not words.intersection(re.findall(r"\w+", text)), name


# A test for each case would cost more than judging it.


@pytest.mark.parametrize("name", LIBRARY)
def test_a_recipe_says_of_each_case_what_the_case_expects(name: str, database: Cases) -> None:
    recipe = LIBRARY[name]
    wrong = {case.name: misfits(case, database.judge(recipe, case)) for case in CASES[name]}
    assert {case: found for case, found in wrong.items() if found} == {}


def test_a_recipe_has_a_case_that_fires_and_one_that_must_not() -> None:
    fires = {name: {case.fires for case in cases} for name, cases in CASES.items()}
    assert [name for name, found in fires.items() if not {True, False} <= found] == []


def test_no_two_cases_of_a_recipe_have_one_name() -> None:
    assert [name for name, cases in CASES.items() if len({case.name for case in cases}) < len(cases)] == []


def test_a_built_in_recipe_says_what_it_needs_when_it_is_wrong_and_what_to_do() -> None:
    for name, recipe in LIBRARY.items():
        assert recipe.needs, name
        assert recipe.false_positives, name
        assert recipe.why, name
        assert recipe.next or recipe.severity == INFO, name
        assert all(parameter.source for parameter in recipe.parameters.values()), name


def test_a_recipe_without_rows_finds_nothing(database: Cases) -> None:
    for name, recipe in LIBRARY.items():
        outcome = database.judge(recipe, Case(name, "no rows at all", False, {}, {}, {}))
        assert outcome.state in (CLEAR, UNKNOWN), outcome
        assert "its SQL failed" not in outcome.reason, name
        assert "its texts name" not in outcome.reason, name


def test_the_commands_that_a_recipe_names_are_commands(database: Cases) -> None:
    named = {tuple(words_of(line)): name for name, recipe in LIBRARY.items() for line in commands_of(recipe)}
    for words, name in named.items():
        if words and words[0] == "probe":
            try:
                check_command([*words[1:]], database)
            except (ProbeError, duckdb.Error, click_exception(), AssertionError) as error:
                raise AssertionError(f"{name}: {shlex.join(words)}") from error


def commands_of(recipe: library.Recipe) -> list[str]:
    """The lines of `next`, filled in: every number is 1."""
    values: dict[str, Any] = dict.fromkeys(recipe.named(), 1)
    values.update((name, parameter.value) for name, parameter in recipe.parameters.items())
    return [rendered(line, {**values, "endpoint": "JOB"}) for line in recipe.next]


def words_of(line: str) -> list[str]:
    """A line's words as a shell parts them; what follows a `#` is for people."""
    return shlex.split(line, comments=True)


def check_command(words: list[str], database: Cases) -> None:
    """Fail when the command is misspelt, its SQL names what is not there, or the guard refuses its snippet.
    Nothing is run."""
    rewritten = read(words, VOCABULARY).words
    group = command_group()
    context = group.make_context("probe", list(rewritten), obj=None)
    name, command, rest = group.resolve_command(context, [*context._protected_args, *context.args])
    parameters = command.make_context(name, list(rest), parent=context).params
    if name == "query":
        database.connection.execute(f"EXPLAIN {parameters['sql']}")
    if name == "eval":
        judgement = classify(ast.parse(parameters["code"]), {})
        assert judgement.kind != REFUSED, judgement.findings


def test_a_misspelt_command_is_seen(database: Cases) -> None:
    for line in (
        "JOB querry 'SELECT 1'", "JOB lr --skale 0.1", "JOB query 'SELECT lost FROM python.steps'",
        "JOB watch --gradients 1 2 3", "JOB eval 'import gc; len(gc.get_objects())'",
    ):
        with pytest.raises((ProbeError, duckdb.Error, click_exception(), AssertionError)):
            check_command(words_of(line), database)


def test_each_folder_of_recipes_is_read_as_files_alone(tmp_path: Path) -> None:
    (tmp_path / "folder.sql").mkdir()
    assert len(library.load([tmp_path]).problems) == 1
