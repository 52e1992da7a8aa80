"""The checks of a diagnosis, for `GET /v1/diagnose`: runs recipes, collects deep statistics, records the
results.

The recipes run in a query worker while the state of the process is determined. If a recipe of a symptom lacks
deep statistics, the process lives and the caller may act on it, its agent collects those of a few steps (the
action `watch`), and the unknown checks run again. The checks are recorded in probe.checks. Runs on the
server's event loop; files on its threads.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Sequence
from typing import NamedTuple

from probe.base import clock
from probe.base.errors import ProbeError, QueryTimeout
from probe.base.settings import Settings
from probe.diagnose.arriving import Arriving
from probe.diagnose.diagnosis import Diagnosis
from probe.diagnose.finding import Finding
from probe.diagnose.recipes.library import installed, of_symptom
from probe.diagnose.recipes.recipe import UNKNOWN, Check, Recipe
from probe.diagnose.states import ALARM
from probe.server.agents import act_requests
from probe.server.answers import recipe_runs
from probe.server.answers.recipe_runs import RecipeRuns
from probe.server.hosts import fanout
from probe.server.recordings import server_journal
from probe.server.recordings.registry import LIVE, Recorded
from probe.server.runtime import access
from probe.server.runtime.request_bodies import ActBody
from probe.server.service import Service

DEEP_STEPS = 3
DEEP_S = 5.0
"""Deadline for the steps of deep statistics."""
_WRITE_S = 0.5
"""The time in which the agent's thread writes their rows."""
_POLL_S = 0.1
_MOST_NAMES = 4


STATE, CHECKS = "state", "checks"


class Options(NamedTuple):
    """Options of a diagnosis: one `symptom` (empty for all); `deep`: whether deep statistics may be
    collected; `part`: only the state of the process, or only the checks (empty for both)."""

    symptom: str = ""
    deep: bool = True
    part: str = ""


def _chosen(settings: Settings, wanted: Options) -> tuple[list[Recipe], list[str]]:
    """The recipes to run, and problems in recipe files; raises `RecipeUnknown`. Blocks."""
    library = installed(settings.recipes)
    return of_symptom(library, wanted.symptom), [str(problem) for problem in library.problems]


class Part(NamedTuple):
    """An intermediate result: the findings to show, and how many of the checks have ended."""

    findings: list[Finding]
    judged: int
    of: int


async def run_checks(
    service: Service, found: fanout.Found, called: str, caller: access.Caller, wanted: Options,
    tell: Callable[[Part], None] | None = None,
) -> RecipeRuns:
    """Run the recipes. `tell` receives intermediate results. Raises only `RecipeUnknown`: checks that cannot
    run are unknown."""
    if wanted.part == STATE:
        return RecipeRuns([], [])
    to_run, notes = await service.call(_chosen, service.settings, wanted)
    arriving = Arriving(to_run)

    def arrived(checks: list[Check]) -> None:
        assert tell is not None
        tell(Part(arriving.add(checks), arriving.judged, len(to_run)))

    checks, missing = await _run(service, found, to_run, called, caller, arrived if tell else None)
    checks, late = await _run_late(service, found, checks, called, caller)
    missing += late
    if wanted.symptom and wanted.deep:
        again, said = await _collect_deep_statistics(service, found, checks, caller)
        notes += said
        if again:
            anew, anew_missing = await _run(service, found, again, called, caller)
            missing += anew_missing
            by_name = {one.recipe.name: one for one in anew}
            checks = [by_name.get(one.recipe.name, one) for one in checks]
    return RecipeRuns(checks, list(dict.fromkeys([*notes, *missing])))


async def _run(
    service: Service, found: fanout.Found, to_run: Sequence[Recipe], called: str, caller: access.Caller,
    tell: recipe_runs.Tell | None = None,
) -> RecipeRuns:
    try:
        return await recipe_runs.run_recipes(service, found, to_run, called, caller, tell=tell)
    except ProbeError as error:
        why = f"the recipes could not run: {error.message}"
        return RecipeRuns([one.not_run(why, error.code) for one in to_run], [])


