"""Completion of command lines: commands, live jobs, tables and columns, recipes, options and their values.

Contacts no server: jobs are read from PROBE_DIR. Runs in the command's main thread.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from probe.base.errors import ProbeError, RecordingError
from probe_cli.core.arguments import ENDPOINT_OPTIONS, Vocabulary
from probe_cli.core.options import SYMPTOMS
from probe_cli.core.session import Session

if TYPE_CHECKING:  # completing a command needs no tables
    from pathlib import Path

    from probe.recording.recording import Meta
    from probe.recording.tables import Table

Parameters = Callable[[str], Sequence[Any]]
"""The click parameters of a command."""


def completions(
    words: Sequence[str], known: Vocabulary, parameters: Parameters, session: Session
) -> list[str]:
    """Completions of the last, partly typed word of `words`, the words after `probe`."""
    *before, typed = words or [""]
    if (place := _command_place(before, known)) is not None:
        command = known.same_as.get(before[place], before[place])
        takes_sql = command in ("query", "plot") and not typed.startswith("-")
        if takes_sql and not _has_value(before, parameters(command)):
            return list(dict.fromkeys(_sql(typed, own_tables(session, _endpoint(before, place)))))
    found = dict.fromkeys(_candidates(before, known, parameters, session, typed.startswith("-")))
    return [word for word in found if word.startswith(typed)]


def _command_place(before: Sequence[str], known: Vocabulary) -> int | None:
    ours = (*known.commands, *known.same_as)
    return next((at for at, word in enumerate(before) if word in ours), None)


def _has_value(before: Sequence[str], parameters: Sequence[Any]) -> bool:
    """Whether the last word is an option that takes a value."""
    options = [one for one in parameters if one.param_type_name == "option" and not one.is_flag]
    return any(before[-1] in (*one.opts, *one.secondary_opts) for one in options)


def _endpoint(before: Sequence[str], place: int) -> str:
    """The endpoint among the words, as far as recognizable; empty for none."""
    for at, word in enumerate(before[:-1]):
        if word in ENDPOINT_OPTIONS:
            return before[at + 1]
    return next((word for word in before[:place] if not word.startswith("-")), "")


def _sql(typed: str, own: Sequence[Table]) -> Iterator[str]:
    """Completions of the SQL text: its last word as a table, a column or a keyword. The text may begin with
    an unclosed quotation mark of the shell."""
    from probe_cli.prompts.sql_words import candidates

    quote = typed[:1] if typed[:1] in ("'", '"') else ""
    text = typed[len(quote) :]
    found = [text[: len(text) - length] + word for word, length in candidates(text, own)]
    if quote and len(found) == 1:
        found.append(f"{found[0]} ")  # with a single candidate the shell would close the quotation
    yield from (quote + one for one in found)


def _candidates(
    before: Sequence[str], known: Vocabulary, parameters: Parameters, session: Session, option: bool
) -> Iterator[str]:
    if before and before[-1] in ENDPOINT_OPTIONS:
        yield from _jobs(session)
        return
    place = _command_place(before, known)
    if place is None:
        given = [word for word in before if not word.startswith("-")]
        yield from known.commands
        yield from _jobs(session) if not given else ()
        yield from ("--help", "--version") if option else ()
        return
    command = known.same_as.get(before[place], before[place])
    yield from _of_command(command, before[place + 1 :], parameters(command), option)
    if command == "tables" and not option:
        yield from (table.full_name for table in own_tables(session, _endpoint(before, place)))
    if place == 0 and not option:
        yield from _jobs(session)


def _of_command(
    command: str, rest: Sequence[str], parameters: Sequence[Any], option: bool
) -> Iterator[str]:
    for one in parameters:
        if rest and rest[-1] in (*one.opts, *one.secondary_opts) and not one.is_flag:
            yield from getattr(one.type, "choices", None) or ()
            yield from _recipes() if rest[-1] in ("--on", "--off") and command == "monitor" else ()
            return
    if option:
        for one in parameters:
            if one.param_type_name == "option":
                yield from (*one.opts, *one.secondary_opts)
        yield "--help"
        return
    if command == "tables":
        from probe.recording.tables import TABLES

        yield from (table.full_name for table in TABLES)
    elif command == "recipes":
        yield from _recipes() if rest and rest[-1] == "show" else ("show",)
    elif command == "diagnose":
        yield from SYMPTOMS
    elif command == "skip-nonfinite":
        yield from ("on", "off")


def _jobs(session: Session) -> Iterator[str]:
    """Names and PIDs of the live jobs recorded on this host."""
    for _, meta in _recordings(session):
        if _lives(meta):
            yield from (meta.job, str(meta.pid))
            yield from (f"{meta.job}/{meta.rank}",) if (meta.world_size or 1) > 1 else ()


def own_tables(session: Session, endpoint: str) -> list[Table]:
    """The tables declared by the processes of `endpoint`; without a match, by the live ones on this host."""
    from probe.recording import declared

    recorded = list(_recordings(session))
    chosen = [folder for folder, meta in recorded if endpoint in _names(folder, meta)]
    found: list[Table] = []
    for folder in chosen or [folder for folder, meta in recorded if _lives(meta)]:
        with contextlib.suppress(RecordingError):
            found += declared.read(folder)
    return [table for table in declared.merged(found).values() if table.schema == declared.SCHEMA]


def _names(folder: Path, meta: Meta) -> tuple[str, ...]:
    """The endpoints that identify a process."""
    names = (meta.job, meta.run)
    return *names, *(f"{name}/{meta.rank}" for name in names), str(meta.pid), str(folder)


def _recordings(session: Session) -> Iterator[tuple[Path, Meta]]:
    """The readable recordings on this host."""
    from probe.recording import places
    from probe.recording.recording import Meta

    try:
        directory = session.address.directory
        folders = places.process_folders(directory) if directory is not None else []
    except (ProbeError, OSError):
        return
    for folder in folders:
        with contextlib.suppress(RecordingError):
            yield folder, Meta.read(folder)


def _lives(meta: Meta) -> bool:
    from probe.recording.process import alive

    return alive(meta.pid, meta.start_ticks, meta.boot_id) and os.path.exists(meta.socket)


def _recipes() -> Iterator[str]:
    from probe.diagnose.recipes.library import folders

    for folder in folders(os.environ.get("PROBE_RECIPES", "")):
        yield from sorted(path.stem for path in folder.glob("*.sql"))
