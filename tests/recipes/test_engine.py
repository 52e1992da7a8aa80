"""What a recipe's file may say, and what its rows mean."""

from __future__ import annotations

import math
from pathlib import Path

import duckdb
import pytest

from probe.base.errors import RecipeInvalid
from probe.diagnose.diagnosis import NO_CAUSE, diagnose
from probe.diagnose.explanations import explanations
from probe.diagnose.finding import Finding
from probe.diagnose.interventions import with_interventions
from probe.diagnose.recipes import library as recipes
from probe.diagnose.recipes.local_query import make_tables, run_on
from probe.diagnose.recipes.recipe import Check, Recipe
from probe.diagnose.recipes.recipe_files import parse
from probe.diagnose.stall_parameters import StallThresholds

GOOD = """\
-- title = "loss is NaN or infinite"
-- severity = "alarm"
-- symptoms = ["nan", "loss"]
-- order = 110
-- needs = "a loss"
-- what = "loss became {kind} at step {step}"
-- why = [
--   "before it: {before:.2f} (median of {window} steps)",
--   "never said: {nothing}",
-- ]
-- next = ["probe {endpoint} lr --scale 0.1", "probe {endpoint} undo {nothing}"]
--
-- [parameters.window]
-- value = 20
-- unit = "steps"
-- source = "ours"
SELECT 7 AS step, $window AS before, 'it''s ; $nothing' AS kind -- ; $no
"""


def made(text: str = GOOD, name: str = "loss-nan") -> Recipe:
    return parse(text, Path(f"own/{name}.sql"))


@pytest.mark.parametrize(
    ("there", "instead", "said"),
    [
        ('"alarm"', '"bad"', "line 2: `severity` is 'bad', but should be 'info', 'notice' or 'alarm'"),
        ('["nan", "loss"]', '["naan"]', "line 3: `symptoms` is 'naan', but should be 'nan', 'slow', "),
        ("order =", "ordr =", "line 4: `ordr` is not known; accepted are title,"),
        ("order = 110", "order = 1000", "line 4: `order` is 1000, but should be less than 1000"),
        ("{kind}", "{kind.x}", "line 6: `what` is invalid: {kind.x} is not a column name"),
        ("{kind}", "{}", "line 6: `what` is invalid: {} is not a column name"),
        ("value = 20", "value = [20]", "line 14: [parameters.window] value is invalid: must be a number"),
        ('unit = "steps"', 'units = "steps"', "line 13: [parameters.window] unit is missing"),
        ("$window", "$windw", "the SQL uses $windw, but there is no [parameters.windw]"),
        ("$window", "?", "line 17: ?: parameters are named"),
        ("SELECT 7", "DELETE 7", "line 17: the SQL begins with DELETE; a recipe is one SELECT"),
        ("-- ; $no\n", "; SELECT 2\n", "line 17: more than one statement"),
        ('-- title = "loss is NaN or infinite"\n', "", "`title` is missing"),
        ("order = 110", "order = 11o", "at line 4"),
    ],
)
def test_what_is_wrong_in_a_file_is_said_with_its_line_and_what_is_accepted(
    there: str, instead: str, said: str
) -> None:
    assert there in GOOD
    with pytest.raises(RecipeInvalid) as raised:
        made(GOOD.replace(there, instead, 1))
    assert said in raised.value.message
    assert "own/loss-nan.sql" in raised.value.message


def test_a_parameter_that_is_used_nowhere_and_a_name_with_capitals_are_refused() -> None:
    unused = GOOD.replace("$window", "1").replace("{window}", "some")
    with pytest.raises(RecipeInvalid, match="used neither in the SQL"):
        made(unused)
    with pytest.raises(RecipeInvalid, match="lower-case"):
        made(name="LossNaN")


def test_a_row_is_a_finding_with_its_columns_and_parameters_in_the_texts() -> None:
    recipe = made()
    outcome = recipe.check(["step", "kind", "before", "nothing"], [[7.0, None, math.nan, None]], "a b")
    [finding] = outcome.findings
    assert outcome.state == "found" and finding.step == 7 and finding.subject == ""
    assert finding.what == "loss became ? at step 7"
    assert finding.why == ["before it: NaN (median of 20 steps)"], "a line with a NULL is left out"
    assert finding.next == ["probe 'a b' lr --scale 0.1"]
    assert (finding.state, finding.severity) == ("loss is NaN or infinite", "alarm")


