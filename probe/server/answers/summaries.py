"""`GET /v1/summary`: the state of a run in numbers, which `health` shows and `compare` compares.

One request to a query worker (`diagnose.summary`), and on request the findings of the recipes and the watch.
For a multi-rank job: learning and speed of the lowest rank, and the spread over all. Runs on the server's
event loop.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from probe.base.errors import ProbeError
from probe.confined import results as query_results
from probe.diagnose.diagnosis import in_groups
from probe.diagnose.explanations import grouped, worse_than
from probe.diagnose.process.time_left import TimeLeft
from probe.diagnose.recipes.library import installed
from probe.diagnose.states import INFO, OK
from probe.diagnose.summary import STATEMENTS, statements_for, summarize
from probe.server.answers import queries, recipe_runs
from probe.server.hosts import fanout
from probe.server.recordings.end_verdicts import verdict_of_end
from probe.server.recordings.listing import rank_rows
from probe.server.recordings.registry import LIVE
from probe.server.runtime import access
from probe.server.runtime.access import Scope
from probe.server.service import Service

DEADLINE_S = 5.0
_MOST_ROWS = 4096
Incidents = Callable[[], list[dict[str, Any]]]
"""The open incidents of this host, as the monitor lists them."""


async def answer(
    service: Service, incidents: Incidents, endpoint: str, caller: access.Caller, *, until: int | None,
    findings: bool, scope: Scope = "job",
) -> dict[str, Any]:
    """The answer of `GET /v1/summary`. `until`: the last step to include; `findings`: whether to add the
    findings, from the open `incidents` or the recipes."""
    found = await fanout.find(service, endpoint, caller, scope)
    if found.elsewhere is not None:
        asked = {"until": until, "findings": int(findings)}
        body = {name: value for name, value in asked.items() if value is not None}
        return await fanout.forward(service, found, caller, "GET", "/v1/summary", body, DEADLINE_S)
    who = await service.call(_who, service, found)
    results, failed, notes = await _rows(service, found, caller, scope, until)
    judged = await _findings(service, incidents, found, endpoint, caller, scope) if findings else {}
    position = _position(who["verdict"], judged.get("findings", []))
    summary = {
        **who, **summarize(results), **judged, "position": position, "unread": list(failed),
        "notes": [*notes, *_why_unread(failed)],
    }
    shown: dict[str, Any] = plain(summary)
    return shown


async def _rows(
    service: Service, found: fanout.Found, caller: access.Caller, scope: Scope, until: int | None
) -> tuple[dict[str, list[dict[str, Any]]], dict[str, str], list[str]]:
    """By name, the rows of each statement and the errors of those that failed; and notes."""
    timeout_s = min(DEADLINE_S, service.settings.query_timeout_s)
    statements = statements_for(None, until)
    asked = queries.JobSql([sql for sql, _ in statements], caller, scope, timeout_s)
    batch = [{"sql": sql, "parameters": chosen, "limit": _MOST_ROWS} for sql, chosen in statements]
    request = {"batch": batch, "share_s": timeout_s}
    body = await queries.run(service, found, asked, request, timeout_s)
    said = json.loads(body)
    results: dict[str, list[dict[str, Any]]] = {}
    failed: dict[str, str] = {}
    for name, one in zip(STATEMENTS, said["results"], strict=True):
        if "error" in one:
            failed[name] = str(one["error"]["message"])
        else:
            results[name] = [dict(zip(one["columns"], row, strict=True)) for row in one["rows"]]
    return results, failed, list(said["notes"])


def _why_unread(failed: Mapping[str, str]) -> list[str]:
    """One note for each reason, with all statements that failed for it."""
    reasons = dict.fromkeys(failed.values())
    names = {why: ", ".join(name for name, one in failed.items() if one == why) for why in reasons}
    return [f"not read: {names[why]} ({why})" for why in reasons]


def _who(service: Service, found: fanout.Found) -> dict[str, Any]:
    """The identity and state of the lowest rank, and the watch's verdict on it. Blocks on files."""
    lead = found.lowest
    if lead is None:
        return {"job": found.endpoint, "world_size": found.world_size, "state": None, "verdict": None}
    meta, status = lead.meta, service.registry.status(lead)
    state, how = status.state, status.how
    verdict = service.watch.current(lead.folder)
    times: dict[str, Any] = dict.fromkeys(("elapsed_s", *TimeLeft._fields))
    if state not in LIVE:
        verdict = verdict_of_end(lead, status)
        times["elapsed_s"] = max(0, (status.ended_ns or meta.started_ns) - meta.started_ns) * 1e-9
    else:
        row = next(iter(rank_rows(service.registry, service.watch.current, [lead])))
        state, how = str(row["state"]), str(row["how"])
        times = {name: row[name] for name in times}
    return {
        "job": meta.job, "run": meta.run, "attempt": meta.attempt, "rank": meta.rank, "pid": meta.pid,
        "host": meta.host, "world_size": found.world_size or meta.world_size, "folder": str(lead.folder),
        "state": state, "how": how, "started_ns": meta.started_ns, "ended_ns": status.ended_ns,
        **times, "whole": found.several, "verdict": None if verdict is None else verdict.as_dict(),
        "name": meta.job if found.several else lead.name,
    }


async def _findings(
    service: Service, incidents: Incidents, found: fanout.Found, endpoint: str, caller: access.Caller,
    scope: Scope,
) -> dict[str, Any]:
    """Findings, the worst first: the open incidents if the monitor watches the job, else what the recipes
    find now. `judged`: `monitor` or `now`; `unjudged`: why nothing is known."""
    watched = await service.call(_incidents, service, incidents, found)
    if watched is not None:
        return {"findings": watched, "judged": "monitor", "unjudged": []}
    try:
        known = list((await service.call(installed, service.settings.recipes)).values())
        shown = endpoint or (found.here[0].name if found.here else found.endpoint)
        ran = await recipe_runs.run_recipes(service, found, known, shown, caller, scope=scope)
    except ProbeError as error:
        return {"findings": [], "judged": "now", "unjudged": [error.message]}
    return {"findings": [one.as_dict() for one in in_groups(ran.checks)], "judged": "now", "unjudged": []}


def _position(state: dict[str, Any] | None, findings: list[dict[str, Any]]) -> int | None:
    """How many findings precede the state of the process; None if the state adds nothing to them, such as a
    stall that is an incident already."""
    if state is None or state["severity"] in (OK, INFO):
        return None
    if any(one["what"] == state["what"] or one["state"] == state["state"] for one in findings):
        return None
    return worse_than(state["severity"], findings)


def _incidents(service: Service, incidents: Incidents, found: fanout.Found) -> list[dict[str, Any]] | None:
    """Open incidents of these processes; None when the monitor does not watch them."""
    runs = {(one.meta.run, one.meta.attempt) for one in found.here}
    ranks = {one.meta.rank for one in found.here}
    watches = service.settings.monitor and any(service.registry.lives(one) for one in found.here)
    if not watches or found.met:
        return None
    return grouped(
        one for one in incidents()
        if (one["run"], one["attempt"]) in runs and (one["rank"] is None or one["rank"] in ranks)
    )


def plain(value: Any) -> Any:
    """The value with NaN and infinities as text, as in query results: JSON has none."""
    if isinstance(value, float):
        return query_results.as_json(value)
    if isinstance(value, dict):
        return {name: plain(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(one) for one in value]
    return value
