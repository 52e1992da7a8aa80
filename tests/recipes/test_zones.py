"""The zone that the page shades and the recipe that it belongs to judge alike, in all its cases: the value
that it calls wrong is outside, and where it finds nothing all values are inside."""

from __future__ import annotations

import re
from typing import Any

import pytest

from probe.base.errors import RecipeInvalid
from probe.diagnose.recipes.library import built_in_folder, load
from probe.diagnose.recipes.recipe_files import parse
from recipes.recipe_cases import Case, Cases, cases_beside

ZONES = {name: recipe for name, recipe in load([built_in_folder()]).items() if recipe.zone is not None}
BESIDE = [case for name in ZONES for case in cases_beside(built_in_folder() / f"{name}.sql")]
CASES = [case for case in BESIDE if case.fires != "unknown"]
VALUES = {
    "loss": "step, loss AS value FROM python.steps",
    "grad_norm": "step, grad_norm AS value FROM python.steps",
    "lr": "step, lr AS value FROM python.steps",
    "rate": "step, coalesce(tokens, samples) / wall_s AS value FROM python.steps",
    "rss": "step, rss_bytes AS value FROM process.memory",
    "allocated": "step, greatest(reserved_bytes, peak_allocated_bytes) AS value FROM process.memory",
}
NO_LEVEL = {
    "they grow from step to step": "judged against a time long ago",
    "gradients that were large in the first steps grow again, while the loss falls": "as above",
    "it became NaN on the way": "not a number on any side",
    "the norm grew 20,000 steps ago, and the loss has fallen since": "it did no harm",
    "0 on the last step alone": "it lasted a step",
    "pauses for evaluation": "they lasted a step each",
}
"""Cases in which more than a level decides, or where one training ends and another begins: then
recipe and zone differ, and the page says that they may."""


@pytest.fixture(scope="module")
def database() -> Cases:
    return Cases()


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.recipe}: {case.name}")
def test_what_a_recipe_finds_is_outside_its_zone_and_all_else_inside(case: Case, database: Cases) -> None:
    steps = outside(database, case)
    assert bool(steps) == (case.fires is (case.name not in NO_LEVEL)), steps[:5]
    if steps and "step" in case.expect:
        assert case.expect["step"] in steps


def outside(database: Cases, case: Case) -> list[int]:
    """The steps whose values are outside of the zone, one bucket a step."""
    recipe = ZONES[case.recipe]
    assert recipe.zone is not None
    known: dict[str, Any] = {name: one.value for name, one in recipe.parameters.items()} | case.parameters
    known |= {"rank": 0, "from_ms": 0, "to_ms": 1 << 50, "width_ms": 1}
    zone = re.sub(r"\$(\w+)", lambda found: str(known[found[1]]), recipe.zone.sql)
    connection = database.connection
    connection.execute("BEGIN")
    try:
        database.fill(case)
        for table in ("python.steps", "process.memory"):
            connection.execute(f"UPDATE {table} SET t_ns = step * 1000000")
        found = connection.execute(
            f"WITH shown AS (SELECT t_ns // 1000000 AS ms, {VALUES[recipe.zone.of]}), zone AS ({zone})"
            " SELECT step FROM shown ASOF JOIN zone USING (ms)"
            " WHERE value > high OR value < low ORDER BY step"
        )
        return [step for (step,) in found.fetchall()]
    finally:
        connection.execute("ROLLBACK")


@pytest.mark.parametrize(("right", "wrong"), [("GREATEST($times", "GREATEST($time"), ("{times:", "{time:")])
def test_a_zone_names_parameters_of_its_recipe_alone(right: str, wrong: str) -> None:
    file = built_in_folder() / "gradients-exploding.sql"
    before, begins, zone = file.read_text(encoding="utf-8").partition("-- [zone]")
    with pytest.raises(RecipeInvalid, match=r"the zone uses time, but there is no \[parameters\.time\]"):
        parse(before + begins + zone.replace(right, wrong), file)
