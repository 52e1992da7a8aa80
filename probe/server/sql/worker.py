"""Query worker: the disposable process that runs SQL from outside.

    python -m probe.server.sql.worker FD PARENT_PID MEMORY_BYTES FOLDER...

FD is a socket to the server; a frame is a length and JSON, or the rows of another host. The worker enters its
sandbox, imports DuckDB, then answers one query at a time, each in a new in-memory database that is created in
advance. The main thread reads requests; each query has its own thread, because a thread's priority can be
lowered but not raised again: a query starts at full priority and yields to the training if it takes long.
Imports duckdb and numpy, only after `sandbox.enter`.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import socket
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from probe.base.errors import ProbeError, QueryTimeout
from probe.confined import sandbox
from probe.confined.reading_sql import INTERNAL, database, explain
from probe.confined.worker_frames import python_paths, receive, send
from probe.server.sql import compatibility
from probe.server.sql.batch import Batch
from probe.server.sql.statements import Query, is_about

if TYPE_CHECKING:
    import duckdb

ADDRESS_SPACE_BYTES = 1 << 30
"""Address space for Python, numpy and DuckDB themselves, in addition to the memory of the query."""
SHORT_QUERY_S = 0.1
"""A query that takes more CPU time yields to the training. CPU time, because on a busy machine every query
takes long."""
SHORT_BATCH_S = 4.0
"""The same for all recipes together while a user waits: 1.5 times what 152 of them need for a small job (2.5
to 3.7 s on two slow cores, nearly all of it planning). Where all cores are busy, the work beyond it takes ten
times as long: with 2 s, a diagnosis beside six busy processes took 30 s."""
_POLL_S = 0.05
LONG_QUERY_NICE = 10
FAST_RATIO = 0.1
FAST_BURST_S = SHORT_BATCH_S
"""Share of a core, and seconds at once, that queries may use at full priority."""
_STARVED_RATIO = 0.5
"""A stopped query that had a CPU for less than this share of its time is a sign of a busy machine, not of too
much work."""
QUERIES = 500
"""Queries after which a worker is replaced, so that nothing accumulates in it."""


class Worker:
    """The loop: a prepared database, a request, an answer, the next database."""

    def __init__(self, server: socket.socket, memory_bytes: int, priority: Priority) -> None:
        self._server = server
        self._priority = priority
        self._memory_bytes = memory_bytes
        self._database: duckdb.DuckDBPyConnection | None = None
        self._clock: int | None = None
        """The CPU clock of the thread that runs the query."""
        self._fast_s = 0.0
        """CPU time after which the current query's priority was lowered; infinite if it was not."""

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
            behind = self._priority.spent() or asked.get("background", False)
            thread = threading.Thread(
                target=self._turn, args=(asked, self._database, behind), name="probe-query"
            )
            self._clock = None
            self._fast_s = 0.0 if behind else math.inf
            thread.start()
            short_s = SHORT_BATCH_S if "batch" in asked else SHORT_QUERY_S
            while not behind and thread.is_alive() and self._used_s() < short_s:
                thread.join(_POLL_S)
            if not behind and thread.is_alive():
                self._fast_s = self._used_s()
                self._priority.give_way(thread.native_id)
            thread.join()
            if self._database is None:
                return

    def _used_s(self) -> float:
        """CPU time of the current query."""
        try:
            return 0.0 if self._clock is None else time.clock_gettime(self._clock)
        except OSError:  # its thread has just ended
            return 0.0

    def _turn(self, request: dict[str, Any], database: duckdb.DuckDBPyConnection, behind: bool) -> None:
        """Answer one query, then prepare the next database."""
        self._clock = time.pthread_getcpuclockid(threading.get_ident())
        if behind:
            self._priority.give_way(threading.get_native_id())
        self._database = None
        head: dict[str, Any] = {**INTERNAL.as_dict(), "status": INTERNAL.status, "recycle": True}
        body = b""
        try:
            head, body = self._answer_query(request, database)
        finally:  # whatever goes wrong, the server gets an answer
            send(self._server, json.dumps(head).encode())
            send(self._server, body)
        if not head["recycle"]:
            database.close()  # after the answer: it takes longer than a small query
            self._database = self.new_database()
        self._priority.spend(min(self._fast_s, time.thread_time()))

    def new_database(self) -> duckdb.DuckDBPyConnection:
        """An empty in-memory database, locked down as far as it can be before the query is known."""
        from probe.server.sql import views

        connection = database(self._memory_bytes)
        views.prepare(connection)
        return connection

    def _answer_query(
        self, request: dict[str, Any], connection: duckdb.DuckDBPyConnection
    ) -> tuple[dict[str, Any], bytes]:
        """Head and body of the answer."""
        import duckdb

        query: Query
        if "batch" in request:
            query = batch = Batch(request)
            batch.tell = self._send_ahead if request.get("ahead") else None
        else:
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
            if isinstance(error, QueryTimeout):
                error = timed_out(query.asked_s, query.timeout_s, time.thread_time())
        finally:
            timer.cancel()
        head: dict[str, Any] = {"recycle": recycle}
        if error is not None:
            error = compatibility.instead(query.sql, error)
            head.update(error.as_dict(), status=error.status)
        return head, body

    def _send_ahead(self, part: bytes) -> None:
        """Send a part of the answer: frames like the answer's, with `ahead` in the head."""
        send(self._server, b'{"ahead":true}')
        send(self._server, part)

    def _run(self, query: Query, connection: duckdb.DuckDBPyConnection) -> bytes:
        """Run the query; if segments were removed or are damaged, run it again without them. If some lack
        columns that others have, again with NULL there. If a table is missing, once more with all of them,
        for the names in its message."""
        import duckdb

        from probe.server.sql import views

        try:
            return query.run(connection)
        except duckdb.Error as error:
            if isinstance(error, duckdb.CatalogException) and not query.plan.every_table:
                query.plan.every_table = True
                return query.run(self.new_database())
            if "union_by_name" in str(error) and query.files and not query.plan.by_name:
                query.plan.by_name = True
                return self._run(query, self.new_database())
            if not is_about(error, query.files):
                raise
            if all(Path(file).exists() for file in query.files):
                query.connection = self.new_database()
                bad = views.damaged(query.connection, query.files)
                if not bad and not query.settles:
                    raise
                query.plan.skip_files.update(bad)
                query.notes += [f"damaged and left out: {Path(file).name}" for file in bad]
            query.again = True
            return query.run(self.new_database())


