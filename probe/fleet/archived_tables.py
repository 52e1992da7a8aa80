"""The tables of an archive in a query worker: empty ones to plan a statement, and views of files.

Each table has the columns that identify a process (`dataset.IDENTITY`) and `date`, before its own. A column
that a file lacks, because an older version of probe wrote it, is NULL. Runs in the query worker; duckdb in
functions.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from probe.archive.dataset import IDENTITY, PROCESSES
from probe.recording import declared
from probe.recording.tables import BY_NAME, TABLES, Column, Table, columns_of

if TYPE_CHECKING:
    import duckdb

DATE = Column("date", "DATE", "", "UTC date on which the process started")
_DATE_IN_NAME = r"date=(\d{4}-\d\d-\d\d)/job=[^/]*/run=[^/]*/attempt=\d+/rank=[^/]*/[^/]*$"
ARCHIVED: tuple[Table, ...] = (*TABLES, PROCESSES)
_CATALOG = ("duckdb_", "information_schema", "pg_", "show", "query(", "query_table", "u&")
"""With one of these, SQL can see which tables exist, or build a name from pieces."""
LIVE = frozenset(table.full_name for table in TABLES if table.source == "live")
"""Tables that are read from living processes: an archive has no rows of them."""


def columns(table: Table) -> tuple[Column, ...]:
    """All columns that SQL over an archive sees."""
    own = {column.name for column in table.columns}
    return (*(column for column in (*IDENTITY, DATE) if column.name not in own), *table.columns)


def named(name: str) -> Table | None:
    """The built-in table of that name."""
    return PROCESSES if name == PROCESSES.full_name else BY_NAME.get(name)


def mentioned(sql: str, own: Iterable[Table] = ()) -> list[Table]:
    """The tables that the text of `sql` may name: a superset, found without parsing."""
    text = sql.lower()
    if any(word in text for word in _CATALOG):
        return [*ARCHIVED, *own]
    return [table for table in (*ARCHIVED, *own) if table.name in text and table.schema in text]


def own_table(connection: duckdb.DuckDBPyConnection, name: str, file: str) -> Table:
    """A table that a job declared, with the columns of one of its files."""
    known = {column.name for column in IDENTITY}
    found = connection.execute(f"DESCRIBE SELECT * FROM {read_parquet(quoted_text(file))}").fetchall()
    chosen = (Column(str(row[0]), str(row[1]), "", "") for row in found)
    schema, _, short = name.partition(".")
    kept = tuple(one for one in chosen if one.name not in known and not one.name.startswith("_"))
    return Table(schema or declared.SCHEMA, short, "", "ring", kept, "")


def quoted_name(name: str) -> str:
    """An identifier in SQL."""
    return '"' + name.replace('"', '""') + '"'


def quoted_text(text: str) -> str:
    """A text in SQL."""
    return "'" + text.replace("'", "''") + "'"


def sql_name(table: Table) -> str:
    """The table's name in SQL."""
    return f"{quoted_name(table.schema)}.{quoted_name(table.name)}"


def read_parquet(files: str, *options: str) -> str:
    """The call that reads files, an expression; folder names have nothing that the files lack."""
    return f"read_parquet({files}, {', '.join(('hive_partitioning = false', *options))})"


def make_schemas(connection: duckdb.DuckDBPyConnection, tables: Iterable[Table]) -> None:
    """Create the schemas of these tables."""
    for schema in sorted({table.schema for table in tables}):
        connection.execute(f"CREATE SCHEMA IF NOT EXISTS {quoted_name(schema)}")


def make_empty(
    connection: duckdb.DuckDBPyConnection, tables: Sequence[Table],
    shown: Mapping[str, Sequence[Column]] | None = None,
) -> None:
    """Create tables without rows; `shown`: their columns by name, if not `columns`."""
    make_schemas(connection, tables)
    made = ["BEGIN"]
    for table in tables:
        chosen = columns(table) if shown is None else shown[table.full_name]
        listed = ", ".join(f"{quoted_name(column.name)} {column.type}" for column in chosen)
        made.append(f"CREATE TABLE {sql_name(table)} ({listed})")
    connection.execute("; ".join([*made, "COMMIT"]))


