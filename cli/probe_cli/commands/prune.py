"""`probe prune`: delete recordings of what has ended. The command's main thread."""

from __future__ import annotations

import re
import time
from typing import Any

from probe.base.errors import ServerUnavailable, UsageError
from probe_cli.commands.ps import age
from probe_cli.core.session import Session
from probe_cli.core.terminal import escape_controls

_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_SIZES = (("GB", 1 << 30), ("MB", 1 << 20), ("KB", 1 << 10))


def duration_s(text: str) -> float:
    """Seconds of `7d`, `36h`, `90m`, `30s`, `2w`; raises `UsageError`."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smhdw])", text.strip().lower())
    if found is None:
        raise UsageError(f"{text!r} is no length of time", hint="Write it like 30m, 36h, 7d or 2w.")
    return float(found[1]) * _UNITS_S[found[2]]


def prune_recordings(
    session: Session, older_than: str | None, keep: int | None, job: str | None, dry_run: bool
) -> None:
    """Delete what fits everything given, or say what would be; a line for each, and the bytes."""
    if older_than is None and keep is None and job is None:
        raise UsageError(
            "nothing says which recordings to delete",
            hint="Give --older-than 7d, --keep N or --job NAME; --dry-run only says what would go.",
        )
    body = {
        "older_than_s": None if older_than is None else duration_s(older_than),
        "keep": keep, "job": job, "dry_run": dry_run,
    }
    answer = session.ask("POST", "/v1/prune", body=body)
    try:
        lines = [_line("would delete" if dry_run else "deleted", row) for row in answer["deleted"]]
        total = f"{_count(len(lines))}, {size(answer['bytes'])}"
        left = [f"left: {_name(row)}: {row['why']}" for row in answer["left"]]
    except (KeyError, TypeError) as error:
        raise ServerUnavailable(f"the answer to prune cannot be read: {error!r}") from None
    for line in lines:
        session.out.line(escape_controls(line))
    session.out.line(f"{'would free' if dry_run else 'freed'}: {total}")
    for line in left:
        session.note(line)


def _line(word: str, row: dict[str, Any]) -> str:
    ended_ns = row["ended_ns"]
    ended = "ended" if ended_ns is None else f"ended {age(time.time() - ended_ns * 1e-9)}"
    return f"{word}: {_name(row)}, {ended}, {size(row['bytes'])}"


def _name(row: dict[str, Any]) -> str:
    return f"{row['job']}/{row['rank']} (pid {row['pid']}, run {row['run']}, attempt {row['attempt']})"


def _count(number: int) -> str:
    return "1 recording" if number == 1 else f"{number:,} recordings"


def size(count_bytes: int) -> str:
    """`512 bytes`, `3.4 MB`, …"""
    for unit, factor in _SIZES:
        if count_bytes >= factor:
            return f"{count_bytes / factor:.1f} {unit}"
    return f"{count_bytes} bytes"
