"""A request in the query worker: its SQL is checked, sandboxed, run and encoded.

The order is: the tables are filled (`views.build`), the connection is locked (`lock`), and the statement that
passed `parsed` is run. Runs in the query worker; may import duckdb, inside functions, so that the worker can
enter its sandbox first.
"""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from probe.base.errors import ProbeError, QueryOutOfMemory, QueryTimeout, QueryWorkerDied, SqlInvalid

if TYPE_CHECKING:
    import duckdb

    from probe.recording.tables import Table
    from probe.server.sql.plan import Plan

LONGEST_SQL_BYTES = 64 << 10
LOCK_DOWN = (
    "SET autoinstall_known_extensions = false",
    "SET autoload_known_extensions = false",
    "SET allow_community_extensions = false",
    "SET allow_persistent_secrets = false",
    "SET enable_logging = false",
    "SET enable_progress_bar = false",
    "SET temp_directory = ''",
)
_AS_TEXT = ("TIMESTAMP", "DATE", "TIME", "INTERVAL")
INTERNAL = QueryWorkerDied("the query hit an internal error of the SQL engine")


class Query:
    """One request: SQL, limits and the plan; `run` returns the body of the answer."""

    settles = False
    """Whether an error that is not about the recording is part of the answer instead of the whole answer."""

    def __init__(self, request: dict[str, Any]) -> None:
        from probe.server.sql.plan import Plan, Recent
        from probe.server.sql.remote_rows import RemoteRows
        from probe.server.sql.ring_rows import Source

        self.sql: str = request["sql"]
        self.limit: int = request.get("limit", 0)
        self.form: str = request.get("form", "json")
        """The encoding of the rows: `json`, `csv` or `arrow`."""
        self.again = False
        """Whether this is the second run, after the first found segments that cannot be read."""
        self.timeout_s: float = request["timeout_s"]
        self.asked_s: float = request["asked_s"]
        self.notes: list[str] = request["notes"]
        self.deadline = time.monotonic() + self.timeout_s
        self.connection: duckdb.DuckDBPyConnection | None = None
        self.room_bytes: int | None = request.get("room_bytes")
        """If set, the request is for the rows themselves, for another host, in at most so many bytes."""
        self.plan: Plan = Plan(
            [
                Source(
                    Path(source["folder"]), Path(source["rings"]), source["run"],
                    source["attempt"], source["rank"], source["pid"],
                    (source["pid"], source["started_ns"]),
                )
                for source in request["sources"]
            ],
            request["live"],
            RemoteRows(request["parts"]) if "parts" in request else None,
            recent=Recent(*request["recent"]) if "recent" in request else None,
        )
        self.notes = [*self.notes, *self.plan.read_declared()]
        self.tables = self._tables(request, self.plan.own_tables.values())
        """The tables to fill."""
        if self.plan.remote is not None:
            self.notes += self.plan.remote.check(self.tables)

    @property
    def files(self) -> list[str]:
        """The segments that the query reads."""
        return [file for files in self.plan.sealed.values() for file in files]

    def _tables(self, request: dict[str, Any], own: Collection[Table]) -> Sequence[Table]:
        """The tables to fill, of ours and of the jobs' `own`."""
        from probe.server.sql import compatibility
        from probe.server.sql.views import mentioned

        return mentioned(compatibility.reads(request["sql"]), own)

    def _statement(self) -> str:
        return table_list(self.plan.own_tables.values()) if asks_for_tables(self.sql) else self.sql

    def stop(self) -> None:
        """Interrupt the query; called on the deadline's thread."""
        if self.connection is not None:
            self.connection.interrupt()

    def run(self, connection: duckdb.DuckDBPyConnection) -> bytes:
        """The JSON of the answer; in another form the rows, packed with the rest. Raises `ProbeError` or what
        DuckDB raises."""
        from probe.server.runtime import packed_answers
        from probe.server.sql import compatibility, remote_rows, results, views

        started = time.monotonic()
        self.connection = connection
        text = compatibility.reads(self.sql)
        if self.room_bytes is not None:  # for the host that runs the SQL
            notes = views.build(connection, self.plan, text, self.tables)
            notes = [*self.notes, *notes]
            return remote_rows.pack(connection, self.tables, text, self.room_bytes, notes)
        statements = parsed(connection, self._statement())
        notes = views.build(connection, self.plan, text, self.tables)
        ranks = {source.rank for source in self.plan.sources} if self.plan.remote is None else set()
        notes += compatibility.make(connection, self.sql, ranks)
        lock(connection, self.files)
        types = execute(connection, statements, as_text=self.form != "arrow")
        columns = content = b""
        if self.form == "arrow":
            content, truncated = results.arrow(connection, self.limit, self.deadline)
        elif self.form == "csv":
            names = [name for name, _ in types]
            content, truncated = results.csv(connection, names, self.limit, self.deadline)
        else:
            columns, content, truncated = results.encode(connection, types, self.limit, self.deadline)
        elapsed_ms = round((time.monotonic() - started) * 1000, 3)
        tail = {"truncated": truncated, "elapsed_ms": elapsed_ms, "notes": [*self.notes, *notes]}
        if self.form != "json":
            return packed_answers.pack(tail, [content])
        return b'{"columns":' + columns + b',"rows":' + content + b"," + json.dumps(tail).encode()[1:]


def asks_for_tables(sql: str) -> bool:
    """Whether the SQL is `SHOW TABLES`, which for DuckDB are those of the schema `main`: none."""
    return sql.strip().rstrip(";").lower().split() == ["show", "tables"]


