"""`probe tables`: list the tables for queries, and the columns of one."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from typing import Annotated, Any

import typer

from probe.base.errors import ServerUnavailable, UsageError
from probe_cli.core.options import TextFormat
from probe_cli.core.session import Session
from probe_cli.core.terminal import Output, escape_controls
from probe_cli.render.grid import Heading, grid

EXAMPLES = (
    "probe tables python.steps",
    "probe PID tables",
)
_LIST = (Heading("TABLE"), Heading("ONE ROW PER", prose=True))
_HEADINGS = (Heading("column"), Heading("type"), Heading("unit"), Heading("meaning", prose=True))


def command(
    context: typer.Context,
    name: Annotated[
        str | None,
        typer.Argument(metavar="[NAME]", help="Table to describe, e.g. python.steps."),
    ] = None,
    output_format: TextFormat = "text",
) -> None:
    """List the tables for queries, or the columns of one."""
    session: Session = context.obj
    found = _tables(session)
    if name is not None:
        found = _named(name, found)
    if output_format == "json":
        session.out.json({"tables": found})
        return
    if name is None:
        rows = [[escape_controls(str(table[key])) for key in ("name", "doc")] for table in found]
        session.out.page(grid(_LIST, rows, session.out.width))
        whose = f"{session.named} " if session.named else ""
        session.err.line(f"  next: probe {whose}tables NAME  lists its columns, with an example query")
    for table in found if name is not None else ():
        session.out.page(_table_lines(table, session.out))


def _tables(session: Session) -> list[dict[str, Any]]:
    """The server's tables if an endpoint is named, else those of this version of probe."""
    if not session.named and not session.settings.endpoint:
        return _own_tables()
    found = session.request("GET", "/v1/tables", {"endpoint": session.endpoint}).get("tables")
    if not isinstance(found, list):
        raise ServerUnavailable("invalid list of tables")
    return found


def _own_tables() -> list[dict[str, Any]]:
    """The declared tables in the form of `/v1/tables`."""
    from probe.recording.tables import TABLES, columns_of

    return [
        {
            "name": table.full_name,
            "doc": table.doc,
            "source": table.source,
            "columns": [column._asdict() for column in columns_of(table)],
            "example": table.example,
        }
        for table in TABLES
    ]


def _named(name: str, tables: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    wanted = name.lower()
    found = [table for table in tables if wanted in (table["name"], table["name"].partition(".")[2])]
    if found:
        return found
    names = [str(table["name"]) for table in tables]
    near = difflib.get_close_matches(wanted, [*names, *(name.partition(".")[2] for name in names)], n=2)
    meant = f"Did you mean {' or '.join(near)}? " if near else ""
    raise UsageError(f"no such table: {name!r}", hint=meant + "`probe tables` lists all.")


def _table_lines(table: dict[str, Any], out: Output) -> Iterator[str]:
    """One table: the meaning of a row, its columns, an example."""
    yield out.style(escape_controls(str(table["name"])), "bold") + escape_controls(
        f"  one row per {table['doc']}"
    )
    rows = [
        [escape_controls(str(column.get(key) or "")) for key in ("name", "type", "unit", "doc")]
        for column in table["columns"]
    ]

    def paint(number: int, _column: int, text: str) -> str:
        return out.style(text, "dim") if number < 0 else text

    width = None if out.width is None else out.width - 2
    for line in grid(_HEADINGS, rows, width, paint):
        yield f"  {line}"
    yield out.style("  example", "dim")
    yield f"    {escape_controls(str(table['example']))}"
