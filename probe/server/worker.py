"""Query worker: the process in which SQL from outside runs, and which may die of it.

    python -m probe.server.worker FD PARENT_PID MEMORY_BYTES FOLDER...

FD is a socket to the server; frames are a length and JSON, or rows of other hosts, a
frame for each host. The worker first gives up what a query does not need (`sandbox`),
then imports DuckDB, then answers one query at a time, each in a new in-memory database
that is made before the query comes. Threads: the main thread reads requests; each query has a thread of its
own, because a thread's priority can be lowered and never raised again: a query
starts fast and steps back behind the training when it turns out to be long.
Imports duckdb and numpy, only after `sandbox.enter`.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
import sys
import threading
import time
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from probe.errors import (
    ProbeError,
    QueryOutOfMemory,
    QueryTimeout,
    QueryWorkerDied,
    SqlInvalid,
)
from probe.server import sandbox

if TYPE_CHECKING:
    import duckdb

    from probe.server.views import Plan

LONGEST_SQL_BYTES = 64 << 10
ADDRESS_SPACE_BYTES = 1 << 30
"""Room for Python, numpy and DuckDB themselves, beside the memory of the query."""
SHORT_QUERY_S = 0.1
"""A query that takes more processor time gives way to the training. Not more time: on a busy machine, where
it shares the cores with others anyway, every query takes long."""
_LOOK_S = 0.05
LONG_QUERY_NICE = 10
FAST_RATIO = 0.1
FAST_BURST_S = 1.0
"""Share of a core, and seconds at once, that short queries may take from the training."""
QUERIES = 500
"""Queries after which a worker is replaced, so that nothing can pile up in it."""
LENGTH = struct.Struct("<I")

_LOCK_DOWN = (
    "SET autoinstall_known_extensions = false",
    "SET autoload_known_extensions = false",
    "SET allow_community_extensions = false",
    "SET allow_persistent_secrets = false",
    "SET enable_logging = false",
    "SET enable_progress_bar = false",
    "SET temp_directory = ''",
)
_AS_TEXT = ("TIMESTAMP", "DATE", "TIME", "INTERVAL")
_INTERNAL = QueryWorkerDied("the query hit an internal error of the SQL engine")


class Query:
    """One request: SQL, limits and the plan; `run` gives (head, body) of the answer."""

    def __init__(self, request: dict[str, Any]) -> None:
        from probe.server.carrying import Carried
        from probe.server.views import Plan, Source, mentioned

        self.sql: str = request["sql"]
        self.limit: int = request["limit"]
        self.timeout_s: float = request["timeout_s"]
        self.asked_s: float = request["asked_s"]
        self.notes: list[str] = request["notes"]
        self.deadline = time.monotonic() + self.timeout_s
        self.files: list[str] = []
        self.connection: duckdb.DuckDBPyConnection | None = None
        self.room_bytes: int | None = request.get("room_bytes")
        """The rows themselves are wanted, for another host, and at most so many bytes of them."""
        self.plan: Plan = Plan(
            [
                Source(
                    Path(source["folder"]), Path(source["rings"]), source["run"],
                    source["attempt"], source["rank"], source["pid"],
                )
                for source in request["sources"]
            ],
            request["live"],
            Carried(request["parts"], mentioned(self.sql)) if "parts" in request else None,
        )
        if self.plan.carried is not None:
            self.notes = [*self.notes, *self.plan.carried.notes]

    def stop(self) -> None:
        """Interrupt what runs now; from the deadline's thread."""
        if self.connection is not None:
            self.connection.interrupt()

    def run(self, connection: duckdb.DuckDBPyConnection) -> bytes:
        """The JSON of the answer. Raises `ProbeError` or what DuckDB raises."""
        from probe.server import views

        started = time.monotonic()
        self.connection = connection
        if self.room_bytes is not None:
            return self._packed(connection, self.room_bytes)
        statements = parsed(connection, self.sql)
        self.files, notes = views.build(connection, self.plan, self.sql)
        lock(connection, self.files)
        columns, rows, truncated = execute(connection, statements, self.limit, self.deadline)
        elapsed_ms = round((time.monotonic() - started) * 1000, 3)
        tail = {"truncated": truncated, "elapsed_ms": elapsed_ms, "notes": [*self.notes, *notes]}
        return b'{"columns":' + columns + b',"rows":' + rows + b"," + json.dumps(tail).encode()[1:]


    def _packed(self, connection: duckdb.DuckDBPyConnection, room_bytes: int) -> bytes:
        """The rows of the tables that the SQL mentions, for the host that runs it."""
        from probe.server import carrying, views

        self.files, notes = views.build(connection, self.plan, self.sql)
        tables = views.mentioned(self.sql)
        return carrying.pack(connection, tables, self.sql, room_bytes, [*self.notes, *notes])


