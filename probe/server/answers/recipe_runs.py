"""Runs recipes over recordings, many in one request to a query worker.

    ran = await recipe_runs.run_recipes(service, found, recipes, "JOB", caller)
    ran.checks, ran.notes

Recipes with scope `rank` run on the lowest known rank, those with scope `job` on the rows of all ranks, as a
query does. Those that lead to alarms run first. A statement that fails affects only its own recipe; one that
kills the worker is found by bisection. Runs on the server's event loop; files are read on its threads.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from probe.base.errors import HostUnreachable, QueryOutOfMemory, QueryWorkerDied
from probe.diagnose import interventions
from probe.diagnose.arriving import in_causal_order
from probe.diagnose.interventions import with_interventions
from probe.diagnose.recipes.recipe import JOB, MOST_FINDINGS, Check, Recipe
from probe.diagnose.states import ALARM
from probe.server.answers import queries
from probe.server.hosts import fanout
from probe.server.runtime import access
from probe.server.runtime.access import Scope
from probe.server.service import Service
from probe.server.sql import compatibility

DEADLINE_S = 15.0
"""Limit for all recipes of one request, when a user waits; each also has a query's limit."""
BACKGROUND_S = 60.0
"""The same in the background, at low priority."""
RECENT = (32_768, 2 << 20)
"""Minimum of newest rows (of each ring table) and bytes (of each journal) per process that recipes read, so
that a round costs the same after a month as after an hour."""


Tell = Callable[[list[Check]], None]


class RecipeRuns(NamedTuple):
    """The results of recipes, in the order given; `notes`: rows that are missing."""

    checks: list[Check]
    notes: list[str]


async def run_recipes(
    service: Service, found: fanout.Found, recipes: Sequence[Recipe], endpoint: str, caller: access.Caller,
    *, scope: Scope = "job", timeout_s: float = DEADLINE_S, background: bool = False,
    tell: Tell | None = None,
) -> RecipeRuns:
    """Run recipes on the processes that were found; raises the `ProbeError` that any query would. `endpoint`
    is used in suggested commands. `background`: at low priority from the start, for the monitor. `tell`
    receives checks that have ended while others still run."""
    if not recipes:
        return RecipeRuns([], [])
    job = _Job(service, caller, scope, endpoint, timeout_s, background, tell)
    if not found.several:
        alone = _world_size(found) == 1
        together = _in_order([recipe for recipe in recipes if alone or recipe.scope != JOB])
        ran = await job.run(found, together)
        by_name = {check.recipe.name: check for check in ran.checks}
        for recipe in recipes:
            if recipe.name not in by_name:
                by_name[recipe.name] = recipe.unknown("it needs all ranks: diagnose the whole job")
        return RecipeRuns([by_name[recipe.name] for recipe in recipes], ran.notes)
    of_rank = _in_order([recipe for recipe in recipes if recipe.scope != JOB])
    of_job = _in_order([recipe for recipe in recipes if recipe.scope == JOB])
    parts = await asyncio.gather(job.run_on_lowest(found, of_rank), job.run(found, of_job))
    by_name = {check.recipe.name: check for part in parts for check in part.checks}
    notes = list(dict.fromkeys(note for part in parts for note in part.notes))
    return RecipeRuns([by_name[recipe.name] for recipe in recipes], notes)


def _in_order(recipes: Sequence[Recipe]) -> list[Recipe]:
    """Recipes that raise alarms, and recipes that explain those, come first: on a busy machine there may not
    be time for all. In both groups causes precede what they explain, so a finding can be reported at once."""
    alarms = {recipe.name for recipe in recipes if recipe.severity == ALARM}
    causal = in_causal_order(recipes)
    return sorted(causal, key=lambda one: one.name not in alarms and not alarms & set(one.explains))


def _world_size(found: fanout.Found) -> int:
    return found.world_size or max((one.meta.world_size or 1 for one in found.here), default=1)


