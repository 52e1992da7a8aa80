"""`probe undo`: undo an action; without an ID it offers the last one that can be undone."""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer

from probe.base.errors import UsageError
from probe_cli.core.act_client import request_undo, show, typed
from probe_cli.core.action_log import action_text, latest
from probe_cli.core.figures import age
from probe_cli.core.options import TextFormat, Wait
from probe_cli.core.session import Session
from probe_cli.core.terminal import escape_controls

EXAMPLES = ("probe PID undo ID",)


def command(
    context: typer.Context,
    action_id: Annotated[
        str | None,
        typer.Argument(metavar="[ID]", help="Action ID from `actions` (default: offers the last one)."),
    ] = None,
    wait: Wait = None,
    output_format: TextFormat = "text",
) -> None:
    """Undo an action."""
    session: Session = context.obj
    if action_id is None:
        action_id = _last(session)
        if action_id is None:
            return
    show(session, request_undo(session, action_id, wait), output_format)


def _last(session: Session) -> str | None:
    """ID of the last action that can be undone, if the user confirms it.

    Raises `UsageError` without a terminal: a script must name the action."""
    rows = [row for row in latest(session) if row["undo"]]
    if not rows:
        raise UsageError(
            "no action that can be undone", hint=f"`{typed(session, 'actions')}` lists what was done."
        )
    last = rows[-1]
    action_id, what = str(last["action_id"]), _in_words(last)
    if not session.input.isatty() or not session.err.terminal:
        hint = f"{typed(session, 'undo', action_id)}  |  {typed(session, 'actions')}"
        raise UsageError(f"no ID given; the last action that can be undone is {action_id}: {what}", hint=hint)
    session.err.stream.write(f"undo {escape_controls(f'{action_id}: {what}')}? [y/N] ")
    session.err.stream.flush()
    if session.input.readline().strip().lower() in ("y", "yes"):
        return action_id
    session.note("nothing undone")
    return None


def _in_words(row: dict[str, Any]) -> str:
    return f"{action_text(row['action'], row['arguments'])}, {age(time.time() - row['t_ns'] * 1e-9)}"
