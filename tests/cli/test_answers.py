from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pytest
from command_harness import FakeServer, Result

from probe.base.errors import ServerUnavailable
from probe.client.answer import Answer
from probe_cli.render.quantities import unit_of
from probe_cli.render.query_answer import (
    arrow_bytes,
    cell,
    csv_lines,
    distinct,
    json_text,
    markdown_lines,
    ndjson_lines,
    readable,
    table_lines,
)

ANSWER = Answer(
    columns=[("step", "BIGINT"), ("loss", "DOUBLE"), ("module", "VARCHAR"), ("finite", "BOOLEAN")],
    rows=[
        [18204, 2.0123456789, "h.0", True],
        [18205, "NaN", 'say "hi", twice', False],
        [18206, None, "", None],
        [18207, "-Infinity", "two\nlines", None],
    ],
    truncated=False,
    elapsed_ms=12.5,
    notes=[],
)


def test_a_table_in_a_pipe_keeps_every_digit() -> None:
    assert list(table_lines(ANSWER, None)) == [
        " step          loss  module           finite",
        "18204  2.0123456789  h.0              true",
        '18205           NaN  say "hi", twice  false',
        "18206          NULL                   NULL",
        r"18207     -Infinity  two\nlines       NULL",
    ]


def test_a_table_on_a_terminal_is_readable() -> None:
    assert list(table_lines(ANSWER, 80))[:2] == [
        " step       loss  module           finite",
        "18204      2.012  h.0              true",
    ]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.1, "0.1"), (1 / 3, "0.3333"), (2.0, "2.0"), (123456789.25, "123456789"),
        (1.23456789e-7, "1.235e-7"), (1.5e300, "1.5e300"), (-0.0, "-0.0"), (12345.678, "12346"),
    ],
)
def test_numbers_are_short_and_true_to_four_digits(value: float, text: str) -> None:
    assert readable(value) == text
    assert math.isclose(float(text), value, rel_tol=1e-3)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "NULL"), (True, "true"), (7, "7"), ([1, "x"], '[1, "x"]'), ({"a": None}, '{"a": null}'),
        ("\x1b[1m", r"\u001b[1m"),
    ],
)
def test_every_kind_of_value_has_a_text(value: Any, text: str) -> None:
    assert cell(value, full=True) == text


def test_columns_on_a_terminal_have_one_unit_and_three_digits_and_in_a_pipe_every_digit() -> None:
    columns = [
        ("step", "BIGINT"), ("wall_s", "DOUBLE"), ("rss_bytes", "BIGINT"), ("avg(duration)", "DOUBLE"),
        ("t_ns", "BIGINT"), ("tokens_per_s", "DOUBLE"), ("data_s", "DOUBLE"),
    ]
    rows = [
        [1, 0.157353001, 314572800, 4.8e-5, 1_700_000_000_123_456_789, 1234.5, None],
        [2, 0.0000271234, 1048576, 9.1e-5, 1_700_000_001_123_456_789, 1.5, None],
        [3, "NaN", None, None, None, None, None],
    ]
    answer = Answer(columns, rows, False, 1.0, [])
    shown = [line.split("  ") for line in table_lines(answer, 200)]
    cells = [[cell.strip() for cell in line if cell.strip()] for line in shown]
    seconds = (1_700_000_000, 1_700_000_001)
    at = [time.strftime("%d %b %H:%M:%S", time.localtime(second)) for second in seconds]
    assert cells[1] == ["1", "157 ms", "300 MiB", "48 µs", "1700000000123456789", at[0], "1234.5", "NULL"]
    assert cells[2] == ["2", "0.0271 ms", "1 MiB", "91 µs", "1700000001123456789", at[1], "1.5", "NULL"]
    assert cells[3] == ["3", "NaN", "NULL", "NULL", "NULL", "NULL", "NULL"]
    piped = "\n".join(table_lines(answer, None))
    assert "0.157353001" in piped and "314572800" in piped and " ms" not in piped


