"""SQL over all runs of an archive: what it answers, and which files it opens."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest

from fleet.written_archive import DAY_NS, EPOCH_NS, STEPS, Simulated, write
from probe.archive.store import FolderStore
from probe.diagnose.recipes.library import built_in_folder, load
from probe.fleet import run_checks
from probe.fleet.fleet_runs import Fleet, Limits, Narrowing
from probe.fleet.per_run import Workers
from probe_cli.main import run as run_command

pytestmark = pytest.mark.usefixtures("forked_workers")
LIMITS = Limits(60.0, 1 << 30, 1)
GPT, OLD, ODD, NAN = (
    Simulated("gpt", "gpt-1", ("n1", "n2"), 4, day=10, about={"image": "new"}),
    Simulated("gpt", "gpt-0", ("n1", "n3"), 4, day=0, step_s=0.2, about={"image": "old"}),
    Simulated("odd", "../x", ("n4",), 2, day=20),
    Simulated("nan", "nan-1", ("n5",), 1, day=30, nan_from=60, state="failed"),
)
STEPS_EACH = 120
ROWS = {one.run: one.ranks * STEPS_EACH for one in (GPT, OLD, ODD, NAN)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("archive")
    write(made, [GPT, OLD, NAN], STEPS_EACH)
    write(made, [ODD], STEPS_EACH, merged=False, portions=3)
    return made


@pytest.fixture(scope="module")
def fleet(folder: Path) -> Iterator[Fleet]:
    with Fleet(FolderStore(folder), limits=LIMITS) as found:
        yield found


def opened(fleet: Fleet, sql: str) -> set[str]:
    """The runs whose steps a statement opens files of."""
    return {one.file.group.run for one in fleet.plan(sql).files[STEPS]}


def test_a_row_tells_its_job_run_attempt_rank_host_and_date(fleet: Fleet) -> None:
    found = fleet.query(
        "SELECT job, run, attempt, rank, host, date, count(*) FROM python.steps GROUP BY ALL ORDER BY ALL"
    ).body["rows"]
    assert found[0] == ["gpt", "gpt-0", 0, 0, "n1", "2026-03-01", STEPS_EACH]
    assert ["odd", "../x", 0, 1, "n4", "2026-03-21", STEPS_EACH] in found
    assert len(found) == sum(one.ranks for one in (GPT, OLD, ODD, NAN))


def test_the_answer_is_that_of_the_engine_over_the_same_files(fleet: Fleet, folder: Path) -> None:
    asked = "SELECT run, rank, round(sum(wall_s), 6), max(loss), count(*) FROM {} GROUP BY ALL ORDER BY ALL"
    files = f"read_parquet('{folder}/table={STEPS}/**/*.parquet', hive_partitioning = false)"
    raw = duckdb.sql(asked.format(files)).fetchall()
    assert repr([tuple(row) for row in json_rows(fleet, asked.format(STEPS))]) == repr(raw)


def json_rows(fleet: Fleet, sql: str) -> list[list[Any]]:
    rows: list[list[Any]] = fleet.query(sql).body["rows"]
    return [[float("nan") if value == "NaN" else value for value in row] for row in rows]


def test_other_engines_read_the_same_rows(fleet: Fleet, folder: Path) -> None:
    polars, pandas = pytest.importorskip("polars"), pytest.importorskip("pandas")
    steps = polars.scan_parquet(f"{folder}/table={STEPS}/**/*.parquet", hive_partitioning=False)
    found = steps.group_by("run", "host").agg(polars.len(), polars.col("wall_s").max())
    asked = "SELECT run, host, count(*), max(wall_s) FROM python.steps GROUP BY ALL ORDER BY run, host"
    rows = found.sort("run", "host").collect().rows()
    assert [list(row) for row in rows] == fleet.query(asked).body["rows"]
    frame = pandas.read_parquet(folder / f"table={STEPS}", columns=["run", "wall_s"], partitioning=None)
    most = frame.groupby("run")["wall_s"].max()
    asked = "SELECT run, max(wall_s) FROM python.steps GROUP BY run ORDER BY run"
    assert [[run, most[run]] for run in sorted(most.index)] == fleet.query(asked).body["rows"]


@pytest.mark.parametrize(
    ("where", "runs"),
    [
        ("run = '../x'", {"../x"}),
        ("run IN ('gpt-0', 'gpt-1') AND step > 3", {"gpt-0", "gpt-1"}),
        ("job = 'gpt' AND date >= '2026-03-05'", {"gpt-1"}),
        ("host = 'n3'", {"gpt-0"}),
        ("run LIKE 'nan%' AND host IS NOT NULL", {"nan-1"}),
        ("rank = 3", {"gpt-0", "gpt-1", "nan-1"}),  # whose merged files may have it; those of ../x not
        ("rank = 3 AND host LIKE 'n%'", {"gpt-0", "gpt-1"}),
        ("run = 'gpt-0' OR step = 7", set(ROWS)),
        ("random() < 2 AND step >= 0", set(ROWS)),
        ("run = (SELECT max(run) FROM archive.processes)", set(ROWS)),
        ("false", set(ROWS)),
    ],
)
def test_only_runs_that_the_filters_leave_are_opened(fleet: Fleet, where: str, runs: set[str]) -> None:
    assert opened(fleet, f"SELECT * FROM python.steps WHERE {where}") == runs


@pytest.mark.parametrize(
    "sql",
    [
        "WITH s AS (FROM python.steps) SELECT count(*) FROM s a JOIN s b USING (run, rank, step)"
        " WHERE a.run = 'gpt-0' AND b.rank = 1",
        "SELECT count(*) FROM python.steps WHERE run = 'gpt-0' AND rank = 1",
        "SELECT count(*) FROM (SELECT * FROM python.steps WHERE run LIKE 'gpt%')"
        " WHERE rank = 1 AND date < '2026-03-05'",
    ],
)
def test_what_is_left_out_changes_no_answer(fleet: Fleet, sql: str) -> None:
    assert fleet.query(sql).body["rows"] == [[STEPS_EACH]]


def test_statements_that_are_no_plain_select_see_every_row(fleet: Fleet) -> None:
    pivot = fleet.query("PIVOT python.steps ON rank USING count(step) GROUP BY run")
    assert {row[0] for row in pivot.body["rows"]} == set(ROWS)
    assert len(pivot.body["columns"]) == 5
    summarized = fleet.query("SELECT count FROM (SUMMARIZE python.steps) WHERE column_name = 'step'").body
    assert summarized["rows"] == [[sum(ROWS.values())]]
    shown = fleet.query("SHOW ALL TABLES").body
    assert "processes" in {row[2] for row in shown["rows"]}


def test_files_of_other_runs_are_not_read(tmp_path: Path) -> None:
    """They are no Parquet files at all, which nobody notices."""
    write(tmp_path, [GPT, OLD], 20)
    for path in tmp_path.glob(f"table={STEPS}/*/job=gpt/run=gpt-0/**/*.parquet"):
        path.write_bytes(b"PAR1 nothing else")
    with Fleet(FolderStore(tmp_path), limits=LIMITS) as fleet:
        assert fleet.query("SELECT count(*) FROM python.steps WHERE run = 'gpt-1'").body["rows"] == [[80]]
        everything = fleet.query("SELECT count(*) FROM python.steps").body
        assert everything["rows"] == [[80]]
        [note] = everything["notes"]
        assert note.startswith("damaged and left out: ") and "run=gpt-0" in note


@pytest.mark.parametrize(
    ("narrowing", "rows"),
    [
        (Narrowing(jobs=["odd"]), {"../x": 240}),
        (Narrowing(runs=["gpt-1", "nan-1"]), {"gpt-1": 480, "nan-1": 120}),
        (Narrowing(hosts=["n1"]), {"gpt-0": 240, "gpt-1": 240}),
        (Narrowing(since_ns=EPOCH_NS + 15 * DAY_NS), {"../x": 240, "nan-1": 120}),
        (Narrowing(hosts=["nobody"]), {}),
    ],
)
def test_options_leave_only_some_processes(folder: Path, narrowing: Narrowing, rows: dict[str, int]) -> None:
    with Fleet(FolderStore(folder), narrowing, LIMITS) as fleet:
        found = fleet.query("SELECT run, count(*) FROM python.steps GROUP BY run").body["rows"]
        assert dict(found) == rows
        [[processes]] = fleet.query("SELECT count(DISTINCT run) FROM archive.processes").body["rows"]
        assert processes == len(rows)


def test_a_column_that_a_file_lacks_is_null(tmp_path: Path) -> None:
    write(tmp_path, [GPT, OLD], 20)
    [path] = tmp_path.glob(f"table={STEPS}/*/job=gpt/run=gpt-0/**/*.parquet")
    duckdb.execute(
        f"COPY (SELECT * EXCLUDE (grad_norm), 1 AS later FROM '{path}') TO '{path}.new' (FORMAT parquet)"
    )
    Path(f"{path}.new").replace(path)
    with Fleet(FolderStore(tmp_path), limits=LIMITS) as fleet:
        counts = "count(*), count(grad_norm), count(comm_s)"
        asked = f"SELECT run, {counts} FROM python.steps GROUP BY run ORDER BY run"
        assert fleet.query(asked).body["rows"] == [["gpt-0", 80, 0, 0], ["gpt-1", 80, 80, 0]]
        lacks = fleet.query("SELECT count(*), count(grad_norm) FROM python.steps WHERE run = 'gpt-0'")
        assert lacks.body["rows"] == [[80, 0]]


def test_a_file_that_was_merged_meanwhile_is_looked_for_again(tmp_path: Path) -> None:
    write(tmp_path, [ODD], 20, merged=False)
    with Fleet(FolderStore(tmp_path), limits=LIMITS) as fleet:
        planned = fleet.plan
        merges = [lambda: write_merged(tmp_path)]

        def plan(*words: Any) -> Any:
            found = planned(*words)
            if merges:
                merges.pop()()
            return found

        fleet.plan = plan  # type: ignore[method-assign]
        assert fleet.query("SELECT count(*) FROM python.steps").body["rows"] == [[40]]
        assert not merges


def write_merged(folder: Path) -> None:
    single = list(folder.glob(f"table={STEPS}/**/*.parquet"))
    write(folder, [ODD], 20)
    for path in single:
        path.unlink()


def test_a_live_table_has_no_rows_and_a_note(fleet: Fleet) -> None:
    answer = fleet.query("SELECT count(*) FROM python.backtrace").body
    assert answer["rows"] == [[0]]
    assert "python.backtrace is read from living processes" in answer["notes"][0]


def test_recipes_say_of_an_archived_run_what_they_say_of_its_rows(fleet: Fleet) -> None:
    recipes = list(load([built_in_folder()]).values())
    runs = [fleet.run("nan-1"), fleet.run("gpt-1")]
    found = {one.run.run: one for one in run_checks.judge(fleet, runs, recipes, Workers(fleet))}
    judged, clean = found["nan-1"], found["gpt-1"]
    assert [one.reason for one in judged.checks if one.failed] == []
    [lost] = [one for one in judged.findings if one.recipe == "loss-nan"]
    assert (lost.severity, lost.step) == ("alarm", 60)
    assert judged.worst > clean.worst
    assert [one.recipe for one in clean.findings if one.severity == "alarm"] == []


def command(*words: str) -> tuple[int, str, str]:
    """Exit code, output and errors of a command."""
    out, err = io.StringIO(), io.StringIO()
    code = run_command(list(words), {"HOME": "/nonexistent"}, out, err, io.StringIO())
    return code, out.getvalue(), err.getvalue()


def test_the_command_lists_compares_and_diagnoses_runs(folder: Path) -> None:
    code, out, err = command("fleet", str(folder), "runs", "--format", "json")
    assert code == 0, err
    rows = json.loads(out)["rows"]
    assert [(row[1], row[3], row[4], row[8]) for row in rows] == [
        ("nan-1", 1, 1, "failed"), ("../x", 2, 1, "finished"), ("gpt-1", 4, 2, "finished"),
        ("gpt-0", 4, 2, "finished"),
    ]
    code, out, err = command("fleet", str(folder), "hosts", "--format", "csv", "--job", "gpt")
    assert [line.split(",")[0] for line in out.splitlines()[1:]] == ["n1", "n2", "n3"]
    code, out, err = command("fleet", str(folder), "compare", "gpt-1", "gpt-0")
    assert "gpt-0 is 2.0 times as slow" in out, err
    code, out, err = command("fleet", str(folder), "diagnose", "nan-1", "gpt-1", "--recipe", "loss-nan")
    assert out.splitlines()[0].startswith("nan-1 of nan")
    assert "LOSS IS NAN OR INFINITE (alarm)" in out
    assert "2 runs judged, nothing found in 1" in err
    asked = "FROM python.steps WHERE run = '../x'"
    code, out, err = command("fleet", str(folder), "query", asked, "--explain")
    assert out.count("run=..%2Fx") == 6
    assert "python.steps: opens 6 of 9 files" in err
    asked = "FROM python.steps WHERE run = 'none'"
    code, out, err = command("fleet", str(folder), "query", asked, "--explain", "--format", "csv")
    assert (code, out.splitlines()) == (0, ["table,file,bytes"]), err
    code, out, err = command("fleet", str(folder), "diagnose", "gpt-7")
    assert code == 3
    assert "no run 'gpt-7' is in the archive" in err
