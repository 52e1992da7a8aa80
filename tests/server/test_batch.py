"""What a query worker does once, or not at all: results that it keeps, tables that it need not make."""

from __future__ import annotations

import json
from typing import Any

import duckdb
import pytest

from probe.recording.tables import TABLES
from probe.server.sql import batch
from probe.server.sql.batch import Batch
from probe.server.sql.statements import Query
from probe.server.sql.worker import Worker

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