@pytest.mark.parametrize(
    ("name", "unit"),
    [("wall_s", "s"), ("python.steps.wall_s", "s"), ("sum(duration)", "s"), ("max(s.rss_bytes)", "bytes"),
     ("tokens_per_s", None), ("steps", None), ("loss", None), ("count(wall_s)", None), ("t_ns", "ns"),
     ("(max(t_ns) - min(t_ns))", None), ("s", None), ("class", None), ("hours", None), ("latency_us", "us")],
)
def test_the_unit_of_a_column_is_what_its_name_says(name: str, unit: str | None) -> None:
    assert unit_of(name) == unit


def test_json_is_exactly_columns_rows_truncated_elapsed() -> None:
    assert json.loads(json_text(ANSWER)) == {
        "columns": [{"name": name, "type": kind} for name, kind in ANSWER.columns],
        "rows": ANSWER.rows,
        "truncated": False,
        "elapsed_ms": 12.5,
    }


def test_csv_tells_null_from_the_empty_text() -> None:
    assert "\n".join(csv_lines(ANSWER)) == (
        "step,loss,module,finite\n"
        "18204,2.0123456789,h.0,true\n"
        '18205,NaN,"say ""hi"", twice",false\n'
        '18206,,"",\n'
        '18207,-Infinity,"two\nlines",'
    )


def test_ndjson_has_one_object_per_row_and_loses_no_column() -> None:
    answer = Answer([("a", "BIGINT"), ("A", "BIGINT"), ("a_1", "BIGINT")], [[1, 2, 3]], False, 1.0, [])
    assert [json.loads(line) for line in ndjson_lines(answer)] == [{"a": 1, "A_2": 2, "a_1": 3}]
    assert distinct(["x", "x", "x"]) == ["x", "x_1", "x_2"]


def test_parquet_has_the_types_of_the_answer_and_numbers_for_nan(tmp_path: Path) -> None:
    columns = [
        *ANSWER.columns, ("at", "TIMESTAMP"), ("share", "DECIMAL(9,3)"), ("raw", "BLOB"),
        ("parts", "BIGINT[]"), ("odd", "STRUCT(a INTEGER)"), ('quo"ted', "HUGEINT"),
    ]
    more = ["2026-01-02 03:04:05", "1.250", "00ff", [1, 2], {"a": 1}, 2**100]
    answer = Answer(columns, [[*row, *more] for row in ANSWER.rows], False, 1.0, [])
    path = tmp_path / "answer.parquet"
    path.write_bytes(answer.parquet())
    with duckdb.connect(":memory:") as connection:
        described = connection.execute(f"DESCRIBE SELECT * FROM '{path}'").fetchall()
        rows = connection.execute(f"SELECT * FROM '{path}'").fetchall()
    types = {row[0]: row[1] for row in described}
    assert [row[0] for row in described] == [name for name, _ in columns]
    assert {name: types[name] for name, _ in ANSWER.columns} == dict(ANSWER.columns)
    assert (types["at"], types["share"], types["raw"]) == ("TIMESTAMP", "DECIMAL(9,3)", "BLOB")
    assert (types["parts"], types["odd"]) == ("BIGINT[]", "VARCHAR")
    assert math.isnan(rows[1][1]) and rows[2][1] is None and rows[3][1] == -math.inf
    assert rows[0][:4] == (18204, 2.0123456789, "h.0", True)
    assert rows[2][2] == ""
    assert rows[0][6] == b"\x00\xff" and rows[0][7] == [1, 2]


def test_a_type_from_the_server_is_not_run_as_sql() -> None:
    kind = "BIGINT) AS x, (SELECT count(*) FROM read_text('/etc/passwd')"
    assert b"PAR1" in Answer([("a", kind)], [["1"]], False, 1.0, []).parquet()


@pytest.mark.parametrize(
    "body",
    [
        {}, {"columns": 1, "rows": [], "truncated": False}, {"columns": [{}], "rows": [], "truncated": False},
        {"columns": [{"name": "a", "type": "BIGINT"}], "rows": [[1, 2]], "truncated": False},
    ],
)
def test_an_answer_that_is_none_is_an_error_and_no_traceback(body: dict[str, Any]) -> None:
    with pytest.raises(ServerUnavailable):
        Answer.parse(body)


