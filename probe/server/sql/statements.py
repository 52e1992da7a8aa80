"""A request in the query worker: checks its SQL, fills its tables, runs it and encodes the result.

Runs in the query worker; may import duckdb, inside functions, so that the worker can enter its sandbox first.
"""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from probe.confined.reading_sql import execute, lock, parsed

if TYPE_CHECKING:
    import duckdb

    from probe.recording.tables import Table
    from probe.server.sql.plan import Plan


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
        """If set, the request is for the rows themselves, for another host, in at most this many bytes."""
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
        """The tables to fill: built-in ones, and the jobs' `own`."""
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
        """The answer as JSON, or the rows in another form, packed with the other fields. Raises `ProbeError`
        or an error of DuckDB."""
        from probe.confined import results
        from probe.server.runtime import packed_answers
        from probe.server.sql import compatibility, remote_rows, views

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
    """Whether the SQL is `SHOW TABLES`, for which DuckDB would list the schema `main`, which is empty."""
    return sql.strip().rstrip(";").lower().split() == ["show", "tables"]


def table_list(own: Collection[Table] = ()) -> str:
    """SQL that lists the tables by the names that queries use, and what one row of each describes."""
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
