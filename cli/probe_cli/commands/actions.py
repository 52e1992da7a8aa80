"""`probe actions`: the actions on a job, from its recording."""

from __future__ import annotations

import time
from typing import Any

import typer

from probe.base.rank_sets import as_text
from probe_cli.core.action_log import action_text, latest_with_evals
from probe_cli.core.figures import age, count
from probe_cli.core.options import OutputFile, RowsFormat
from probe_cli.core.session import Session
from probe_cli.core.terminal import escape_controls
from probe_cli.render.grid import Heading, state_lines

EXAMPLES = (
    "probe PID actions",
    "probe JOB actions --format json",
)
_HEADINGS = (
    Heading("ID", number=True), Heading("WHEN"), Heading("STEP", number=True), Heading("ACTION"),
    Heading("BY"), Heading("RANKS"), Heading("UNDO"), Heading("STATE"),
)
_NOT_DONE = ("failed", "refused", "cancelled")
"""States shown with their reason."""
_COLOURS = {"standing": "green", "failed": "red", "refused": "yellow", "cancelled": "yellow"}


def command(context: typer.Context, output_format: RowsFormat = None, output: OutputFile = None) -> None:
    """List actions and snippets, and how to undo them."""
    session: Session = context.obj
    rows = latest_with_evals(session)
    if output_format == "json" and output is None:
        session.out.json({"actions": rows})
    elif output_format or output:
        from probe_cli.render.row_output import write_records

        write_records(session, rows, output_format, output)
    elif not rows:
        session.note("no actions")
    else:
        several = len({row["rank"] for row in rows}) > 1
        headings = [one for one in _HEADINGS if several or one.name != "RANKS"]
        cells = [_cells(row, several=several) for row in _merged(rows)]
        session.out.page(state_lines(session.out, headings, cells, "STATE", _COLOURS))


def _merged(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Merge the rows of a coordinated action into one per state; `ranks` lists the ranks in that state."""
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in rows:
        of_all = str(row["action_id"]).startswith("all-")
        key = (row["action_id"], row["state"], None if of_all else row["pid"])
        found.setdefault(key, {**row, "ranks": []})["ranks"].append(row["rank"])
    return list(found.values())


def _cells(row: dict[str, Any], *, several: bool) -> list[str]:
    pid = "" if row["caller_pid"] is None else f" {row['caller_pid']}"
    state = f"{row['state']}: {row['what']}" if row["state"] in _NOT_DONE and row["what"] else row["state"]
    found = [
        str(row["action_id"]), age(time.time() - row["t_ns"] * 1e-9), count(row["step"]),
        action_text(row["action"], row["arguments"]),
        f"{row['caller_role'] or '-'}{pid}", *([as_text(row["ranks"])] if several else []),
        f"undo {row['action_id']}" if row["undo"] else "-", str(state),
    ]
    return [escape_controls(cell) for cell in found]
