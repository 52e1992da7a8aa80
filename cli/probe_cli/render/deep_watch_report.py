"""Report of a deep watch: the worst parameters, modules and distributions, and a query for the rest.

Runs in the command's main thread.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from probe.client.answer import Answer
from probe_cli.core.act_client import typed
from probe_cli.core.session import Session
from probe_cli.core.terminal import escape_controls
from probe_cli.render.grid import Heading, grid
from probe_cli.render.query_answer import readable

SHOWN = 8
"""Rows shown per table."""


class Part(NamedTuple):
    """One table, worst rows first."""

    kinds: tuple[str, ...]
    """Shown if any of these was requested."""
    title: str
    table: str
    columns: tuple[str, ...]
    values: tuple[str, ...]
    """SQL of each column."""
    order: str


_KEYS = {
    "MIN": "smallest", "MAX": "largest", "NAN/INF": "non_finite", "UPDATE": "update_ratio", "": "update_kind",
}
"""NDJSON keys of columns whose heading differs from the key."""
PARTS = (
    Part(
        ("gradients", "updates", "histograms"),
        "gradients, update ratios furthest from 0.001 first", "python.gradients",
        ("PARAMETER", "NORM", "MAX", "NAN/INF", "ZEROS", "WEIGHT", "UPDATE", ""),
        ("coalesce(param, concat('number ', place))", "norm", "abs_max", "nan_count + inf_count",
         "zero_ratio", "weight_norm", "update_ratio", "update_kind"),
        "coalesce(nan_count + inf_count, 0) DESC, norm IS NOT NULL, "
        "abs(ln(greatest(update_ratio, 1e-30) / 1e-3)) DESC NULLS LAST",
    ),
    Part(
        ("activations",), "activations, most dead or saturated units first", "python.activations",
        ("MODULE", "CLASS", "MEAN", "STD", "MIN", "MAX", "NAN/INF", "DEAD", "SATURATED"),
        ("module", "class", "mean", "std", "min", "max", "nan_count + inf_count", "dead_ratio",
         "saturated_ratio"),
        "nan_count + inf_count DESC, greatest(coalesce(dead_ratio, 0), coalesce(saturated_ratio, 0)) DESC, "
        "abs(ln(greatest(std, 1e-30))) DESC NULLS LAST",
    ),
    Part(
        ("histograms",), "distributions, heaviest tails first", "python.histograms",
        ("NAME", "KIND", "P1", "MEDIAN", "P99", "SKEWNESS", "KURTOSIS"),
        ("name", "kind", "p1", "p50", "p99", "skewness", "kurtosis"),
        "kurtosis DESC NULLS LAST",
    ),
)


def write_deep(
    session: Session, kinds: list[str], action_id: str, ranks: list[int],
    output_format: Literal["table", "ndjson"],
) -> None:
    """Write the worst rows of the last step of an ended watch."""
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
        _write(session, part, found, bool(ranks), output_format)


def _write(
    session: Session, part: Part, found: list[list[Any]], several: bool,
    output_format: Literal["table", "ndjson"],
) -> None:
    out = session.out
    if output_format == "ndjson":
        names = [_KEYS.get(name, name.lower()) for name in part.columns]
        for step, rank, *values, _ in found:
            row = {"table": part.table, "step": step, "rank": rank, **dict(zip(names, values, strict=True))}
            out.json(row)
        return
    if not found:
        session.note(f"{part.table} has no rows from this watch")
        return
    step, total = found[0][0], found[0][-1]
    out.line(f"\n{part.title} (step {step}, {min(SHOWN, total)} of {total})")
    texts = 2 if part.columns[1] in ("CLASS", "KIND") else 1
    columns = enumerate(part.columns)
    headings = [Heading(name, number=place >= texts and bool(name)) for place, name in columns]
    rows = [[value_text(value) for value in row[2:-1]] for row in found]
    if several:
        headings.insert(0, Heading("RANK", number=True))
        rows = [[str(row[1]), *cells] for row, cells in zip(found, rows, strict=True)]
    for line in grid(headings, rows, out.width):
        out.line(line)
    where = "" if part.table == "python.histograms" else " WHERE reason = 'asked'"
    out.line(f"  {typed(session, 'query')} \"FROM {part.table}{where}\"")


def value_text(value: object) -> str:
    """A value in a cell: floats with six significant digits, `-` for None."""
    if isinstance(value, float):
        return readable(value)
    return "-" if value is None else escape_controls(str(value))


def _ask(session: Session, sql: str) -> list[list[Any]]:
    return Answer.query(session, sql, 1000).rows
