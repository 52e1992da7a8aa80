"""`python -m probe_cli.docs`: the pages of docs/ that are made from declarations (see `pages`).

`--check` writes nothing and fails when one of them is not what would be written.
A tool of this repository; not part of the command.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parents[2] / "docs"
_MADE = "<!-- Made by `python -m probe_cli.docs`; change the declaration, not this file. -->"


def pages() -> dict[str, str]:
    """Text of every generated page by its file name."""
    made = {
        "tables.md": tables_page(), "settings.md": settings_page(), "cli.md": cli_page(),
        "verdicts.md": verdicts_page(),
    }
    return {name: "\n".join([_MADE, "", *lines]).rstrip() + "\n" for name, lines in made.items()}


def stale(folder: Path = FOLDER) -> list[str]:
    """Names of the pages in `folder` that are missing or not up to date."""
    found: list[str] = []
    for name, text in pages().items():
        path = folder / name
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            found.append(name)
    return found


def _row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _grid(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    yield _row(headings)
    yield "|" + " --- |" * len(headings)
    yield from (_row(row) for row in rows)
    yield ""


def tables_page() -> Iterator[str]:
    """docs/tables.md, from `probe.tables`."""
    from probe.tables import COMMON, TABLES

    sources = {
        "ring": "Written as it happens",
        "journal": "Written as it happens",
        "live": "Looked up when a query names it",
    }
    yield from [
        "# Tables",
        "",
        "NULL means not measured. `probe tables NAME` shows the same in a terminal.",
        "",
    ]
    yield from ["Every table also has these columns:", ""]
    headings = ("column", "type", "unit", "meaning")
    yield from _grid(headings, ((f"`{c.name}`", c.type, c.unit, c.doc) for c in COMMON))
    for table in TABLES:
        yield from [f"## {table.full_name}", "", f"One row per {table.doc}.", f"{sources[table.source]}.", ""]
        yield from _grid(headings, ((f"`{c.name}`", c.type, c.unit, c.doc) for c in table.columns))
        yield from ["```sql", table.example, "```", ""]


def settings_page() -> Iterator[str]:
    """docs/settings.md, from `probe.settings`."""
    from probe.settings import SETTINGS

    yield from ["# Settings", ""]
    yield from [
        "Environment variables, read once when a process starts. `probe config` shows their values.",
        "",
    ]
    yield from _grid(
        ("variable", "default", "unit", "meaning"),
        ((f"`{s.env}`", f"`{s.default}`" if s.default else "", s.unit, s.help) for s in SETTINGS),
    )


def verdicts_page() -> Iterator[str]:
    """docs/verdicts.md, from `probe.diagnose.verdict`."""
    from probe.diagnose.verdict import STATES

    yield from [
        "# Verdicts",
        "",
        "What `diagnose` says of a process, and what probe.verdicts keeps. Each comes with a severity: "
        "`ok`, `notice` (worth knowing, may be as meant) or `alarm`; with its evidence, and with what to "
        "do next. [diagnose.md](diagnose.md) says how they are found.",
        "",
    ]
    yield from _grid(("state", "meaning"), ((f"`{state}`", means) for state, means in STATES.items()))


def cli_page() -> Iterator[str]:
    """docs/cli.md, from the commands and the tree of errors."""
    from typer.main import get_command

    from probe_cli.commands import app
    from probe_cli.endpoints import FORMS
    from probe_cli.examples import EXAMPLES
    from probe_cli.exit_codes import errors_of, exit_codes

    group: Any = get_command(app)
    yield from ["# The command", "", "`probe ENDPOINT COMMAND …`, or `probe -t ENDPOINT COMMAND …`.", ""]
    yield from _options(group)
    yield from ["## Endpoints", ""]
    yield from _grid(
        ("endpoint", "meaning"), ((f"`{form}`" if form else "none", means) for form, means in FORMS)
    )
    yield from [
        "Where no server answers and none can be started, `backtrace` and `eval` ask the process itself.",
        "",
    ]
    yield from ["## Commands", ""]
    for name, command in group.commands.items():
        yield from [f"### probe {name}", "", command.help or "", ""]
        yield from _options(command)
        yield from ["```sh", *EXAMPLES[name], "```", ""]
    yield from ["## Exit codes", ""]
    yield from _grid(
        ("code", "meaning", "errors"),
        (
            (
                str(code),
                meaning,
                ", ".join(f"`{error}`" for error in errors_of(code)) if 1 < code < 100 else "",
            )
            for code, meaning in exit_codes()
        ),
    )
    yield from ["Errors are two lines on stderr: `probe:` and what happened, `next:` and what to do.", ""]


def _options(command: Any) -> Iterator[str]:
    rows = []
    for parameter in command.params:
        words = sorted([*parameter.opts, *parameter.secondary_opts], key=len)
        if parameter.param_type_name == "argument":
            words = [parameter.metavar or parameter.name.upper()]
        elif not parameter.is_flag:
            choices = getattr(parameter.type, "choices", None)
            words[-1] += " " + ("|".join(choices) if choices else parameter.metavar)
        rows.append(("`" + ", ".join(words) + "`", parameter.help or ""))
    if rows:
        yield from _grid(("word", "meaning"), rows)


def main(words: Sequence[str]) -> int:
    """Write the pages, or with `--check` say which are stale; returns the exit code."""
    if words == ["--check"]:
        found = stale()
        for name in found:
            sys.stderr.write(f"docs/{name} is stale: run `python -m probe_cli.docs`\n")
        return 1 if found else 0
    FOLDER.mkdir(exist_ok=True)
    for name, text in pages().items():
        (FOLDER / name).write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
