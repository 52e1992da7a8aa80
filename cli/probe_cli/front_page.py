"""Front page: a bare `probe` lists running jobs and suggests commands; also `--help` and `--version`.

Runs in the command's main thread; standard library only and no typer, because these calls must be fast.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import probe
from probe.base.errors import EndpointUnknown
from probe_cli.command_table import ENDPOINT_HELP, GROUPS, VERSION_HELP, summary_of
from probe_cli.core.arguments import ALL_COMMANDS, HELP_OPTIONS, CommandLine
from probe_cli.core.session import Session

_WIDTH = 80
_COLUMN = 19
"""Column of the descriptions in `--help`."""
MOST_PROCESSES = 8
_NEXT = (
    ("diagnose", "what is wrong, why, and what to do"),
    ("health", "loss, gradients, speed, memory on one screen"),
    ("backtrace", "where it is now"),
    ("query", "SQL over everything recorded"),
    ("eval", "Python inside the job"),
)
_FOR_ENDED = ("diagnose", "health", "query")
"""Suggestions that also work on an ended job."""
_START = (
    ("probe run python train.py", "start a job with probe"),
    ("probe PID attach", "record a running job, without a restart"),
    ("probe ps --all", "list every recording"),
    ("probe doctor", "check this machine"),
    ("probe --help", "all commands"),
)


def front_page(line: CommandLine, session: Session) -> bool:
    """Handle a command line without a command; False for unknown options, which the click group rejects."""
    asked = [word for word in line.words if word in HELP_OPTIONS]
    named = line.endpoint
    if not asked and line.words != ([] if named is None else ["-t", named]):
        return False
    if asked and asked[0] in ("--version", "-V"):
        session.out.line(f"probe {probe.__version__}")
    elif asked:
        session.out.page(help_lines())
    else:
        session.named = named or ""
        session.out.lines(_what_runs(session))
    return True


def help_lines() -> Iterator[str]:
    """The lines of `probe --help`: at most 80 columns in any terminal."""
    from probe_cli.core.exit_codes import exit_codes

    yield "Usage: probe [ENDPOINT] COMMAND …"
    yield ""
    yield "Inspect a running PyTorch job. `probe` alone lists jobs and suggests commands."
    yield "`probe COMMAND --help` shows details. Results go to stdout, the rest to stderr."
    yield ""
    yield from _entry("ENDPOINT", f"Which job, also as `-t ENDPOINT`: {ENDPOINT_HELP}")
    yield from _entry("--version", VERSION_HELP)
    for group, commands in GROUPS.items():
        yield ""
        yield f"{group}:"
        for name in commands:
            yield from _entry(name, summary_of(name))
    yield ""
    yield "Exit codes:"
    for code, meaning in exit_codes():
        yield from _entry(str(code), meaning, 6)


def _entry(word: str, meaning: str, column: int = _COLUMN) -> Iterator[str]:
    import textwrap

    first, *more = textwrap.wrap(meaning, _WIDTH - column, break_on_hyphens=False)
    yield f"  {word:<{column - 2}}{first}"
    yield from (" " * column + line for line in more)


def _what_runs(session: Session) -> Iterator[str]:
    from probe_cli.commands.ps import known_processes, table_lines

    found, notes = known_processes(session)
    for note in notes:
        session.note(note)
    if not found and session.named:
        raise EndpointUnknown(
            f"no process called {session.named!r} is running under probe, and there is no such command",
            hint=f"`probe ps` lists the processes. {ALL_COMMANDS}",
        )
    if not found:
        yield "No job is running under probe, and none ended recently."
        yield from _suggestions(_START)
        return
    yield from table_lines(found[:MOST_PROCESSES], session.out)
    if len(found) > MOST_PROCESSES:
        yield f"and {len(found) - MOST_PROCESSES} more: `probe ps`"
    live = [one for one in found if one.get("ended_ns") is None]
    whom = session.named or str((live or found)[0].get("pid"))
    able = _NEXT if live else [one for one in _NEXT if one[0] in _FOR_ENDED]
    yield from _suggestions([(f"probe {whom} {word}", means) for word, means in able])
    yield from _suggestions([("probe --help", "all commands")], blank=False)


def _suggestions(found: Sequence[tuple[str, str]], blank: bool = True) -> Iterator[str]:
    if blank:
        yield ""
    width = max(26, *(len(command) for command, _ in found))
    yield from (f"  {command:<{width}}  {means}" for command, means in found)
