"""`probe memory-snapshot`: save a snapshot of the device's allocator."""

from __future__ import annotations

from typing import Annotated

import typer

from probe_cli.core.act_client import act, path_for
from probe_cli.core.options import Overwrite, TextFormat, Wait

EXAMPLES = ("probe PID memory-snapshot -o memory.pickle",)


def command(
    context: typer.Context,
    output: Annotated[
        str, typer.Option("--output", "-o", metavar="FILE", help="Output file (pickle).")
    ],
    overwrite: Overwrite = False,
    wait: Wait = None,
    output_format: TextFormat = "text",
) -> None:
    """Save a snapshot of the memory allocator. Open it at pytorch.org/memory_viz."""
    place = path_for(context.obj, output)
    act(context.obj, "memory_snapshot", wait, output_format, path=place, overwrite=overwrite)
