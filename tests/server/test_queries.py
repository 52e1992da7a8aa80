"""Queries as users ask them: over segments and rings at once, over ranks, with limits that are told."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from harness import Place
from probe.base.errors import (
    BadRequest,
    ProcessDead,
    QueryOutOfMemory,
    QueryTimeout,
    QueryWorkerDied,
    SqlInvalid,
    TooMany,
)
from probe.recording.tables import TABLES, columns_of
from probe.server.sql.worker import timed_out
from server.beside import Beside, Writer, until


@pytest.mark.one_server
def test_every_table_has_the_columns_that_are_declared(
    beside: Beside, record: Callable[..., Writer]
) -> None:
    """Its example is run where the page of tables shows it."""
    writer = record()
    writer.tell("write 20")
    writer.tell("log accuracy 0.5")
    beside.start()
    described = {table["name"]: table for table in beside.call("GET", "/v1/tables")["tables"]}
    for table in TABLES:
        assert described[table.full_name]["example"] == table.example
        star = beside.query(writer.pid, f"SELECT * FROM {table.full_name} LIMIT 1")
        expected = [(column.name, column.type) for column in columns_of(table)]
        assert [(column["name"], column["type"]) for column in star["columns"]] == expected
    assert beside.rows(writer.pid, "SELECT value FROM python.scalars") == [[0.5]]


def test_rows_are_the_same_in_the_ring_in_segments_and_after_the_end(
    beside: Beside, record: Callable[..., Writer]
) -> None:
    asked = "SELECT * FROM python.steps ORDER BY step"
    writer = record()
    writer.tell("write 10")
    writer.tell("strange")
    beside.start()
    in_ring = beside.rows(writer.pid, asked)
    assert writer.segments("python.steps") == []
    beside.kill()
    beside.start(PROBE_SEAL_INTERVAL_S="0.1")
    until(lambda: writer.segments("python.steps"), "sealed")
    assert beside.rows(writer.pid, asked) == in_ring
    writer.tell("write 5")
    both = beside.rows(writer.pid, asked)
    assert both[:14] == in_ring and len(both) == 19
    rings = writer.rings()
    writer.exit()
    until(lambda: not rings.exists(), "drained")
    assert beside.rows(writer.pid, asked) == both
    assert beside.rows(str(writer.folder), asked) == both


def test_an_answer_says_how_many_rows_were_overwritten_before_they_were_sealed(
    beside: Beside, record: Callable[..., Writer]
) -> None:
    asked = "SELECT count(*), max(step) FROM python.steps"
    writer = record(environ={"PROBE_RINGS_BYTES": "1200000"})
    writer.tell("write 50")
    beside.start()
    answer = beside.query(writer.pid, asked)
    assert (answer["rows"], answer["notes"]) == ([[50, 49]], [])
    beside.kill()
    writer.tell("write 450")
    beside.start(PROBE_SEAL_INTERVAL_S="0.05")
    for _ in range(2):  # from the ring, and when it is sealed
        answer = beside.query(writer.pid, asked)
        [[rows, last]] = answer["rows"]
        assert last == 499 and rows < 450
        assert answer["notes"] == [
            f"{500 - rows} of 500 rows of python.steps (pid {writer.pid}) are missing: overwritten in "
            "memory before they were sealed, or deleted for PROBE_RETENTION_BYTES"
        ]
        until(lambda: writer.segments("python.steps"), "sealed")


@pytest.mark.one_server
def test_what_json_cannot_say_is_said_in_words(beside: Beside, record: Callable[..., Writer]) -> None:
    writer = record()
    writer.tell("strange")
    beside.start()
    losses = beside.rows(writer.pid, "SELECT loss FROM python.steps ORDER BY step")
    assert losses == [["NaN"], ["Infinity"], ["-Infinity"], [None]]
    sql = (
        "SELECT 170141183460469231731687303715884105727::HUGEINT, 1.50::DECIMAL(9, 2), '\\xAB'::BLOB, "
        "TIMESTAMP '2020-02-03 04:05:06.789', INTERVAL '1 month', [1, NULL], {'a': 'nan'::DOUBLE}, "
        "MAP {'k': 1}, MAP {1: 2}, DATE 'infinity', '00000000-0000-0000-0000-000000000001'::UUID, "
        "to_timestamp(0), 'é\U0001f986'"
    )
    answer = beside.query(writer.pid, sql)
    assert answer["rows"] == [
        [
            2**127 - 1, "1.50", "ab", "2020-02-03 04:05:06.789", "1 month", [1, None], {"a": "NaN"},
            {"k": 1}, [[1, 2]], "infinity", "00000000-0000-0000-0000-000000000001",
            "1970-01-01 00:00:00+00", "é\U0001f986",
        ]
    ]
    assert [column["type"] for column in answer["columns"]][:5] == [
        "HUGEINT", "DECIMAL(9,2)", "BLOB", "TIMESTAMP", "INTERVAL",
    ]


@pytest.mark.one_server
def test_order_survives_the_words_for_dates(beside: Beside, record: Callable[..., Writer]) -> None:
    writer = record()
    beside.start()
    sql = "SELECT range AS a, now() AS a FROM range(3000) ORDER BY hash(range) -- the last word;"
    answer = beside.query(writer.pid, sql)
    plain = beside.rows(writer.pid, "SELECT range FROM range(3000) ORDER BY hash(range)")
    assert [row[:1] for row in answer["rows"]] == plain
    assert [column["name"] for column in answer["columns"]] == ["a", "a"]


@pytest.mark.one_server
def test_ranks_of_a_job_answer_as_one_table(beside: Beside, record: Callable[..., Writer]) -> None:
    writers = [record(job="ddp", run="r", rank=rank, world_size=3) for rank in range(3)]
    for rank, writer in enumerate(writers):
        writer.tell(f"write {10 * (rank + 1)}")
    beside.start()
    assert beside.rows("ddp", "SELECT rank, count(*) FROM python.steps GROUP BY rank ORDER BY rank") == [
        [0, 10], [1, 20], [2, 30],
    ]
    assert beside.rows("ddp/1", "SELECT DISTINCT rank, pid FROM python.steps") == [[1, writers[1].pid]]
    writers[2].kill()
    until(lambda: beside.states()[writers[2].pid] == "dead", "noticed")
    ranks = beside.rows("ddp/0", "SELECT rank, step, state, endpoint FROM cluster.ranks ORDER BY rank")
    assert [row[:3] for row in ranks] == [[0, 9, "running"], [1, 19, "running"], [2, 29, "dead"]]
    for row, writer in zip(ranks, writers, strict=True):
        assert beside.rows(row[3], "SELECT DISTINCT pid FROM python.steps") == [[writer.pid]]
    captured = beside.call("GET", "/v1/backtrace?endpoint=ddp")
    assert sorted(captured["ranks"]) == ["0", "1"] and captured["missing"][0].startswith("rank 2: ")


@pytest.mark.one_server
def test_a_backtrace_is_captured_only_when_a_query_names_it(
    beside: Beside, record: Callable[..., Writer]
) -> None:
    writer = record()
    writer.tell("write 4")
    beside.start()
    assert beside.rows(writer.pid, "SELECT count(*) FROM python.stacks") == [[0]]
    sql = "SELECT depth, func, file, lineno, step, phase FROM python.BackTrace"
    answer = beside.query(writer.pid, sql)
    assert answer["rows"] == [[0, "main", "train.py", 7, 4, "forward"]]
    kept = beside.rows(writer.pid, "SELECT reason, func, lineno FROM python.stacks")
    assert kept == [["request", "main", 7]]
    assert beside.call("GET", f"/v1/backtrace?endpoint={writer.pid}")["source"] == "agent"
    writer.tell("deaf")
    answer = beside.query(writer.pid, "SELECT file FROM python.backtrace")
    assert answer["rows"] and "did not answer" in answer["notes"][0]
    assert all(file.endswith(".py") for [file] in answer["rows"])
    assert beside.call("GET", f"/v1/backtrace?endpoint={writer.pid}")["source"] == "outside"
    writer.tell("hear")


@pytest.mark.one_server
def test_eval_reaches_the_living_and_says_since_when_the_dead_are_dead(
    beside: Beside, record: Callable[..., Writer]
) -> None:
    writer = record()
    writer.tell("write 4")
    beside.start()
    answer = beside.call("POST", "/v1/eval", {"endpoint": "", "code": "lr"})
    assert answer["value"] == "LR" and answer["step"] == 4
    writer.kill()
    until(lambda: beside.states()[writer.pid] == "dead", "noticed")
    with pytest.raises(ProcessDead, match="died at about") as dead:
        beside.call("POST", "/v1/eval", {"endpoint": str(writer.pid), "code": "lr"})
    assert "query" in dead.value.hint
    assert beside.rows(writer.pid, "SELECT max(step) FROM python.steps") == [[3]]


@pytest.mark.one_server
def test_results_are_cut_and_say_so(beside: Beside, record: Callable[..., Writer]) -> None:
    writer = record()
    beside.start()
    for limit, there in ((5, 5), (10, 10), (11, 10)):
        answer = beside.query(writer.pid, "SELECT * FROM range(10)", limit=limit)
        assert (len(answer["rows"]), answer["truncated"]) == (there, limit < 10)
    answer = beside.query(writer.pid, "SELECT * FROM range(1000000000)")
    assert len(answer["rows"]) == 10_000 and answer["truncated"]
    answer = beside.query(writer.pid, "SELECT repeat('x', 80000000)")
    assert answer["truncated"] and answer["rows"] == []


@pytest.mark.campaign
@pytest.mark.one_server
def test_results_are_cut_at_the_row_that_does_not_fit(beside: Beside, record: Callable[..., Writer]) -> None:
    writer = record()
    beside.start()
    answer = beside.query(writer.pid, "SELECT repeat('x', 1000000) FROM range(100)", limit=100)
    assert answer["truncated"] and 60 <= len(answer["rows"]) <= 67


@pytest.mark.one_server
def test_sql_that_is_refused_says_why(beside: Beside, record: Callable[..., Writer]) -> None:
    writer = record()
    beside.start()
    for sql, said in (
        ("SELECT stepp FROM python.steps", '"step"'),
        ("SELECT * FROM python.stepps", '"steps"'),
        ("SELCT 1", "LINE 1: SELCT 1"),
        ("SELECT 1; SELECT 2", "expected one statement, found 2"),
        ("INSERT INTO python.steps (step) VALUES (1)", "read-only; this is a INSERT"),
        ("SELECT * FROM read_csv('/etc/passwd')", "Cannot access file"),
        ("COPY (SELECT 1) TO '/tmp/x'", "read-only; this is a COPY"),
        ("", "found 0"),
    ):
        with pytest.raises(SqlInvalid) as refused:
            beside.query(writer.pid, sql)
        assert said in refused.value.message and refused.value.hint


@pytest.mark.one_server
def test_statements_that_read_are_answered(beside: Beside, record: Callable[..., Writer]) -> None:
    writer = record()
    writer.tell("write 3")
    beside.start()
    for sql in (
        "FROM python.steps SELECT step", "VALUES (1), (2)", "DESCRIBE python.steps",
        "SUMMARIZE python.losses",
        "SHOW ALL TABLES", "EXPLAIN SELECT * FROM python.steps", "EXPLAIN ANALYZE SELECT * FROM python.steps",
        "PIVOT python.torch_trace ON stage USING avg(duration) GROUP BY module",
        "UNPIVOT python.losses ON loss, step", "WITH a AS (SELECT 1) SELECT * FROM a", "TABLE python.losses",
        "SELECT * FROM query('SELECT step FROM pyth' || 'on.steps')",
        "WITH RECURSIVE t AS (SELECT 1 AS a UNION ALL SELECT a + 1 FROM t WHERE a < 5) SELECT * FROM t",
    ):
        assert beside.query(writer.pid, sql)["rows"], sql
    assert beside.rows(writer.pid, "SELECT * FROM query('SELECT count(*) FROM pyth' || 'on.steps')") == [[3]]


def test_an_endless_query_ends_at_its_deadline_and_harms_nothing(
    beside: Beside, record: Callable[..., Writer]
) -> None:
    writer = record()
    writer.tell("write 3")
    beside.start(PROBE_QUERY_TIMEOUT_S="1")
    started = time.monotonic()
    with pytest.raises(QueryTimeout, match="stopped after 1 s"):
        beside.query(writer.pid, "SELECT count(*) FROM range(1000000000000)", timeout_s=100)
    assert 1 <= time.monotonic() - started < 40
    with pytest.raises(QueryTimeout, match=r"after 0\.2 s"):
        beside.query(writer.pid, "SELECT count(*) FROM range(1000000000000)", timeout_s=0.2)
    beside.kill()
    beside.start(PROBE_QUERY_TIMEOUT_S="110")
    with pytest.raises(QueryOutOfMemory):
        beside.query(writer.pid, "SELECT list(range) FROM range(1000000000)")
    assert beside.rows(writer.pid, "SELECT count(*) FROM python.steps") == [[3]]


def workers(place: Place) -> list[int]:
    return [int(line.split()[0]) for line in place.processes() if "probe.server.sql.worker" in line]


@pytest.mark.usefixtures("real_servers")
def test_a_query_that_was_stopped_for_want_of_a_cpu_is_not_told_to_do_less(
    beside: Beside, record: Callable[..., Writer], place: Place
) -> None:
    """A worker that is stopped by a signal gets as little of a CPU as one that starves."""
    writer = record()
    writer.tell("write 3")
    beside.start(PROBE_QUERY_TIMEOUT_S="5")
    beside.query(writer.pid, "SELECT 1")
    outcome: list[QueryTimeout] = []

    def ask() -> None:
        with pytest.raises(QueryTimeout) as caught:
            beside.query(writer.pid, "SELECT count(*) FROM range(1000000000000)")
        outcome.append(caught.value)

    before = {pid: cpu_ticks(pid) for pid in workers(place)}
    asking = threading.Thread(target=ask)
    began = time.monotonic()
    asking.start()

    def at_work() -> list[int]:
        return [pid for pid in workers(place) if cpu_ticks(pid) > before.get(pid, 0) + 10]

    busy = until(at_work, "the query runs")
    for pid in busy:
        os.kill(pid, signal.SIGSTOP)
    time.sleep(max(0.0, began + 5.2 - time.monotonic()))  # past the query's deadline, before the worker's
    for pid in busy:
        os.kill(pid, signal.SIGCONT)
    asking.join()
    assert "of CPU time: the machine is busy" in outcome[0].message and "Ask again" in outcome[0].hint


def test_a_query_that_had_its_cpu_is_told_to_do_less() -> None:
    assert timed_out(5, 5, 4.8).message == "the query was stopped after 5 s"
    assert "fewer steps" in timed_out(5, 5, 4.8).hint


def cpu_ticks(pid: int) -> int:
    """CPU time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


