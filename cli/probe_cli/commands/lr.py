"""`probe lr` and `probe loss-scale` without a change: what is, and what the steps so far have used.

The present comes from the job, the past from its recording, so of a job that has
ended the past is shown. The command's main thread.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from probe.base.errors import LimitReached, ProcessDead, ServerUnavailable
from probe_cli.commands.actions import action_text, decoded
from probe_cli.core.act_client import Format, alike, ask_to_act, by_rank, say_who_is_missing
from probe_cli.core.session import Session
from probe_cli.core.terminal import escape_controls
from probe_cli.render.grid import Heading, grid
from probe_cli.render.query_answer import Answer, readable

_MOST_RANGES = 12
_RANGES = (
    "SELECT min(step), max(step), VALUE, VALUE FROM"
    " (SELECT step, VALUE, sum(turned) OVER (ORDER BY step) AS part FROM"
    " (SELECT step, VALUE, CAST(VALUE IS DISTINCT FROM lag(VALUE) OVER (ORDER BY step) AS INTEGER) AS turned"
    " FROM python.steps WHERE VALUE IS NOT NULL AND rank = (SELECT min(rank) FROM python.steps)))"
    " GROUP BY part, VALUE ORDER BY 1"
)
"""(first step, last step, value at the first, value at the last) of each stretch of one value of a column:
of the lowest rank, which stands for those that train with it."""
_HEADINGS = (
    Heading("GROUP", number=True), Heading("LR", number=True), Heading("INITIAL LR", number=True),
    Heading("SCHEDULED", number=True), Heading("WEIGHT DECAY", number=True), Heading("TENSORS", number=True),
    Heading("ELEMENTS", number=True),
)


def show_rates(session: Session, arguments: dict[str, Any], wait_s: float | None, format: Format) -> None:
    """Write the rates of an optimizer, what drives them, and what they were."""
    answer: dict[str, Any] = {"what": "", "notes": [], "details": {}}
    try:
        answer = ask_to_act(session, "lr", arguments, wait_s=wait_s)
    except ProcessDead as error:
        session.note(error.message)
    ranges, changes = _history(session, "lr", "lr")
    if format == "json":
        text = json.dumps({**answer, "history": ranges, "changes": changes}, ensure_ascii=False)
        session.out.line(escape_controls(text) if session.out.terminal else text)
        return
    for line in [*_of_ranks(session, answer), *_past(ranges, changes)]:
        session.out.line(line)
    say_who_is_missing(session, answer)


def _of_ranks(session: Session, answer: dict[str, Any]) -> Iterator[str]:
    """Of one process, or of all ranks: those that have the same once."""
    if not by_rank(answer):
        yield from _present(session, answer)
        return
    for ranks, one in alike(by_rank(answer), lambda one: json.dumps(one.get("details"), default=str)):
        yield ranks
        yield from _present(session, one)


def show_loss_scale(session: Session, format: Format) -> None:
    """Write the scale of the gradients that the steps have used, from the recording."""
    ranges, changes = _history(session, "loss_scale", "loss_scale")
    scale = ranges[-1]["last"] if ranges else None
    if format == "json":
        session.out.line(json.dumps({"loss_scale": scale, "history": ranges, "changes": changes}))
        return
    if scale is None:
        session.out.line("no step has used a loss scale, or it lives on a device and is not read")
        return
    session.out.line(f"loss scale {_plain(float(scale))}")
    for line in _past(ranges, changes):
        session.out.line(line)


def _present(session: Session, answer: dict[str, Any]) -> Iterator[str]:
    details = answer["details"]
    if answer["what"]:
        yield escape_controls(answer["what"])
    for note in answer["notes"]:
        yield f"  {escape_controls(str(note))}"
    rows = [_group(group) for group in details.get("groups") or ()]
    if rows:
        yield from grid(_HEADINGS, rows, session.out.width)
    for scheduler in details.get("schedulers") or ():
        yield from _scheduler(scheduler, "")


def _group(group: dict[str, Any]) -> list[str]:
    rates = [group.get(name) for name in ("lr", "initial_lr", "scheduled", "weight_decay")]
    counts = [group.get(name) for name in ("tensors", "elements")]
    return [
        str(group.get("group")),
        *("-" if rate is None else readable(float(rate)) for rate in rates),
        *("-" if count is None else f"{count:,}" for count in counts),
    ]


def _scheduler(scheduler: dict[str, Any], indent: str) -> Iterator[str]:
    numbers = ", ".join(f"{name} {_plain(value)}" for name, value in (scheduler.get("numbers") or {}).items())
    yield escape_controls(f"{indent}{scheduler.get('class')}{f': {numbers}' if numbers else ''}")
    for inner in scheduler.get("inner") or ():
        yield from _scheduler(inner, indent + "  ")


def _plain(value: object) -> str:
    if isinstance(value, float) and not (value.is_integer() and abs(value) < 1e15):
        return readable(value)
    return str(int(value)) if isinstance(value, float) else str(value)


# The past ---------------------------------------------------------------------


def _history(
    session: Session, column: str, action: str
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Stretches of steps with their values, and the changes by hand; nothing where no server answers."""
    try:
        session.connect(0.0)
        changes = _changes(session, action)
        ranges = _ask(session, f"{_RANGES.replace('VALUE', column)} LIMIT {_MOST_RANGES + 1}")
        if len(ranges) > _MOST_RANGES:
            ranges = _ask(session, _between_changes(column, [row["step"] for row in changes]))
    except (ServerUnavailable, LimitReached) as error:
        session.note(f"no history: {error.message}")
        return [], []
    names = ("first_step", "last_step", "first", "last")
    found = [dict(zip(names, row, strict=True)) for row in ranges]
    return [row for row in found if row["first_step"] is not None], changes