def test_a_row_may_say_how_bad_it_is_who_it_is_about_or_that_it_is_unknown() -> None:
    columns = ["step", "kind", "before", "nothing", "severity", "subject", "rank", "unknown"]
    rows = [
        [1, "NaN", 1.0, 1, "info", "a", 3, None], [2, "NaN", 1.0, 1, "nonsense", "b", None, None],
        [None, None, None, None, None, None, None, "too short"],
    ]
    outcome = made().check(columns, rows, "")
    assert [(one.subject, one.severity, one.rank) for one in outcome.findings] == [
        ("b", "alarm", None), ("a", "info", 3),
    ]
    assert outcome.findings[0].next[0] == "probe lr --scale 0.1"
    only = made().check(columns, rows[2:], "")
    assert (only.state, only.reason) == ("unknown", "too short (needs a loss)")
    assert made().check(columns, [], "").state == "clear"
    lacking = made().check(["step"], [], "")
    assert lacking.state == "unknown" and "its SELECT does not return" in lacking.reason


def test_a_recipe_of_the_user_takes_the_place_of_a_built_in_one_unless_it_is_broken(tmp_path: Path) -> None:
    built_in, own = tmp_path / "built-in", tmp_path / "own"
    for folder in (built_in, own):
        folder.mkdir()
    (built_in / "loss-nan.sql").write_text(GOOD)
    (built_in / "other.sql").write_text(GOOD.replace("order = 110", "order = 5"))
    (own / "loss-nan.sql").write_text(GOOD.replace("alarm", "notice"))
    (own / "other.sql").write_text("SELECT 1")
    (own / "parameters.toml").write_text("[other]\nwindow = 50\nwindw = 1\n[no-such]\nx = 1\n")
    library = recipes.load([built_in, own, tmp_path / "missing"])
    assert list(library) == ["other", "loss-nan"], "in the order of the checks"
    assert library["loss-nan"].severity == "notice"
    assert library["other"].statement()[1] == {"window": 50}
    said = "\n".join(str(problem) for problem in library.problems)
    assert len(library.problems) == 4
    for part in ("own/other.sql, line 1", "windw; accepted are window", "[no-such] is not", "missing"):
        assert part in said
    assert "loss-nan" in str(recipes.unknown_name("los-nan", library).hint)


def test_stall_thresholds_are_overridden_like_the_parameters_of_recipes(tmp_path: Path) -> None:
    wrong = 'stall_steps = -1\nlong_s = inf\nbusy_ratio = "much"\nno_such = 1\nwarm_up_s = 900'
    (tmp_path / "parameters.toml").write_text(f"[stall-thresholds]\n{wrong}\n")
    library = recipes.load([tmp_path])
    assert library.stall_thresholds == StallThresholds(warm_up_s=900.0)
    said = "\n".join(str(problem) for problem in library.problems)
    assert len(library.problems) == 4
    for part in ("stall_steps is -1, but should be greater than 0", "long_s is inf", "no parameter no_such"):
        assert part in said
    [listed] = [one for one in library.as_dict()["stall_thresholds"] if one["name"] == "warm_up_s"]
    assert (listed["value"], listed["unit"]) == (900.0, "s") and "default 300.0 (" in listed["source"]
    assert recipes.load([]).stall_thresholds == StallThresholds(), "the built-in ones stay as they are"


def test_a_recipe_whose_sql_fails_is_unknown_and_the_others_are_judged() -> None:
    connection = duckdb.connect(":memory:", config={"threads": 1})
    make_tables(connection)
    wrong = made(GOOD.replace("SELECT 7", "SELECT lost"), "wrong")
    good = made(GOOD.replace("AS kind", "AS kind, NULL AS nothing"))
    assert [one.state for one in run_on(connection, [wrong, good], "1")] == ["unknown", "found"]
    connection.close()


# Diagnoses ----------------------------------------------------------------------------

_FINE = Finding("running", "ok", "fine")


def outcome(name: str, order: int, state: str, *more: str) -> Check:
    """One of a recipe that is made for it; `more`: further lines of its front matter."""
    front = "\n".join(f"-- {line}" for line in more)
    text = GOOD.replace("-- order = 110", f"-- order = {order}\n{front}" if front else f"-- order = {order}")
    recipe = made(text.replace("loss is NaN", name), name)
    if state == "unknown":
        return recipe.unknown("too short")
    rows = [[order, name, 1.0, None]] if state == "found" else []
    return recipe.check(["step", "kind", "before", "nothing"], rows, "4242")


def test_the_cause_is_the_first_that_is_found_and_that_no_other_explains() -> None:
    checks = [
        outcome("sign", 10, "found"), outcome("effect", 200, "found"),
        outcome("clear", 210, "clear"), outcome("origin", 300, "found", 'explains = ["effect"]'),
        outcome("late", 400, "unknown"),
    ]
    found = diagnose(_FINE, checks, "nan", "4242").as_dict()
    assert [(one["number"], one["outcome"]) for one in found["checks"]] == [
        (1, "found"), (2, "found"), (3, "clear"), (4, "found"), (5, "unknown"),
    ]
    conclusion = found["conclusion"]
    assert (conclusion["cause"], conclusion["severity"]) == ("origin", "alarm")
    assert set(conclusion["consequences"]) == {"sign", "effect"}
    assert conclusion["why"][-1].startswith("also found: ")
    assert conclusion["next"] == ["probe 4242 lr --scale 0.1"]