@pytest.mark.usefixtures("real_servers")
def test_a_worker_killed_in_mid_query_costs_that_query_only(
    beside: Beside, record: Callable[..., Writer], place: Place
) -> None:
    writer = record()
    writer.tell("write 3")
    beside.start(PROBE_QUERY_TIMEOUT_S="60")
    for _ in range(2):
        beside.query(writer.pid, "SELECT 1")
        outcome: list[BaseException | None] = []

        def ask(outcome: list[BaseException | None] = outcome) -> None:
            try:
                beside.query(writer.pid, "SELECT count(*) FROM range(1000000000000)")
            except QueryWorkerDied as error:
                outcome.append(error)

        asking = threading.Thread(target=ask)
        asking.start()
        # A death in a worker that had waited is not laid to the query, once: kill until it is told.
        while asking.is_alive():
            for pid in workers(place):
                busy = Path(f"/proc/{pid}/task").exists() and len(os.listdir(f"/proc/{pid}/task")) > 1
                if busy:
                    os.kill(pid, signal.SIGKILL)
            asking.join(0.05)
        assert isinstance(outcome[0], QueryWorkerDied) and "not affected" in outcome[0].hint
        assert beside.rows(writer.pid, "SELECT count(*) FROM python.steps") == [[3]]


def test_eight_queries_at_once_and_the_ninth_is_told_to_wait(
    beside: Beside, record: Callable[..., Writer]
) -> None:
    writer = record()
    writer.tell("write 3")
    beside.start(PROBE_QUERY_TIMEOUT_S="110")
    refused: list[TooMany] = []
    answered: list[int] = []

    def ask() -> None:
        for _ in range(10):
            try:
                sql = "SELECT count(*), sum(hash(range)) IS NULL FROM range(300000)"
                answered.append(len(beside.rows(writer.pid, sql)))
            except TooMany as error:
                refused.append(error)

    threads = [threading.Thread(target=ask) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(refused) + len(answered) == 200
    assert refused and answered and set(answered) == {1}
    assert beside.rows(writer.pid, "SELECT count(*) FROM python.steps") == [[3]]
    descriptors = len(os.listdir(f"/proc/{beside.place.server_pid()}/fd"))
    assert descriptors < 64


def test_a_damaged_segment_is_left_out_and_named(beside: Beside, record: Callable[..., Writer]) -> None:
    writer = record()
    beside.start(PROBE_SEAL_INTERVAL_S="0.1")
    for steps in (10, 20, 30):
        writer.tell("write 10")
        until(lambda steps=steps: sum(1 for _ in writer.segments("python.steps")) * 10 >= steps, "sealed")
    middle = writer.segments("python.steps")[1].path
    whole = middle.read_bytes()
    for damage in (whole[: len(whole) // 2], b"", whole[:4] + bytes(3000) + whole[3004:]):
        middle.write_bytes(damage)
        answer = beside.query(writer.pid, "SELECT count(*), max(step), sum(loss) IS NULL FROM python.steps")
        assert answer["rows"] == [[20, 29, False]] and middle.name in answer["notes"][0]


@pytest.mark.one_server
def test_settings_rings_and_tables_describe_the_recording(
    beside: Beside, record: Callable[..., Writer]
) -> None:
    writer = record()
    writer.tell("write 7")
    beside.start()
    value = beside.rows(writer.pid, "SELECT value FROM probe.settings WHERE variable = 'PROBE_BUDGET'")
    assert value == [["1%"]]
    rings = beside.rows(writer.pid, "SELECT table_name, rows_written, rows_dropped FROM probe.rings")
    assert ["python.steps", 7, 0] in rings and ["python.torch_trace", 28, 0] in rings
    sql = "SELECT unit FROM probe.tables WHERE table_name = 'python.steps' AND column_name = 'wall_s'"
    assert beside.rows(writer.pid, sql) == [["s"]]


def test_processes_tell_what_ps_shows(beside: Beside, record: Callable[..., Writer]) -> None:
    writer = record(job="gpt", rank=2, world_size=4)
    writer.tell("write 7")
    pid = beside.start()
    (row,) = beside.call("GET", "/v1/processes")["processes"]
    assert {name: row[name] for name in ("job", "rank", "world_size", "pid", "state", "step")} == {
        "job": "gpt", "rank": 2, "world_size": 4, "pid": writer.pid, "state": "running", "step": 6,
    }
    assert 0 <= row["last_step_s"] < 600 and row["ended_ns"] is None
    health = beside.call("GET", "/v1/health")
    assert (health["pid"], health["processes"]) == (pid, 1)
    writer.kill()
    until(lambda: beside.call("GET", "/v1/processes")["processes"][0]["state"] == "dead", "dead")
    assert beside.call("GET", "/v1/health")["processes"] == 0


@pytest.mark.one_server
def test_bodies_are_checked(beside: Beside, record: Callable[..., Writer]) -> None:
    writer = record()
    beside.start()
    for body in (
        {}, [], "x", {"sql": 1}, {"sql": "x" * 70_000}, {"sql": "SELECT 1", "more": 1},
        {"sql": "SELECT 1", "limit": 0}, {"sql": "SELECT 1", "limit": 10**9},
        {"sql": "SELECT 1", "limit": "5"},
        {"sql": "SELECT 1", "timeout_s": -1}, {"sql": "SELECT 1", "timeout_s": float("inf")},
        {"sql": "SELECT 1", "timeout_s": float("nan")},
        {"sql": "SELECT 1", "endpoint": "a\x00b"}, {"sql": "SELECT '\ud800'"},
    ):
        with pytest.raises(BadRequest):
            beside.call("POST", "/v1/query", body)
    assert beside.rows(writer.pid, "SELECT 1") == [[1]]
    assert json.loads(json.dumps(beside.call("GET", "/openapi.json")))["info"]["title"] == "probe"