class Worker:
    """The loop: a prepared database, a request, an answer, the next database."""

    def __init__(self, server: socket.socket, memory_bytes: int, priority: Priority) -> None:
        self._server = server
        self._priority = priority
        self._memory_bytes = memory_bytes
        self._database: duckdb.DuckDBPyConnection | None = None
        self._clock: int | None = None
        """Names the processor time of the thread that runs the query."""

    def serve(self, missing: list[str]) -> None:
        """Answer until the server closes the socket or the worker has to be replaced."""
        self._database = self.new_database()
        send(self._server, json.dumps({"ready": True, "missing": missing}).encode())
        for _ in range(QUERIES):
            request = receive(self._server)
            if request is None:
                return
            asked = json.loads(request)
            if "hosts" in asked:
                asked["parts"] = [(host, receive(self._server) or b"") for host in asked["hosts"]]
            behind = self._priority.spent()
            thread = threading.Thread(
                target=self._turn, args=(asked, self._database, behind), name="probe-query"
            )
            self._clock = None
            thread.start()
            while not behind and thread.is_alive() and self._used_s() < SHORT_QUERY_S:
                thread.join(_LOOK_S)
            if not behind and thread.is_alive():
                self._priority.give_way(thread.native_id)
            thread.join()
            if self._database is None:
                return

    def _used_s(self) -> float:
        """Processor time of the query that runs."""
        try:
            return 0.0 if self._clock is None else time.clock_gettime(self._clock)
        except OSError:  # its thread has just ended
            return 0.0

    def _turn(self, request: dict[str, Any], database: duckdb.DuckDBPyConnection, behind: bool) -> None:
        """One query: answer it, then make room for the next."""
        self._clock = time.pthread_getcpuclockid(threading.get_ident())
        if behind:
            self._priority.give_way(threading.get_native_id())
        self._database = None
        head: dict[str, Any] = {**_INTERNAL.as_dict(), "status": _INTERNAL.status, "recycle": True}
        body = b""
        try:
            head, body = self._answer_query(request, database)
        finally:  # whatever goes wrong here, the server gets an answer
            send(self._server, json.dumps(head).encode())
            send(self._server, body)
        if not head["recycle"]:
            database.close()  # takes longer than a small query: after the answer
            self._database = self.new_database()
        self._priority.spend(time.thread_time())

    def new_database(self) -> duckdb.DuckDBPyConnection:
        """An empty in-memory database with all tables, as far as they do not depend on the query."""
        import duckdb

        from probe.server import views

        connection = duckdb.connect(
            ":memory:",
            config={
                "threads": 1,
                "memory_limit": f"{self._memory_bytes}B",
                "disable_database_invalidation": True,
                "python_enable_replacements": False,
            },
        )
        for statement in _LOCK_DOWN:
            connection.execute(statement)
        views.prepare(connection)
        return connection

    def _answer_query(
        self, request: dict[str, Any], connection: duckdb.DuckDBPyConnection
    ) -> tuple[dict[str, Any], bytes]:
        """Head and body of the answer."""
        import duckdb

        query = Query(request)
        timer = threading.Timer(query.timeout_s, query.stop)
        timer.name = "probe-deadline"
        timer.start()
        recycle = False
        error: ProbeError | None = None
        body = b""
        try:
            body = self._run(query, connection)
        except ProbeError as found:
            error = found
        except (duckdb.Error, MemoryError, RuntimeError, RecursionError) as found:
            error, recycle = explain(found, query.asked_s)
        finally:
            timer.cancel()
        head: dict[str, Any] = {"recycle": recycle}
        if error is not None:
            head.update(error.as_dict(), status=error.status)
        return head, body

    def _run(self, query: Query, connection: duckdb.DuckDBPyConnection) -> bytes:
        """Run the query; once more without them when segments went away or are damaged."""
        import duckdb

        from probe.server import views

        try:
            return query.run(connection)
        except duckdb.Error as error:
            if not _is_about(error, query.files):
                raise
            if all(Path(file).exists() for file in query.files):
                query.connection = self.new_database()
                bad = views.damaged(query.connection, query.files)
                if not bad:
                    raise
                query.plan.skip_files.update(bad)
                query.notes += [f"damaged and left out: {Path(file).name}" for file in bad]
            return query.run(self.new_database())


