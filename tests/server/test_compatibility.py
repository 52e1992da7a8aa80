"""Queries written for probing: they run over views of our tables, or are answered with what has it here."""

from __future__ import annotations

import time
from collections.abc import Callable

import duckdb
import pytest

from probe.base.errors import SqlInvalid
from probe.diagnose.recipes import recipe_files
from probe.diagnose.recipes.local_query import make_tables
from probe.recording.tables import BY_NAME, COMMON, TABLES
from probe.server.runtime import request_bodies
from probe.server.runtime.request_bodies import RowsBody
from probe.server.sql import compatibility, views
from probe.server.sql.remote_rows import searchable, wanted_columns
from probe.server.sql.views import mentioned
from server.beside import Beside, Writer


@pytest.mark.parametrize("view", compatibility.VIEWS, ids=lambda view: view.name)
def test_every_view_is_made_of_declared_columns_and_is_null_where_nothing_is_recorded(
    view: compatibility.View,
) -> None:
    connection = duckdb.connect()
    make_tables(connection)
    [source] = [table for table in TABLES if view.source.partition(" ")[0] == table.full_name]
    connection.execute(f"INSERT INTO {source.full_name} (rank, pid) VALUES (3, 7)")
    sql = f"SELECT * FROM {view.name}"
    [note] = compatibility.make(connection, sql, [3, 4])
    assert view.name in note and source.full_name in note and all(name in note for name in view.unknown)
    relation = connection.sql(sql)
    [row] = relation.fetchall()
    found = dict(zip(relation.columns, row, strict=True))
    assert (found["rank"], found["pid"]) == (3, 7)
    assert set(found) == {*view.columns, *view.unknown, *(column.name for column in COMMON)}
    assert all(found[name] is None for name in view.unknown)
    assert view.name not in BY_NAME, "ours come first"


def test_other_hosts_are_asked_for_what_a_view_is_made_of_and_for_no_more() -> None:
    text = compatibility.reads("SELECT avg(duration_ms) FROM global.python.comm_collective")
    assert [table.full_name for table in mentioned(text)] == ["python.collectives"]
    wanted = wanted_columns(BY_NAME["python.collectives"], text)
    assert "duration_s" in wanted and "call_site" not in wanted
    text = compatibility.reads("SELECT allocated_delta FROM python.torch_trace")
    assert {"allocated", "seq", "step"} <= set(wanted_columns(BY_NAME["python.torch_trace"], text))


@pytest.mark.parametrize("sql", [
    "SELECT step FROM python.steps", "FROM python.steps", "SELECT count(*) FROM python.steps",
    "SELECT * FROM python.steps", 'SELECT U&"st\\0065p" FROM python.losses', "SELECT 1",
    "SELECT step -- of\nFROM python.steps", "SELECT s.* FROM job.mine AS s",
])
def test_the_words_of_sql_name_the_tables_and_columns_that_it_names(sql: str) -> None:
    words = searchable(sql)
    assert mentioned(words) == mentioned(sql)
    for table in mentioned(sql):
        assert wanted_columns(table, words) == wanted_columns(table, sql)


def test_the_words_of_all_recipes_fit_into_one_request() -> None:
    files = recipe_files.built_in_folder().glob("*.sql")
    text = "\n;\n".join(recipe_files.read(file, built_in=True).statement()[0] for file in files)
    assert mentioned(searchable(text)) == mentioned(text)
    RowsBody(sql=searchable(text), room_bytes=1, timeout_s=1.0)
    assert len(searchable(text)) < request_bodies.LONGEST_SQL / 2, "the user's own recipes need room, too"


def test_a_role_is_null_and_said_to_be() -> None:
    connection = duckdb.connect()
    make_tables(connection)
    connection.execute("INSERT INTO python.collectives (rank, duration_s) VALUES (3, 0.5)")
    sql = "SELECT _role, _rank, duration_ms FROM global.python.comm_collective"
    notes = compatibility.make(connection, sql, [3, 4])
    assert connection.execute(sql).fetchall() == [(None, 3, 500.0)]
    assert len(notes) == 2 and "NULL: _role" in notes[1]


