"""Many statements in one request: the recipes, over tables that are filled once.

Each statement has its own error and its own share of the deadline, so one that fails or takes too long does
not affect the others. The same checks apply as to any SQL from outside, in the same order: the tables are
filled, the connection is locked, each statement is parsed and must only read. A `steady` statement, whose
result depends only on the rows, is not run again while the tables that it mentions are unchanged: planning
all recipes takes half a second, and in a job that hangs or has ended nothing changes. Runs in the query
worker.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any

from probe.base.errors import ProbeError, QueryTimeout, SqlInvalid
from probe.confined.reading_sql import explain, lock, parsed, plain
from probe.server.sql.statements import Query, is_about

if TYPE_CHECKING:
    import duckdb

    from probe.recording.tables import Table

SHARE_RATIO = 0.25
"""Share of the remaining time that one statement may take; never more than a query may."""
KEPT_OPTIMIZERS = frozenset({
    "filter_pullup", "filter_pushdown", "join_order", "deliminator", "unnest_rewriter", "unused_columns",
    "cte_inlining", "materialized_cte", "in_clause", "build_side_probe_side", "limit_pushdown", "top_n",
    "row_group_pruner",
})
"""Optimizers without which a join would be a cross product or read unneeded data. For small tables all
recipes take seconds, most of it planning; the other optimizers take a quarter of that (DuckDB 2.0)."""
FEW_ROWS, SMALL_ROWS = 2_000, 100_000
"""Rows of all tables together up to which recipes run without any optimizer (a join in the wrong order then
has a few million pairs at most), and up to which they run with `KEPT_OPTIMIZERS` only. 113 recipes on empty
tables took 0.79 s of processor time with all optimizers and 0.45 s without."""
TELL_S = 0.1
"""Time between two parts of an answer that are sent ahead: a person sees them one after the other."""
MOST_PARSED = 256
_POLL_S = 0.05
_PARSED: dict[str, list[duckdb.Statement]] = {}
"""Statements that passed the checks, by their SQL. Used by one thread at a time, the query's."""
_KNOWN: dict[tuple[object, ...], tuple[list[str], list[list[Any]]]] = {}
"""Results of steady statements, by statement and contents of tables; used by the same thread."""
MOST_KNOWN = 1024


class Batch(Query):
    """One request of several statements; its answer has a result or an error for each."""

    settles = True

    def __init__(self, request: dict[str, Any]) -> None:
        self.statements: list[dict[str, Any]] = request["batch"]
        super().__init__({**request, "sql": "\n".join(one["sql"] for one in request["batch"])})
        self.share_s: float = request["share_s"]
        self._until = self.deadline
        self._contents: dict[str, str] = {}
        self._turn = threading.Lock()
        self._over = threading.Event()
        self.tell: Callable[[bytes], None] | None = None
        """Sends the results of finished statements ahead of the answer, if the request wants them."""

    def _tables(self, request: dict[str, Any], own: Collection[Table]) -> list[Table]:
        """The tables that any statement mentions. Each statement is searched on its own: words of two could
        form a table's name."""
        from probe.server.sql.views import mentioned

        return list(dict.fromkeys(table for one in self.statements for table in mentioned(one["sql"], own)))

    def run(self, connection: duckdb.DuckDBPyConnection) -> bytes:
        """The JSON of the answer, with NaN and infinities as Python writes them."""
        from probe.server.sql import views

        self.connection = connection
        began = time.monotonic()
        notes = views.build(connection, self.plan, self.sql, self.tables, copied=True)
        rows, self._contents = _contents(connection, self.tables)
        _plan_quickly(connection, rows)
        lock(connection, [])
        filled_ms = _since(began)
        self._until = self.deadline
        watch = threading.Thread(target=self._watch, name="probe-shares")
        watch.start()
        try:
            results = self._results(connection)
        finally:
            self._over.set()
            watch.join()
            self._over.clear()
        answer = {"results": results, "notes": [*self.notes, *notes], "filled_ms": filled_ms}
        return json.dumps(answer, separators=(",", ":")).encode()

    def _results(self, connection: duckdb.DuckDBPyConnection) -> list[dict[str, Any]]:
        results: list[dict[str, Any]] = []
        told, told_s = 0, time.monotonic()
        for one in self.statements:
            results.append(self._result(connection, one))
            if self.tell is not None and time.monotonic() - told_s > TELL_S:
                part = {"first": told, "results": results[told:]}
                self.tell(json.dumps(part, separators=(",", ":")).encode())
                told, told_s = len(results), time.monotonic()
        return results

    def _watch(self) -> None:
        """Interrupt a statement that takes more than its share."""
        while not self._over.wait(_POLL_S):
            with self._turn:
                if time.monotonic() > self._until:
                    self.stop()

    def _result(self, connection: duckdb.DuckDBPyConnection, one: dict[str, Any]) -> dict[str, Any]:
        import duckdb

        began = time.monotonic()
        if began >= self.deadline:
            return _failed(QueryTimeout("no time was left for this query"), began)
        share_s = min(self.share_s, (self.deadline - began) * SHARE_RATIO)
        with self._turn:
            self._until = began + share_s
        try:
            columns, rows = self._known_rows(connection, one)
            return {"columns": columns, "rows": rows, "elapsed_ms": _since(began)}
        except ProbeError as error:
            failed = error
        except (duckdb.Error, MemoryError, RuntimeError, RecursionError) as error:
            if isinstance(error, duckdb.Error) and not self.again and is_about(error, self.files):
                raise  # a segment may be damaged: the worker checks, and runs everything once more
            failed, recycle = explain(error, round(share_s, 2))
            if recycle:
                raise
        finally:
            with self._turn:
                self._until = self.deadline
        connection.execute("ROLLBACK")  # the failed statement may have ended the transaction
        connection.execute("BEGIN TRANSACTION READ ONLY")
        return _failed(failed, began)

    def _known_rows(
        self, connection: duckdb.DuckDBPyConnection, one: dict[str, Any]
    ) -> tuple[list[str], list[list[Any]]]:
        from probe.server.sql.views import mentioned

        if not one.get("steady"):
            return _rows(connection, one)
        held = [self._contents[table.full_name] for table in mentioned(one["sql"])]
        key = (one["sql"], json.dumps(one["parameters"], sort_keys=True), one["limit"], *held)
        found = _KNOWN.get(key)
        if found is None:
            if len(_KNOWN) >= MOST_KNOWN:
                _KNOWN.clear()
            found = _KNOWN[key] = _rows(connection, one)
        return found


