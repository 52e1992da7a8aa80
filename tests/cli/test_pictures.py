"""The pictures of docs/traces.md, plots.md, bundle.md and agents.md: what the commands of these pages show of
one job of three ranks, of which one is slow. `PAGE_PICTURES=1` writes them (docs/pictures)."""

from __future__ import annotations

import json
import os
from pathlib import Path
from xml.etree import ElementTree

import pytest
import trace_picture
from terminal_harness import Typist, plain
from terminal_picture import session, svg
from test_mcp import Agent, with_agent
from test_trace import Trace

from harness import ROOT, SERVER, Place, private_place, run_probe
from ranks import running_ranks

pytestmark = pytest.mark.campaign
COLUMNS, MOST_LINES = 100, 44
SLOW = ("--fault", "compute", "--rank", "2", "--at", "5", "--length", "0.2", "--pace-ms", "20", "--forever")
FORWARD = "SELECT rank, median(forward_s) AS forward_s FROM python.steps GROUP BY rank ORDER BY rank"
TIMES = """\
SELECT step, max(wall_s - comm_s) FILTER (rank = 0) AS "rank 0",
    max(wall_s - comm_s) FILTER (rank = 2) AS "rank 2"
FROM python.steps WHERE step BETWEEN 1 AND 60 GROUP BY step ORDER BY step"""


def test_the_pictures_of_the_documents_show_what_the_commands_do(place: Place, tmp_path: Path) -> None:
    place.start_server()
    with running_ranks(place, 3, "faulty_ranks", *SLOW, name="ddp", **SERVER):
        wait_for_steps(place, 80)
        (tmp_path / "times.sql").write_text(TIMES)
        of_the_trace(place, tmp_path)
        of_the_plots(place, tmp_path)
        of_the_bundle(place, tmp_path)
        of_the_agent(place)


def wait_for_steps(place: Place, number: int) -> None:
    sql = f"SELECT min(last) > {number} FROM (SELECT max(step) AS last FROM python.steps GROUP BY rank)"
    while "true" not in run_probe(place, "ddp", "query", sql, "--format", "csv").stdout:
        pass


def of_the_trace(place: Place, folder: Path) -> None:
    done = run_probe(place, "ddp", "trace", "--since", "70", "--until", "71", "-o", str(folder / "x.json"))
    assert done.returncode == 0, done.stderr
    trace = Trace(folder / "x.json")
    assert {one.rank for one in trace.slices} == {0, 1, 2}
    assert 2 in {last.rank for last, _ in trace.arrows}, "the others wait for the slow one"
    kept(trace_picture.svg(trace.slices, trace.arrows, "two steps of three ranks"), "trace.svg")
    running = run_probe(place, "ddp", "trace", "--last", "3", "-o", str(folder / "y.json"))
    assert running.returncode == 0, running.stderr
    Trace(folder / "y.json")  # of a job that goes on meanwhile: no arrow that leads nowhere


def of_the_plots(place: Place, folder: Path) -> None:
    shown = answer(place, folder, "ddp", "plot", "-f", "times.sql")
    assert "rank 2" in plain(shown) and "step" in plain(shown)
    kept_session([("probe ddp plot -f times.sql", shown)], "plot-terminal.svg")
    done = run_probe(place, "ddp", "plot", TIMES, "-o", str(folder / "times.svg"))
    assert done.returncode == 0, done.stderr
    drawn = (folder / "times.svg").read_text()
    assert "rank 0" in "".join(ElementTree.fromstring(drawn).itertext())
    kept(drawn, "plot.svg")


def of_the_bundle(place: Place, folder: Path) -> None:
    """Made here, opened where nothing of the job is."""
    made = answer(place, folder, "ddp", "bundle", "-o", "slow.tar.gz")
    with private_place() as elsewhere:
        elsewhere.start_server()
        ranks = answer(elsewhere, folder, "slow.tar.gz", "ranks")
        assert plain(ranks).count("bundled") == 3, ranks
        said = answer(elsewhere, folder, "slow.tar.gz", "diagnose")
        assert "rank 2 is slower than the others" in plain(said), said
    kept_session([
        ("probe ddp bundle -o slow.tar.gz", made), ("probe slow.tar.gz ranks", ranks),
        ("probe slow.tar.gz diagnose", said),
    ], "bundle.svg")


def of_the_agent(place: Place) -> None:
    """What goes over the wire, but for the middle of long answers."""
    asked: list[tuple[str, str]] = []

    async def talk(agent: Agent) -> None:
        for tool, arguments in (
            ("list_jobs", {}), ("diagnose", {"endpoint": "ddp"}),
            ("query", {"endpoint": "ddp", "limit": 3, "sql": FORWARD}),
            ("eval", {"endpoint": "ddp/2", "code": "model.train()"}),
        ):
            failed, text = await agent.call(tool, **arguments)
            assert failed == (tool == "eval"), text
            asked.append((f"{tool} {json.dumps(arguments)}", as_lines(text, 12 if tool == "diagnose" else 4)))

    with_agent(place, talk)
    assert "rank 2 is slower" in asked[1][1], asked
    kept_session(asked, "agent.svg", sign=">")


def as_lines(text: str, most: int = 4) -> str:
    """What an agent gets, and how much of it is left out here."""
    lines = folded(text)
    return "\n".join([*lines[:most], *([f"… {len(lines) - most} more lines"] if len(lines) > most else [])])


def kept_session(asked: list[tuple[str, str]], name: str, sign: str = "$") -> None:
    """A picture of commands and answers, no wider than the terminal."""
    lines = [part for line in session(asked, sign) for part in folded(line)]
    kept(svg(lines, COLUMNS, f"{asked[0][0]} and its answer"), name)


def folded(line: str) -> list[str]:
    """A line as a terminal shows it: what does not fit goes on below."""
    if len(plain(line)) <= COLUMNS:
        return [line]
    return [plain(line)[place : place + COLUMNS] for place in range(0, len(plain(line)), COLUMNS)]


def kept(picture: str, name: str) -> None:
    """It is whole; for the documents, if they were asked for."""
    assert "\x1b" not in "".join(ElementTree.fromstring(picture).itertext())
    if os.environ.get("PAGE_PICTURES"):
        (ROOT / "docs" / "pictures" / name).write_text(picture, encoding="utf-8")


def answer(place: Place, folder: Path, *words: str) -> str:
    """What a command writes on a terminal; folders of this machine are shown as those of anybody."""
    with Typist(words, place.environ(), folder, columns=COLUMNS, lines=MOST_LINES) as typist:
        assert typist.ends() in (0, 1), typist.shown
        return typist.shown.replace(str(folder), "~").replace(str(place.directory), "/tmp/probe-1000")
