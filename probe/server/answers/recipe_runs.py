"""Recipes over recordings: many of them in one request to a query worker, and which of them are known here.

    ran = await recipe_runs.run_recipes(service, found, recipes, "JOB", caller)
    ran.checks, ran.notes

Recipes with the scope `rank` are judged on the lowest rank that is known, those with the scope `job` on the
rows of all, which travel as those of a query do. A statement that fails is that recipe's affair; one that
ends the worker is found by halving. Runs on the server's event loop; files are read on its threads.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from probe.base.errors import QueryOutOfMemory, QueryWorkerDied
from probe.diagnose.recipes.recipe import JOB, MOST_FINDINGS, Check, Recipe
from probe.server.answers import queries
from probe.server.hosts import fanout
from probe.server.recordings.registry import Recorded
from probe.server.runtime import access
from probe.server.runtime.access import Scope
from probe.server.service import Service

DEADLINE_S = 15.0
"""Of all recipes of one request together, when somebody waits for them; each has a query's deadline, too."""
UNHURRIED_S = 60.0
"""The same when nobody waits, and they give way to whatever else the machine does."""
RECENT = (32_768, 2 << 20)
"""Rows of each ring's table and bytes of each journal's, of each process: at least so many of the newest are
there for a recipe, so that a round costs the same after a month as after an hour."""


class RecipeRuns(NamedTuple):
    """What came of recipes, in the order in which they were given; `notes`: rows that were not there."""

    checks: list[Check]
    notes: list[str]


async def run_here(
    service: Service, sources: Sequence[Recorded], recipes: Sequence[Recipe], endpoint: str,
    *, background: bool = True, timeout_s: float = UNHURRIED_S,
) -> list[Check]:
    """What recipes say of recordings of this host: one process, or the ranks of one job. `endpoint` goes into
    the commands. `background`: nobody waits, so it gives way to the training from its beginning.

    For the monitor, which is about its own host alone."""
    here = list(sources)
    found = fanout.Found(here, endpoint, whole=len(here) > 1)
    ran = await run_recipes(
        service, found, recipes, endpoint, access.Caller(None, None, "unix", access.OWNER), scope="host",
        timeout_s=timeout_s, background=background,
    )
    return ran.checks


async def run_recipes(
    service: Service, found: fanout.Found, recipes: Sequence[Recipe], endpoint: str, caller: access.Caller,
    *, scope: Scope = "job", timeout_s: float = DEADLINE_S, background: bool = False,
) -> RecipeRuns:
    """What recipes say of the processes that were found; raises the `ProbeError` that would end any query."""
    if not recipes:
        return RecipeRuns([], [])
    job = _Job(service, caller, scope, endpoint, timeout_s, background)
    if not found.several:
        alone = _world_size(found) == 1
        together = [recipe for recipe in recipes if alone or recipe.scope != JOB]
        ran = await job.run(found, together)
        by_name = {check.recipe.name: check for check in ran.checks}
        for recipe in recipes:
            if recipe.name not in by_name:
                by_name[recipe.name] = recipe.unknown("it is judged over all ranks: ask the job")
        return RecipeRuns([by_name[recipe.name] for recipe in recipes], ran.notes)
    lowest = await _lowest(service, found, caller)
    of_rank = [recipe for recipe in recipes if recipe.scope != JOB]
    of_job = [recipe for recipe in recipes if recipe.scope == JOB]
    parts = await asyncio.gather(job.run(lowest, of_rank), job.run(found, of_job))
    by_name = {check.recipe.name: check for part in parts for check in part.checks}
    notes = list(dict.fromkeys(note for part in parts for note in part.notes))
    return RecipeRuns([by_name[recipe.name] for recipe in recipes], notes)


def _world_size(found: fanout.Found) -> int:
    return found.world_size or max((one.meta.world_size or 1 for one in found.here), default=1)


async def _lowest(service: Service, found: fanout.Found, caller: access.Caller) -> fanout.Found:
    """The lowest rank of a job, wherever it is."""
    here = min(found.here, key=lambda one: one.meta.rank, default=None)
    elsewhere = min((rank for one in found.met for rank in one.ranks), default=None)
    if here is not None and (elsewhere is None or here.meta.rank < elsewhere):
        return fanout.Found([here], world_size=found.world_size)
    return await fanout.find(service, f"{found.endpoint}/{elsewhere}", caller)


class _Job(NamedTuple):
    """What is the same for every request about one diagnosis."""

    service: Service
    caller: access.Caller
    scope: Scope
    endpoint: str
    timeout_s: float
    background: bool

    async def run(self, found: fanout.Found, recipes: Sequence[Recipe]) -> RecipeRuns:
        """Run recipes in one request; when that ends the worker, the halves of them."""
        if not recipes:
            return RecipeRuns([], [])
        try:
            answer = await self._ask(found, recipes)
        except (QueryWorkerDied, QueryOutOfMemory) as error:
            if len(recipes) == 1:
                return RecipeRuns([recipes[0].unknown(f"its SQL failed: {error.message}")], [])
            middle = len(recipes) // 2
            first = await self.run(found, recipes[:middle])
            second = await self.run(found, recipes[middle:])
            notes = list(dict.fromkeys([*first.notes, *second.notes]))
            return RecipeRuns([*first.checks, *second.checks], notes)
        results = zip(recipes, answer["results"], strict=True)
        return RecipeRuns([_check(recipe, one, self.endpoint) for recipe, one in results], answer["notes"])

    async def _ask(self, found: fanout.Found, recipes: Sequence[Recipe]) -> dict[str, Any]:
        statements = [recipe.statement() for recipe in recipes]
        batch = [
            {"sql": sql, "parameters": parameters, "limit": MOST_FINDINGS} for sql, parameters in statements
        ]
        asked = queries.Asked([sql for sql, _ in statements], self.caller, self.scope, self.timeout_s)
        request = {
            "batch": batch, "background": self.background, "recent": RECENT,
            "share_s": self.service.settings.query_timeout_s,
        }
        answer: dict[str, Any] = json.loads(
            await queries.run(self.service, found, asked, request, self.timeout_s)
        )
        return answer


def _check(recipe: Recipe, result: dict[str, Any], endpoint: str) -> Check:
    if "error" in result:
        why = " ".join(str(result["error"]["message"]).split())
        return recipe.unknown(f"its SQL failed: {why}", result["elapsed_ms"])
    return recipe.check(result["columns"], result["rows"], endpoint, result["elapsed_ms"])

