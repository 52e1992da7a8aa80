"""`probe resume`: resume paused training."""

from __future__ import annotations

import typer

from probe_cli.core.act_client import act
from probe_cli.core.options import TextFormat, Wait

EXAMPLES = ("probe PID resume",)


def command(context: typer.Context, wait: Wait = None, output_format: TextFormat = "text") -> None:
    """Resume paused training."""
    act(context.obj, "resume", wait, output_format)
