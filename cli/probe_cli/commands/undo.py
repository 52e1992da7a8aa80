"""`probe undo`: undo an action."""

from __future__ import annotations

from typing import Annotated

import typer

from probe_cli.core.act_client import request_undo, show
from probe_cli.core.options import TextFormat, Wait

EXAMPLES = ("probe PID undo ID",)


def command(
    context: typer.Context,
    action_id: Annotated[str, typer.Argument(metavar="ID", help="Action ID, as `actions` lists it.")],
    wait: Wait = None,
    output_format: TextFormat = "text",
) -> None:
    """Undo an action."""
    show(context.obj, request_undo(context.obj, action_id, wait), output_format)
