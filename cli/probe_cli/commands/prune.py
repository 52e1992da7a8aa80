"""`probe prune`: delete recordings of ended processes."""

from __future__ import annotations

import re
import time
from typing import Annotated, Any

import typer

from probe.base.errors import ServerUnavailable, UsageError
from probe_cli.core.figures import age, size
from probe_cli.core.session import Session
from probe_cli.core.terminal import escape_controls

EXAMPLES = (
    "probe prune --older-than 7d --dry-run",
    "probe prune --job JOB --keep 20",
)
_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}


def command(
    context: typer.Context,
    older_than: Annotated[
        str | None, typer.Option("--older-than", metavar="TIME", help="Minimum age, e.g. 36h, 7d or 2w.")
    ] = None,
    keep: Annotated[
        int | None, typer.Option("--keep", metavar="N", min=0, help="Keep the newest N runs of each job.")
    ] = None,
    job: Annotated[str | None, typer.Option("--job", metavar="JOB", help="Only this job.")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only list what would be deleted.")
    ] = False,
) -> None:
    """Delete old recordings that match every option. Live processes are kept."""
    session: Session = context.obj
    session.no_endpoint("prune")
    if older_than is None and keep is None and job is None:
        raise UsageError(
            "no recordings selected",
            hint="Give --older-than 7d, --keep N or --job NAME; --dry-run only lists what would be deleted.",
        )
    body = {
        "older_than_s": None if older_than is None else _seconds(older_than),
        "keep": keep, "job": job, "dry_run": dry_run,
    }
    answer = session.request("POST", "/v1/prune", body=body)
    try:
        lines = [_line("would delete" if dry_run else "deleted", row) for row in answer["deleted"]]
        total = f"{_recordings(len(lines))}, {size(answer['bytes'])}"
        kept = [f"kept: {_name(row)}: {row['why']}" for row in answer["left"]]
    except (KeyError, TypeError) as error:
        raise ServerUnavailable(f"invalid prune response: {error!r}") from None
    session.out.lines(map(escape_controls, lines))
    session.out.line(f"{'would free' if dry_run else 'freed'}: {total}")
    for line in kept:
        session.note(line)


def _seconds(text: str) -> float:
    """Seconds of `7d`, `36h`, `90m`, `30s`, `2w`; raises `UsageError`."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smhdw])", text.strip().lower())
    if found is None:
        raise UsageError(f"invalid duration {text!r}", hint="For example 30m, 36h, 7d or 2w.")
    return float(found[1]) * _UNITS_S[found[2]]


def _line(word: str, row: dict[str, Any]) -> str:
    ended_ns = row["ended_ns"]
    ended = "ended" if ended_ns is None else f"ended {age(time.time() - ended_ns * 1e-9)}"
    return f"{word}: {_name(row)}, {ended}, {size(row['bytes'])}"


def _name(row: dict[str, Any]) -> str:
    return f"{row['job']}/{row['rank']} (pid {row['pid']}, run {row['run']}, attempt {row['attempt']})"


def _recordings(number: int) -> str:
    return "1 recording" if number == 1 else f"{number:,} recordings"