def test_what_is_measured_here_has_the_units_that_probing_gives_it() -> None:
    connection = duckdb.connect()
    make_tables(connection)
    connection.execute(
        "INSERT INTO python.collectives (step, op, ranks, bytes, duration_s, asynchronous) "
        "VALUES (5, 'all_reduce', '0-2,6', 64, 0.25, true)"
    )
    connection.execute("INSERT INTO process.memory (t_ns, rss_bytes) VALUES (2000000, 4096)")
    connection.execute(
        "INSERT INTO process.gpu (memory_used_bytes, memory_total_bytes, utilization_ratio) "
        "VALUES (1, 4, 0.5)"
    )
    for sql, expected in (
        (
            "SELECT local_step, op, group_size, bytes, duration_ms, async_op FROM python.comm_collective",
            (5, "all_reduce", 4, 64, 250.0, 1),
        ),
        ("SELECT ts, scope, rss_kb FROM cpu.utilization", (2000, "process", 4)),
        ("SELECT free_bytes, mem_used_pct, gpu_util_pct FROM gpu.utilization", (3, 25.0, 50.0)),
    ):
        [note] = compatibility.make(connection, sql, [])
        assert "NULL" not in note, "what is named is recorded"
        assert connection.execute(sql).fetchall() == [expected]


@pytest.mark.one_server
def test_probings_own_examples_run_and_say_what_they_show(
    beside: Beside, record: Callable[..., Writer]
) -> None:
    writers = [record(job="ddp", run="peer", rank=rank, world_size=2) for rank in range(2)]
    for writer in writers:
        writer.tell("write 10")
    beside.start()
    pid = writers[0].pid
    answer = beside.query(
        pid, "SELECT local_step, AVG(allocated) AS avg_mb, MAX(allocated_delta) AS delta_mb "
        "FROM python.torch_trace GROUP BY local_step ORDER BY local_step",
    )
    assert answer["rows"] == [[step, 100.0, 0.0] for step in range(10)] and answer["notes"] == []
    timed = (
        "module, stage, ROUND(AVG(duration), 6) AS seconds, COUNT(*) AS calls FROM {}python.torch_trace "
        "WHERE stage IN ('post forward', 'post step') GROUP BY ALL ORDER BY module"
    )
    answer = beside.query(pid, f"SELECT {timed.format('')}")
    assert answer["rows"][0] == ["transformer.h.0", "post forward", 0.002, 10]
    assert "as probing writes it" in answer["notes"][0]
    answer = beside.query("ddp", f"SELECT _rank, {timed.format('global.')}, _rank")
    assert [row[0] for row in answer["rows"]] == [0, 1] * 4, "all ranks, and only the name differs"
    [note] = beside.query(pid, "SELECT _rank FROM global.python.steps")["notes"]
    assert "rank 0 only" in note and "`probe JOB query`" in note
    [note] = beside.query(pid, "SELECT role FROM python.torch_trace LIMIT 1")["notes"]
    assert "NULL: role" in note
    answer = beside.query(pid, "SELECT ip, func FROM python.backtrace")
    assert answer["rows"] == [[None, "main"]] and "NULL: ip" in answer["notes"][0]
    answer = beside.query(pid, "SELECT micro_step, func, name, local_step FROM python.variables")
    assert answer["rows"] == [] and "NULL: micro_step, func" in answer["notes"][0]
    answer = beside.query(pid, "SELECT rank, role, host, status FROM cluster.nodes ORDER BY rank")
    assert [row[:2] for row in answer["rows"]] == [[0, None], [1, None]]
    assert "cluster.ranks" in answer["notes"][0] and "NULL: role" in answer["notes"][0]
    counted = "SELECT _rank, _host, count(*) FROM global.python.steps GROUP BY ALL ORDER BY 1"
    answer = beside.query("ddp", counted)
    assert [row[0::2] for row in answer["rows"]] == [[0, 10], [1, 10]] and answer["rows"][0][1]


