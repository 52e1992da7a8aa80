"""`probe actions`, and taking back by name: what was done to a job, from its recording.

The recording outlives the job: what a dead one was made to do is listed too. The
command's main thread.
"""

from __future__ import annotations

import json
import time
from typing import Any, Literal

from probe.base.rank_sets import as_text
from probe_cli.commands.ps import age
from probe_cli.core.act_client import Format, ask_to_undo, show
from probe_cli.core.direct import Question, ask_process
from probe_cli.core.session import Session
from probe_cli.core.terminal import escape_controls
from probe_cli.render.grid import Heading, grid
from probe_cli.render.query_answer import Answer

LATEST = (
    "SELECT action_id, min(t_ns) OVER asked AS t_ns, min(step) OVER asked AS step, action, arguments, state,"
    " what, undo, caller_uid, caller_pid, caller_role, held_s, duration_s, rank, pid FROM probe.actions"
    " WINDOW asked AS (PARTITION BY pid, action_id)"
    " QUALIFY row_number() OVER (PARTITION BY pid, action_id ORDER BY probe.actions.t_ns DESC) = 1"
    " ORDER BY 2, action_id"
)
"""One row for each action: when it was asked, and its latest state."""
_HEADINGS = (
    Heading("ID", number=True), Heading("WHEN"), Heading("STEP", number=True), Heading("ACTION"),
    Heading("BY"), Heading("RANKS"), Heading("UNDO"), Heading("STATE"),
)
_NOT_DONE = ("failed", "refused", "cancelled")
"""States of which the reason is shown."""
_COLOURS = {"standing": ("green",), "failed": ("red",), "refused": ("yellow",), "cancelled": ("yellow",)}


def list_actions(session: Session, format: Literal["table", "json"]) -> None:
    """One line for each action, the latest last."""
    rows = latest(session)
    if format == "json":
        text = json.dumps({"actions": rows}, ensure_ascii=False)
        session.out.line(escape_controls(text) if session.out.terminal else text)
        return
    if not rows:
        session.note("nothing was done to it")
        return
    several = len({row["rank"] for row in rows}) > 1
    headings = _HEADINGS if several else tuple(one for one in _HEADINGS if one.name != "RANKS")
    cells = [_cells(row, several=several) for row in merged(rows)]

    def paint(number: int, column: int, text: str) -> str:
        if number < 0:
            return session.out.style(text, "bold")
        state = headings[column].name == "STATE"
        word = cells[number][column].partition(":")[0]
        return session.out.style(text, *_COLOURS.get(word, ())) if state else text

    for line in grid(headings, cells, session.out.width, paint):
        session.out.line(line)


def latest(session: Session) -> list[dict[str, Any]]:
    """Every action of the endpoint with its latest state, oldest first; `arguments` decoded."""
    body = {"endpoint": session.address.endpoint, "sql": LATEST}
    answer = Answer.parse(session.ask("POST", "/v1/query", body=body))
    names = [name for name, _ in answer.columns]
    rows = [dict(zip(names, row, strict=True)) for row in answer.rows]
    return [{**row, "arguments": decoded(row["arguments"])} for row in rows]


def merged(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What ranks did together, once for each state that it has on some of them; `ranks` says on which."""
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in rows:
        key = (row["action_id"], row["state"], None if _is_of_all(row["action_id"]) else row["pid"])
        first = found.setdefault(key, {**row, "ranks": []})
        first["ranks"].append(row["rank"])
    return list(found.values())


def _is_of_all(action_id: object) -> bool:
    return str(action_id).startswith("all-")


def decoded(text: object) -> Any:
    """The arguments of an action, which are kept as JSON."""
    try:
        return json.loads(str(text))
    except ValueError:
        return text


def _cells(row: dict[str, Any], *, several: bool) -> list[str]:
    pid = "" if row["caller_pid"] is None else f" {row['caller_pid']}"
    state = f"{row['state']}: {row['what']}" if row["state"] in _NOT_DONE and row["what"] else row["state"]
    found = [
        str(row["action_id"]), age(time.time() - row["t_ns"] * 1e-9),
        "-" if row["step"] is None else f"{row['step']:,}", action_text(row["action"], row["arguments"]),
        f"{row['caller_role'] or '-'}{pid}", *([as_text(row["ranks"])] if several else []),
        f"undo {row['action_id']}" if row["undo"] else "-", str(state),
    ]
    return [escape_controls(cell) for cell in found]


def action_text(action: str, arguments: Any) -> str:
    """`lr scale=0.1 group=0`: an action as a few words."""
    if not isinstance(arguments, dict):
        return action
    given = {name: value for name, value in arguments.items() if value is not None and value is not False}
    words = [f"{name}={_short(value)}" for name, value in given.items()]
    return " ".join([action, *words])


def _short(value: Any) -> str:
    if isinstance(value, str) and value.startswith("/"):
        return "…/" + value.rpartition("/")[2]
    return str(value) if isinstance(value, (str, int, float)) else json.dumps(value, ensure_ascii=False)


# Taking back by name ----------------------------------------------------------


def end_standing(session: Session, action: str, wait_s: float | None, format: Format) -> None:
    """Undo what stands of an action, the latest first; a word when nothing does."""
    standing = [one for one in _standing(session) if one["action"] == action]
    if not standing:
        session.out.line(
            json.dumps({"undone": []}) if format == "json" else f"{_word(action)} is not on; nothing was done"
        )
        return
    for one in {str(one["id"]): one for one in reversed(standing)}.values():  # those of all ranks once
        show(session, ask_to_undo(session, str(one["id"]), wait_s), format)


def _standing(session: Session) -> list[dict[str, Any]]:
    """What is in force: as the recording says, or the process itself where no server answers."""
    answer = ask_process(
        session,
        server=Question("POST", "/v1/query", body={"endpoint": session.address.endpoint, "sql": LATEST}),
        agent=Question("GET", "/v1/actions"),
        timeout_s=session.settings.query_timeout_s,
    )
    if "standing" in answer:
        return list(answer["standing"])
    found = Answer.parse(answer)
    names = [name for name, _ in found.columns]
    rows = [dict(zip(names, row, strict=True)) for row in found.rows]
    return [{"id": row["action_id"], **row} for row in rows if row["state"] == "standing"]


def _word(action: str) -> str:
    """The command of an action."""
    return action.replace("_", "-")
