"""Runs recipes over archived runs: the same statements on the same tables, with the same findings.

    judged = judge(fleet, fleet.new_worker(1), run, recipes)
    judged.findings

The summaries for `compare` are computed the same way. The command's threads; duckdb only in the worker.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from probe.base.errors import ProbeError
from probe.diagnose import interventions
from probe.diagnose.diagnosis import in_groups
from probe.diagnose.finding import Finding, severity_level
from probe.diagnose.interventions import with_interventions
from probe.diagnose.recipes.recipe import JOB, MOST_FINDINGS, Check, Recipe
from probe.diagnose.states import OK
from probe.diagnose.summary import STATEMENTS, statements_for, summarize
from probe.fleet.archived_tables import mentioned, quoted_text
from probe.fleet.fleet_runs import Fleet, Run
from probe.fleet.per_run import Answer, Answering, Ask, Workers

_MOST_ROWS = 4096
Statement = dict[str, Any]


class Judged(NamedTuple):
    """The results of the recipes for one run."""

    run: Run
    checks: list[Check]
    findings: list[Finding]
    """Each cause before what it explains, the worst group first."""
    notes: list[str]
    """Notes on rows that are missing because the run continues."""

    @property
    def worst(self) -> int:
        """The level of the worst finding."""
        return max((severity_level(one.severity) for one in self.findings), default=severity_level(OK))


def judge(
    fleet: Fleet, runs: Sequence[Run], recipes: Sequence[Recipe], answering: Answering
) -> Iterator[Judged]:
    """Run recipes over runs: those with scope `rank` on a run's lowest rank, those with scope `job` on all
    ranks. Yields each run as soon as it is judged; all recipes are unknown for a run that cannot be read."""
    parts: list[tuple[int, list[Recipe]]] = []
    asks: list[Ask] = []
    notes: dict[int, list[str]] = {}
    of_rank = [recipe for recipe in recipes if recipe.scope != JOB]
    of_job = [recipe for recipe in recipes if recipe.scope == JOB]
    tables = _tables(recipes)
    for place, (run, files) in enumerate(zip(runs, fleet.files_of(runs, tables), strict=True)):
        newest, notes[place] = fleet.newest_of(run, files, tables)
        several = len(run.processes) > 1
        lowest = f"rank = {run.lowest}" if several and run.lowest is not None else "true"
        for chosen, where in ((of_rank, lowest), (of_job, "true")) if several else ((list(recipes), "true"),):
            if chosen:
                parts.append((place, chosen))
                request = _batch(_statements(chosen), f"{where}{_only(fleet, run)}")
                asks.append(Ask(request, files, newest))
    left = Counter(place for place, _ in parts)
    checks: dict[int, dict[str, Check]] = {place: {} for place in range(len(runs))}
    for number, answer in answering.each(asks):
        place, chosen = parts[number]
        checks[place].update((one.recipe.name, one) for one in _checks(chosen, answer, runs[place]))
        left[place] -= 1
        if not left[place]:
            ordered = [checks[place][recipe.name] for recipe in recipes]
            found = [_of_archive(one) for one in in_groups(ordered)]
            yield Judged(runs[place], ordered, found, notes[place])


def _only(fleet: Fleet, run: Run) -> str:
    """The condition that selects a run's processes, where files may also have rows of others."""
    if not fleet.narrowing.parts:
        return ""
    return f" AND process IN ({', '.join(quoted_text(str(row['process'])) for row in run.processes)})"


def _tables(recipes: Sequence[Recipe]) -> list[str]:
    texts = [interventions.SQL, *(recipe.sql for recipe in recipes)]
    return sorted({table.full_name for text in texts for table in mentioned(text)})


def _statements(recipes: Sequence[Recipe]) -> list[Statement]:
    found: list[Statement] = [
        {"sql": interventions.SQL, "parameters": {}, "limit": interventions.MOST}  # findings name them
    ]
    for recipe in recipes:
        sql, parameters = recipe.statement()
        found.append({"sql": sql, "parameters": parameters, "limit": MOST_FINDINGS})
    return found


def _batch(statements: Sequence[Statement], where: str) -> dict[str, Any]:
    return {"ask": "batch", "where": where, "statements": list(statements)}


def _checks(recipes: Sequence[Recipe], answer: Answer, run: Run) -> list[Check]:
    if answer.error is not None:
        return [recipe.not_run(answer.error.message, answer.error.code) for recipe in recipes]
    done, *results = answer.head["results"]
    checks = [_check(recipe, one, run.name) for recipe, one in zip(recipes, results, strict=True)]
    return with_interventions(checks, done.get("rows", ()))


def judge_fleet(fleet: Fleet, recipe: Recipe) -> tuple[Check, list[str]]:
    """Run a fleet recipe over all selected runs; also returns notes on missing rows."""
    sql, parameters = recipe.statement()
    try:
        found = fleet.rows(sql, parameters, MOST_FINDINGS)
    except ProbeError as error:
        return recipe.not_run(error.message, error.code), []
    return _check(recipe, found, "URL"), found["notes"]


def _check(recipe: Recipe, result: Mapping[str, Any], name: str) -> Check:
    if "error" in result:
        error = result["error"]
        why = " ".join(str(error["message"]).split())
        return recipe.not_run(f"its SQL failed: {why}", str(error.get("code")), result["elapsed_ms"])
    return recipe.check(result["columns"], result["rows"], name, result["elapsed_ms"])


def _of_archive(found: Finding) -> Finding:
    """A finding without suggested commands, because the process is gone."""
    return replace(found, next=[])


def summary(fleet: Fleet, run: Run, until: int | None) -> dict[str, Any]:
    """The summary of a run for `compare`, up to a step."""
    chosen = statements_for(None, until)
    statements = [{"sql": sql, "parameters": values, "limit": _MOST_ROWS} for sql, values in chosen]
    tables = sorted({table.full_name for sql, _ in chosen for table in mentioned(sql)})
    [files] = fleet.files_of([run], tables)
    newest, notes = fleet.newest_of(run, files, tables)
    [(_, answer)] = Workers(fleet).each([Ask(_batch(statements, "true"), files, newest)])
    if answer.error is not None:
        raise answer.error
    found: dict[str, list[dict[str, Any]]] = {}
    failed: list[str] = []
    for name, one in zip(STATEMENTS, answer.head["results"], strict=True):
        if "error" in one:
            failed.append(f"not read: {name} ({one['error']['message']})")
        else:
            found[name] = [dict(zip(one["columns"], row, strict=True)) for row in one["rows"]]
    lead = min(run.processes, key=lambda row: row["rank"] if row["rank"] is not None else -1)
    who = {
        "job": run.job, "run": run.run, "attempt": run.attempt, "name": run.name, "pid": lead["pid"],
        "host": lead["host"], "world_size": lead["world_size"], "state": lead["state"], "folder": None,
        "started_ns": lead["started_ns"], "ended_ns": lead["ended_ns"],
    }
    return {**who, **summarize(found), "notes": [*failed, *notes]}
