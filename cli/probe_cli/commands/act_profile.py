"""`probe profile`: profile steps with torch's profiler."""

from __future__ import annotations

from typing import Annotated

import typer

from probe_cli.core.act_client import act, file_for
from probe_cli.core.options import Overwrite, Steps, TextFormat, Wait

EXAMPLES = (
    "probe PID profile --steps 3 -o trace.json",
    "probe PID profile",
)


def command(
    context: typer.Context,
    output: Annotated[
        str | None,
        typer.Option(
            "--output", "-o", metavar="FILE",
            help="Trace file, to open in Perfetto (default: a new one in the current directory).",
        ),
    ] = None,
    steps: Steps = 3,
    overwrite: Overwrite = False,
    wait: Wait = None,
    output_format: TextFormat = "text",
) -> None:
    """Profile the next steps with the PyTorch profiler."""
    place = file_for(context.obj, output, "trace", ".json")
    act(context.obj, "profile", wait, output_format, steps=steps, path=place, overwrite=overwrite)
