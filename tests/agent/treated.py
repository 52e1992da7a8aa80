"""Runs `tests/programs/treats_itself.py` without probe and with it, and says what each run left behind."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from agent.asking import without_times
from agent.nursery import Forked

Fork = Callable[..., Forked]
"""`fork(program, *options, watched=…)`."""


def files_in(folder: Path) -> dict[str, tuple[int, str]]:
    """Size and hash of every file in a folder."""
    return {
        path.name: (path.stat().st_size, hashlib.sha256(path.read_bytes()).hexdigest())
        for path in folder.iterdir() if path.is_file()
    }


def outcome(job: Forked, folder: Path) -> dict[str, Any]:
    """All that a job leaves: its result, exit code, stderr and files."""
    try:
        result = without_times(job.result())
    except AssertionError as error:
        result = {"no result": str(error)}
        job.kill()
    code = job.let_go()
    errors = re.sub(r"0x[0-9a-f]+", "", job.errors().replace(str(folder), "FOLDER"))
    return {"result": result, "code": code, "errors": errors, "files": files_in(folder)}


def both(
    fork: Fork, folder: Callable[[], Path], *words: str, steps: int = 40,
    during: Callable[[Forked], object] = lambda job: None, **environ: str,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """What the program leaves without probe, and what with it. `during` gets the job that is watched."""
    plain = once(fork, folder, *words, watched=False, steps=steps, during=lambda job: None, **environ)
    return plain, once(fork, folder, *words, watched=True, steps=steps, during=during, **environ)


def once(
    fork: Fork, folder: Callable[[], Path], *words: str, watched: bool, steps: int = 40,
    during: Callable[[Forked], object] = lambda job: None, **environ: str,
) -> dict[str, Any]:
    """What one run of the program leaves."""
    own = folder()
    options = ("--steps", str(steps), "--folder", str(own), *words)
    job = fork("treats_itself", *options, watched=watched, **environ)
    if watched:
        during(job)
    return outcome(job, own)


def difference(plain: dict[str, Any], watched: dict[str, Any]) -> str:
    """In one line, what differs; empty when nothing does."""
    parts = []
    for name, value in plain.items():
        other = watched[name]
        if isinstance(value, dict) and value != other:
            for key in sorted(key for key in {*value, *other} if value.get(key) != other.get(key))[:4]:
                parts.append(f"{name}[{key}]: {value.get(key)!s:.200} but {other.get(key)!s:.400}")
        elif value != other:
            parts.append(f"{name}: {value!r:.300} but {other!r:.600}")
    return "; ".join(parts)
