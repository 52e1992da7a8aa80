"""What a query worker does once, or not at all: results that it keeps, tables that it need not make."""

from __future__ import annotations

import json
import socket
import threading
from pathlib import Path
from typing import Any

import duckdb
import pytest

from probe.confined.worker_frames import receive, send
from probe.recording import places
from probe.recording.tables import BY_NAME, TABLES
from probe.server.sql import batch
from probe.server.sql.batch import Batch
from probe.server.sql.statements import Query
from probe.server.sql.worker import Priority, Worker

SETTINGS = "SELECT name, value FROM probe.settings"
STEPS = "SELECT count(*) FROM python.steps"
NOT_STEADY = "SELECT count(*) + 0 FROM python.steps"
FAILS = "SELECT nothing FROM python.steps"
NOBODY: Any = None
LIMITS = {"timeout_s": 60.0, "asked_s": 60.0, "share_s": 30.0, "limit": 9}


def test_a_steady_statement_runs_again_when_what_it_reads_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[str] = []
    true_rows = batch._rows

    def counted(connection: Any, one: dict[str, Any]) -> Any:
        ran.append(one["sql"])
        return true_rows(connection, one)

    monkeypatch.setattr(batch, "_rows", counted)
    monkeypatch.setattr(batch, "_KNOWN", {})
    worker = Worker(NOBODY, 1 << 28, NOBODY)

    def results(value: str) -> list[dict[str, Any]]:
        ran.clear()
        request = {
            "batch": [
                {"sql": sql, "parameters": {}, "limit": 9, "steady": sql != NOT_STEADY}
                for sql in (SETTINGS, STEPS, NOT_STEADY, FAILS)
            ],
            "sources": [], "live": {"probe.settings": [{"name": "dir", "value": value}]}, "notes": [],
            **LIMITS,
        }
        found: list[dict[str, Any]] = json.loads(Batch(request).run(worker.new_database()))["results"]
        return found

    first = results("a")
    assert [one.get("rows") for one in first] == [[["dir", "a"]], [[0]], [[0]], None]
    assert ran == [SETTINGS, STEPS, NOT_STEADY, FAILS] and "nothing" in first[3]["error"]["message"]
    assert [one.get("rows") for one in results("a")] == [one.get("rows") for one in first]
    assert ran == [NOT_STEADY, FAILS], "and an error is no result to keep"
    assert results("b")[0]["rows"] == [["dir", "b"]] and ran == [SETTINGS, NOT_STEADY, FAILS]
    assert results("a")[0]["rows"] == [["dir", "a"]] and ran == [NOT_STEADY, FAILS]


def test_results_go_ahead_of_the_answer_and_what_runs_in_the_background_is_not_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("probe.server.sql.batch.TELL_S", 0.01)
    ours, theirs = socket.socketpair()
    counted: list[float] = []

    class Counts(Priority):
        def spend(self, cpu_s: float) -> None:
            counted.append(cpu_s)

    worker = Worker(theirs, 1 << 28, Counts())
    thread = threading.Thread(target=worker.serve, args=([],))
    thread.start()

    def received() -> Any:
        return json.loads(receive(ours) or b"null")

    slow = "SELECT sum(i) FROM range(30000000) AS numbers (i)"  # longer than TELL_S on any machine
    batch = [{"sql": sql, "parameters": {}, "limit": 9} for sql in ("SELECT 1", slow, "SELECT 3")]
    request = {"batch": batch, "sources": [], "live": {}, "notes": [], **LIMITS}
    with ours:
        assert received()["ready"]
        send(ours, json.dumps({**request, "ahead": True}).encode())
        parts = []  # one, or several on a busy machine, each behind its own head
        while (head := received()) == {"ahead": True}:
            parts.append(received())
        assert head == {"recycle": False}
        results = received()["results"]
        ahead = [result for part in parts for result in part["results"]]
        assert parts[0]["first"] == 0 and ahead[0]["rows"] == [[1]] and results[2]["rows"] == [[3]]
        assert ahead == results[: len(ahead)] and len(ahead) >= 2
        send(ours, json.dumps({**request, "background": True}).encode())
        assert received() == {"recycle": False} and len(received()["results"]) == 3, "nobody asked for parts"
        send(ours, json.dumps({**request, "batch": batch[:1]}).encode())
        assert received() == {"recycle": False} and received()
    thread.join()  # as its server is gone
    theirs.close()
    assert counted[0] > 0.01 and counted[1] == 0.0 and counted[2] > 0.0