def _is_about(error: duckdb.Error, files: list[str]) -> bool:
    """Whether the error may come from a segment that is damaged or was deleted meanwhile."""
    import duckdb

    text = str(error)
    return bool(files) and (
        type(error) is duckdb.Error or "arquet" in text or any(file in text for file in files)
    )


def parsed(connection: duckdb.DuckDBPyConnection, sql: str) -> list[duckdb.Statement]:
    """The statement, as DuckDB's own parser sees it; several when the engine makes them of one.

    Raises `SqlInvalid` for more than one and for one that does not only read."""
    import duckdb

    try:
        encoded = sql.encode("utf-8")
    except UnicodeEncodeError:
        raise SqlInvalid("the SQL contains half of a surrogate pair") from None
    if len(encoded) > LONGEST_SQL_BYTES:
        raise SqlInvalid(f"the SQL is longer than {LONGEST_SQL_BYTES} bytes")
    if "\x00" in sql:
        raise SqlInvalid("the SQL contains a NUL character")
    statements = connection.extract_statements(sql)
    expanded = len(statements) > 1 and not any(statement.query for statement in statements)
    if len(statements) != 1 and not expanded:  # before 2.0 PIVOT expands, into parts without a text
        raise SqlInvalid(
            f"one statement at a time, these are {len(statements)}", hint="Send them one by one."
        )
    try:
        kind = statements[-1].type
    except ValueError:  # newer than the engine's own Python types
        raise SqlInvalid("a recording is only read; this is another kind of statement") from None
    allowed = (duckdb.StatementType.SELECT, duckdb.StatementType.EXPLAIN, duckdb.StatementType.MULTI)
    if kind not in allowed:
        raise SqlInvalid(
            f"a recording is only read; this is a {kind.name} statement",
            hint="SELECT, FROM, WITH, VALUES, DESCRIBE, SUMMARIZE, PIVOT, SHOW and EXPLAIN are answered.",
        )
    return statements


def lock(connection: duckdb.DuckDBPyConnection, files: list[str]) -> None:
    """Allow these files and nothing else; after this nothing can be allowed again."""
    listed = ", ".join("'" + file.replace("'", "''") + "'" for file in files)
    connection.execute(f"SET allowed_paths = [{listed}]")
    connection.execute("SET enable_external_access = false")
    connection.execute("SET lock_configuration = true")
    connection.execute("BEGIN TRANSACTION READ ONLY")


def execute(
    connection: duckdb.DuckDBPyConnection, statements: list[duckdb.Statement], limit: int, deadline: float
) -> tuple[bytes, bytes, bool]:
    """Run the statement and encode what it gives."""
    import duckdb

    from probe.server import results

    *before, statement = statements
    for part in before:
        connection.execute(part)
    types: list[tuple[str, str]] | None = None
    if statement.type == duckdb.StatementType.SELECT and not before:
        relation = connection.sql(statement)
        types = [(name, str(kind)) for name, kind in zip(relation.columns, relation.types, strict=True)]
        wrapped = with_text_columns(connection, statement.query, types)
        if wrapped is not None:
            connection.execute(wrapped)
            return results.encode(connection, types, limit, deadline)
    connection.execute(statement)
    if types is None:
        types = [(str(item[0]), str(item[1])) for item in connection.description or ()]
    return results.encode(connection, types, limit, deadline)


