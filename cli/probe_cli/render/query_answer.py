"""Output formats of a query: table, JSON, NDJSON, CSV.

A table is for reading: values are shortened to fit the terminal and control
characters are escaped. The other formats are exact. JSON has no NaN or infinity,
so they are the strings "NaN", "Infinity", "-Infinity". Pure; the command's main thread.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from probe.client.answer import Answer, distinct
from probe_cli.core.terminal import escape_controls
from probe_cli.render.grid import Heading, Paint, grid

_INTEGER_TYPES = ("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "HUGEINT")
_NUMBER_TYPES = frozenset({*_INTEGER_TYPES, *(f"U{kind}" for kind in _INTEGER_TYPES), "FLOAT", "DOUBLE"})
_SIGNIFICANT_DIGITS = 6


def table_lines(answer: Answer, width: int | None, paint: Paint | None = None) -> Iterator[str]:
    """Lines of a table; with a `width`, fitted to it and with floats of six significant digits."""
    if not answer.columns:
        return
    headings = [
        Heading(escape_controls(name), number=_is_number(kind), path=_holds_paths(answer.rows, index))
        for index, (name, kind) in enumerate(answer.columns)
    ]
    rows = [[cell(value, full=width is None) for value in row] for row in answer.rows]
    yield from grid(headings, rows, width, paint) if paint else grid(headings, rows, width)


def _is_number(kind: str) -> bool:
    return kind in _NUMBER_TYPES or kind.startswith("DECIMAL")


def _holds_paths(rows: Sequence[Sequence[Any]], column: int) -> bool:
    """The end of a path says most, so a narrow terminal shows that."""
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
    """A float with six significant digits, or in full if that is no longer."""
    exact = repr(value)
    if len(exact) <= _SIGNIFICANT_DIGITS + 2:
        return exact
    if 10**_SIGNIFICANT_DIGITS <= abs(value) < 1e15:
        return f"{value:.0f}"
    return f"{value:.{_SIGNIFICANT_DIGITS}g}"


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
    yield ",".join(_quoted(name) for name, _ in answer.columns)
    for row in answer.rows:
        yield ",".join(_csv_value(value) for value in row)


def _csv_value(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return _quoted(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return repr(value)
    return _quoted(json.dumps(value, ensure_ascii=False))


def _quoted(text: str) -> str:
    if text and not any(letter in text for letter in ',"\n\r') and text == text.strip():
        return text
    return '"' + text.replace('"', '""') + '"'
