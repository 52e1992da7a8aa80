"""`probe tables` and `probe config`: what there is to ask and to set. The command's main thread."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Sequence
from typing import Any, Literal

from probe.base.errors import ServerUnavailable, SettingInvalid, UsageError
from probe.base.settings import SETTINGS, Setting, unknown_variables
from probe_cli.core.session import Session
from probe_cli.core.terminal import Output, escape_controls
from probe_cli.render.grid import Heading, grid

_COLUMN_HEADINGS = (Heading("column"), Heading("type"), Heading("unit"), Heading("meaning", prose=True))
_SETTING_HEADINGS = (
    Heading("VARIABLE"),
    Heading("VALUE"),
    Heading("DEFAULT"),
    Heading("UNIT"),
    Heading("MEANING", prose=True),
)


def show_tables(session: Session, name: str | None, format: Literal["text", "json"]) -> None:
    """Write every table, or the one called `name` (the schema may be left out)."""
    found = _tables(session)
    if name is not None:
        found = _named(name, found)
    if format == "json":
        text = json.dumps({"tables": found}, ensure_ascii=False)
        session.out.line(escape_controls(text) if session.out.terminal else text)
        return
    for index, table in enumerate(found):
        if index:
            session.out.line()
        for line in table_lines(table, session.out):
            session.out.line(line)


def _tables(session: Session) -> list[dict[str, Any]]:
    """The server's tables when an endpoint is named, else those of this version of probe."""
    if not session.named and not session.settings.endpoint:
        return own_tables()
    found = session.ask("GET", "/v1/tables").get("tables")
    if not isinstance(found, list):
        raise ServerUnavailable("the list of tables cannot be read")
    return found


def own_tables() -> list[dict[str, Any]]:
    """The declared tables, in the form of `/v1/tables`."""
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
    meant = f"Did you mean {' or '.join(near)}?" if near else f"Tables: {', '.join(names)}."
    raise UsageError(f"there is no table {name!r}", hint=meant)


def table_lines(table: dict[str, Any], out: Output) -> Iterator[str]:
    """Lines about one table: what a row is, its columns, an example."""
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
    for line in grid(_COLUMN_HEADINGS, rows, width, paint):
        yield f"  {line}"
    yield out.style("  example", "dim")
    yield f"    {escape_controls(str(table['example']))}"


def show_config(session: Session) -> None:
    """Write every setting with its value here; raises `SettingInvalid` at the end when one is invalid."""
    invalid: list[str] = []
    rows = [_setting_row(session, setting, invalid) for setting in SETTINGS]

    def paint(number: int, column: int, text: str) -> str:
        if number < 0:
            return session.out.style(text, "bold")
        set_here = SETTINGS[number].env in session.environ
        return session.out.style(text, "yellow") if column == 1 and set_here else text

    for line in grid(_SETTING_HEADINGS, rows, session.out.width, paint):
        session.out.line(line)
    for name in unknown_variables(session.environ):
        session.note(unknown_variable(name))
    if invalid:
        raise SettingInvalid("; ".join(invalid), hint="Correct or unset the variable.")


def _setting_row(session: Session, setting: Setting, invalid: list[str]) -> list[str]:
    value = session.environ.get(setting.env, "")
    shown = value if value.strip() else setting.default
    try:
        setting.parse(shown)
    except ValueError as error:
        invalid.append(f"{setting.env}={value!r}: {error}")
        shown += " (invalid)"
    return [
        setting.env,
        escape_controls(shown) or "-",
        setting.default or "-",
        setting.unit or "-",
        setting.help,
    ]


def unknown_variable(name: str) -> str:
    """A sentence about a PROBE_ variable that means nothing."""
    near = difflib.get_close_matches(name, [setting.env for setting in SETTINGS], n=1)
    meant = f"; did you mean {near[0]}?" if near else ""
    return f"{name} is set and means nothing{meant}"
