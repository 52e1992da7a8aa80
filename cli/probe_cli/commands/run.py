"""`probe run`: become the user's command, with probe switched on. The command's main thread."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping, Sequence

from probe.base.errors import UsageError


def run_command(words: Sequence[str], environ: Mapping[str, str], name: str | None) -> None:
    """Replace this process by `words` with PROBE=1; returns only by raising `UsageError`."""
    from probe.boot.startup import run_environment

    program = shutil.which(words[0], path=environ.get("PATH"))
    if program is None:
        raise UsageError(f"cannot run {words[0]!r}: {_why_not(words[0])}", hint=_how(words))
    environment = run_environment({**environ, **({"PROBE_NAME": name} if name else {})}, program)
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        os.execve(program, list(words), environment)
    except OSError as error:
        raise UsageError(f"cannot run {program}: {error.strerror}", hint=_how(words)) from None


def _why_not(word: str) -> str:
    if not os.path.exists(word):
        return "there is no such command"
    if os.path.isdir(word):
        return "it is a folder"
    return "it is not on PATH" if os.access(word, os.X_OK) else "it is not executable"


def _how(words: Sequence[str]) -> str:
    if words[0].endswith(".py"):
        return f"Put the Python before it: `probe run python {' '.join(words)}`."
    return "Give the command as you would without probe: `probe run python train.py`."
