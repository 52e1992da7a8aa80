"""`probe diagnose` and `probe recipes`: what is written of what the server says."""

from __future__ import annotations

import csv
import io
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from command_harness import TIMEOUT_S, Result, Screen

from probe_cli.main import run

Command = Callable[..., Result]


class Wire:
    """A transport that answers the same to everything and keeps what was asked."""

    def __init__(self, answer: dict[str, Any]) -> None:
        self.answer = answer
        self.asked: list[str] = []

    def request(self, method: str, target: str, body: Any, timeout_s: float) -> Any:
        self.asked.append(target)
        return self.answer


def wait_for(happened: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + TIMEOUT_S
    while not happened() and time.monotonic() < deadline:
        time.sleep(0.01)
    return happened()


def finding(recipe: str, severity: str, what: str = "it is so") -> dict[str, Any]:
    return {
        "recipe": recipe, "state": recipe, "severity": severity, "what": what, "why": ["seen"],
        "next": ["probe 7 lr"], "subject": "", "step": 1, "rank": 0,
    }


ANSWER: dict[str, Any] = {
    "state": "running", "severity": "ok", "what": "step 9", "why": [], "next": [],
    "notes": ["own.sql: wrong"],
    "findings": [finding("loss-nan", "alarm"), *[finding("dead", "notice", f"unit {n}") for n in range(5)],
                 finding("frozen", "info")],
    "position": 6, "judged": {"found": 3, "clear": 12, "unknown": 1},
    "unknown": [{"recipe": "gap", "title": "a gap", "reason": "nothing was logged"}],
}


def test_the_worst_comes_first_and_what_was_not_judged_is_counted(command: Command) -> None:
    wire = Wire(ANSWER)
    said = command("7", "diagnose", transport=wire)
    assert wire.asked == ["/v1/diagnose?endpoint=7&deep=1"]
    lines = [line for line in said.out.splitlines() if not line.startswith(" ")]
    assert lines == [
        "LOSS-NAN (alarm)  it is so", "DEAD (notice)  unit 0", "DEAD (notice)  unit 1",
        "DEAD (notice)  unit 2 (and 2 more: --all)",
        "RUNNING  step 9",
        "12 checks clear, 1 informational, 1 could not be judged: "
        "`diagnose --all` lists them",
    ]
    assert "own.sql: wrong" in said.err and "PROBE_RECIPES" not in said.err
    older = Wire({**ANSWER, "own_recipes": ""})
    assert "started without" in command("7", "diagnose", transport=older, PROBE_RECIPES="/mine").err
    whole = command("7", "diagnose", "--all", transport=wire).out
    assert "FROZEN  it is so" in whole and "DEAD (notice)  unit 4" in whole
    assert "UNKNOWN  a gap: nothing was logged" in whole
    assert json.loads(command("7", "diagnose", "--format", "json", transport=wire).out) == ANSWER


def test_a_terminal_shows_the_state_first_wraps_lines_and_leaves_commands_whole(tmp_path: Path) -> None:
    long = "blocked in clock_nanosleep, called by load_shard (train.py:21); no step for 50 s (usually 159 ms)"
    command = 'probe 7 query "SELECT rank, op, dtype, shapes, call_site, state FROM python.collectives"'
    state = {**ANSWER, "what": long, "severity": "alarm", "why": [long], "next": [command]}
    screen, asked = Screen(), []

    class Parts(Wire):
        def request(self, method: str, target: str, body: Any, timeout_s: float) -> Any:
            asked.append(target)
            if target.endswith("part=checks"):
                assert wait_for(lambda: "usually" in screen.getvalue()), "the state is not shown yet"
                return {**ANSWER, "state": "unknown", "what": "only the checks were requested"}
            return {**state, "findings": [], "judged": {}, "notes": []}

    environ = {"PROBE_DIR": str(tmp_path), "COLUMNS": "80", "NO_COLOR": "1"}
    assert run(["7", "diagnose"], environ, screen, io.StringIO(), io.StringIO(), Parts({})) == 0
    lines = screen.getvalue().splitlines()
    assert sorted(asked) == [f"/v1/diagnose?endpoint=7&deep=1&part={part}" for part in ("checks", "state")]
    assert lines[0].startswith("RUNNING (alarm)  blocked in clock_nanosleep")
    assert f"  next   {command}" in lines
    assert all(len(line) <= 80 or command in line for line in lines) and lines[1].startswith(" " * 9)
    assert screen.getvalue().count("RUNNING") == 1 and "DEAD (notice)  unit 0" in lines
    assert "only the checks" not in screen.getvalue()


def test_a_terminal_shows_each_finding_as_it_comes_and_a_pipe_the_whole_answer(tmp_path: Path) -> None:
    screen = Screen()
    plateau = {**finding("plateau", "notice", "flat"), "explained_by": "loss-nan"}
    whole = {**ANSWER, "findings": [ANSWER["findings"][0], plateau, *ANSWER["findings"][1:]]}
    parts = [[whole["findings"][0]], whole["findings"][2:7], [plateau]]

    class Follows(Wire):
        def follow(self, target: str, timeout_s: float) -> Iterator[Any]:
            self.asked.append(target)
            for number, findings in enumerate(parts):
                yield {"part": {"findings": findings, "judged": number + 1, "of": 4}}
                assert wait_for(lambda one=findings[0]: one["what"] in screen.getvalue()), "not shown yet"
            yield whole

    environ = {"PROBE_DIR": str(tmp_path), "COLUMNS": "80", "NO_COLOR": "1"}
    wire = Follows({**whole, "findings": [], "judged": {}})
    assert run(["7", "diagnose"], environ, screen, io.StringIO(), io.StringIO(), wire) == 0
    lines = [line for line in screen.getvalue().splitlines() if line.startswith(("  hence", *"ABCDEFLR1"))]
    assert lines == [
        "RUNNING  step 9", "LOSS-NAN (alarm)  it is so", "DEAD (notice)  unit 0", "DEAD (notice)  unit 1",
        "DEAD (notice)  unit 2 (and 2 more: --all)", "  hence  plateau: flat (from loss-nan)",
        "12 checks clear, 1 informational, 1 could not be judged: `diagnose --all` lists",
    ]
    assert "/v1/diagnose?endpoint=7&deep=1&part=checks&follow=1" in wire.asked

    class Ends(Wire):
        def follow(self, target: str, timeout_s: float) -> Iterator[Any]:
            yield {"part": {"findings": [], "judged": 1, "of": 2}}

    said = io.StringIO()
    assert run(["7", "diagnose"], environ, Screen(), said, io.StringIO(), Ends(whole)) != 0
    assert "cut short" in said.getvalue()
    pipe, in_one = io.StringIO(), Follows(whole)
    assert run(["7", "diagnose"], environ, pipe, io.StringIO(), io.StringIO(), in_one) == 0
    assert in_one.asked == ["/v1/diagnose?endpoint=7&deep=1"]
    assert "  hence  plateau: flat\n" in pipe.getvalue()


def test_verdicts_are_written_to_a_file_as_rows(command: Command, tmp_path: Path) -> None:
    done = command("7", "diagnose", "-o", str(tmp_path / "found.csv"), transport=Wire(ANSWER))
    rows = list(csv.DictReader(io.StringIO((tmp_path / "found.csv").read_text())))
    assert done.out == "" and "8 rows written to" in done.err and len(rows) == 8
    assert [rows[0][name] for name in ("state", "severity", "what")] == ["running", "ok", "step 9"]
    assert [rows[1][name] for name in ("recipe", "severity", "next")] == ["loss-nan", "alarm", "probe 7 lr"]


def test_a_script_learns_from_the_exit_code_that_there_is_an_alarm(command: Command) -> None:
    quiet = {**ANSWER, "findings": [finding("dead", "notice"), finding("frozen", "info")]}
    for answer, code in ((ANSWER, 1), (quiet, 0), ({**quiet, "severity": "alarm"}, 1)):
        for form in ("text", "json"):
            asked = ("7", "diagnose", "--exit-code", "--format", form)
            done = command(*asked, transport=Wire(answer))
            assert done.code == code and done.out
        assert command("7", "diagnose", transport=Wire(answer)).code == 0


def test_of_a_symptom_every_check_is_written_and_the_cause_comes_last(command: Command) -> None:
    checks = [
        {"number": 1, "check_name": "loss-nan", "title": "NaN", "outcome": "found", "what": "it is so"},
        {"number": 2, "check_name": "dead", "title": "dead units", "outcome": "clear", "what": ""},
        {"number": 3, "check_name": "data", "title": "bad data", "outcome": "found", "what": "a NaN in it"},
        {"number": 4, "check_name": "gap", "title": "a gap", "outcome": "unknown", "what": "not logged"},
    ]
    conclusion = {
        "state": "cause", "what": "bad data: a NaN in it", "cause": "data", "severity": "alarm",
        "consequences": ["loss-nan", "dead"], "why": ["seen", "also: dead"],
        "next": ["probe 7 skip-nonfinite on"],
    }
    hence = {**finding("loss-nan", "alarm"), "explained_by": "data"}
    found = [finding("data", "notice"), hence, finding("dead", "notice")]
    of_symptom = {"position": None, "symptom": "nan", "checks": checks, "conclusion": conclusion}
    wire = Wire({**ANSWER, "findings": found, **of_symptom})
    said = command("7", "diagnose", "nan", "--no-watch", transport=wire)
    assert wire.asked == ["/v1/diagnose?endpoint=7&deep=0&symptom=nan"]
    assert said.out.splitlines() == [
        "  1  found    loss-nan  it is so",
        "  2  clear    dead      dead units",
        "  3  found    data      a NaN in it",
        "  4  unknown  gap       not logged",
        "DEAD (notice)  it is so",
        "  why    seen",
        "  next   probe 7 lr",
        "CAUSE (alarm)  bad data: a NaN in it",
        "  why    seen",
        "         also: dead",
        "  next   probe 7 skip-nonfinite on",
        "  hence  loss-nan: it is so",
    ]


def test_recipes_are_listed_and_shown_and_near_names_are_told(command: Command, tmp_path: Path) -> None:
    (tmp_path / "own-one.sql").write_text(
        '-- title = "ours"\n-- severity = "info"\n-- symptoms = ["data"]\n-- what = "{n} of {most}"\n'
        '-- [parameters.most]\n-- value = 3\n-- unit = "rows"\n-- source = "a guess"\nSELECT $most AS n\n'
    )
    (tmp_path / "broken.sql").write_text("SELECT 1")
    mine = {"PROBE_RECIPES": str(tmp_path)}
    listed = command("recipes", **mine)
    assert "own-one" in listed.out and "ours  (custom)" in listed.out and "loss-spike" in listed.out
    assert "broken.sql, line 1" in listed.err
    shown = command("recipes", "show", "own-one", **mine).out
    assert "most       3      rows  a guess" in shown and shown.endswith("SELECT $most AS n\n")
    whole = json.loads(command("recipes", "show", "own-one", "--format", "json", **mine).out)
    assert whole["parameters"] == [{"name": "most", "value": 3, "unit": "rows", "source": "a guess"}]
    (tmp_path / "parameters.toml").write_text("[stall-thresholds]\nstall_steps = 10\n")
    thresholds = command("recipes", "show", "stall-thresholds", **mine).out
    assert "stall_steps" in thresholds and "parameters.toml; default 4.0 (" in thresholds
    wrong = command("recipes", "show", "loss-spik")
    assert wrong.code == 2 and "loss-spike" in wrong.err
    assert command("recipes", "list").code == 2
    wire = Wire({"recipes": [], "problems": ["theirs"]})
    assert "theirs" in command("7", "recipes", transport=wire).err and wire.asked == ["/v1/recipes"]
