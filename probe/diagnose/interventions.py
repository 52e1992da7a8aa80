"""Interventions: actions and snippets run through probe, as evidence for findings that began right after.

    sql = SQL                                          # run in addition to the recipes' statements
    checks = with_interventions(checks, rows)          # rows: (step, what)

Pure. Standard library only.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from probe.diagnose.finding import Finding
from probe.diagnose.recipes.recipe import Check

SQL = """
WITH done AS (
    SELECT step, t_ns, format('eval {} ({})', eval_id, replace(code, chr(10), '; ')[:100]) AS what
    FROM probe.evals WHERE "class" = 'changing' AND outcome IN ('ok', 'raised', 'timeout')
    UNION ALL
    SELECT step, t_ns, format('action {} ({} {})', action_id, action, COALESCE(arguments, '')[:100])
    FROM probe.actions WHERE state IN ('done', 'standing', 'undone')
        AND action IN ('lr', 'loss_scale', 'clip', 'skip_nonfinite', 'spike_guard', 'pause', 'resume')
)
SELECT step, what FROM done WHERE step IS NOT NULL ORDER BY t_ns DESC
"""
"""Snippets and actions that changed the job, newest first."""
MOST = 200
"""Maximum number of rows used."""
WITHIN_STEPS = 2
"""A finding names an intervention if it began at most this many steps later: the step in which it takes
effect, and the next, because a step's rows are written at its end."""


def with_interventions(checks: Iterable[Check], rows: Sequence[Sequence[Any]]) -> list[Check]:
    """The checks, with interventions right before a finding added to its evidence. Only dated recipes are
    considered: only their step is the start of the problem."""
    done = [(int(step), str(what)) for step, what in rows]
    return [
        replace(check, findings=[_with(one, done) for one in check.findings])
        if done and check.recipe.dated and check.findings else check
        for check in checks
    ]


def _with(finding: Finding, done: Iterable[tuple[int, str]]) -> Finding:
    if finding.step is None:
        return finding
    near = [(step, what) for step, what in done if 0 <= finding.step - step <= WITHIN_STEPS]
    lines = [f"it began right after {what}, at step {step}" for step, what in dict.fromkeys(near)]
    return replace(finding, why=[*lines, *finding.why]) if lines else finding
