"""`probe memory-snapshot`: save a snapshot of the device's allocator."""

from __future__ import annotations

from typing import Annotated

import typer

from probe_cli.core.act_client import act, file_for
from probe_cli.core.options import Overwrite, TextFormat, Wait

EXAMPLES = ("probe PID memory-snapshot -o memory.pickle",)


def command(
    context: typer.Context,
    output: Annotated[
        str | None,
        typer.Option(
            "--output", "-o", metavar="FILE",
            help="Output file (default: a new pickle in the current directory).",
        ),
    ] = None,
    overwrite: Overwrite = False,
    wait: Wait = None,
    output_format: TextFormat = "text",
) -> None:
    """Save a snapshot of the memory allocator. Open it at pytorch.org/memory_viz."""
    place = file_for(context.obj, output, "memory", ".pickle")
    act(context.obj, "memory_snapshot", wait, output_format, path=place, overwrite=overwrite)
