"""Many statements in one request to a query worker."""

from __future__ import annotations

import json
from typing import Any

import pytest

from probe.server.sql import batch
from probe.server.sql.batch import Batch
from probe.server.sql.worker import Worker

SETTINGS = "SELECT name, value FROM probe.settings"
STEPS = "SELECT count(*) FROM python.steps"
NOT_STEADY = "SELECT count(*) + 0 FROM python.steps"
FAILS = "SELECT nothing FROM python.steps"


def test_a_steady_statement_runs_again_when_what_it_reads_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[str] = []
    true_rows = batch._rows

    def counted(connection: Any, one: dict[str, Any]) -> Any:
        ran.append(one["sql"])
        return true_rows(connection, one)

    monkeypatch.setattr(batch, "_rows", counted)
    monkeypatch.setattr(batch, "_KNOWN", {})
    nobody: Any = None
    worker = Worker(nobody, 1 << 28, nobody)

    def results(value: str) -> list[dict[str, Any]]:
        ran.clear()
        request = {
            "batch": [
                {"sql": sql, "parameters": {}, "limit": 9, "steady": sql != NOT_STEADY}
                for sql in (SETTINGS, STEPS, NOT_STEADY, FAILS)
            ],
            "sources": [], "live": {"probe.settings": [{"name": "dir", "value": value}]}, "notes": [],
            "timeout_s": 60.0, "asked_s": 60.0, "share_s": 30.0,
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
