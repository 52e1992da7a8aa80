"""`probe pause`: pause training between two steps."""

from __future__ import annotations

from typing import Annotated

import typer

from probe_cli.core.act_client import act, number
from probe_cli.core.options import TextFormat, Wait

EXAMPLES = ("probe PID pause --for 60",)


def command(
    context: typer.Context,
    for_s: Annotated[
        float | None, typer.Option("--for", metavar="S", help="Resume automatically after S seconds.")
    ] = None,
    wait: Wait = None,
    output_format: TextFormat = "text",
) -> None:
    """Pause training between two steps."""
    act(context.obj, "pause", wait, output_format, for_s=number(for_s, "--for", above_zero=True))
