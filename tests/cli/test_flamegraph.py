"""`probe flamegraph`: what it draws of a hung job is where its ranks are, and drawing leaves them alone."""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from harness import PATIENCE_S, Place, run_probe
from probe.base.errors import StacksUnavailable
from probe.outside.processes import tasks
from probe.outside.stacks import pyspy, sampling
from probe_cli.render import flame_graph
from probe_cli.render.flame_graph import difference, merged, speedscope, svg
from ranks import Ranks, running_ranks

SCRIPT = Path(flame_graph.__file__).with_suffix(".js")


@pytest.fixture
def hanging(place: Place) -> Iterator[Ranks]:
    """Two ranks, of which rank 1 sleeps and rank 0 waits for it in an all_reduce."""
    options = ("--way", "all_reduce", "--meeting", str(place.directory / "meeting"))
    with running_ranks(
        place, 2, "stall_ranks", *options, ready="HANGING", name="pair", PROBE_SAMPLE_HZ="20"
    ) as ranks:
        deadline = time.monotonic() + PATIENCE_S
        while "all_reduce" not in run_probe(place, "pair/0", "backtrace").stdout:
            assert time.monotonic() < deadline
        yield ranks


def titles(path: Path) -> dict[str, str]:
    """The tooltips of an SVG: figures by frame. Fails when it is no XML, or anything in it could run but the
    script that belongs to it."""
    root = ElementTree.fromstring(path.read_text(encoding="utf-8"))
    tags = [one.tag.rpartition("}")[2] for one in root.iter()]
    assert not set(tags) - {"svg", "title", "style", "rect", "text", "g", "script"}
    [script] = root.findall("{http://www.w3.org/2000/svg}script")
    assert script.text is not None and script.text.strip() == SCRIPT.read_text().strip()
    assert tags.count("script") == 1
    assert not [name for one in root.iter() for name in one.attrib if name.startswith("on") or "href" in name]
    groups = root.findall("{http://www.w3.org/2000/svg}g")
    shown = [one.findtext("{http://www.w3.org/2000/svg}title") or "" for one in groups]
    return {one.partition("\n")[0]: one.replace("\n", ": ") for one in shown}


def drawn(place: Place, path: Path, *words: str) -> str:
    done = run_probe(place, "pair", "flamegraph", "--seconds", "1", *words, "-o", str(path))
    assert done.returncode == 0, done.stderr
    assert str(path) in done.stdout and "open it in" in done.stderr
    return done.stderr