@pytest.mark.one_server
def test_a_value_that_no_row_has_is_told_and_ours_are_left_as_they_are(
    beside: Beside, record: Callable[..., Writer]
) -> None:
    writer = record(job="gpt")
    writer.tell("write 2")
    beside.start()

    def notes(sql: str) -> str:
        return "\n".join(beside.query(writer.pid, sql)["notes"])

    counted = "SELECT count(*) FROM python.torch_trace WHERE stage = '{}'"
    assert "no stage 'pre …'" in notes(counted.format("pre forward"))
    assert notes(counted.format("forward")) == ""
    assert beside.rows(writer.pid, counted.format("forward")) == [[8]]
    mixed = "SELECT count(*) FROM python.torch_trace WHERE stage IN ('forward', 'post forward')"
    assert "no stage 'post …'" in notes(mixed) and beside.rows(writer.pid, mixed) == [[8]]
    assert "'Python'" in notes("SELECT * FROM python.backtrace WHERE frame_type = 'native'")
    assert "never -1" in notes("SELECT * FROM gpu.utilization WHERE gpu_util_pct = -1")
    joined = "SELECT world_size FROM python.torch_trace JOIN cluster.ranks USING (rank) LIMIT 1"
    assert beside.rows(writer.pid, joined) == [[1]], "a column of ours is never made ambiguous"


@pytest.mark.one_server
def test_a_table_without_a_counterpart_is_answered_with_what_has_its_contents(
    beside: Beside, record: Callable[..., Writer]
) -> None:
    writer = record(job="gpt")
    beside.start()
    for name, ours in (
        ("process.kmsg", "probe.verdicts"), ("process.envs", "probe.facts"),
        ("information_schema.df_settings", "probe.settings"), ("global.nccl.proxy_ops", "python.collectives"),
        ("python.trace_event", "python.pulse"), ("gpu.devices", "process.gpu"),
        ("memory_usage", "process.memory"), ("probe.probing.table_docs", "probe.tables"),
    ):
        with pytest.raises(SqlInvalid) as refused:
            beside.rows(writer.pid, f"SELECT * FROM {name}")
        assert ours in refused.value.message and "is a name of probing" in refused.value.message
    with pytest.raises(SqlInvalid, match="probe config"):
        beside.rows(writer.pid, "SET probing.torch.profiling = 0.1")
    with pytest.raises(SqlInvalid, match="nothing"):  # anybody else's mistake stays what the engine says
        beside.rows(writer.pid, "SELECT nothing FROM python.steps")
    with pytest.raises(SqlInvalid, match="does not exist"):
        beside.rows(writer.pid, "SELECT * FROM python.nothing")


def test_sentences_name_tables_that_exist() -> None:
    import re

    for sentence in compatibility.INSTEAD.values():
        named = set(re.findall(r"\b(?:python|process|probe|cluster)\.[a-z_]+", sentence))
        assert {".".join(name.split(".")[:2]) for name in named} <= set(BY_NAME), sentence


@pytest.mark.parametrize("part", [" ", "-- ", "( ", '" ', ". ", ", ", "/* ", "' "])
def test_the_time_to_read_sql_grows_with_its_length_and_not_with_its_square(part: str) -> None:
    def taken_s(length: int) -> float:
        sql = "SELECT 1" + part * (length // len(part))
        began = time.perf_counter()
        compatibility.reads(sql)
        views.mentioned(sql)
        return time.perf_counter() - began

    short = min(taken_s(20_000) for _ in range(3))
    assert taken_s(200_000) < 40 * short + 0.5, "ten times as long, not a hundred times"