def make_view(
    connection: duckdb.DuckDBPyConnection, table: Table, files: Sequence[str],
    wanted: Collection[str] | None = None, shown: Sequence[Column] | None = None, where: str = "",
    copied: bool = False, by_name: bool = False,
) -> None:
    """Create a table over the rows of files: a view, or `copied`. `wanted`: the columns that are used (None:
    all); `shown`: the columns of the table, if not `columns`; `where`: a condition on the rows.

    Files are assumed to have the columns of the first. If that lacks a used column, they are compared
    `by_name`, which opens each of them; if only a later file lacks a column, reading the view fails with
    `needs_names`."""
    import duckdb

    chosen = columns(table) if shown is None else shown
    used = {column.name for column in chosen if wanted is None or column.name in wanted}
    condition = f" WHERE {where}" if where else ""
    hidden = f"({table.hidden}) IS NOT TRUE" if table.hidden else ""
    if hidden:
        condition += f" AND {hidden}" if condition else f" WHERE {hidden}"
    kind = "TABLE" if copied else "VIEW"
    have = _columns_in(connection, quoted_text(files[0]))
    listed = f"probe_{table.full_name}"  # a variable, so that thousands of names are not parsed repeatedly
    connection.execute(f"SET VARIABLE {quoted_name(listed)} = ?", [list(files)])
    every = f"getvariable({quoted_text(listed)})"
    if len(files) > 1 and not used - {DATE.name} <= have:
        by_name = True
    options = ["union_by_name = true"] if by_name else []
    if by_name:
        have = _columns_in(connection, every, *options)
    if DATE.name in used:
        options.append("filename = 'probe_file'")
    picked = ", ".join(_expression(column, have, used) for column in chosen)
    made = f"CREATE OR REPLACE {kind} {sql_name(table)} AS SELECT {picked} FROM "
    try:
        connection.execute(f"{made}{read_parquet(every, *options)}{condition}")
    except duckdb.Error as error:
        if by_name or not needs_names(error):
            raise
        make_view(connection, table, files, wanted, shown, where, copied, by_name=True)


def needs_names(error: BaseException) -> bool:
    """Whether a file lacks a column that the first one has."""
    return "union_by_name" in str(error)


def _columns_in(connection: duckdb.DuckDBPyConnection, files: str, *options: str) -> set[str]:
    read = read_parquet(files, *options)
    return {str(row[0]) for row in connection.execute(f"DESCRIBE SELECT * FROM {read}").fetchall()}


def _expression(column: Column, have: Collection[str], used: Collection[str]) -> str:
    name = quoted_name(column.name)
    if column.name == DATE.name and column.name not in have and column.name in used:
        return f"CAST(regexp_extract(probe_file, {quoted_text(_DATE_IN_NAME)}, 1) AS DATE) AS {name}"
    if column.name not in have or column.name not in used:
        return f"NULL::{column.type} AS {name}"
    return f"{name}::{column.type} AS {name}"


def insert(connection: duckdb.DuckDBPyConnection, table: Table, rows: Sequence[Mapping[str, Any]]) -> None:
    """Insert rows into an empty built-in table; a value that does not fit its column becomes NULL."""
    chosen = columns(table)
    texts = json.dumps([[_text(row.get(column.name)) for column in chosen] for row in rows])
    selected = ", ".join(f"TRY_CAST(t[{place}] AS {one.type})" for place, one in enumerate(chosen, 1))
    connection.execute(
        f"INSERT INTO {sql_name(table)} SELECT {selected} "
        "FROM (SELECT unnest(from_json(?, '[[\"VARCHAR\"]]')) AS t)", [texts]
    )


def _text(value: Any) -> str | None:
    return value if value is None or isinstance(value, str) else str(value)


def of_a_run(table: Table) -> tuple[Column, ...]:
    """The columns that a recipe over one run sees: those of a query on the run's recording."""
    return columns_of(table)
