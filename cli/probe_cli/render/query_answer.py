"""Output formats of rows: table, JSON, NDJSON, CSV, Markdown, Arrow.

A table is for reading: values are shortened to fit the terminal and control
characters are escaped. The other formats are exact. JSON has no NaN or infinity,
so they are the strings "NaN", "Infinity", "-Infinity". Pure except for Arrow
(see `Answer.arrow`); runs in the command's main thread.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from probe.base.csv_line import csv_line
from probe.client.answer import Answer, distinct
from probe_cli.core.terminal import escape_controls
from probe_cli.render.grid import Heading, Paint, grid
from probe_cli.render.quantities import formatted

_INTEGER_TYPES = ("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "HUGEINT")
_NUMBER_TYPES = frozenset({*_INTEGER_TYPES, *(f"U{kind}" for kind in _INTEGER_TYPES), "FLOAT", "DOUBLE"})
_SIGNIFICANT_DIGITS = 4


def table_lines(answer: Answer, width: int | None, paint: Paint | None = None) -> Iterator[str]:
    """Lines of a table; with a `width`, fitted to it, and its numbers with units."""
    if not answer.columns:
        return
    headings = [
        Heading(escape_controls(name), number=_is_number(kind), path=_holds_paths(answer.rows, index))
        for index, (name, kind) in enumerate(answer.columns)
    ]
    rows = _cells(answer, full=width is None)
    yield from grid(headings, rows, width, paint) if paint else grid(headings, rows, width)


def _cells(answer: Answer, full: bool) -> list[list[str]]:
    columns = []
    for place, (name, kind) in enumerate(answer.columns):
        values = [row[place] for row in answer.rows]
        write = None if full or not _is_number(kind) else formatted(name, values)
        columns.append(
            [write(one) if write and one is not None else cell(one, full) for one in values]
        )
    return [list(row) for row in zip(*columns, strict=True)]


def _is_number(kind: str) -> bool:
    return kind in _NUMBER_TYPES or kind.startswith("DECIMAL")


def _holds_paths(rows: Sequence[Sequence[Any]], column: int) -> bool:
    """Whether the column holds paths, whose end is shown on a narrow terminal."""
    return any(isinstance(row[column], str) and row[column].startswith("/") for row in rows[:20])


def cell(value: Any, full: bool) -> str:
    """One value as text; `full` keeps every digit."""
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return repr(value) if full else readable(value)
    if isinstance(value, str):
        return escape_controls(value)
    if isinstance(value, int):
        return str(value)
    return escape_controls(json.dumps(value, ensure_ascii=False))


def readable(value: float) -> str:
    """A float with four significant digits (losses may differ in the fourth), or in full if that is not
    longer: `0.0003`, `2.374`, `2.7e-4`."""
    exact = repr(value)
    if len(exact) <= _SIGNIFICANT_DIGITS + 2:
        return exact
    if 10**_SIGNIFICANT_DIGITS <= abs(value) < 1e15:
        return f"{value:.0f}"
    mantissa, _, exponent = f"{value:.{_SIGNIFICANT_DIGITS}g}".partition("e")
    return f"{mantissa}e{int(exponent)}" if exponent else mantissa


def json_text(answer: Answer) -> str:
    """`{"columns", "rows", "truncated", "elapsed_ms"}`."""
    return json.dumps(
        {
            "columns": [{"name": name, "type": kind} for name, kind in answer.columns],
            "rows": answer.rows,
            "truncated": answer.truncated,
            "elapsed_ms": answer.elapsed_ms,
        },
        ensure_ascii=False,
    )


def ndjson_lines(answer: Answer) -> Iterator[str]:
    """One object per row; duplicate column names are numbered."""
    names = distinct([name for name, _ in answer.columns])
    for row in answer.rows:
        yield json.dumps(dict(zip(names, row, strict=True)), ensure_ascii=False)


def csv_lines(answer: Answer) -> Iterator[str]:
    """Lines of CSV (RFC 4180 with `\\n`); NULL is empty, an empty string is `""`."""
    yield csv_line(name for name, _ in answer.columns)
    yield from map(csv_line, answer.rows)


def markdown_lines(answer: Answer) -> Iterator[str]:
    """Lines of a Markdown table, values in full."""
    names = [escape_controls(name) for name, _ in answer.columns]
    sides = ["---:" if _is_number(kind) else "---" for _, kind in answer.columns]
    for row in (names, sides, *([cell(value, full=True) for value in row] for row in answer.rows)):
        yield "| " + " | ".join(text.replace("|", "\\|") for text in row) + " |"


def arrow_bytes(answer: Answer) -> bytes:
    """An Arrow IPC stream with the answer's names and types; raises `UsageError` if that is impossible."""
    table = answer.arrow()
    import pyarrow

    sink = pyarrow.BufferOutputStream()
    with pyarrow.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())
