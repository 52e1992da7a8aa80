"""The answer to a query: columns, rows, and their forms for notebooks and data frames.

Runs in the client's process, on the caller's thread. Standard library; duckdb and the packages of a form in
functions.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from probe.base.errors import PackageMissing, ServerUnavailable, UsageError

if TYPE_CHECKING:
    import duckdb

MOST_SHOWN_ROWS = 20
"""Rows that `repr` and notebooks show."""
_TYPE = re.compile(r"[A-Z][A-Z0-9_ ]*(\(\d+(,\s*\d+)?\))?(\[\d*\])*")
"""Types that duckdb can cast back to; others (structs, enums) are written as text."""


class Asker(Protocol):
    """Sends requests about one endpoint: a connection, or a run of the command."""

    @property
    def endpoint(self) -> str:
        """The process, rank, job or recording that requests are about."""

    def request(
        self, method: str, path: str, parameters: Mapping[str, str] | None = None,
        body: Mapping[str, object] | None = None, timeout_s: float | None = None,
    ) -> dict[str, Any]:
        """The server's response to one request; raises its `ProbeError`."""


class Answer:  # no dataclass: importing that takes a sixth of the time of a `probe query`
    """Columns and rows of one query. `len()` counts rows, iterating gives a tuple for each."""

    def __init__(
        self, columns: list[tuple[str, str]], rows: list[list[Any]], truncated: bool = False,
        elapsed_ms: float | None = None, notes: Sequence[str] = (),
    ) -> None:
        self.columns = columns
        """(name, SQL type)"""
        self.rows = rows
        self.truncated = truncated
        """Whether there were more rows than the limit."""
        self.elapsed_ms = elapsed_ms
        self.notes = list(notes)
        """The server's notes about the answer, such as ranks that are missing in it."""

    @classmethod
    def query(
        cls, asker: Asker, sql: str, limit: int | None = None, timeout_s: float | None = None
    ) -> Answer:
        """Run one SELECT on the asker's endpoint; None leaves a limit to the server."""
        body = {"endpoint": asker.endpoint, "sql": sql, "limit": limit, "timeout_s": timeout_s}
        return cls.parse(asker.request("POST", "/v1/query", body=body, timeout_s=timeout_s))

    @classmethod
    def parse(cls, body: dict[str, Any]) -> Answer:
        """The answer in a response body; raises `ServerUnavailable` for an invalid body."""
        try:
            columns = [(str(column["name"]), str(column["type"])) for column in body["columns"]]
            rows = [list(row) for row in body["rows"]]
            if any(len(row) != len(columns) for row in rows):
                raise TypeError("a row does not match the columns")
            notes = [str(note) for note in body.get("notes") or ()]
            return cls(columns, rows, bool(body["truncated"]), body.get("elapsed_ms"), notes)
        except (KeyError, TypeError) as error:
            raise ServerUnavailable(f"invalid query response: {error}") from None

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        return map(tuple, self.rows)

    @property
    def names(self) -> list[str]:
        """Names of the columns."""
        return [name for name, _ in self.columns]

    def records(self) -> list[dict[str, Any]]:
        """Each row as a dictionary by column name."""
        return [dict(zip(self.names, row, strict=True)) for row in self.rows]

    # Data frames, with the types that the columns have in SQL -----------------

    def arrow(self) -> Any:
        """A `pyarrow.Table`; raises `PackageMissing` without pyarrow."""
        _need("pyarrow", "arrow")
        return self._typed(lambda relation: relation.to_arrow_table())

    def pandas(self) -> Any:
        """A `pandas.DataFrame`; raises `PackageMissing` without pandas."""
        _need("pandas", "pandas")
        return self._typed(lambda relation: relation.df())

    def polars(self) -> Any:
        """A `polars.DataFrame`; raises `PackageMissing` without polars and pyarrow."""
        _need("polars", "polars")
        _need("pyarrow", "polars")
        return self._typed(lambda relation: relation.pl())

    def parquet(self) -> bytes:
        """A Parquet file; raises `UsageError` if the answer cannot be one."""
        import tempfile
        from pathlib import Path

        with tempfile.TemporaryDirectory(prefix="probe-") as folder:
            made = Path(folder, "rows.parquet")
            self._typed(lambda relation: relation.write_parquet(str(made)))
            return made.read_bytes()

    def _typed(self, made: Callable[[duckdb.DuckDBPyRelation], Any]) -> Any:
        """The result of `made` for a duckdb relation with these columns and types."""
        try:
            import duckdb
        except ImportError:
            raise PackageMissing(
                "duckdb is not installed", hint="Use CSV or JSON, or pip install duckdb."
            ) from None
        import tempfile
        from pathlib import Path

        if not self.columns:
            raise UsageError("a result without columns cannot be converted to this form", hint="Use JSON.")
        numbered = [f"c{index}" for index in range(len(self.columns))]
        with tempfile.TemporaryDirectory(prefix="probe-") as folder:
            source = Path(folder, "rows.ndjson")
            with source.open("w", encoding="utf-8") as file:
                for row in self.rows:
                    values = (_as_text(value) for value in row)
                    file.write(json.dumps(dict(zip(numbered, values, strict=True))) + "\n")
            with duckdb.connect(":memory:") as connection:
                try:
                    return made(self._relation(connection, str(source), numbered))
                except duckdb.Error as error:
                    raise UsageError(
                        f"the result cannot be converted to this form: {error}", hint="Use JSON or CSV."
                    ) from None

    def _relation(
        self, connection: duckdb.DuckDBPyConnection, source: str, numbered: list[str]
    ) -> duckdb.DuckDBPyRelation:
        selected = ", ".join(
            f'{_cast(column, kind)} AS "{name.replace(chr(34), chr(34) * 2)}"'
            for column, (_, kind), name in zip(numbered, self.columns, distinct(self.names), strict=True)
        )
        columns = dict.fromkeys(numbered, "VARCHAR")
        return connection.sql(
            f"SELECT {selected} FROM read_json($source, format='newline_delimited', columns={columns})",
            params={"source": source},
        )

    # Display --------------------------------------------------------------------

    def __repr__(self) -> str:
        """The first rows, aligned, for a prompt."""
        shown = [self.names, *([_shown(value) for value in row] for row in self.rows[:MOST_SHOWN_ROWS])]
        widths = [max(map(len, column)) for column in zip(*shown, strict=True)]
        lines = ["  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()
                 for row in shown]
        return "\n".join([*lines, *self._tail()])

    def _repr_html_(self) -> str:
        """The first rows as a table, for a notebook; every text is escaped."""
        import html

        head = "".join(
            f'<th title="{html.escape(kind)}">{html.escape(name)}</th>' for name, kind in self.columns
        )
        rows = "".join(
            "<tr>" + "".join(f"<td>{html.escape(_shown(value))}</td>" for value in row) + "</tr>"
            for row in self.rows[:MOST_SHOWN_ROWS]
        )
        tail = "".join(f"<p>{html.escape(line)}</p>" for line in self._tail())
        return f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>{tail}"

    def _tail(self) -> list[str]:
        more = len(self.rows) - MOST_SHOWN_ROWS
        lines = [f"… {more:,} more rows"] if more > 0 else []
        if self.truncated:
            lines.append(f"truncated to the first {len(self.rows):,} rows: raise `limit`")
        return lines + self.notes


def distinct(names: Sequence[str]) -> list[str]:
    """The names, with `_1`, `_2` … appended to duplicates (case-insensitive, as in SQL)."""
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


def _need(package: str, form: str) -> None:
    from importlib.util import find_spec

    if find_spec(package) is None:
        raise PackageMissing(
            f"`{form}()` needs {package}",
            hint=f"pip install {package}, or use parquet, which needs no other package.",
        )


def _shown(value: Any) -> str:
    return "NULL" if value is None else str(value)


def _cast(column: str, kind: str) -> str:
    """SQL that casts the text of a value back to its type."""
    if kind == "BLOB":
        return f"unhex({column})"
    return f"CAST({column} AS {kind})" if _TYPE.fullmatch(kind) else column


def _as_text(value: Any) -> str | None:
    """Text that duckdb can cast back to the column's type."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    return repr(value) if isinstance(value, (int, float)) else json.dumps(value, ensure_ascii=False)
