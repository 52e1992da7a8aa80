"""`probe clip`: clip gradients."""

from __future__ import annotations

from typing import Annotated

import typer

from probe_cli.core.act_client import act, number, one_of
from probe_cli.core.action_log import end_standing
from probe_cli.core.options import Force, TextFormat, Wait

EXAMPLES = (
    "probe PID clip --max-norm 1.0",
    "probe PID clip --off",
)


def command(
    context: typer.Context,
    max_norm: Annotated[
        float | None, typer.Option("--max-norm", metavar="X", help="Maximum total gradient norm.")
    ] = None,
    norm_type: Annotated[
        float | None, typer.Option("--norm-type", metavar="P", help="Norm type (default 2).")
    ] = None,
    off: Annotated[bool, typer.Option("--off", help="Stop clipping.")] = False,
    force: Force = False,
    wait: Wait = None,
    output_format: TextFormat = "text",
) -> None:
    """Clip gradients before every step from now on."""
    one_of(max_norm=max_norm, off=off)
    if off:
        end_standing(context.obj, "clip", wait, output_format)
        return
    norm = number(max_norm, "--max-norm", above_zero=True)
    kind = number(norm_type, "--norm-type", above_zero=True)
    act(context.obj, "clip", wait, output_format, max_norm=norm, norm_type=kind, force=force)
