"""Interventions: what was done to a job through probe, as evidence for what began right after it.

    sql = SQL                                          # one more statement beside those of the recipes
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
"""Snippets that changed something and actions that do, newest first."""
MOST = 200
"""Rows of the statement that are used."""
WITHIN_STEPS = 2
"""How many steps after an intervention a finding may begin that names it: the step in which it takes effect,
and the next, as rows of a step are written at its end."""


def with_interventions(checks: Iterable[Check], rows: Sequence[Sequence[Any]]) -> list[Check]:
    """The checks, whose findings name what was done right before they began. Only a dated recipe's step is
    when it began."""
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
