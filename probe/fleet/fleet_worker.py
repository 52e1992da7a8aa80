"""Fleet worker: the disposable process that runs SQL over the files of an archive.

    python -m probe.fleet.fleet_worker FD PARENT_PID MEMORY_BYTES THREADS FOLDER...

FD is a socket to the command; a request is a frame of JSON and one of bytes, and so is its answer. The worker
enters the sandbox of all query workers: no files but those below FOLDER, no network, no writing, limited
memory; it ends with its parent. One thread answers; another interrupts it at its deadline. Imports duckdb
after `sandbox.enter`.
"""

from __future__ import annotations

import json
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from probe.archive.dataset import PROCESSES
from probe.base.errors import ProbeError, SqlInvalid
from probe.confined import sandbox
from probe.confined.reading_sql import database, execute, explain, lock, parsed, plain
from probe.confined.worker_frames import python_paths, receive, send
from probe.fleet import archived_tables, pruning
from probe.recording.tables import BY_NAME, Table

if TYPE_CHECKING:
    import duckdb

ADDRESS_SPACE_BYTES = 2 << 30
"""Address space for Python, numpy, Arrow and DuckDB themselves, in addition to the query's memory."""
_OF_THREAD_BYTES = 128 << 20
OPEN_FILES = 8192
"""Files whose columns differ from those of the first all stay open."""
PER_RUN = "per_run"
"""The table that the outer statement of `--per-run` reads."""

Files = dict[str, list[str]]
"""Paths by table."""
Answer = tuple[dict[str, Any], bytes]


