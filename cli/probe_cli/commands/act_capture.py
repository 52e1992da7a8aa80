"""`probe capture`: save the inputs and outputs of a module."""

from __future__ import annotations

from typing import Annotated

import typer

from probe_cli.core.act_client import act, file_for
from probe_cli.core.options import Overwrite, Steps, TextFormat, Wait

EXAMPLES = ("probe PID capture blocks.0.attention --steps 1 -o attention.pt",)


def command(
    context: typer.Context,
    module: Annotated[str, typer.Argument(metavar="MODULE", help="Module path, e.g. blocks.3.attn.")],
    output: Annotated[
        str | None,
        typer.Option(
            "--output", "-o", metavar="FILE",
            help="Output file, for torch.load (default: a new one in the current directory).",
        ),
    ] = None,
    steps: Steps = 1,
    overwrite: Overwrite = False,
    wait: Wait = None,
    output_format: TextFormat = "text",
) -> None:
    """Save the inputs and outputs of a module."""
    place = file_for(context.obj, output, f"capture-{module}", ".pt")
    act(
        context.obj, "capture", wait, output_format,
        module=module, steps=steps, path=place, overwrite=overwrite,
    )