def timed_out(asked_s: float, ran_s: float, cpu_s: float) -> QueryTimeout:
    """The error for a query that was stopped after `ran_s`, in which it used `cpu_s` of CPU time."""
    stopped = f"the query was stopped after {asked_s:g} s"
    if cpu_s >= ran_s * _STARVED_RATIO:
        return QueryTimeout(stopped)
    return QueryTimeout(
        f"{stopped}, with only {cpu_s:.1f} s of CPU time: the machine is busy",
        hint="Queries that are long or frequent yield to the training. Ask again in half a minute, or raise "
        "PROBE_QUERY_TIMEOUT_S for the server.",
    )


class Priority:
    """Yields to the training when queries take long or are very frequent.

    Queries may use `FAST_RATIO` of a core at full priority. A nice value cannot be lowered again, so it is
    set on the query's own thread. Where the kernel groups tasks by session (autogroup) that counts only
    within the worker, and the session's value is set too. Created before the sandbox is entered.
    """

    def __init__(self) -> None:
        self._session = -1
        self._behind = False
        self._left_s = FAST_BURST_S
        self._counted = time.monotonic()
        with contextlib.suppress(OSError):
            self._session = os.open("/proc/self/autogroup", os.O_WRONLY | os.O_CLOEXEC)

    def spent(self) -> bool:
        """Whether the next query must yield from its start."""
        now = time.monotonic()
        self._left_s = min(FAST_BURST_S, self._left_s + (now - self._counted) * FAST_RATIO)
        self._counted = now
        if self._left_s <= 0:
            return True
        if self._behind:  # the kernel allows ten changes per second, so this may take a few queries
            self._behind = not self._set_session(0)
        return False

    def spend(self, cpu_s: float) -> None:
        """Count the CPU time that a query used at full priority."""
        self._left_s = max(-FAST_BURST_S, self._left_s - cpu_s)

    def give_way(self, thread: int | None) -> None:
        """Lower the priority of the query on `thread`."""
        if thread is not None:
            with contextlib.suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, thread, LONG_QUERY_NICE)
        self._behind = self._set_session(LONG_QUERY_NICE) or self._behind

    def _set_session(self, nice: int) -> bool:
        try:
            return self._session >= 0 and os.write(self._session, str(nice).encode()) > 0
        except OSError:
            return False


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