async def _run_late(
    service: Service, found: fanout.Found, checks: list[Check], called: str, caller: access.Caller
) -> tuple[list[Check], list[str]]:
    """Run the recipes that timed out once more; the notes name those that still have no result."""
    late = [one.recipe for one in checks if one.failed == QueryTimeout.code]
    if not late:
        return checks, []
    anew, missing = await _run(service, found, late, called, caller)
    by_name = {one.recipe.name: one for one in anew}
    left = [one.recipe.name for one in anew if one.failed]
    note = f"the machine is busy: {len(late)} checks timed out and ran again"
    if left:
        few = ", ".join(left[:_MOST_NAMES])
        more = f" and {len(left) - _MOST_NAMES} more" if len(left) > _MOST_NAMES else ""
        note += f"; there was no time for {few}{more}: run diagnose again later"
    return [by_name.get(one.recipe.name, one) for one in checks], [note, *missing]


# Deep statistics on request ---------------------------------------------------------


async def _collect_deep_statistics(
    service: Service, found: fanout.Found, checks: Sequence[Check], caller: access.Caller
) -> tuple[list[Recipe], list[str]]:
    """Have the process collect the deep statistics that unknown checks lack; returns the recipes to run
    again."""
    lacking = [one.recipe for one in checks if one.state == UNKNOWN and one.recipe.deepen]
    one = found.lowest
    if not lacking or one is None or caller.role not in (access.OPERATOR, access.OWNER):
        return [], []
    status = await service.call(service.registry.status, one)
    if status.state not in LIVE or status.step is None:
        return [], []
    stalled = service.watch.current(one.folder)
    if stalled is not None and stalled.severity == ALARM:
        return [], [f"deep statistics were not collected: no step ends, {stalled.state}: {stalled.what}"]
    kinds: dict[str, bool] = {recipe.deepen: True for recipe in lacking if recipe.deepen}
    body = ActBody(
        endpoint=str(one.meta.pid), action="watch", arguments={**kinds, "steps": DEEP_STEPS}, wait_s=DEEP_S,
    )
    try:
        asked = act_requests.action(body, caller, service.settings)
        await asyncio.wait_for(service.forwarder.forward(body.endpoint, asked), DEEP_S)
    except (ProbeError, asyncio.TimeoutError) as error:
        why = error.message if isinstance(error, ProbeError) else "no step ended in time"
        return [], [f"deep statistics were not collected: {why}"]
    await _wait_for_step(service, one, status.step + DEEP_STEPS + 1)
    return lacking, [f"{', '.join(kinds)} of {DEEP_STEPS} steps were collected for this diagnosis"]


async def _wait_for_step(service: Service, one: Recorded, step: int) -> None:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + DEEP_S
    while loop.time() < deadline:
        status = await service.call(service.registry.status, one)
        if status.state not in LIVE or (status.step or 0) >= step:
            break
        await asyncio.sleep(_POLL_S)
    await asyncio.sleep(_WRITE_S)


# Recording of the checks ------------------------------------------------------------


def keep(
    service: Service, found: fanout.Found, diagnosis: Diagnosis, caller: access.Caller
) -> dict[str, str]:
    """Record the steps of a diagnosis at the lowest rank of this host, and return its id for the answer. Not
    for a viewer, and not in a copy of a recording. Blocks on the disk."""
    one = found.lowest
    if not diagnosis.steps or one is None or caller.role == access.VIEWER:
        return {}
    if not service.registry.made_here(one):
        return {}
    status = service.registry.status(one)
    common = {
        "diagnosis_id": uuid.uuid4().hex[:12], "t_ns": clock.wall_ns(), "step": status.step,
        "symptom": diagnosis.symptom or None,
    }
    names = ("number", "check_name", "outcome", "what")
    rows = [{**common, **{name: step[name] or None for name in names}} for step in diagnosis.steps]
    server_journal.note_rows(one.folder, "probe.checks", rows)
    return {"diagnosis_id": str(common["diagnosis_id"])}
