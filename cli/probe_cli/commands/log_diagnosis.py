"""`probe diagnose --log FILE`: the loss of a run that nobody recorded, judged from what it printed.

No server, no job and no torch: the text becomes tables of a database of this process, and the same recipes
run on them. The command's main thread; DuckDB is imported when it is needed.
"""

from __future__ import annotations

from typing import Any, Literal

from probe.base.errors import UsageError
from probe_cli.core.session import Session

RECIPES_ON = ("python.steps", "python.losses", "python.scalars")
"""Tables that a text can fill: recipes that need another one are not judged."""


def diagnose_log(session: Session, file: str, format: Literal["text", "json"]) -> None:
    """Read the text, judge it, and say how much of it was understood."""
    from probe_cli.commands.diagnose import verdict_lines

    answer = judge(session, file)
    if format == "json":
        session.out.json(answer)
        return
    for one in answer["findings"]:
        for line in verdict_lines(one, session.out):
            session.out.line(line)
    for note in answer["notes"]:
        session.note(note)


def judge(session: Session, file: str) -> dict[str, Any]:
    """What the text says: findings, the worst first, and notes on what it cannot say."""
    from probe.diagnose.recipes import local_query, training_log
    from probe.diagnose.recipes.library import folders, load
    from probe.diagnose.recipes.recipe import CLEAR, UNKNOWN

    log = _read(session, file)
    library = load(folders(session.settings.recipes))
    wanted = [one for one in library.values() if "loss" in one.symptoms or "nan" in one.symptoms]
    usable = [one for one in wanted if _is_about_text(one.sql)]
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


def _read(session: Session, file: str) -> Any:
    from probe.diagnose.recipes import training_log

    if file == "-":
        stream = getattr(session.input, "buffer", None)
        pieces = training_log.pieces_of(stream) if stream is not None else [session.input.read().encode()]
        return training_log.read(pieces)
    try:
        with open(file, "rb") as opened:
            return training_log.read(training_log.pieces_of(opened))
    except OSError as error:
        raise UsageError(
            f"cannot read {file}: {error.strerror}", hint="Name a text file, or `-` for stdin."
        ) from None


def _is_about_text(sql: str) -> bool:
    """Whether a recipe reads what a text can say. One that also looks at other tables finds them empty."""
    return any(table in sql for table in RECIPES_ON)


def _notes(log: Any, unknown: list[Any], others: int) -> list[str]:
    notes = [f"{log.lines:,} lines read, {log.understood:,} understood, {len(log.steps):,} steps"]
    if not log.numbered:
        notes.append("the text does not number its steps: they were counted, from 0")
    if log.went_back:
        notes.append(f"the step went back {log.went_back} times (restarts): the later lines count")
    if log.dropped:
        notes.append(f"{log.dropped:,} steps beyond the first {len(log.steps):,} were left out")
    if unknown:
        reasons = {one.reason.partition(" (needs")[0]: one.recipe.name for one in unknown}
        shown = "; ".join(f"{name}: {reason}" for reason, name in list(reasons.items())[:4])
        more = "; …" if len(reasons) > 4 else ""
        notes.append(f"{len(unknown)} checks could not be judged from it: {shown}{more}")
    notes.append(f"{others} other checks need more than a text: gradients, data, memory, speed")
    return notes