def _query_body(**changes: Any) -> dict[str, Any]:
    return {
        "columns": [{"name": name, "type": kind} for name, kind in ANSWER.columns],
        "rows": ANSWER.rows, "truncated": False, "elapsed_ms": 12.5, "notes": [], **changes,
    }


def test_a_query_sends_what_was_asked_and_nothing_else(
    server: FakeServer, command: Callable[..., Result]
) -> None:
    server.answers["/v1/query"] = (200, _query_body())
    endpoint = f"{server.path}/gpt/1"
    assert command(endpoint, "query", "SELECT 1").code == 0
    assert command(endpoint, "query", "--limit", "5", "--timeout", "2.5", "-", stdin="SELECT 2").code == 0
    assert [request.body for request in server.requests] == [
        {"endpoint": "gpt/1", "sql": "SELECT 1"},
        {"endpoint": "gpt/1", "sql": "SELECT 2", "limit": 5, "timeout_s": 2.5},
    ]


def test_notes_and_truncation_go_to_stderr(server: FakeServer, command: Callable[..., Result]) -> None:
    server.answers["/v1/query"] = (200, _query_body(truncated=True, notes=["segment 3 is damaged"]))
    result = command(str(server.path), "query", "--format", "csv", "SELECT 1")
    assert result.out == "".join(line + "\n" for line in csv_lines(ANSWER))
    assert "probe: segment 3 is damaged\n" in result.err
    assert "probe: truncated to the first 4 rows\n" in result.err
    assert "--limit" in result.err


def test_an_empty_answer_says_so(server: FakeServer, command: Callable[..., Result]) -> None:
    server.answers["/v1/query"] = (200, _query_body(rows=[]))
    result = command(str(server.path), "query", "SELECT 1")
    assert result.out == "step  loss  module  finite\n"
    assert result.err == "0 rows in 12.5 ms\n"


def test_control_characters_do_not_reach_a_terminal_in_any_format(
    server: FakeServer, command: Callable[..., Result]
) -> None:
    hostile = "\x1b]52;c;x\x07\u202e\x9b"
    server.answers["/v1/query"] = (200, _query_body(rows=[[1, 1.0, hostile, True]]))
    for format in ("table", "json", "ndjson", "csv"):
        words = (str(server.path), "query", "--format", format, "SELECT 1")
        shown = command(*words, terminal=True, NO_COLOR="1").out
        assert not set(hostile) & set(shown) & set("\x1b\x07\u202e\x9b"), format
        assert r"\u001b]52;c;x\u0007\u202e\u009b" in shown, format
        assert format != "ndjson" or json.loads(shown)["module"] == hostile
    assert hostile in command(str(server.path), "query", "--format", "csv", "SELECT 1").out


@pytest.mark.parametrize("format", ["table", "json", "ndjson", "csv", "parquet"])
def test_output_goes_to_the_file(
    server: FakeServer, command: Callable[..., Result], tmp_path: Path, format: str
) -> None:
    server.answers["/v1/query"] = (200, _query_body())
    path = tmp_path / "answer"
    result = command(str(server.path), "query", "--format", format, "--output", str(path), "SELECT 1")
    assert (result.code, result.out) == (0, "")
    assert f"4 rows written to {path}" in result.err
    assert path.stat().st_size > 0


def test_parquet_is_not_written_to_a_terminal(server: FakeServer, command: Callable[..., Result]) -> None:
    result = command(str(server.path), "query", "--format", "parquet", "SELECT 1", terminal=True)
    assert result.code == 2 and "--output FILE" in result.err
    assert not server.requests


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("query", "SELECT 1", "-f", "x.sql"), "SQL and -f are"),
        (("query", "  "), "no SQL given"),
        (("query", "-f", "/nowhere.sql"), "cannot read /nowhere.sql"),
        (("query", "SELECT 1", "--limit", "0"), "0 is not in the range"),
        (("query", "SELECT 1", "--format", "yaml"), "'yaml' is not one of"),
        (("query", "SELECT 1", "-o", "/nowhere/answer"), "cannot write /nowhere/answer"),
        (("query", "x" * (1 << 20)), "limit 1,048,576"),
    ],
)
def test_a_wrong_use_is_said_on_stderr(
    server: FakeServer, command: Callable[..., Result], words: tuple[str, ...], said: str
) -> None:
    server.answers["/v1/query"] = (200, _query_body())
    result = command(str(server.path), *words)
    assert result.code in (2, 5)
    assert result.out == ""
    assert said in result.err and "\n  next: " in result.err


