"""`probe checkpoint`: save a checkpoint now, or regularly."""

from __future__ import annotations

from typing import Annotated

import typer

from probe.base.errors import UsageError
from probe_cli.core.act_client import act, path_for
from probe_cli.core.options import Overwrite, TextFormat, Wait

EXAMPLES = (
    "probe PID checkpoint rescue.pt",
    "probe PID checkpoint rescue.pt --overwrite --now",
    "probe PID checkpoint kept --every 1000 --keep 3 --best loss",
)


def command(
    context: typer.Context,
    path: Annotated[
        str, typer.Argument(metavar="PATH", help="File; a folder with --every or for a multi-rank job.")
    ],
    now: Annotated[
        bool, typer.Option("--now", help="Do not wait for the end of a step: for a hung job.")
    ] = False,
    overwrite: Overwrite = False,
    every: Annotated[
        int | None, typer.Option("--every", metavar="N", min=1, help="Save every N steps from now on.")
    ] = None,
    keep: Annotated[
        int | None, typer.Option("--keep", metavar="K", min=1, help="With --every: keep only the newest K.")
    ] = None,
    best: Annotated[
        str | None,
        typer.Option("--best", metavar="METRIC", help="With --every: also keep the best, by `loss`."),
    ] = None,
    wait: Wait = None,
    output_format: TextFormat = "text",
) -> None:
    """Save a verified checkpoint.

    Contains model, optimizer, schedulers, RNG state and position.
    """
    place = path_for(context.obj, path)
    if every is None and (keep is not None or best is not None):
        raise UsageError("--keep and --best need --every", hint="Add --every N.")
    if every is None:
        act(context.obj, "checkpoint", wait, output_format, now=now, path=place, overwrite=overwrite)
    elif now or overwrite:
        raise UsageError("--now and --overwrite cannot be used with --every")
    else:
        act(
            context.obj, "checkpoint", wait, output_format, folder=place, every=every, keep=keep, best=best
        )
