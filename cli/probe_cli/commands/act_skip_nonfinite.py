"""`probe skip-nonfinite`: skip updates with NaN or infinity."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from probe_cli.core.act_client import act
from probe_cli.core.action_log import end_standing
from probe_cli.core.options import Force, TextFormat, Wait

EXAMPLES = (
    "probe PID skip-nonfinite on",
    "probe PID skip-nonfinite off",
)


def command(
    context: typer.Context,
    state: Annotated[Literal["on", "off"], typer.Argument(metavar="on|off", help="Turn it on or off.")],
    force: Force = False,
    wait: Wait = None,
    output_format: TextFormat = "text",
) -> None:
    """Skip updates with NaN or infinite gradients."""
    if state == "off":
        end_standing(context.obj, "skip_nonfinite", wait, output_format)
    else:
        act(context.obj, "skip_nonfinite", wait, output_format, force=force)
