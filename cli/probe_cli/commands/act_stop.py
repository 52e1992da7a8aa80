"""`probe stop`: stop training after the current step."""

from __future__ import annotations

from typing import Annotated

import typer

from probe_cli.core.act_client import act, path_for
from probe_cli.core.options import Force, TextFormat, Wait

EXAMPLES = (
    "probe PID stop --checkpoint last.pt",
    "probe PID stop --exit-code 3",
)


def command(
    context: typer.Context,
    checkpoint: Annotated[
        str | None, typer.Option("--checkpoint", metavar="FILE", help="Save a checkpoint to FILE first.")
    ] = None,
    exit_code: Annotated[
        int | None,
        typer.Option("--exit-code", metavar="N", min=0, max=255, help="Exit code of the job (default 0)."),
    ] = None,
    force: Force = False,
    wait: Wait = None,
    output_format: TextFormat = "text",
) -> None:
    """Stop training after the current step."""
    place = None if checkpoint is None else path_for(context.obj, checkpoint)
    act(context.obj, "stop", wait, output_format, checkpoint=place, exit_code=exit_code, force=force)
