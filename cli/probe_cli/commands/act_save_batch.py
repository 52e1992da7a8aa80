"""`probe save-batch`: save a batch of the training data."""

from __future__ import annotations

from typing import Annotated

import typer

from probe_cli.core.act_client import act, file_for
from probe_cli.core.options import Overwrite, TextFormat, Wait

EXAMPLES = ("probe PID save-batch batch.pt",)


def command(
    context: typer.Context,
    path: Annotated[
        str | None,
        typer.Argument(
            metavar="[FILE]",
            help="Output file, for torch.load (default: a new one in the current directory).",
        ),
    ] = None,
    drop: Annotated[bool, typer.Option("--drop", help="Release the batch in the job afterwards.")] = False,
    overwrite: Overwrite = False,
    wait: Wait = None,
    output_format: TextFormat = "text",
) -> None:
    """Save the batch of the last NaN, or the latest batch.

    The batch of a NaN is the batch in which NaN or infinity first appeared.
    """
    place = file_for(context.obj, path, "batch", ".pt")
    act(context.obj, "save_batch", wait, output_format, path=place, drop=drop, overwrite=overwrite)
