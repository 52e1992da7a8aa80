"""The history of a value that a schedule or a user changes, such as the learning rate, from the recording.

Runs in the command's main thread.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from probe.base.errors import LimitReached, ServerUnavailable
from probe.client.answer import Answer
from probe_cli.core.action_log import action_text, decoded
from probe_cli.core.session import Session
from probe_cli.core.terminal import escape_controls
from probe_cli.render.query_answer import readable

_MOST_RANGES = 12
_RANGES = (
    "SELECT min(step), max(step), VALUE, VALUE FROM"
    " (SELECT step, VALUE, sum(turned) OVER (ORDER BY step) AS part FROM"
    " (SELECT step, VALUE, CAST(VALUE IS DISTINCT FROM lag(VALUE) OVER (ORDER BY step) AS INTEGER) AS turned"
    " FROM python.steps WHERE VALUE IS NOT NULL AND rank = (SELECT min(rank) FROM python.steps)))"
    " GROUP BY part, VALUE ORDER BY 1"
)
"""(first step, last step, value at the first, value at the last) of each range of steps with a constant
value, on the lowest rank, which represents the others."""


def history(
    session: Session, column: str, action: str
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Step ranges with their values, and the manual changes; both empty if no server answers."""
    try:
        session.connect(0.0)
        changes = _changes(session, action)
        ranges = Answer.query(session, f"{_RANGES.replace('VALUE', column)} LIMIT {_MOST_RANGES + 1}").rows
        if len(ranges) > _MOST_RANGES:
            ranges = Answer.query(session, _between_changes(column, [row["step"] for row in changes])).rows
    except (ServerUnavailable, LimitReached) as error:
        session.note(f"no history: {error.message}")
        return [], []
    names = ("first_step", "last_step", "first", "last")
    found = [dict(zip(names, row, strict=True)) for row in ranges]
    return [row for row in found if row["first_step"] is not None], changes


def _changes(session: Session, action: str) -> list[dict[str, Any]]:
    """Each time an action took effect or was undone, with the first step affected."""
    sql = (
        "SELECT min(step) AS step, action_id, action, arguments, state FROM probe.actions"
        f" WHERE action = '{action}' AND state IN ('done', 'standing', 'undone') AND step IS NOT NULL"
        " GROUP BY action_id, action, arguments, state ORDER BY min(t_ns)"
    )
    found = Answer.query(session, sql).records()
    return [{**row, "arguments": decoded(row["arguments"])} for row in found]


def _between_changes(column: str, steps: list[int]) -> str:
    """SQL for the ranges between manual changes, for when a schedule changes the value at every step."""
    part = " + ".join(f"CAST(step >= {int(step)} AS INTEGER)" for step in steps[-_MOST_RANGES:])
    return (
        f"SELECT min(step), max(step), arg_min({column}, step), arg_max({column}, step) FROM python.steps"
        f" WHERE {column} IS NOT NULL AND rank = (SELECT min(rank) FROM python.steps)"
        f"{f' GROUP BY {part}' if part else ''} ORDER BY 1"
    )


def history_lines(ranges: list[dict[str, Any]], changes: list[dict[str, Any]]) -> Iterator[str]:
    """Ranges and changes, ordered by step."""
    lines = [(row["first_step"], 1, _range(row)) for row in ranges]
    lines += [(row["step"], 0, _change(row)) for row in changes]
    if lines:
        yield "history"
    for _, _, line in sorted(lines):
        yield f"  {escape_controls(line)}"


def _range(row: dict[str, Any]) -> str:
    first, last = row["first_step"], row["last_step"]
    steps = f"step {first:,}" if first == last else f"steps {first:,} to {last:,}"
    values = [plain(float(row[name])) for name in ("first", "last")]
    return f"{steps}: {values[0] if values[0] == values[1] else ' … '.join(values)}"


def _change(row: dict[str, Any]) -> str:
    words = "undone" if row["state"] == "undone" else action_text(row["action"], row["arguments"])
    return f"from step {row['step']:,} on: {row['action_id']} {words}"


def plain(value: object) -> str:
    """A number without a needless `.0`."""
    if isinstance(value, float) and not (value.is_integer() and abs(value) < 1e15):
        return readable(value)
    return str(int(value)) if isinstance(value, float) else str(value)