def table_list(own: Collection[Table] = ()) -> str:
    """SQL for the tables as one writes them in a query, and what a row of each is."""
    from probe.recording.tables import TABLES

    rows = ", ".join(
        "('{}', 'one row per {}')".format(table.full_name, table.doc.replace("'", "''"))
        for table in (*TABLES, *own)
    )
    return f"SELECT name, description FROM (VALUES {rows}) AS listed (name, description) ORDER BY name"


def is_about(error: duckdb.Error, files: list[str]) -> bool:
    """Whether the error may come from a segment that is damaged or was just deleted."""
    import duckdb

    text = str(error)
    return bool(files) and (
        type(error) is duckdb.Error or "arquet" in text or any(file in text for file in files)
    )


def parsed(connection: duckdb.DuckDBPyConnection, sql: str) -> list[duckdb.Statement]:
    """The statement from DuckDB's own parser; several if the engine expands it into them.

    Raises `SqlInvalid` for more than one statement, and for one that does not only read."""
    import duckdb

    try:
        encoded = sql.encode("utf-8")
    except UnicodeEncodeError:
        raise SqlInvalid("the SQL contains a lone surrogate") from None
    if len(encoded) > LONGEST_SQL_BYTES:
        raise SqlInvalid(f"the SQL is longer than {LONGEST_SQL_BYTES} bytes")
    if "\x00" in sql:
        raise SqlInvalid("the SQL contains a NUL character")
    statements = connection.extract_statements(sql)
    expanded = len(statements) > 1 and not any(statement.query for statement in statements)
    if len(statements) != 1 and not expanded:  # before DuckDB 2.0 PIVOT expands into parts without a text
        raise SqlInvalid(
            f"expected one statement, found {len(statements)}", hint="Send them one by one."
        )
    try:
        kind = statements[-1].type
    except ValueError:  # newer than the engine's Python types
        raise SqlInvalid("a recording is read-only; this is another kind of statement") from None
    allowed = (duckdb.StatementType.SELECT, duckdb.StatementType.EXPLAIN, duckdb.StatementType.MULTI)
    if kind not in allowed:
        raise SqlInvalid(
            f"a recording is read-only; this is a {kind.name} statement",
            hint="Use SELECT, FROM, WITH, VALUES, DESCRIBE, SUMMARIZE, PIVOT, SHOW or EXPLAIN.",
        )
    return statements


def lock(connection: duckdb.DuckDBPyConnection, files: list[str]) -> None:
    """Allow these files and nothing else, permanently."""
    listed = ", ".join("'" + file.replace("'", "''") + "'" for file in files)
    connection.execute(f"SET allowed_paths = [{listed}]")
    connection.execute("SET enable_external_access = false")
    connection.execute("SET lock_configuration = true")
    connection.execute("BEGIN TRANSACTION READ ONLY")


def execute(
    connection: duckdb.DuckDBPyConnection, statements: list[duckdb.Statement], *, as_text: bool
) -> list[tuple[str, str]]:
    """Run the statement, so that its rows can be fetched; (name, type) of each column. `as_text`: dates and
    times are fetched as text."""
    import duckdb

    *before, statement = statements
    for part in before:
        connection.execute(part)
    types: list[tuple[str, str]] | None = None
    if statement.type == duckdb.StatementType.SELECT and not before:
        relation = connection.sql(statement)
        types = [(name, str(kind)) for name, kind in zip(relation.columns, relation.types, strict=True)]
        wrapped = with_text_columns(connection, statement.query, types) if as_text else None
        if wrapped is not None:
            connection.execute(wrapped)
            return types
    connection.execute(statement)
    if types is None:
        types = [(str(item[0]), str(item[1])) for item in connection.description or ()]
    return types


def with_text_columns(
    connection: duckdb.DuckDBPyConnection, query: str, types: list[tuple[str, str]]
) -> str | None:
    """The query with dates, times and intervals as text, because Python cannot represent all of them exactly.

    None when there are none."""
    import duckdb

    chosen = [
        (kind.startswith(_AS_TEXT) and not kind.endswith("]")) or "TIME ZONE" in kind for _, kind in types
    ]
    if not any(chosen):
        return None
    items = ", ".join(
        f"CAST(#{place} AS VARCHAR)" if as_text else f"#{place}"
        for place, as_text in enumerate(chosen, 1)
    )
    wrapped = f"SELECT {items} FROM (\n{query.rstrip().rstrip(';')}\n)"
    try:
        return wrapped if len(connection.extract_statements(wrapped)) == 1 else None
    except duckdb.ParserException:
        return None


def explain(error: BaseException, timeout_s: float) -> tuple[ProbeError, bool]:
    """The error for the user, and whether the worker must be replaced after it."""
    import duckdb

    if isinstance(error, duckdb.InterruptException):
        return QueryTimeout(f"the query was stopped after {timeout_s:g} s"), False
    if isinstance(error, (duckdb.OutOfMemoryException, MemoryError)):
        return QueryOutOfMemory("the query needed more memory than queries may use"), True
    if isinstance(error, RecursionError):
        return SqlInvalid("the statement or its result is nested too deeply"), True
    fatal = (duckdb.InternalException, duckdb.FatalException)
    if isinstance(error, fatal) or not isinstance(error, duckdb.Error):
        return INTERNAL, True
    if "Traceback" in str(error):  # raised by the engine's conversion to Python
        hint = "CAST the column to VARCHAR."
        return SqlInvalid("a value in the result cannot be converted", hint=hint), False
    return SqlInvalid(str(error)), False