def test_findings_follow_the_cause_that_explains_them_also_through_others() -> None:
    checks = [
        outcome("plain", 5, "found"), outcome("end", 10, "found"),
        outcome("middle", 200, "found", 'explains = ["end"]'),
        outcome("start", 300, "found", 'explains = ["middle", "absent"]'),
    ]
    found = diagnose(Finding("slow step", "notice", "long"), checks)
    said = [(one.recipe, one.explained_by) for one in found.findings]
    assert said == [("plain", ""), ("start", ""), ("end", "start"), ("middle", "start")]
    assert found.position == 4, "a cause and its consequences stay together"
    assert [one["explained_by"] for one in found.as_dict()["findings"]] == [None, None, "start", "start"]


@pytest.mark.parametrize(("began", "explained"), [(300, True), (10_000, False)])
def test_a_dated_cause_explains_nothing_that_began_before_it(began: int, explained: bool) -> None:
    columns = ["step", "kind", "before", "nothing"]
    cause = outcome("cause", 200, "clear", 'explains = ["end"]', "dated = true").recipe
    checks = [outcome("end", 300, "found"), cause.check(columns, [[began, "a", 1.0, None]], "4242")]
    assert explanations(checks) == ({"end": "cause"} if explained else {})


@pytest.mark.parametrize(("said", "explained"), [
    ("end, other", True), ("other", False), (None, True),
])
def test_a_finding_may_explain_less_than_its_recipe(said: str | None, explained: bool) -> None:
    columns = ["step", "kind", "before", "nothing", "explains"]
    cause = outcome("cause", 200, "clear", 'explains = ["end", "other"]').recipe
    checks = [outcome("end", 300, "found"), cause.check(columns, [[3, "a", 1.0, None, said]], "4242")]
    assert explanations(checks) == ({"end": "cause"} if explained else {})


def test_recipes_that_explain_each_other_have_one_cause() -> None:
    checks = [
        outcome("one", 200, "found", 'explains = ["two"]'),
        outcome("two", 300, "found", 'explains = ["one"]'),
    ]
    assert explanations(checks) == {"two": "one"}


def test_a_recipe_that_explains_one_that_does_not_exist_is_a_problem(tmp_path: Path) -> None:
    text = GOOD.replace("-- order = 110", '-- order = 110\n-- explains = ["loss-nan", "lost"]')
    (tmp_path / "own.sql").write_text(text, encoding="utf-8")
    [problem] = recipes.load([recipes.built_in_folder(), tmp_path]).problems
    assert str(problem).endswith("own.sql, line 5: `explains` is invalid: no recipe is named 'lost'")


def test_a_recipe_may_begin_with_queries_that_others_use_too(tmp_path: Path) -> None:
    text = GOOD.replace("-- order = 110", '-- order = 110\n-- uses = ["trainings", "moving"]')
    own = tmp_path / "own.sql"
    own.write_text(f"{text}, (SELECT MAX(begun) FROM trainings)", encoding="utf-8")
    sql = recipes.load([tmp_path])["own"].sql
    assert sql.startswith("WITH trainings AS (") and "moving AS" not in sql  # which its SQL does not name
    own.write_text(text.replace("moving", "movie"), encoding="utf-8")
    [problem] = recipes.load([tmp_path]).problems
    assert str(problem).endswith(
        "own.sql, line 5: `uses` names movie, but there are only adversarial, modal, moving, "
        "reweighted, rewritten, thaws, trainings, turns"
    )


def test_without_a_cause_it_says_what_is_not_known_and_what_to_do_to_know_it() -> None:
    checks = [outcome("sign", 10, "found"), outcome("deep", 200, "unknown", 'deepen = "gradients"')]
    found = diagnose(_FINE, checks, "loss", "4242").conclusion
    assert found is not None
    assert (found.recipe, found.severity) == ("", "notice")
    assert "no check explains why; 1 of 2 checks could not be judged" in found.what
    assert found.next[:2] == ["probe 4242 watch --gradients --steps 5", "probe 4242 diagnose loss"]
    nothing = diagnose(_FINE, [], "loss", "1").conclusion
    assert nothing is not None and (nothing.state, nothing.severity) == ("nothing found", "ok")


