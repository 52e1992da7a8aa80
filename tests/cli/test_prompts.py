"""The prompts of `query` and `eval` on a terminal, against a real job."""

from __future__ import annotations

import io
import json
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from terminal_harness import Typist

from harness import Job, Place, run_probe
from probe_cli.commands.eval import names_in_job
from probe_cli.core.session import Session
from probe_cli.main import dispatch
from probe_cli.prompts import python_prompt, sql_prompt

pytest.importorskip("prompt_toolkit")
ENDLESS = "SELECT count(*) FROM range(10000000000) a, range(1000000) b;"
LEAVE, STOP, ENTER, TAB = "\x04", "\x03", "\r", "\t"


@pytest.fixture
def job(place: Place, start: Callable[..., Job]) -> Job:
    """A GPT that trains until the test ends, and a server."""
    place.start_server()
    return start("gpt_in_main", "--size", "tiny", "--forever", PROBE_NAME="gpt")


@pytest.fixture
def prompt(place: Place, job: Job, tmp_path: Path) -> Callable[..., Typist]:
    """`prompt("query")`: the command on a terminal, about the job."""
    root = Path(__file__).resolve().parents[2]
    environ = place.environ()
    paths = [str(root), str(root / "cli"), environ.get("PYTHONPATH", "")]
    environ["PYTHONPATH"] = ":".join(filter(None, paths))
    return lambda *words: Typist(("gpt", *words), environ, tmp_path, columns=120)


def test_the_sql_prompt_answers_helps_is_stopped_and_left(
    place: Place, job: Job, prompt: Callable[..., Typist]
) -> None:
    with prompt("query") as sql:
        sql.wait_for("sql>")
        sql.type("SELECT 41 + 1" + ENTER)
        sql.wait_for("->")
        sql.type("AS answer;" + ENTER)
        sql.wait_for("42")
        sql.wait_for("1 row")
        sql.wait_for("sql>")
        sql.type("\\d" + ENTER)
        sql.wait_for("python.torch_trace")
        sql.wait_for("sql>")
        sql.type("\\d steps" + ENTER)
        sql.wait_for("wall_s")
        sql.wait_for("example")
        sql.wait_for("sql>")
        sql.type(".mode csv" + ENTER)
        sql.wait_for("sql>")
        sql.type("SELECT 1 AS a, 'x' AS b;" + ENTER)
        sql.wait_for("1,x")
        sql.wait_for("sql>")
        sql.type("SELECT los FROM python.steps;" + ENTER)
        sql.wait_for("next:")
        sql.wait_for("sql>")
        sql.type("SELECT max(micro_s" + TAB)
        sql.wait_for("micro_step")
        sql.type(STOP)  # a line is discarded
        sql.wait_for("sql>")
        sql.type(ENDLESS + ENTER)
        sql.wait_for("waiting for the server to answer query")
        sql.type(STOP)  # a query is stopped
        sql.wait_for("stopped")
        sql.wait_for("sql>")
        sql.type("SELECT 7 AS still_here;" + ENTER)
        sql.wait_for("\n7\n")  # its answer: what is typed before the next prompt is not the prompt's
        sql.wait_for("sql>")
        sql.type(LEAVE)
        assert sql.ends() == 0, sql.shown
    history = place.directory / "history.sql"
    assert "still_here" in history.read_text() and stat.S_IMODE(history.stat().st_mode) == 0o600


def test_the_python_prompt_runs_snippets_and_completes_what_only_reads(
    place: Place, job: Job, prompt: Callable[..., Typist]
) -> None:
    with prompt("eval") as python:
        python.wait_for(">>>")
        python.type("40 + 2" + ENTER)
        python.wait_for("42\n")
        python.wait_for(">>>")
        python.type("for i in range(2):" + ENTER)
        python.wait_for("->")
        python.type("    print('i', i)" + ENTER)
        python.wait_for("->")
        python.type(ENTER)
        python.wait_for("i 1")
        python.wait_for(">>>")
        python.type("trainer.current_st" + TAB)
        python.wait_for("trainer.current_step")
        python.type(" >= 0" + ENTER)
        python.wait_for("True")
        python.type("train_lo" + TAB)  # a local variable of a function of the script
        python.wait_for("train_loader")
        python.type(STOP)
        python.wait_for(">>>")
        python.type("1 / 0" + ENTER)
        python.wait_for("ZeroDivisionError: division by zero")
        python.wait_for(">>>")
        python.type(LEAVE)
        assert python.ends() == 0, python.shown
    asked = json.loads(run_probe(place, "gpt", "actions", "--format", "json").stdout)["actions"]
    codes = [one["arguments"]["code"] for one in asked]
    block = "for i in range(2):\n    print('i', i)"
    assert codes == ["40 + 2", block, "trainer.current_step >= 0", "1 / 0"]


def test_what_does_more_than_read_is_not_run_for_a_completion(place: Place, job: Job) -> None:
    sql = "SELECT code, outcome FROM probe.evals WHERE code LIKE '%completion'"


    session = Session(place.environ(), io.StringIO(), io.StringIO(), io.StringIO(), dispatch)
    session.named = "gpt"
    assert "current_step" in names_in_job(session, "trainer")
    assert {"trainer", "train_loader", "torch", "gc", "sys", "os"} <= set(names_in_job(session, ""))
    assert names_in_job(session, "optimizer.step()") == []
    ran = json.loads(run_probe(place, "gpt", "query", sql, "--format", "json").stdout)["rows"]
    assert ["print(*dir(optimizer.step()), sep='\\n')  # completion", "refused"] in ran
    assert all(outcome in ("started", "ok") for code, outcome in ran if "step()" not in code)


@pytest.mark.parametrize(
    ("text", "whole"),
    [("SELECT 1", False), ("SELECT 1;", True), ("SELECT 1;\n", True), ("\\d", True), (".mode csv", True),
     ("", True), ("exit", True), ("-- a\nSELECT 1", False)],
)
def test_a_query_ends_with_a_semicolon(text: str, whole: bool) -> None:
    assert sql_prompt.is_whole(text) is whole


@pytest.mark.parametrize(
    ("text", "whole"),
    [("1", True), ("for i in x:", False), ("for i in x:\n    y", False), ("for i in x:\n    y\n", True),
     ("f(1,", False), ("x = = 1", True), ("a = 1\nb = 2", True)],
)
def test_a_snippet_ends_where_python_says(text: str, whole: bool) -> None:
    assert python_prompt.is_whole(text) is whole


def test_completion_names_tables_then_their_columns_then_keywords() -> None:
    assert ("python.steps", 8) in sql_prompt.candidates("FROM python.s")
    assert dict(sql_prompt.candidates("FROM python.losses WHERE lo")) == {"loss": 2}
    assert ("SELECT", 3) in sql_prompt.candidates("sel")
    assert dict(sql_prompt.candidates(".mode c")) == {"csv": 1}
