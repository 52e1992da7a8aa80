"""`probe checkpoint`: save a checkpoint now, or regularly."""

from __future__ import annotations

from typing import Annotated

import typer

from probe.base.errors import ServerUnavailable, UsageError
from probe_cli.core.act_client import act, file_for
from probe_cli.core.options import Overwrite, TextFormat, Wait
from probe_cli.core.session import Session

EXAMPLES = (
    "probe PID checkpoint rescue.pt",
    "probe PID checkpoint",
    "probe PID checkpoint rescue.pt --overwrite --now",
    "probe PID checkpoint kept --every 1000 --keep 3 --best loss",
)


def command(
    context: typer.Context,
    path: Annotated[
        str | None,
        typer.Argument(
            metavar="[PATH]",
            help="File (default: a new one in the current directory); a folder with --every or for a "
            "multi-rank job.",
        ),
    ] = None,
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
    session: Session = context.obj
    if path is None and every is not None:
        raise UsageError("--every needs a folder", hint="For example `checkpoint kept --every 1000`.")
    if path is None and not session.runs_later and _several_ranks(session):
        path = "."  # a checkpoint of all ranks creates its own folder there
    place = file_for(session, path, "checkpoint", ".pt")
    if every is None and (keep is not None or best is not None):
        raise UsageError("--keep and --best need --every", hint="Add --every N.")
    if every is None:
        act(session, "checkpoint", wait, output_format, now=now, path=place, overwrite=overwrite)
    elif now or overwrite:
        raise UsageError("--now and --overwrite cannot be used with --every")
    else:
        act(
            session, "checkpoint", wait, output_format, folder=place, every=every, keep=keep, best=best
        )


def _several_ranks(session: Session) -> bool:
    """Whether the endpoint is more than one live process; without a server, assume one."""
    from probe_cli.commands.ps import known_processes

    try:
        found, _ = known_processes(session)
    except ServerUnavailable:
        return False
    return sum(one.get("ended_ns") is None for one in found) > 1
