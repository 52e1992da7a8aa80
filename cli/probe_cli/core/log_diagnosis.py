"""Diagnoses a run from its log, for `probe diagnose --log FILE`.

Needs no server, job or torch: the log is loaded into tables of an in-process database, and the usual recipes
run on them. Runs in the command's main thread; imports DuckDB on use.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import Any

from probe.base.errors import UsageError
from probe_cli.core.session import Session
from probe_cli.core.wait_line import Progress, waiting

RECIPES_ON = ("python.steps", "python.losses", "python.scalars")
"""Tables that a log can fill; recipes that need others are skipped."""


def diagnose_log(session: Session, file: str) -> dict[str, Any]:
    """Findings, worst first, and notes on what the log cannot show."""
    from probe.diagnose.recipes import local_query, training_log
    from probe.diagnose.recipes.library import folders, load
    from probe.diagnose.recipes.recipe import CLEAR, UNKNOWN

    with waiting(session.err, f"reading {file}") as progress:
        log = _read(session, file, progress)
    library = load(folders(session.settings.recipes))
    wanted = [one for one in library.values() if "loss" in one.symptoms or "nan" in one.symptoms]
    usable = [one for one in wanted if _reads_a_log(one.sql)]
    connection = training_log.tables(log)
    try:
        checks = local_query.run_on(connection, usable, "")
    finally:
        connection.close()
    unknown = [one for one in checks if one.state == UNKNOWN]
    others = len(library) - len(usable)
    return {
        "lines": log.lines, "understood": log.understood, "steps": len(log.steps),
        "scalars": sorted({name for _, name, _ in log.scalars}), "findings": [
            {"recipe": None, "subject": "", "step": None, **one.as_dict()}
            for one in training_log.findings(log, checks)
        ],
        "clear": [one.recipe.name for one in checks if one.state == CLEAR],
        "unknown": [{"recipe": one.recipe.name, "reason": one.reason} for one in unknown],
        "notes": _notes(log, unknown, others),
    }


def _read(session: Session, file: str, progress: Progress) -> Any:
    from probe.diagnose.recipes import training_log

    def read(pieces: Iterable[bytes]) -> Iterator[bytes]:
        for piece in pieces:
            yield piece
            progress.done += len(piece)

    if file == "-":
        stream = getattr(session.input, "buffer", None)
        pieces = training_log.pieces_of(stream) if stream is not None else [session.input.read().encode()]
        return training_log.read(read(pieces))
    try:
        with open(file, "rb") as opened:
            progress.total = os.fstat(opened.fileno()).st_size
            return training_log.read(read(training_log.pieces_of(opened)))
    except OSError as error:
        raise UsageError(
            f"cannot read {file}: {error.strerror}", hint="Name a text file, or `-` for stdin."
        ) from None


def _reads_a_log(sql: str) -> bool:
    """Whether a recipe reads a table that a log can fill. Its other tables are empty."""
    return any(table in sql for table in RECIPES_ON)


def _notes(log: Any, unknown: list[Any], others: int) -> list[str]:
    notes = [f"{log.lines:,} lines read, {log.understood:,} understood, {len(log.steps):,} steps"]
    if not log.numbered:
        notes.append("the log does not number its steps: counted from 0")
    if log.went_back:
        notes.append(f"the step went back {log.went_back} times (restarts): later lines replace earlier ones")
    if log.dropped:
        notes.append(f"{log.dropped:,} steps after the first {len(log.steps):,} were dropped")
    if unknown:
        reasons = {one.reason.partition(" (needs")[0]: one.recipe.name for one in unknown}
        shown = "; ".join(f"{name}: {reason}" for reason, name in list(reasons.items())[:4])
        more = "; …" if len(reasons) > 4 else ""
        notes.append(f"{len(unknown)} checks could not be judged from the log: {shown}{more}")
    notes.append(f"{others} other checks need more than a log: gradients, data, memory, speed")
    return notes
