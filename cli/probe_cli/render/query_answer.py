"""The answer to a query, and how it is written: table, JSON, NDJSON, CSV, Parquet.

A table is for reading: values are shortened to fit a terminal, NULL is `NULL`,
control characters are written out. The other formats are exact. JSON has no NaN
or infinity, so these are the strings "NaN", "Infinity", "-Infinity" there; Parquet
gets the numbers back. Pure but for Parquet (duckdb, a temporary file); the
command's main thread.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from probe.base.errors import ServerUnavailable, UsageError
from probe_cli.core.terminal import escape_controls
from probe_cli.render.grid import Heading, Paint, grid

_INTEGER_TYPES = ("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "HUGEINT")
_NUMBER_TYPES = frozenset({*_INTEGER_TYPES, *(f"U{kind}" for kind in _INTEGER_TYPES), "FLOAT", "DOUBLE"})
_SIGNIFICANT_DIGITS = 6
_TYPE = re.compile(r"[A-Z][A-Z0-9_ ]*(\(\d+(,\s*\d+)?\))?(\[\d*\])*")
"""Types that may be repeated to our own duckdb; others (structs, enums) are written as text."""


class Answer(NamedTuple):
    """A query's answer as the server gives it."""

    columns: list[tuple[str, str]]
    """(name, SQL type)"""
    rows: list[list[Any]]
    truncated: bool
    elapsed_ms: float | None
    notes: list[str]

    @classmethod
    def parse(cls, body: dict[str, Any]) -> Answer:
        """The answer in a response body; raises `ServerUnavailable` for a body that is none."""
        try:
            columns = [(str(column["name"]), str(column["type"])) for column in body["columns"]]
            rows = [list(row) for row in body["rows"]]
            if any(len(row) != len(columns) for row in rows):
                raise TypeError("a row has not as many values as there are columns")
            return cls(
                columns,
                rows,
                bool(body["truncated"]),
                body.get("elapsed_ms"),
                [str(note) for note in body.get("notes") or ()],
            )
        except (KeyError, TypeError) as error:
            raise ServerUnavailable(f"the answer to the query cannot be read: {error}") from None


def table_lines(answer: Answer, width: int | None, paint: Paint | None = None) -> Iterator[str]:
    """Lines of a table; with a `width`, fitted to it and with numbers of six digits."""
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
    """Of a path the end says most, so that is what a narrow terminal shows."""
    return any(isinstance(row[column], str) and row[column].startswith("/") for row in rows[:20])


def cell(value: Any, full: bool) -> str:
    """One value for reading; `full` keeps every digit."""
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
    """A number in six significant digits, in full where that is as short."""
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
    """One object per row; a name that occurs twice gets a number."""
    names = distinct([name for name, _ in answer.columns])
    for row in answer.rows:
        yield json.dumps(dict(zip(names, row, strict=True)), ensure_ascii=False)


def distinct(names: Sequence[str]) -> list[str]:
    """The names, later ones of the same name with `_1`, `_2` … behind (regardless of case, as in SQL)."""
    taken = {name.lower() for name in names}
    seen: set[str] = set()
    result: list[str] = []
    for name in names:
        chosen, count = name, 0
        while chosen.lower() in seen or (count and chosen.lower() in taken):
            count += 1
            chosen = f"{name}_{count}"
        seen.add(chosen.lower())
        result.append(chosen)
    return result


def csv_lines(answer: Answer) -> Iterator[str]:
    """Lines of CSV (RFC 4180, `\\n` at line ends); NULL is empty, an empty text is `""`."""
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


def parquet_bytes(answer: Answer) -> bytes:
    """A Parquet file with the answer's names and types; raises `UsageError` when it cannot be made."""
    try:
        import duckdb
    except ImportError:
        raise UsageError(
            "Parquet is written with duckdb, which this Python has not", hint="Use --format csv or ndjson."
        ) from None
    import tempfile
    from pathlib import Path

    if not answer.columns:
        raise UsageError("an answer without columns cannot be written as Parquet", hint="Use --format json.")
    names = distinct([name for name, _ in answer.columns])
    numbered = [f"c{index}" for index in range(len(names))]
    selected = ", ".join(
        f'{_typed(column, kind)} AS "{name.replace(chr(34), chr(34) * 2)}"'
        for column, (_, kind), name in zip(numbered, answer.columns, names, strict=True)
    )
    with tempfile.TemporaryDirectory(prefix="probe-") as folder:
        source, made = Path(folder, "rows.ndjson"), Path(folder, "rows.parquet")
        with source.open("w", encoding="utf-8") as file:
            for row in answer.rows:
                values = (_as_text(value) for value in row)
                file.write(json.dumps(dict(zip(numbered, values, strict=True))) + "\n")
        columns = dict.fromkeys(numbered, "VARCHAR")
        with duckdb.connect(":memory:") as connection:
            try:
                connection.execute(
                    f"COPY (SELECT {selected} FROM read_json($source, format='newline_delimited',"
                    f" columns={columns})) TO '{made}' (FORMAT parquet)",
                    {"source": str(source)},
                )
            except duckdb.Error as error:
                raise UsageError(
                    f"the answer cannot be written as Parquet: {error}", hint="Use --format ndjson or csv."
                ) from None
        return made.read_bytes()


def _typed(column: str, kind: str) -> str:
    """SQL that makes a text of the answer a value of its type again."""
    if kind == "BLOB":
        return f"unhex({column})"
    return f"CAST({column} AS {kind})" if _TYPE.fullmatch(kind) else column


def _as_text(value: Any) -> str | None:
    """Text that duckdb casts back to the column's type."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    return repr(value) if isinstance(value, (int, float)) else json.dumps(value, ensure_ascii=False)