class _Job(NamedTuple):
    """The parameters that all requests of one run share."""

    service: Service
    caller: access.Caller
    scope: Scope
    endpoint: str
    timeout_s: float
    background: bool
    tell: Tell | None = None

    async def run_on_lowest(self, found: fanout.Found, recipes: Sequence[Recipe]) -> RecipeRuns:
        """Run recipes on the lowest rank, on any host; they are unknown if that host does not answer."""
        try:
            return await self.run(await self._lowest(found), recipes)
        except HostUnreachable as error:
            why = f"the rows of the lowest rank are missing: {error.message}"
            return RecipeRuns([recipe.not_run(why, error.code) for recipe in recipes], [error.message])

    async def _lowest(self, found: fanout.Found) -> fanout.Found:
        here = found.lowest
        elsewhere = min((rank for one in found.met for rank in one.ranks), default=None)
        if here is not None and (elsewhere is None or here.meta.rank < elsewhere):
            return fanout.Found([here], world_size=found.world_size)
        return await fanout.find(self.service, f"{found.endpoint}/{elsewhere}", self.caller)

    async def run(self, found: fanout.Found, recipes: Sequence[Recipe]) -> RecipeRuns:
        """Run recipes in one request; if that kills the worker, run each half."""
        if not recipes:
            return RecipeRuns([], [])
        try:
            answer = await self._ask(found, recipes)
        except (QueryWorkerDied, QueryOutOfMemory) as error:
            if len(recipes) == 1:
                return RecipeRuns([recipes[0].not_run(f"its SQL failed: {error.message}", error.code)], [])
            middle = len(recipes) // 2
            first = await self.run(found, recipes[:middle])
            second = await self.run(found, recipes[middle:])
            notes = list(dict.fromkeys([*first.notes, *second.notes]))
            return RecipeRuns([*first.checks, *second.checks], notes)
        judged = zip(recipes, answer["results"], strict=True)
        checks = [_check(recipe, one, self.endpoint) for recipe, one in judged]
        return RecipeRuns(with_interventions(checks, answer.get("done", ())), answer["notes"])

    async def _ask(self, found: fanout.Found, recipes: Sequence[Recipe]) -> dict[str, Any]:
        batch: list[dict[str, Any]] = [
            {"sql": interventions.SQL, "parameters": {}, "limit": interventions.MOST}  # findings name them
        ]
        for recipe in recipes:
            sql, parameters = recipe.statement()
            # Built-in recipes do not use the time of day or random numbers; the user's own may.
            steady = recipe.built_in
            batch.append({"sql": sql, "parameters": parameters, "limit": MOST_FINDINGS, "steady": steady})
        statements = [compatibility.reads(one["sql"]) for one in batch]
        asked = queries.JobSql(statements, self.caller, self.scope, self.timeout_s)
        request = {
            "batch": batch, "background": self.background, "recent": RECENT,
            "share_s": self.service.settings.query_timeout_s,
        }
        ahead = None if self.tell is None else _Ahead(recipes, self.endpoint, self.tell)
        answer: dict[str, Any] = json.loads(
            await queries.run(self.service, found, asked, request, self.timeout_s, ahead=ahead)
        )
        answer["done"] = answer["results"].pop(0).get("rows", ())
        return answer


class _Ahead:
    """Turns results that arrive before the whole answer into checks, and passes them to `tell`."""

    def __init__(self, recipes: Sequence[Recipe], endpoint: str, tell: Tell) -> None:
        self._recipes = recipes
        self._endpoint = endpoint
        self._tell = tell
        self._done: Sequence[Sequence[Any]] = ()

    def __call__(self, body: bytes) -> None:
        part = json.loads(body)
        results = part["results"]
        first = part["first"] - 1  # the first statement reads the interventions and belongs to no recipe
        if first < 0:
            self._done, first = results.pop(0).get("rows", ()), 0
        recipes = self._recipes[first : first + len(results)]
        checks = [_check(recipe, one, self._endpoint) for recipe, one in zip(recipes, results, strict=True)]
        self._tell(with_interventions(checks, self._done))


def _check(recipe: Recipe, result: dict[str, Any], endpoint: str) -> Check:
    if "error" in result:
        error = result["error"]
        why = " ".join(str(error["message"]).split())
        return recipe.not_run(f"its SQL failed: {why}", str(error.get("code")), result["elapsed_ms"])
    return recipe.check(result["columns"], result["rows"], endpoint, result["elapsed_ms"])

