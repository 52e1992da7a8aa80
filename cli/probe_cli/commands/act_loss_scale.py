"""`probe loss-scale`: show the scale of the GradScaler, or set it."""

from __future__ import annotations

from typing import Annotated

import typer

from probe_cli.core.act_client import act, number
from probe_cli.core.options import Force, TextFormat, Wait
from probe_cli.core.session import Session
from probe_cli.render.value_history import history, history_lines, plain

EXAMPLES = (
    "probe PID loss-scale",
    "probe PID loss-scale --set 1024",
)


def command(
    context: typer.Context,
    value: Annotated[
        float | None, typer.Option("--set", metavar="X", help="Scale to use from the next step on.")
    ] = None,
    force: Force = False,
    wait: Wait = None,
    output_format: TextFormat = "text",
) -> None:
    """Show or set the loss scale of the GradScaler."""
    session: Session = context.obj
    if value is not None:
        scale = number(value, "--set", above_zero=True)
        act(session, "loss_scale", wait, output_format, set=scale, force=force)
        return
    ranges, changes = history(session, "loss_scale", "loss_scale")
    last = ranges[-1]["last"] if ranges else None
    if output_format == "json":
        session.out.json({"loss_scale": last, "history": ranges, "changes": changes})
    elif last is None:
        session.out.line("no step used a loss scale, or it is on a device and not read")
    else:
        session.out.line(f"loss scale {plain(float(last))}")
        session.out.lines(history_lines(ranges, changes))