class FleetWorker:
    """Answers requests, each in a new database."""

    def __init__(self, parent: socket.socket, memory_bytes: int, threads: int) -> None:
        self._parent = parent
        self._memory_bytes = memory_bytes
        self._threads = threads
        self._processes: list[dict[str, Any]] = []
        self._planning: duckdb.DuckDBPyConnection | None = None
        self._spare: duckdb.DuckDBPyConnection | None = None
        self._connection: duckdb.DuckDBPyConnection | None = None

    def serve(self, missing: list[str]) -> None:
        """Answer until the parent closes the socket."""
        self._prepare()  # while the parent lists files
        send(self._parent, json.dumps({"missing": missing}).encode())
        send(self._parent, b"")
        while (told := receive(self._parent)) is not None:
            content = receive(self._parent) or b""
            head, body = self._answer(json.loads(told), content)
            send(self._parent, json.dumps(head).encode())
            send(self._parent, body)
            self._prepare()  # while it reads the answer

    def _prepare(self) -> None:
        """Create the database of the next statement, which takes longer than a small statement."""
        if self._spare is None:
            self._spare = database(self._memory_bytes, self._threads)

    def _answer(self, request: dict[str, Any], content: bytes) -> Answer:
        import duckdb

        timer = threading.Timer(request["timeout_s"], self._stop)
        timer.name = "probe-deadline"
        timer.start()
        try:
            return getattr(self, f"_{request['ask']}")(request, content)  # type: ignore[no-any-return]
        except ProbeError as found:
            error, about = found, str(found)
        except (duckdb.Error, MemoryError, RuntimeError, RecursionError) as found:
            error, _ = explain(found, request["timeout_s"])
            about = str(found)
        finally:
            timer.cancel()
            if self._connection is not None:
                self._connection.close()
                self._connection = None
        return {**error.as_dict(), "status": error.status, "about": about[:4096]}, b""

    def _stop(self) -> None:
        if self._connection is not None:
            self._connection.interrupt()

    def _new(self) -> duckdb.DuckDBPyConnection:
        if self._connection is not None:
            self._connection.close()
        self._connection = self._spare or database(self._memory_bytes, self._threads)
        self._spare = None
        return self._connection

    # Requests -----------------------------------------------------------------

    def _processes_are(self, request: dict[str, Any], content: bytes) -> Answer:
        """Keep the rows of archive.processes for the requests that follow."""
        self._processes = json.loads(content)
        return {}, b""

    def _plan(self, request: dict[str, Any], content: bytes) -> Answer:
        """The tables that a statement reads, their used columns (null: all), and the filters of each of their
        scans (null: unknown). `content`: the answers of the runs, for the outer statement of `--per-run`."""
        import duckdb

        own = self._own_tables(request["own"])
        named = archived_tables.mentioned(request["sql"], own)
        planning = self._taken_planning(content)
        _make_missing(planning, named)
        connection = self._connection = planning.cursor()
        connection.execute("BEGIN TRANSACTION READ ONLY")
        tables: dict[str, dict[str, Any]] = {}
        statements = parsed(connection, request["sql"])
        if len(statements) == 1 and _is_select(statements[0]):
            try:
                found = pruning.scans(connection, statements[0].query, request.get("parameters"))
            except duckdb.CatalogException:  # once more with all tables, for the names in its message
                connection.execute("ROLLBACK")
                _make_missing(planning, [*archived_tables.ARCHIVED, *own])
                connection.sql(statements[0].query)
                raise
            known = {table.full_name: table for table in named}
            for name, scans in found.items():
                if name in known:
                    used = {column for scan in scans for column in (*scan.columns, *_names_in(scan.filters))}
                    filters = [pruning.usable(connection, known[name], one) for one in scans]
                    tables[name] = {"scans": filters, "columns": sorted(used)}
        if not content and not own:  # it has only empty tables and can be reused
            self._planning = planning
        for table in named:
            tables.setdefault(table.full_name, {"scans": None, "columns": None})
        return {"tables": tables}, b""

    def _own_tables(self, files: dict[str, str]) -> list[Table]:
        """Tables that jobs declared, with the columns of one file of each."""
        if not files:
            return []
        connection = self._new()
        return [archived_tables.own_table(connection, *one) for one in files.items()]

    def _taken_planning(self, content: bytes) -> duckdb.DuckDBPyConnection:
        """The database with empty tables for planning; a new one for a statement with `content`. The caller
        puts it back if it is intact afterwards."""
        known, self._planning = self._planning, None
        if known is not None and not content:
            return known
        connection = database(self._memory_bytes)
        connection.execute(pruning.EMPTY)
        _registered(connection, content)
        lock(connection, [])
        connection.execute("ROLLBACK")
        return connection

    def _match(self, request: dict[str, Any], content: bytes) -> Answer:
        """The places of the names that scans can read; of the processes, if no names are given."""
        found = [pruning.Usable(*one) for one in request["scans"]]
        names = json.loads(content) if content else None
        columns, rows = (pruning.NAMED, names) if names is not None else pruning.identifying(self._processes)
        planning = self._taken_planning(b"")
        self._connection = planning.cursor()
        places = pruning.matching(self._connection, found, columns, rows)
        self._planning = planning
        return {"places": places}, b""

    def _query(self, request: dict[str, Any], content: bytes) -> Answer:
        """The rows of a statement, as JSON that `Answer.parse` reads."""
        return self._twice(lambda by_name: self._run_query(request, content, by_name))

    def _run_query(self, request: dict[str, Any], content: bytes, by_name: bool) -> Answer:
        from probe.confined import results

        began = time.monotonic()
        connection = self._new()
        kept = _registered(connection, content)
        self._make(connection, request, by_name)
        statements = parsed(connection, request["sql"])
        lock(connection, _all(request["files"]))
        types = execute(connection, statements, as_text=True)
        deadline = began + request["timeout_s"]
        columns, rows, truncated = results.encode(connection, types, request["limit"], deadline)
        del kept
        elapsed_ms = round((time.monotonic() - began) * 1e3, 3)
        tail = json.dumps({"truncated": truncated, "elapsed_ms": elapsed_ms, "notes": []}).encode()
        return {}, b'{"columns":' + columns + b',"rows":' + rows + b"," + tail[1:]

    def _part(self, request: dict[str, Any], content: bytes) -> Answer:
        """The rows of a statement over one run, as an Arrow stream."""
        return self._twice(lambda by_name: self._run_part(request, by_name))

    def _run_part(self, request: dict[str, Any], by_name: bool) -> Answer:
        from probe.confined import results

        connection = self._new()
        self._processes = request["processes"]
        self._make(connection, request, by_name)
        statements = parsed(connection, request["sql"])
        lock(connection, _all(request["files"]))
        execute(connection, statements, as_text=False)
        content, cut = results.arrow(connection, request["limit"], time.monotonic() + request["timeout_s"])
        return {"truncated": cut}, content

    def _batch(self, request: dict[str, Any], content: bytes) -> Answer:
        """The results of many statements, each with its rows or its error; with `where` over one run, whose
        rows are copied first."""
        return self._twice(lambda by_name: self._run_batch(request, by_name))

    def _run_batch(self, request: dict[str, Any], by_name: bool) -> Answer:
        connection = self._new()
        if "where" in request:
            run_tables(connection, request["files"], request["where"], by_name)
            lock(connection, [])
        else:
            self._make(connection, request, by_name)
            lock(connection, _all(request["files"]))
        deadline = time.monotonic() + request["timeout_s"]
        return {"results": [result(connection, one, deadline) for one in request["statements"]]}, b""

    def _twice(self, run: Callable[[bool], Answer]) -> Answer:
        """Run it; if a file lacks columns that others have, run it again with NULL there."""
        import duckdb

        try:
            return run(False)
        except duckdb.Error as error:
            if not archived_tables.needs_names(error):
                raise
            return run(True)

    # Tables ---------------------------------------------------------------------

    def _make(self, connection: duckdb.DuckDBPyConnection, request: dict[str, Any], by_name: bool) -> None:
        files: Files = request["files"]
        wanted: dict[str, list[str] | None] = request.get("columns", {})
        known = [archived_tables.named(name) for name in request["tables"]]
        own = {
            name: archived_tables.own_table(connection, name, files[name][0])
            for name, table in zip(request["tables"], known, strict=True) if table is None and files.get(name)
        }
        tables = [table or own.get(name) for name, table in zip(request["tables"], known, strict=True)]
        archived_tables.make_schemas(connection, [PROCESSES, *filter(None, tables)])
        where = ""
        if request.get("some"):
            where = f"process IN (SELECT process FROM {archived_tables.sql_name(PROCESSES)})"
            if PROCESSES.full_name not in request["tables"]:
                self._make_processes(connection)
        for table in filter(None, tables):
            name = table.full_name
            if name == PROCESSES.full_name:
                self._make_processes(connection)
            elif files.get(name):
                archived_tables.make_view(
                    connection, table, files[name], wanted.get(name), where=where, by_name=by_name
                )
            else:
                archived_tables.make_empty(connection, [table])

    def _make_processes(self, connection: duckdb.DuckDBPyConnection) -> None:
        archived_tables.make_empty(connection, [PROCESSES])
        archived_tables.insert(connection, PROCESSES, self._processes)