def test_sql_comes_from_a_file(server: FakeServer, command: Callable[..., Result], tmp_path: Path) -> None:
    server.answers["/v1/query"] = (200, _query_body())
    path = tmp_path / "question.sql"
    path.write_text("SELECT 'ü'", encoding="utf-8")
    assert command(str(server.path), "query", "-f", str(path)).code == 0
    assert server.requests[0].body["sql"] == "SELECT 'ü'"
    path.write_bytes(b"\xff\xfe")
    assert "is not UTF-8" in command(str(server.path), "query", "-f", str(path)).err


def _pyarrow() -> Any:
    return pytest.importorskip("pyarrow")


def test_the_name_of_the_file_says_the_format(
    server: FakeServer, command: Callable[..., Result], tmp_path: Path
) -> None:
    server.answers["/v1/query"] = (200, _query_body())
    for name, first in (
        ("a.csv", b"step,loss"), ("a.json", b'{"columns"'), ("a.ndjson", b'{"step"'), ("a.md", b"| step |"),
        ("a.parquet", b"PAR1"), ("a.txt", b" step "),
    ):
        result = command(str(server.path), "query", "SELECT 1", "-o", str(tmp_path / name))
        assert (result.code, result.out) == (0, ""), result
        assert f"4 rows written to {tmp_path / name}" in result.err
        assert (tmp_path / name).read_bytes().startswith(first), name
    forced = command(str(server.path), "query", "SELECT 1", "--format", "csv", "-o", str(tmp_path / "b.json"))
    assert forced.code == 0 and (tmp_path / "b.json").read_bytes().startswith(b"step,")


def test_markdown_has_every_digit_and_no_broken_cell() -> None:
    rows = [[0.1234567891, "x|y\nz"], [None, ""]]
    answer = Answer([("a|b", "DOUBLE"), ("text", "VARCHAR")], rows, False, 1.0, [])
    assert list(markdown_lines(answer)) == [
        r"| a\|b | text |", "| ---: | --- |", r"| 0.1234567891 | x\|y\nz |", "| NULL |  |",
    ]


def test_arrow_has_the_types_of_the_answer_or_says_what_is_missing(
    server: FakeServer, command: Callable[..., Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.answers["/v1/query"] = (200, _query_body())
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    refused = command(str(server.path), "query", "SELECT 1", "-o", str(tmp_path / "a.arrow"))
    assert refused.code == 2 and "pip install pyarrow" in refused.err and "parquet" in refused.err
    monkeypatch.undo()
    table = _pyarrow().ipc.open_stream(arrow_bytes(ANSWER)).read_all()
    assert table.column_names == [name for name, _ in ANSWER.columns]
    assert str(table.schema.field("step").type) == "int64" and table.num_rows == len(ANSWER.rows)


def test_lists_have_the_formats_of_rows(server: FakeServer, command: Callable[..., Result]) -> None:
    processes = [{"job": "gpt", "pid": 7, "step": None}, {"job": "gpt", "pid": 8, "step": 12}]
    server.answers["/v1/processes"] = (200, {"processes": processes})
    shown = command(str(server.path), "ps", "--format", "csv")
    assert shown.out == "job,pid,step\ngpt,7,\ngpt,8,12\n"
    shown = command(str(server.path), "ps", "--format", "markdown")
    assert shown.out.splitlines()[-1] == "| gpt | 8 | 12 |" and "| gpt | 7 | NULL |" in shown.out
