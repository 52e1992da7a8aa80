"""`probe plot`: what is drawn is what the rows say, and nothing is drawn where they say nothing."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from command_harness import FakeServer, Result

from harness import Job, Place, run_probe
from probe.client.answer import Answer
from probe_cli.render.plot_lines import _ticks, plot_of, svg

SVG = "{http://www.w3.org/2000/svg}"
ANSI = re.compile(r"\x1b\[[0-9;]*m")


def answer(names: list[str], rows: list[list[Any]]) -> Answer:
    return Answer([(name, "DOUBLE") for name in names], rows)


def test_null_is_a_gap_and_never_0_and_what_is_not_finite_is_counted() -> None:
    rows = [[0, 1.0, None], [1, None, 2.0], [2, 3.0, "NaN"], [3, 4.0, 5.0], [None, 9.0, 9.0]]
    plot = plot_of(answer(["step", "a", "b"], rows))
    assert [line.parts for line in plot.lines] == [
        [[(0.0, 1.0)], [(2.0, 3.0), (3.0, 4.0)]], [[(1.0, 2.0)], [(3.0, 5.0)]],
    ]
    assert plot.endless == 1 and plot.bounds == (0.0, 3.0, 1.0, 5.0)
    root = ElementTree.fromstring(svg(plot, "t"))
    shapes = [[one.tag.removeprefix(SVG) for one in group] for group in root.findall(f"{SVG}g")]
    assert shapes == [["title", "circle", "polyline", "path"], ["title", "circle", "circle", "path"]]


def test_names_of_columns_stay_text() -> None:
    hostile = '</title><script>alert("1")</script>\x00\ufffe'
    text = svg(plot_of(answer(["<x>", hostile], [[0, 1], [1, 2]])), hostile)
    root = ElementTree.fromstring(text)
    assert not [one for one in root.iter() if "script" in one.tag]


@pytest.mark.parametrize(("low", "high"), [(0, 1), (-3, 1e9), (0.001, 0.0011), (5, 5.00001)])
def test_ticks_are_round_and_inside(low: float, high: float) -> None:
    found = _ticks(low, high)
    assert 2 <= len(found) <= 7 and all(low <= one <= high + (high - low) * 1e-9 for one in found)


@pytest.fixture
def asked(server: FakeServer, command: Callable[..., Result]) -> Callable[..., Result]:
    """`asked(columns, rows, *words)`: the command, answered with these rows."""

    def one(names: list[str], rows: list[list[Any]], *words: str, **given: Any) -> Result:
        columns = [{"name": name, "type": "DOUBLE"} for name in names]
        server.answers["/v1/query"] = (200, {"columns": columns, "rows": rows, "truncated": False})
        return command("-t", str(server.path), "plot", "SELECT 1", *words, **given)

    return one


def test_a_terminal_gets_its_width_and_colours_unless_told_otherwise(asked: Callable[..., Result]) -> None:
    rows = [[step, 1 / (step + 1), None if 40 <= step < 60 else step / 100] for step in range(100)]
    for width in ("40", "80", "200"):
        done = asked(["step", "loss", "ratio"], rows, terminal=True, COLUMNS=width, TERM="xterm")
        assert done.code == 0 and ANSI.search(done.out)
        lines = ANSI.sub("", done.out).splitlines()
        assert max(map(len, lines)) <= int(width) and len(lines) <= 22
        assert {"─ loss", "─ ratio"} <= {line.strip() for line in lines}
    done = asked(["step", "loss", "ratio"], rows, terminal=True, NO_COLOR="1", TERM="xterm")
    assert "\x1b" not in done.out
    assert {"a loss", "b ratio"} <= {line.strip() for line in done.out.splitlines()}
    piped = asked(["step", "x"], [[1, None], [2, 7]]).out.splitlines()
    assert {len(line) for line in piped if "└" in line} == {80}
    drawn = asked(["step", "x"], [[0, 0], [1, None], [2, None], [3, 0], [4, 1]]).out.splitlines()
    bottom = next(line for line in drawn if line.strip().startswith("0 │"))
    assert bottom.partition("│")[2][1:50].replace("\u2800", " ").isspace(), "nothing is drawn across NULL"


def test_what_cannot_be_plotted_is_said_with_what_to_do(
    asked: Callable[..., Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for names, rows, what in (
        (["step"], [[1]], "needs two columns"), (["step", "name"], [[1, "x"]], "name is not numeric"),
        (["step", "loss"], [[1, None]], "nothing to plot"), (["step", "loss"], [], "nothing to plot"),
    ):
        done = asked(names, rows)
        assert done.code == 2 and what in done.err and "next:" in done.err
    done = asked(["a", "b"], [[1, 2]], "-o", str(tmp_path / "x.gif"))
    assert done.code == 2 and "not .svg or .png" in done.err
    for package, words in (("plotille", ()), ("matplotlib.figure", ("-o", str(tmp_path / "x.png")))):
        monkeypatch.setitem(sys.modules, package, None)
        done = asked(["a", "b"], [[1, 2]], *words)
        assert done.code != 0 and "pip install" in done.err and "svg" in done.err
    assert not list(tmp_path.glob("x.*"))
    done = asked(["a", "b"], [[1, 2], [2, "NaN"]], "-o", str(tmp_path / "x.svg"))
    assert done.code == 0 and "1 value is NaN" in done.err and (tmp_path / "x.svg").exists()


def test_the_loss_of_a_running_job_is_drawn_with_every_step(
    place: Place, start: Callable[..., Job], tmp_path: Path
) -> None:
    job = start("gpt_in_main", "--size", "tiny", "--hold")
    job.result()
    sql = "SELECT step, loss FROM python.steps ORDER BY step"
    done = run_probe(place, str(job.pid), "plot", sql, "-o", str(tmp_path / "x.svg"))
    assert done.returncode == 0, done.stderr
    root = ElementTree.fromstring((tmp_path / "x.svg").read_text())
    points = [one.attrib["points"].split() for one in root.iter(f"{SVG}polyline")]
    sql = "SELECT count(loss) FROM python.steps"
    counted = run_probe(place, str(job.pid), "query", sql, "--format", "csv")
    assert sum(map(len, points)) == int(counted.stdout.split()[-1]) > 4