def run_tables(
    connection: duckdb.DuckDBPyConnection, files: Files, where: str, by_name: bool = False
) -> None:
    """Create the tables of one run as in a query on its recording, with its rows that fulfil `where`: copied,
    because many statements read them."""
    tables = [BY_NAME[name] for name in files if name in BY_NAME]
    archived_tables.make_schemas(connection, BY_NAME.values())
    empty = [table for table in BY_NAME.values() if not files.get(table.full_name)]
    shown = {table.full_name: archived_tables.of_a_run(table) for table in BY_NAME.values()}
    archived_tables.make_empty(connection, empty, shown)
    for table in tables:
        if files[table.full_name]:
            archived_tables.make_view(
                connection, table, files[table.full_name], None, shown[table.full_name], where, True, by_name
            )


def result(connection: duckdb.DuckDBPyConnection, one: dict[str, Any], deadline: float) -> dict[str, Any]:
    """Columns and rows of one statement of a batch, or its error."""
    import duckdb

    began = time.monotonic()
    try:
        if began > deadline:
            raise SqlInvalid("no time was left for this query")
        *before, statement = parsed(connection, one["sql"])
        for part in before:
            connection.execute(part)
        connection.execute(statement, one["parameters"])
        names = [str(item[0]) for item in connection.description or ()]
        rows = [[plain(value) for value in row] for row in connection.fetchmany(one["limit"])]
        return {"columns": names, "rows": rows, "elapsed_ms": _since(began)}
    except ProbeError as error:
        failed = error
    except duckdb.IOException:  # about a file, not the statement: it may just have been merged
        raise
    except (duckdb.Error, ValueError, OverflowError, RecursionError) as error:
        failed, replace = explain(error, round(deadline - began, 1))
        if replace:
            raise
    connection.execute("ROLLBACK")  # the failed statement may have ended the transaction
    connection.execute("BEGIN TRANSACTION READ ONLY")
    return {**failed.as_dict(), "elapsed_ms": _since(began)}


def _since(began: float) -> float:
    return round((time.monotonic() - began) * 1e3, 3)


def _registered(connection: duckdb.DuckDBPyConnection, content: bytes) -> object:
    """Register the answers of the runs as the table `per_run`; the result must outlive the statement."""
    if not content:
        return None
    import pyarrow

    with pyarrow.ipc.open_stream(content) as reader:
        rows = reader.read_all()
    connection.register("probe_per_run", rows)
    connection.execute(f"CREATE TABLE {PER_RUN} AS FROM probe_per_run")
    connection.unregister("probe_per_run")
    return rows


def _make_missing(connection: duckdb.DuckDBPyConnection, tables: Sequence[Table]) -> None:
    """Create the empty tables that do not exist yet."""
    there = set(connection.execute("SELECT schema_name, table_name FROM duckdb_tables()").fetchall())
    archived_tables.make_empty(connection, [one for one in tables if (one.schema, one.name) not in there])


def _all(files: Files) -> list[str]:
    return [path for paths in files.values() for path in paths]


def _is_select(statement: duckdb.Statement) -> bool:
    import duckdb

    return statement.type == duckdb.StatementType.SELECT


def _names_in(filters: Sequence[str]) -> set[str]:
    """Words of filters that may be columns: a superset."""
    import re

    return {word for text in filters for word in re.findall(r"\w+", text)}


def main(arguments: list[str]) -> None:
    """Entry point of the process."""
    descriptor, parent, memory_bytes, threads, *folders = arguments
    readable: list[Path | str] = [*python_paths(), *folders]
    space = int(memory_bytes) + ADDRESS_SPACE_BYTES + int(threads) * _OF_THREAD_BYTES
    missing = sandbox.enter(readable, space, int(parent), OPEN_FILES)
    with socket.socket(fileno=int(descriptor)) as connection:
        FleetWorker(connection, int(memory_bytes), int(threads)).serve(missing)


if __name__ == "__main__":
    main(sys.argv[1:])
