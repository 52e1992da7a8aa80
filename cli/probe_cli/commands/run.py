"""`probe run`: replace this process with a command that has probe enabled."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from probe.base.errors import UsageError
from probe_cli.core.options import JobName
from probe_cli.core.session import Session

EXAMPLES = (
    "probe run python train.py",
    "probe run --name gpt python train.py",
)


def command(
    context: typer.Context,
    words: Annotated[list[str], typer.Argument(metavar="COMMAND...", help="Command to run.")],
    name: JobName = None,
) -> None:
    """Run a command with probe enabled."""
    from probe.boot.startup import run_environment

    session: Session = context.obj
    session.no_endpoint("run")
    program = shutil.which(words[0], path=session.environ.get("PATH"))
    if program is None:
        raise UsageError(f"cannot run {words[0]!r}: {_why_not(words[0])}", hint=_hint(words))
    environment = run_environment({**session.environ, **({"PROBE_NAME": name} if name else {})}, program)
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        os.execve(program, list(words), environment)
    except OSError as error:
        raise UsageError(f"cannot run {program}: {error.strerror}", hint=_hint(words)) from None


def _why_not(word: str) -> str:
    if not os.path.exists(word):
        return "no such command"
    if os.path.isdir(word):
        return "it is a directory"
    return "it is not on PATH" if os.access(word, os.X_OK) else "it is not executable"


def _hint(words: Sequence[str]) -> str:
    if words[0].endswith(".py"):
        return f"Put `python` before it: `probe run python {' '.join(words)}`."
    return "Give the command as you would run it without probe: `probe run python train.py`."
