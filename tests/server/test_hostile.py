"""Hostile SQL against the endpoint: server and writer never fault, the next query is right."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from harness import Place
from probe.base.errors import ProbeError
from server import hostile_sql
from server.beside import Beside, Writer

RIGHT = [[500, 499, True]]
NEXT = "SELECT count(*), max(step), sum(loss) > 0 FROM python.steps"
REFUSED = ("files", "writes")
"""Categories of which nothing is ever answered."""


def attack(
    beside: Beside, writer: Writer, statements: list[tuple[str, str]], deadline_s: float
) -> tuple[float, str]:
    """Ask every statement and a right one after each; the slowest answer (seconds, statement).

    Fails when the server or the writer is another process afterwards, or an answer is wrong.
    """
    server = beside.call("GET", "/v1/health")["pid"]
    slowest = (0.0, "")
    for category, sql in statements:
        started = time.monotonic()
        try:
            answer = beside.query(writer.pid, sql, timeout_s=deadline_s)
            assert category not in REFUSED, (sql, answer)
        except ProbeError as error:
            assert error.status != 500, (sql, error.message)
            assert "Traceback" not in error.message
        slowest = max(slowest, (time.monotonic() - started, sql[:200]))
        assert beside.rows(writer.pid, NEXT) == RIGHT, sql[:200]
    assert beside.call("GET", "/v1/health")["pid"] == server
    assert writer.process.poll() is None and writer.steps() == 500
    assert "Traceback" not in beside.log()
    return slowest


@pytest.fixture
def target(beside: Beside, record: Callable[..., Writer]) -> Writer:
    writer = record()
    writer.tell("write 500")
    beside.start(PROBE_QUERY_TIMEOUT_S="60")
    return writer


def test_a_sample_of_hostile_statements_harms_nothing(beside: Beside, target: Writer, place: Place) -> None:
    attack(beside, target, hostile_sql.sample(61), 0.3)
    assert not list(place.directory.glob("*hostile*"))


@pytest.mark.alone
@pytest.mark.campaign
def test_every_hostile_statement_is_survived_and_answered_in_time(beside: Beside, target: Writer) -> None:
    statements = hostile_sql.everything()
    assert len(statements) >= 900 and len(set(statements)) == len(statements)
    deadline_s = 1.0
    slowest, sql = attack(beside, target, statements, deadline_s)
    assert slowest <= deadline_s + 1.5, sql
