"""What a deep watch saw: the worst parameters, modules and distributions, and how to ask for the rest.

The rows are in the recording; here a few are asked for. The command's main thread.
"""

from __future__ import annotations

import json
from typing import Any, Literal, NamedTuple

from probe_cli.core.act_client import command
from probe_cli.core.session import Session
from probe_cli.core.terminal import escape_controls
from probe_cli.render.grid import Heading, grid
from probe_cli.render.query_answer import Answer, readable

SHOWN = 8
"""Rows of each table."""


class Part(NamedTuple):
    """One table: what is worst in it comes first."""

    kinds: tuple[str, ...]
    """Shown when one of these was asked for."""
    title: str
    table: str
    columns: tuple[str, ...]
    values: tuple[str, ...]
    """SQL of each column."""
    order: str


PARTS = (
    Part(
        ("gradients", "updates", "histograms"),
        "gradients, those furthest from an update of a thousandth first", "python.gradients",
        ("PARAMETER", "NORM", "LARGEST", "NON-FINITE", "ZEROS", "WEIGHT", "UPDATE RATIO", ""),
        ("coalesce(param, concat('number ', place))", "norm", "abs_max", "nan_count + inf_count",
         "zero_ratio", "weight_norm", "update_ratio", "update_kind"),
        "coalesce(nan_count + inf_count, 0) DESC, norm IS NOT NULL, "
        "abs(ln(greatest(update_ratio, 1e-30) / 1e-3)) DESC NULLS LAST",
    ),
    Part(
        ("activations",), "activations, most dead or saturated units first", "python.activations",
        ("MODULE", "CLASS", "MEAN", "STD", "SMALLEST", "LARGEST", "NON-FINITE", "DEAD", "SATURATED"),
        ("module", "class", "mean", "std", "min", "max", "nan_count + inf_count", "dead_ratio",
         "saturated_ratio"),
        "nan_count + inf_count DESC, greatest(coalesce(dead_ratio, 0), coalesce(saturated_ratio, 0)) DESC, "
        "abs(ln(greatest(std, 1e-30))) DESC NULLS LAST",
    ),
    Part(
        ("histograms",), "distributions, the heaviest tails first", "python.histograms",
        ("NAME", "KIND", "P1", "MEDIAN", "P99", "SKEWNESS", "KURTOSIS"),
        ("name", "kind", "p1", "p50", "p99", "skewness", "kurtosis"),
        "kurtosis DESC NULLS LAST",
    ),
)


def write_deep(
    session: Session, kinds: list[str], action_id: str, ranks: list[int],
    format: Literal["table", "ndjson"],
) -> None:
    """Write the worst rows of the last step of a watch that has ended."""
    actions = f"FROM probe.actions WHERE action_id = '{action_id}' AND state = 'ended'"
    for rank, what in _ask(session, f"SELECT rank, what {actions} ORDER BY rank"):
        session.note(f"rank {rank} {what}" if ranks else str(what))
    asked = f"(SELECT min(t_ns) FROM probe.actions WHERE action_id = '{action_id}')"
    for part in PARTS:
        if not set(kinds).intersection(part.kinds):
            continue
        reason = "" if part.table == "python.histograms" else " AND reason = 'asked'"
        those = f"FROM {part.table} WHERE t_ns >= {asked}{reason}"
        found = _ask(
            session,
            f"SELECT step, rank, {', '.join(part.values)}, count(*) OVER () {those}"
            f" AND step = (SELECT max(step) {those}) ORDER BY {part.order} LIMIT {SHOWN}",
        )
        _write(session, part, found, bool(ranks), format)


def _write(
    session: Session, part: Part, found: list[list[Any]], several: bool, format: Literal["table", "ndjson"]
) -> None:
    out = session.out
    if format == "ndjson":
        names = [name.lower().replace(" ", "_").replace("-", "_") or "update_kind" for name in part.columns]
        for step, rank, *values, _ in found:
            row = {"table": part.table, "step": step, "rank": rank, **dict(zip(names, values, strict=True))}
            out.line(escape_controls(json.dumps(row, ensure_ascii=False)))
        return
    if not found:
        session.note(f"{part.table} has no row of this watch")
        return
    step, total = found[0][0], found[0][-1]
    out.line(f"\n{part.title} (step {step}, {min(SHOWN, total)} of {total})")
    texts = 2 if part.columns[1] in ("CLASS", "KIND") else 1
    columns = enumerate(part.columns)
    headings = [Heading(name, number=place >= texts and bool(name)) for place, name in columns]
    rows = [[_text(value) for value in row[2:-1]] for row in found]
    if several:
        headings.insert(0, Heading("RANK", number=True))
        rows = [[str(row[1]), *cells] for row, cells in zip(found, rows, strict=True)]
    for line in grid(headings, rows, out.width):
        out.line(line)
    where = "" if part.table == "python.histograms" else " WHERE reason = 'asked'"
    out.line(f"  {command(session, 'query')} \"FROM {part.table}{where}\"")


def _text(value: object) -> str:
    if isinstance(value, float):
        return readable(value)
    return "-" if value is None else escape_controls(str(value))


def _ask(session: Session, sql: str) -> list[list[Any]]:
    body = {"endpoint": session.address.endpoint, "sql": sql, "limit": 1000}
    return Answer.parse(session.ask("POST", "/v1/query", body=body)).rows
