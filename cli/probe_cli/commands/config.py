"""`probe config`: the settings and their values."""

from __future__ import annotations

import difflib

import typer

from probe.base.errors import SettingInvalid
from probe.base.settings import SETTINGS, Setting, unknown_variables
from probe_cli.core.session import Session
from probe_cli.core.terminal import escape_controls
from probe_cli.render.grid import Heading, grid

EXAMPLES = ("probe config",)
_HEADINGS = (
    Heading("VARIABLE", whole=True),
    Heading("VALUE"),
    Heading("DEFAULT"),
    Heading("UNIT"),
    Heading("MEANING", prose=True),
)


def command(context: typer.Context) -> None:
    """List the settings and their current values."""
    session: Session = context.obj
    session.no_endpoint("config")
    invalid: list[str] = []
    rows = [_setting_row(session, setting, invalid) for setting in SETTINGS]

    def paint(number: int, column: int, text: str) -> str:
        if number < 0:
            return session.out.style(text, "bold")
        set_here = SETTINGS[number].env in session.environ
        return session.out.style(text, "yellow") if column == 1 and set_here else text

    session.out.lines(grid(_HEADINGS, rows, session.out.width, paint))
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
    """A message about a PROBE_ variable that does not exist."""
    near = difflib.get_close_matches(name, [setting.env for setting in SETTINGS], n=1)
    meant = f"; did you mean {near[0]}?" if near else ""
    return f"{name} is set but is not a setting{meant}"
