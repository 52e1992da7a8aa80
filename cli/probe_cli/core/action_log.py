"""Action log: reads a job's actions from its recording, and ends the ones still in effect.

The recording outlives the job, so it also has the actions of a dead job. Runs in the command's main thread.
"""

from __future__ import annotations

import json
from typing import Any, Literal

from probe.client.answer import Answer
from probe_cli.core.act_client import request_undo, show
from probe_cli.core.direct import Request, request_process
from probe_cli.core.session import Session

COMPLETION = "  # completion"
"""Suffix of snippets that only serve completion at a prompt: recorded, but not listed."""
_LONGEST_CODE = 60
_LATEST = (
    "SELECT action_id, min(t_ns) OVER asked AS t_ns, min(step) OVER asked AS step, action, arguments, state,"
    " what, undo, caller_uid, caller_pid, caller_role, held_s, duration_s, rank, pid FROM probe.actions"
    " WINDOW asked AS (PARTITION BY pid, action_id)"
    " QUALIFY row_number() OVER (PARTITION BY pid, action_id ORDER BY probe.actions.t_ns DESC) = 1"
    " ORDER BY 2, action_id"
)
"""One row per action: its request time and its latest state."""
_EVALS = (
    "SELECT eval_id AS action_id, min(t_ns) OVER asked AS t_ns, max(step) OVER asked AS step,"
    " 'eval' AS action, to_json({'code': code}) AS arguments, outcome AS state, class AS what, NULL AS undo,"
    " caller_uid, caller_pid, caller_role, held_s, duration_s, rank, pid FROM probe.evals"
    f" WHERE code NOT LIKE '%{COMPLETION}'"
    " WINDOW asked AS (PARTITION BY pid, eval_id)"
    " QUALIFY row_number() OVER (PARTITION BY pid, eval_id ORDER BY probe.evals.t_ns DESC) = 1"
)
"""One row per snippet, with the columns of an action."""


def latest(session: Session) -> list[dict[str, Any]]:
    """Every action of the endpoint with its latest state, oldest first; `arguments` decoded."""
    rows = Answer.query(session, _LATEST).records()
    return [{**row, "arguments": decoded(row["arguments"])} for row in rows]


def latest_with_evals(session: Session) -> list[dict[str, Any]]:
    """Like `latest`, with the snippets of `eval` as actions that cannot be undone."""
    sql = f"FROM ({_LATEST}) UNION ALL BY NAME FROM ({_EVALS}) ORDER BY t_ns, action_id"
    rows = Answer.query(session, sql).records()
    return [{**row, "arguments": decoded(row["arguments"])} for row in rows]


def decoded(text: object) -> Any:
    """Decode the arguments of an action, stored as JSON; other text is returned as it is."""
    try:
        return json.loads(str(text))
    except ValueError:
        return text


def action_text(action: str, arguments: Any) -> str:
    """Short text of an action: `lr scale=0.1 group=0`."""
    if not isinstance(arguments, dict):
        return action
    if action == "eval":
        first, *more = str(arguments.get("code")).strip().splitlines() or [""]
        return f"eval {first[:_LONGEST_CODE]}{'…' if more or len(first) > _LONGEST_CODE else ''}"
    given = {name: value for name, value in arguments.items() if value is not None and value is not False}
    return " ".join([action, *(f"{name}={_short(value)}" for name, value in given.items())])


def _short(value: Any) -> str:
    if isinstance(value, str) and value.startswith("/"):
        return "…/" + value.rpartition("/")[2]
    return str(value) if isinstance(value, (str, int, float)) else json.dumps(value, ensure_ascii=False)


def end_standing(
    session: Session, action: str, wait_s: float | None, output_format: Literal["text", "json"]
) -> None:
    """Undo every standing instance of an action, latest first."""
    standing = [one for one in _standing(session) if one["action"] == action]
    if not standing:
        text = f"{action.replace('_', '-')} is not on; nothing to undo"
        session.out.line(json.dumps({"undone": []}) if output_format == "json" else text)
    for one in {str(one["id"]): one for one in reversed(standing)}.values():  # all-rank actions once
        show(session, request_undo(session, str(one["id"]), wait_s), output_format)


def _standing(session: Session) -> list[dict[str, Any]]:
    """Actions in effect: from the recording, or from the process itself if no server answers."""
    answer = request_process(
        session,
        server=Request("POST", "/v1/query", body={"endpoint": session.address.endpoint, "sql": _LATEST}),
        agent=Request("GET", "/v1/actions"),
        timeout_s=session.settings.query_timeout_s,
    )
    if "standing" in answer:
        return list(answer["standing"])
    rows = Answer.parse(answer).records()
    return [{"id": row["action_id"], **row} for row in rows if row["state"] == "standing"]