@pytest.mark.parametrize("old_first", [True, False])
def test_columns_that_an_older_version_did_not_write_are_null(tmp_path: Path, old_first: bool) -> None:
    """One recording of an older version, and one beside it whose segments are like ours."""
    rows = [
        old_process(tmp_path, run, without=("loss", "tokens") if old else ())
        for run, old in (("a", old_first), ("b", not old_first))
    ]
    worker = Worker(NOBODY, 1 << 28, NOBODY)
    old, new = rows if old_first else rows[::-1]
    asked = "SELECT run, step, loss, tokens, wall_s FROM python.steps ORDER BY run"

    def query(sources: list[dict[str, Any]]) -> dict[str, Any]:
        request = {"sql": asked, "sources": sources, "live": {}, "notes": [], **LIMITS}
        found: dict[str, Any] = json.loads(worker._run(Query(request), worker.new_database()))
        return found

    alone = query([old])
    assert alone["rows"] == [[old["run"], 1, None, None, 0.5]]
    assert [one["type"] for one in alone["columns"]] == ["VARCHAR", "BIGINT", "DOUBLE", "BIGINT", "DOUBLE"]
    both = query([old, new])["rows"]
    assert sorted(both) == sorted([[old["run"], 1, None, None, 0.5], [new["run"], 1, 2.0, 8, 0.5]])
    request = {
        "batch": [{"sql": asked, "parameters": {}, "limit": 9}], "sources": [old, new], "live": {},
        "notes": [], "recent": (9, 9), **LIMITS,
    }
    [of_batch] = json.loads(worker._run(Batch(request), worker.new_database()))["results"]
    assert of_batch["rows"] == both


def old_process(directory: Path, run: str, without: tuple[str, ...]) -> dict[str, Any]:
    """A recording whose only segment of python.steps lacks some columns."""
    process = directory / f"run={run}" / "attempt=0" / "process=0-42"
    folder = places.segments_folder(process, "python.steps", 0)
    folder.mkdir(parents=True)
    values = {"step": "1", "wall_s": "0.5", "loss": "2.0", "tokens": "8"}
    columns = ", ".join(
        f"{values.get(column.name, 'NULL')}::{column.type} AS {column.name}"
        for column in BY_NAME["python.steps"].columns if column.name not in without
    )
    file = folder / "42-000000000001-000000000001.parquet"
    duckdb.execute(f"COPY (SELECT {columns}, 42::BIGINT AS pid, 1::BIGINT AS _row) TO '{file}'")
    return {
        "folder": str(process), "rings": str(process / "rings"), "run": run, "attempt": 0, "rank": 0,
        "pid": 42, "started_ns": 1,
    }


def test_tables_exist_where_sql_could_see_them_or_an_error_names_them() -> None:
    worker = Worker(NOBODY, 1 << 28, NOBODY)
    assert worker.new_database().execute("SELECT count(*) FROM duckdb_tables()").fetchall() == [(0,)]

    def rows(sql: str) -> list[list[Any]]:
        query = Query({"sql": sql, "sources": [], "live": {}, "notes": [], **LIMITS})
        found: list[list[Any]] = json.loads(worker._run(query, worker.new_database()))["rows"]
        return found

    for catalog in ("information_schema.tables", "duckdb_tables()", "(SHOW ALL TABLES)", "(--\nDESC)"):
        assert rows(f"SELECT count(*) FROM {catalog}") == [[len(TABLES)]], catalog
    assert rows("SELECT step FROM python.steps ORDER BY step DESC") == []
    with pytest.raises(duckdb.CatalogException, match=r"python\.steps"):
        rows("FROM steps")