def _changes(session: Session, action: str) -> list[dict[str, Any]]:
    """Each time that an action took effect or was undone, with the first step that it was so for."""
    rows = _ask(
        session,
        "SELECT min(step), action_id, action, arguments, state FROM probe.actions"
        f" WHERE action = '{action}' AND state IN ('done', 'standing', 'undone') AND step IS NOT NULL"
        " GROUP BY action_id, action, arguments, state ORDER BY min(t_ns)",
    )
    names = ("step", "action_id", "action", "arguments", "state")
    found = [dict(zip(names, row, strict=True)) for row in rows]
    return [{**row, "arguments": decoded(row["arguments"])} for row in found]


def _between_changes(column: str, steps: list[int]) -> str:
    """The stretches between the changes by hand, where a schedule changes the value at each step."""
    part = " + ".join(f"CAST(step >= {int(step)} AS INTEGER)" for step in steps[-_MOST_RANGES:])
    return (
        f"SELECT min(step), max(step), arg_min({column}, step), arg_max({column}, step) FROM python.steps"
        f" WHERE {column} IS NOT NULL AND rank = (SELECT min(rank) FROM python.steps)"
        f"{f' GROUP BY {part}' if part else ''} ORDER BY 1"
    )


def _ask(session: Session, sql: str) -> list[list[Any]]:
    body = {"endpoint": session.address.endpoint, "sql": sql}
    return Answer.parse(session.ask("POST", "/v1/query", body=body)).rows


def _past(ranges: list[dict[str, Any]], changes: list[dict[str, Any]]) -> Iterator[str]:
    """Stretches and changes, in order of their steps."""
    lines = [(row["first_step"], 1, _stretch(row)) for row in ranges]
    lines += [(row["step"], 0, _change(row)) for row in changes]
    if lines:
        yield "history"
    for _, _, line in sorted(lines):
        yield f"  {escape_controls(line)}"


def _stretch(row: dict[str, Any]) -> str:
    first, last = row["first_step"], row["last_step"]
    steps = f"step {first:,}" if first == last else f"steps {first:,} to {last:,}"
    values = [_plain(float(row[name])) for name in ("first", "last")]
    return f"{steps}: {values[0] if values[0] == values[1] else ' … '.join(values)}"


def _change(row: dict[str, Any]) -> str:
    words = "undone" if row["state"] == "undone" else action_text(row["action"], row["arguments"])
    return f"from step {row['step']:,} on: {row['action_id']} {words}"