def _contents(
    connection: duckdb.DuckDBPyConnection, tables: Sequence[Table]
) -> tuple[int, dict[str, str]]:
    """The number of rows of all tables, and a fingerprint of each: the sum of its rows' 64-bit hashes."""
    from probe.server.sql.remote_rows import full_name

    if not tables:
        return 0, {}
    parts = [
        f"SELECT '{one.full_name}', count(*), sum(hash(held)) FROM {full_name(one)} held" for one in tables
    ]
    found = connection.execute(" UNION ALL ".join(parts)).fetchall()
    return sum(rows for _, rows, _ in found), {name: str(total) for name, _, total in found}


def _plan_quickly(connection: duckdb.DuckDBPyConnection, rows: int) -> None:
    """Disable optimizers that cost more than they save for this many rows; the results are the same."""
    if rows <= FEW_ROWS:
        connection.execute("PRAGMA disable_optimizer")
    elif rows <= SMALL_ROWS:
        known = connection.execute("SELECT name FROM duckdb_optimizers()").fetchall()
        needless = sorted({str(name) for (name,) in known} - KEPT_OPTIMIZERS)
        connection.execute(f"SET disabled_optimizers = '{','.join(needless)}'")


def _rows(
    connection: duckdb.DuckDBPyConnection, one: dict[str, Any]
) -> tuple[list[str], list[list[Any]]]:
    *before, statement = _parsed(connection, one["sql"])
    for part in before:
        connection.execute(part)
    connection.execute(statement, one["parameters"])
    columns = [str(item[0]) for item in connection.description or ()]
    try:
        rows = connection.fetchmany(one["limit"])
    except (ValueError, OverflowError, TypeError) as error:
        raise SqlInvalid(f"a value in the result cannot be converted: {error}") from None
    return columns, [[plain(value) for value in row] for row in rows]


def _parsed(connection: duckdb.DuckDBPyConnection, sql: str) -> list[duckdb.Statement]:
    """`parsed`, cached: recipes run again and again, and parsing takes a third of their time."""
    if sql not in _PARSED:
        if len(_PARSED) >= MOST_PARSED:
            _PARSED.clear()
        _PARSED[sql] = parsed(connection, sql)
    return _PARSED[sql]


def _failed(error: ProbeError, began: float) -> dict[str, Any]:
    return {**error.as_dict(), "elapsed_ms": _since(began)}


def _since(began: float) -> float:
    return round((time.monotonic() - began) * 1e3, 3)