def test_a_finding_is_no_cause_while_what_could_explain_it_did_not_run() -> None:
    effect = outcome("effect", 200, "found")
    late = outcome("origin", 300, "clear", 'explains = ["effect"]').recipe.not_run("no time", "query_timeout")
    found = diagnose(_FINE, [effect, late], "nan", "4242")
    conclusion = found.as_dict()["conclusion"]
    assert (conclusion["state"], conclusion["cause"]) == ("cause not judged", None)
    assert conclusion["what"].endswith("checks that could explain it did not run: origin")
    assert "origin: no time" in conclusion["why"]
    assert conclusion["next"][0] == "probe 4242 diagnose nan"
    [plain] = diagnose(_FINE, [effect, late]).findings
    assert plain.why[-1] == "checks that could explain it did not run: origin (no time)"
    unknown = outcome("origin", 300, "unknown", 'explains = ["effect"]')
    sure = diagnose(_FINE, [effect, unknown], "nan").conclusion
    assert sure is not None and sure.state == "cause", "what was not recorded is said by the check itself"


def test_an_effect_is_no_cause_and_says_so_unless_another_finding_explains_it() -> None:
    effect = outcome("effect", 200, "found", "effect = true")
    alone = diagnose(_FINE, [effect], "loss", "4242")
    conclusion = alone.as_dict()["conclusion"]
    assert (conclusion["state"], conclusion["cause"]) == ("cause not known", None)
    assert alone.findings[0].why[-1] == NO_CAUSE
    beside = diagnose(_FINE, [effect, outcome("mistake", 560, "found")], "loss")
    assert beside.conclusion is not None and beside.conclusion.recipe == "mistake"
    assert [one.recipe for one in beside.findings] == ["mistake", "effect"]
    explained = diagnose(_FINE, [effect, outcome("mistake", 560, "found", 'explains = ["effect"]')]).findings
    assert [(one.recipe, NO_CAUSE in one.why) for one in explained] == [("mistake", False), ("effect", False)]


def test_a_dated_finding_names_what_was_done_right_before_it() -> None:
    columns = ["step", "kind", "before", "nothing"]
    recipe = outcome("dated", 200, "clear", "dated = true").recipe
    began, undated = recipe.check(columns, [[3525, "a", 1.0, None]], "4242"), outcome("other", 525, "found")
    rows = [[3524, "eval e1 (lr = nan)"], [3524, "eval e1 (lr = nan)"], [3000, "eval e0"], [3526, "eval e2"]]
    [dated, same] = with_interventions([began, undated], rows)
    assert dated.findings[0].why[0] == "it began right after eval e1 (lr = nan), at step 3524"
    assert len(dated.findings[0].why) == len(began.findings[0].why) + 1
    assert same == undated


def test_what_is_over_is_the_cause_of_nothing_that_lasts() -> None:
    columns = ["step", "kind", "before", "nothing", "over"]
    past = outcome("past", 200, "clear", 'explains = ["lasts"]').recipe
    over = past.check(columns, [[7, "a", 1.0, None, True]], "4242")
    alone = diagnose(_FINE, [over], "nan").as_dict()["conclusion"]
    assert (alone["state"], alone["cause"], alone["severity"]) == ("over", None, "info")
    found = diagnose(_FINE, [outcome("lasts", 300, "found"), over], "nan").as_dict()
    assert found["conclusion"]["cause"] == "lasts"
    assert [(one["recipe"], one["explained_by"], one["over"]) for one in found["findings"]] == [
        ("lasts", None, False), ("past", None, True),
    ]


def test_a_process_that_hangs_is_the_cause_whatever_else_is_found() -> None:
    stuck = Finding("holds the GIL", "alarm", "stuck", next=["probe 1 backtrace"])
    found = diagnose(stuck, [outcome("sign", 510, "found")], "hang", "1").as_dict()
    assert found["checks"][0]["check_name"] == "process" and found["position"] is None
    conclusion = found["conclusion"]
    assert (conclusion["cause"], conclusion["next"]) == ("process", ["probe 1 backtrace"])
    assert diagnose(stuck, [], "loss", "1").position == 0, "no step of this symptom says it"


def test_everything_is_answered_the_worst_first_with_the_place_of_the_process_among_it() -> None:
    mild = outcome("mild", 10, "found").recipe
    checks = [
        mild.check(["step", "kind", "before", "nothing", "severity"], [[1, "a", 1.0, None, "info"]], "4242"),
        outcome("bad", 300, "found"), outcome("deep", 310, "unknown"),
    ]
    found = diagnose(Finding("slow step", "notice", "long"), checks).as_dict()
    said = [(one["recipe"], one["severity"]) for one in found["findings"]]
    assert said == [("bad", "alarm"), ("mild", "info")]
    assert (found["position"], found["state"], found["judged"]) == (
        1, "slow step", {"found": 2, "clear": 0, "unknown": 1}
    )
    worst = diagnose(Finding("holds the GIL", "alarm", "stuck"), checks)
    assert worst.position == 0, "before what is no worse"
    assert "symptom" not in found and "conclusion" not in found
