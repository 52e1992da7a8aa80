"""What the recipes say, for `GET /v1/diagnose`: findings, and for a symptom the whole procedure.

The recipes run in a query worker while the process is looked at. Where one of a symptom cannot be judged
for want of deep statistics, and the process lives and may be asked, its agent is asked for those of a few
steps (the action `watch`), and what was unknown is judged once more. What was checked is kept in
probe.checks of the recording. Runs on the server's event loop; files on its threads.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Sequence
from typing import Any, NamedTuple

from probe.base import clock
from probe.base.errors import ProbeError
from probe.base.settings import Settings
from probe.diagnose.finding import worst_first
from probe.diagnose.recipes import procedures
from probe.diagnose.recipes.library import of_symptom
from probe.diagnose.recipes.recipe import CLEAR, FOUND, UNKNOWN, Check, Recipe
from probe.server.agents import act_requests
from probe.server.answers import recipe_runs
from probe.server.hosts import fanout
from probe.server.recordings import server_journal as notes
from probe.server.recordings.registry import LIVE, Recorded
from probe.server.runtime import access
from probe.server.runtime.request_bodies import ActBody
from probe.server.service import Service

DEEP_STEPS = 3
DEEP_S = 5.0
"""Deadline of the steps whose deep statistics are waited for."""
_KEPT_S = 0.5
"""After the last of them the agent's thread writes its rows."""
_LOOK_S = 0.1


class Wanted(NamedTuple):
    """What a diagnosis is to find out: everything, or about one symptom. `deep`: whether the process may be
    asked for deep statistics."""

    symptom: str = ""
    deep: bool = True


class Examined(NamedTuple):
    """What the recipes came to; `called`: what the commands of the answer call the subject; `own_recipes`:
    PROBE_RECIPES, as this server was started with."""

    checks: list[Check]
    notes: list[str]
    wanted: Wanted
    called: str
    own_recipes: str

    def findings(self) -> list[dict[str, Any]]:
        """All findings, the worst first."""
        return [one.as_dict() for one in worst_first(one for check in self.checks for one in check.findings)]


def chosen(settings: Settings, wanted: Wanted) -> tuple[list[Recipe], list[str]]:
    """The recipes to run, and what is wrong with files of them; raises `RecipeUnknown`. Blocks."""
    library = recipe_runs.library(settings)
    return of_symptom(library, wanted.symptom), [str(problem) for problem in library.problems]


async def examine(
    service: Service, found: fanout.Found, called: str, caller: access.Caller, wanted: Wanted
) -> Examined:
    """Run the recipes on what was found. Only `RecipeUnknown` is raised: what cannot be run is unknown."""
    to_run, said = await service.call(chosen, service.settings, wanted)
    outcomes, missing = await _judged(service, found, to_run, called, caller)
    if wanted.symptom and wanted.deep:
        again, told = await _deepened(service, found, outcomes, caller)
        said += told
        if again:
            anew, _ = await _judged(service, found, again, called, caller)
            by_name = {one.recipe.name: one for one in anew}
            outcomes = [by_name.get(one.recipe.name, one) for one in outcomes]
    return Examined(outcomes, [*said, *missing], wanted, called, service.settings.recipes)


async def _judged(
    service: Service, found: fanout.Found, to_run: Sequence[Recipe], called: str, caller: access.Caller
) -> tuple[list[Check], list[str]]:
    try:
        judged = await recipe_runs.run_recipes(service, found, to_run, called, caller)
    except ProbeError as error:
        return [one.unknown(f"the recipes were not run: {error.message}") for one in to_run], []
    return judged.checks, judged.notes


# Deep statistics on request ---------------------------------------------------------


async def _deepened(
    service: Service, found: fanout.Found, outcomes: Sequence[Check], caller: access.Caller
) -> tuple[list[Recipe], list[str]]:
    """Have the process take the deep statistics that unknown outcomes lack; the recipes to judge again."""
    lacking = [one.recipe for one in outcomes if one.state == UNKNOWN and one.recipe.deepen]
    one = min(found.here, key=lambda one: one.meta.rank, default=None)
    if not lacking or one is None or caller.role not in (access.OPERATOR, access.OWNER):
        return [], []
    status = await service.call(service.registry.status, one)
    if status.state not in LIVE or status.step is None:
        return [], []
    kinds = {recipe.deepen: True for recipe in lacking if recipe.deepen}
    body = ActBody(
        endpoint=str(one.meta.pid), action="watch", arguments={**kinds, "steps": DEEP_STEPS}, wait_s=DEEP_S,
    )
    try:
        asked = act_requests.action(body, caller, service.settings)
        await asyncio.wait_for(service.handover.ask(body.endpoint, asked), DEEP_S)
    except (ProbeError, asyncio.TimeoutError) as error:
        why = error.message if isinstance(error, ProbeError) else "no step ended in time"
        return [], [f"deep statistics were not taken: {why}"]
    await _wait_for_step(service, one, status.step + DEEP_STEPS + 1)
    return lacking, [f"{', '.join(kinds)} of {DEEP_STEPS} steps were taken for this diagnosis"]


async def _wait_for_step(service: Service, one: Recorded, step: int) -> None:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + DEEP_S
    while loop.time() < deadline:
        status = await service.call(service.registry.status, one)
        if status.state not in LIVE or (status.step or 0) >= step:
            break
        await asyncio.sleep(_LOOK_S)
    await asyncio.sleep(_KEPT_S)


# The answer -------------------------------------------------------------------------


def add(answer: dict[str, Any], examined: Examined) -> dict[str, Any]:
    """The answer of `GET /v1/diagnose` with what the recipes came to."""
    states = [one.state for one in examined.checks]
    answer["findings"] = examined.findings()
    answer["judged"] = {state: states.count(state) for state in (FOUND, CLEAR, UNKNOWN)}
    answer["unknown"] = [
        {"recipe": one.recipe.name, "title": one.recipe.title, "reason": one.reason}
        for one in examined.checks
        if one.state == UNKNOWN
    ]
    answer["notes"] = [*answer.get("notes", ()), *examined.notes]
    answer["own_recipes"] = examined.own_recipes
    symptom = examined.wanted.symptom
    if symptom:
        diagnosis = procedures.examine(symptom, answer, examined.checks, examined.called)
        answer.update(symptom=symptom, **diagnosis.as_dict())
    return answer


def keep(service: Service, found: fanout.Found, answer: dict[str, Any], caller: access.Caller) -> None:
    """Keep what was checked in the recording of the lowest rank here: of a symptom all of it, else what was
    found. Not for who may only look, and not in a copy of a recording. Blocks on the disk."""
    one = min(found.here, key=lambda one: one.meta.rank, default=None)
    if one is None or caller.role == access.VIEWER or not service.registry.made_here(one):
        return
    checks = answer.get("checks") or [
        {"number": number, "check_name": one["recipe"], "outcome": FOUND, "what": one["what"]}
        for number, one in enumerate(answer["findings"], 1)
    ]
    if not checks:
        return
    status = service.registry.status(one)
    common = {
        "diagnosis_id": uuid.uuid4().hex[:12], "t_ns": clock.wall_ns(), "step": status.step,
        "symptom": answer.get("symptom"),
    }
    names = ("number", "check_name", "outcome", "what")
    rows = [{**common, **{name: check[name] or None for name in names}} for check in checks]
    notes.note_rows(one.folder, "probe.checks", rows)
    answer["diagnosis_id"] = common["diagnosis_id"]
