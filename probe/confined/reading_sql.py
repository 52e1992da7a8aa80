"""Checks and runs SQL from outside: parsed by the engine, read-only, on a locked connection.

The order is: create the tables, lock the connection (`lock`), run the statement that passed `parsed`. Runs in
a query worker; may import duckdb, inside functions, so that the worker can enter its sandbox first.
"""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Any

from probe.base.errors import ProbeError, QueryOutOfMemory, QueryTimeout, QueryWorkerDied, SqlInvalid

if TYPE_CHECKING:
    import duckdb

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
LONGEST_TEXT = 2000
_AS_TEXT = ("TIMESTAMP", "DATE", "TIME", "INTERVAL")
INTERNAL = QueryWorkerDied("the query hit an internal error of the SQL engine")


def database(memory_bytes: int, threads: int = 1) -> duckdb.DuckDBPyConnection:
    """An empty in-memory database, locked down as far as it can be before the query is known."""
    import duckdb

    connection = duckdb.connect(
        ":memory:",
        config={
            "threads": threads,
            "memory_limit": f"{memory_bytes}B",
            "disable_database_invalidation": True,
            "python_enable_replacements": False,
        },
    )
    for statement in LOCK_DOWN:
        connection.execute(statement)
    return connection


def parsed(connection: duckdb.DuckDBPyConnection, sql: str) -> list[duckdb.Statement]:
    """Parse a statement with DuckDB's own parser; returns several if the engine expands it.

    Raises `SqlInvalid` for more than one statement, and for one that writes."""
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
    """Run the statement, so that its rows can be fetched; returns (name, type) of each column. `as_text`:
    fetch dates and times as text."""
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


def plain(value: Any) -> Any:
    """A value for JSON: numbers as numbers, everything else as text."""
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, Decimal):
        return float(value)
    return str(value)[:LONGEST_TEXT].encode("utf-8", "backslashreplace").decode()