def test_a_hung_jobs_graph_shows_where_each_rank_is_and_stops_none_of_them(
    place: Place, hanging: Ranks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands: list[list[str]] = []
    words = sampling.subprocess.Popen

    def popen(command: list[str], **given: Any) -> Any:
        commands.append(command)
        return words(command, **given)

    with monkeypatch.context() as patched:
        patched.setattr(sampling.subprocess, "Popen", popen)
        drawn(place, tmp_path / "x.svg")
    assert commands and all("--nonblocking" in one for one in commands if "record" in one)
    shown = " ".join(titles(tmp_path / "x.svg").values())
    assert "rank 0: 50 %" in shown and "rank 1: 50 %" in shown
    assert re.search(r"sleep_on_storage [^:]*:\d+\): 50 %", shown)
    drawn(place, tmp_path / "diff.svg", "--rank", "1", "--diff", "others")
    [sleep] = [one for one in titles(tmp_path / "diff.svg").values() if one.startswith("sleep_on_storage")]
    assert "rank 1: 100 %" in sleep and "rank 0: 0 %" in sleep
    drawn(place, tmp_path / "x.json", "--rank", "1")
    found = json.loads((tmp_path / "x.json").read_text())
    [profile] = found["profiles"]
    names = [one["name"] for one in found["shared"]["frames"]]
    assert profile["name"] == "rank 1" and all(
        any("sleep_on_storage" in names[frame] for frame in sample) for sample in profile["samples"]
    )

    assert run_probe(place, "pair", "trace", "-o", str(tmp_path / "t.json")).returncode == 0
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    going_on = {(one["pid"] - 1, one["name"], one["cat"]) for one in events if one["ph"] == "B"}
    assert (0, "all_reduce", "collective") in going_on, "what hangs has no end in a trace, either"
    assert (1, "all_reduce", "collective") not in going_on

    def none() -> str:
        raise StacksUnavailable("py-spy is not installed")

    monkeypatch.setattr(pyspy, "program", none)
    assert "agent" in drawn(place, tmp_path / "agents.svg")
    assert "sleep_on_storage" in " ".join(titles(tmp_path / "agents.svg"))
    for job in hanging.jobs:
        assert not tasks.tracer(job.pid) and not tasks.stop_pending(job.pid)
    for job in hanging.jobs:
        job.kill()
    done = run_probe(place, "pair", "flamegraph")
    assert done.returncode != 0 and "have ended" in done.stderr and "--since" in done.stderr
    recorded(place, tmp_path)


def recorded(place: Place, tmp_path: Path) -> None:
    """What was sampled while they lived."""
    words = ("pair", "flamegraph", "--since", "0")
    done = run_probe(place, *words, "-o", str(tmp_path / "past.svg"))
    assert done.returncode == 0 and "release the GIL" in done.stderr, done.stderr
    found = " ".join(titles(tmp_path / "past.svg").values())
    assert "rank 0: 50 %" in found and "sleep_on_storage" in found
    done = run_probe(place, *words, "--rank", "1", "--diff", "others", "-o", str(tmp_path / "past-diff.svg"))
    assert done.returncode == 0, done.stderr
    found = titles(tmp_path / "past-diff.svg").values()
    assert any(one.startswith("sleep_on_storage") and "rank 0: 0 %" in one for one in found)
    done = run_probe(place, *words, "--until", "3", "--seconds", "2")
    assert done.returncode != 0 and "Leave out --seconds" in done.stderr
    done = run_probe(place, "pair", "flamegraph", "--since", "1000000")
    assert done.returncode != 0 and "samples, of steps 0 to" in done.stderr and "--until" in done.stderr


def test_what_a_program_calls_its_functions_stays_text(tmp_path: Path) -> None:
    hostile = ("</title><script>alert(1)</script>", "a&b\x00\x1b[31m", "\ud800\ufffe\u202e", '" onload="x')
    stacks = {"rank 0": Counter({hostile: 3, (hostile[0],): 1}), "rank 1": Counter({(hostile[1],): 2})}
    for root, sides in ((merged(stacks), None), (difference(stacks, stacks), ("<a>", "b"))):
        path = tmp_path / "x.svg"
        path.write_text("".join(svg(root, "<t>", "&", sides)), encoding="utf-8")
        assert any("script" in one for one in titles(path))
    found = json.loads(speedscope(stacks, "t", 100))
    first = found["profiles"][0]
    assert sum(first["weights"]) == first["endValue"] == 0.04
    assert max(frame for one in found["profiles"] for sample in one["samples"] for frame in sample) == 3


def test_a_torn_stack_and_another_threads_are_left_out_and_the_torn_are_counted() -> None:
    text = (
        "thread (7): MainThread;<module> (a.py:1);f (a.py:2) 8\n"
        "thread (7): MainThread;f (a.py:2) 2\n"
        "thread (8): MainThread;<module> (b.py:1) 5\n"
        "thread (9): worker;Thread._bootstrap (threading.py:1) 5\nno thread 4\n"
    )
    found = sampling._parsed(text, sampling.Request(6, 7, False))
    assert found.stacks == {("<module> (a.py:1)", "f (a.py:2)"): 8}
    assert found.notes == ["2 of 10 samples were torn: left out"]
    nameless = text.replace("(7)", "(0x7F)").replace("(8)", "(0x7F)")
    by_name = sampling._parsed(nameless, sampling.Request(6, 7, False))
    assert by_name.stacks.total() == 13, "before Python 3.11 the main thread is known by its name"
