"""`probe spike-guard`: reset momentum when gradients spike."""

from __future__ import annotations

from typing import Annotated

import typer

from probe_cli.core.act_client import act, number, one_of
from probe_cli.core.action_log import end_standing
from probe_cli.core.options import Force, TextFormat, Wait

EXAMPLES = (
    "probe PID spike-guard --threshold 5",
    "probe PID spike-guard --off",
)


def command(
    context: typer.Context,
    threshold: Annotated[
        float | None,
        typer.Option("--threshold", metavar="X", help="A spike is a gradient X times its usual norm."),
    ] = None,
    off: Annotated[bool, typer.Option("--off", help="Turn it off.")] = False,
    force: Force = False,
    wait: Wait = None,
    output_format: TextFormat = "text",
) -> None:
    """Scale down gradient spikes and reset momentum."""
    one_of(threshold=threshold, off=off)
    if off:
        end_standing(context.obj, "spike_guard", wait, output_format)
        return
    limit = number(threshold, "--threshold", above_zero=True)
    act(context.obj, "spike_guard", wait, output_format, threshold=limit, force=force)
