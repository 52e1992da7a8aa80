"""Findings while the checks still run: each once, in its final form, as early as that is sure."""

from __future__ import annotations

import random
from pathlib import Path

from probe.diagnose.arriving import Arriving, in_causal_order
from probe.diagnose.diagnosis import in_groups
from probe.diagnose.recipes.library import installed
from probe.diagnose.recipes.recipe import CLEAR, FOUND, UNKNOWN, Check, Recipe
from probe.diagnose.recipes.recipe_files import parse

KINDS = """\
-- title = "{name}"
-- severity = "notice"
-- symptoms = ["loss"]
-- what = "it is so"
-- explains = [{explains}]
SELECT 1 AS step
"""


def made(name: str, *explains: str) -> Recipe:
    listed = ", ".join(f'"{one}"' for one in explains)
    return parse(KINDS.format(name=name, explains=listed), Path(f"own/{name}.sql"))


CAUSE, BETWEEN, EFFECT, ALONE = (
    made("cause", "between"), made("between", "effect"), made("effect"), made("alone")
)


def found(recipe: Recipe) -> Check:
    return recipe.check(["step"], [[1]], "7")


def test_a_finding_waits_only_for_what_may_explain_it() -> None:
    arriving = Arriving([EFFECT, BETWEEN, CAUSE, ALONE])
    assert arriving.add([found(EFFECT)]) == []
    assert [one.recipe for one in arriving.add([found(ALONE)])] == ["alone"]
    assert arriving.add([found(BETWEEN)]) == [] and arriving.judged == 3
    shown = arriving.add([found(CAUSE)])
    assert [(one.recipe, one.explained_by) for one in shown] == [
        ("cause", ""), ("effect", "cause"), ("between", "cause"),
    ]
    assert arriving.add([found(CAUSE)]) == [], "each once"


def test_what_had_no_time_runs_again_and_keeps_what_it_may_explain_waiting() -> None:
    arriving = Arriving([BETWEEN, EFFECT])
    late = BETWEEN.not_run("no time was left for this query", "query_timeout")
    assert arriving.add([late, found(EFFECT)]) == [] and arriving.judged == 1
    assert [one.recipe for one in arriving.add([Check(BETWEEN, CLEAR)])] == ["effect"]
    unreadable = Arriving([BETWEEN, EFFECT])
    shown = unreadable.add([BETWEEN.not_run("its SQL failed", "sql_invalid"), found(EFFECT)])
    assert "checks that could explain it did not run: between" in shown[0].why[-1]


def test_in_whatever_order_the_checks_end_the_findings_are_those_of_the_whole_answer() -> None:
    recipes = list(installed("").values())
    drawn = random.Random(7)
    checks = [
        found(one) if (state := drawn.choice((FOUND, CLEAR, UNKNOWN))) == FOUND
        else Check(one, state, reason="nothing was logged")
        for one in recipes
    ]
    whole = in_groups(checks)
    for _ in range(20):
        arriving, shown = Arriving(recipes), []
        left = drawn.sample(checks, len(checks))
        while left:
            some, left = left[:5], left[5:]
            shown += arriving.add(some)
        assert sorted(map(repr, shown)) == sorted(map(repr, whole))


def test_causes_run_before_what_they_explain_and_a_circle_ends() -> None:
    recipes = list(installed("").values())
    ordered = [one.name for one in in_causal_order(recipes)]
    assert sorted(ordered) == sorted(one.name for one in recipes)
    circle = [made("a", "b"), made("b", "a"), EFFECT, BETWEEN]
    assert [one.name for one in in_causal_order(circle)] == ["between", "effect", "a", "b"]
    before = sum(
        ordered.index(one.name) < ordered.index(name) for one in recipes for name in one.explains
    )
    assert before >= 0.95 * sum(len(one.explains) for one in recipes), "but for circles"