def with_text_columns(
    connection: duckdb.DuckDBPyConnection, query: str, types: list[tuple[str, str]]
) -> str | None:
    """The query with dates, times and intervals as text, which Python could not hold exactly.

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
        return _INTERNAL, True
    if "Traceback" in str(error):  # the engine's Python part met a value it cannot convert
        return SqlInvalid("a value of the result cannot be shown", hint="CAST the column to VARCHAR."), False
    return SqlInvalid(str(error)), False


class Priority:
    """Steps back behind the training when queries take long or come in storms.

    Queries may use `FAST_RATIO` of a core at full priority. A thread's nice value
    cannot be lowered again, so it falls on the query's own thread. Where the kernel
    groups tasks by session it counts only within the worker; there the session's own
    value does the work. Opened before the sandbox closes.
    """

    def __init__(self) -> None:
        self._session = -1
        self._behind = False
        self._left_s = FAST_BURST_S
        self._counted = time.monotonic()
        with contextlib.suppress(OSError):
            self._session = os.open("/proc/self/autogroup", os.O_WRONLY | os.O_CLOEXEC)

    def spent(self) -> bool:
        """Whether the next query has to give way from its start."""
        now = time.monotonic()
        self._left_s = min(FAST_BURST_S, self._left_s + (now - self._counted) * FAST_RATIO)
        self._counted = now
        if self._left_s <= 0:
            return True
        if self._behind:  # the kernel allows ten changes a second: this may take a few queries
            self._behind = not self._set_session(0)
        return False

    def spend(self, cpu_s: float) -> None:
        """A query took this much processor time."""
        self._left_s = max(-FAST_BURST_S, self._left_s - cpu_s)

    def give_way(self, thread: int | None) -> None:
        """The query on `thread` is a long one, or one of too many."""
        if thread is not None:
            with contextlib.suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, thread, LONG_QUERY_NICE)
        self._behind = self._set_session(LONG_QUERY_NICE) or self._behind

    def _set_session(self, nice: int) -> bool:
        try:
            return self._session >= 0 and os.write(self._session, str(nice).encode()) > 0
        except OSError:
            return False


def send(connection: socket.socket, data: bytes) -> None:
    """One frame."""
    connection.sendall(LENGTH.pack(len(data)) + data)


def receive(connection: socket.socket) -> bytes | None:
    """One frame; None when the other side is gone."""
    head = _exactly(connection, LENGTH.size)
    return None if head is None else _exactly(connection, LENGTH.unpack(head)[0])


def _exactly(connection: socket.socket, size: int) -> bytes | None:
    parts: list[bytes] = []
    while size:
        part = connection.recv(min(size, 1 << 20))
        if not part:
            return None
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def python_paths() -> list[Path]:
    """Folders this interpreter imports from, as far as the worker needs them."""
    found = [Path(sys.prefix), Path(sys.base_prefix)]
    found += [Path(entry) for entry in sys.path if "python" in entry and "lib" in Path(entry).parts]
    for name in ("probe", "duckdb", "_duckdb", "numpy"):
        spec = find_spec(name)
        if spec is not None and spec.submodule_search_locations:
            found += [Path(place) for place in spec.submodule_search_locations]
        elif spec is not None and spec.origin:
            found.append(Path(spec.origin))
    return [path for path in found if path != Path("/")]


def main(arguments: list[str]) -> None:
    """Entry point of the process."""
    descriptor, parent, memory_bytes, *folders = arguments
    readable: list[Path | str] = [*python_paths(), *folders]
    priority = Priority()
    missing = sandbox.enter(readable, int(memory_bytes) + ADDRESS_SPACE_BYTES, int(parent))
    with socket.socket(fileno=int(descriptor)) as server:
        Worker(server, int(memory_bytes), priority).serve(missing)


if __name__ == "__main__":
    main(sys.argv[1:])
