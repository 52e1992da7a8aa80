"""`probe ranks`: list the ranks of a job on all its hosts."""

from __future__ import annotations

from typing import Any

import typer

from probe.base.errors import ServerUnavailable
from probe_cli.core.figures import age, count, known
from probe_cli.core.options import OutputFile, RowsFormat
from probe_cli.core.session import Session
from probe_cli.core.terminal import escape_controls
from probe_cli.render.grid import Heading, state_lines
from probe_cli.render.process_state import COLOURS, state_text

EXAMPLES = (
    "probe JOB ranks",
    "probe JOB ranks --format json",
)
_HEADINGS = (
    Heading("RANK", number=True),
    Heading("HOST"),
    Heading("PID", number=True),
    Heading("STEP", number=True),
    Heading("LAG", number=True),
    Heading("LAST STEP"),
    Heading("STATE"),
)


def command(context: typer.Context, output_format: RowsFormat = None, output: OutputFile = None) -> None:
    """List the ranks of a job on all hosts. Reports missing ranks and hosts."""
    session: Session = context.obj
    answer = session.request("GET", "/v1/ranks", {"endpoint": session.address.endpoint})
    found, missing = answer.get("ranks"), answer.get("missing")
    if not isinstance(found, list) or not isinstance(missing, list):
        raise ServerUnavailable("invalid list of ranks")
    if output_format == "json" and output is None:
        session.out.json(answer)
        return
    if output_format or output:
        from probe_cli.render.row_output import write_records

        write_records(session, found, output_format, output)
        _say_missing(session, missing)
        return
    rows = [_cells(rank) for rank in found if isinstance(rank, dict)]
    session.out.page(state_lines(session.out, _HEADINGS, rows, "STATE", COLOURS))
    _say_missing(session, missing)


def _say_missing(session: Session, missing: list[Any]) -> None:
    for sentence in missing:
        session.note(f"missing: {sentence}")


def _cells(rank: dict[str, Any]) -> list[str]:
    found = [
        known(rank.get("rank")), known(rank.get("host")), known(rank.get("pid")), count(rank.get("step")),
        count(rank.get("lag_steps")), age(rank.get("last_step_s")), state_text(rank),
    ]
    return [escape_controls(cell) for cell in found]
