"""`probe top` as a person uses it: on a terminal beside a job of two ranks, and once in a pipe.

`PAGE_PICTURES=1` writes the picture of docs/top.md.
"""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from xml.etree import ElementTree

from terminal_harness import Typist, plain
from terminal_picture import screen, svg

from harness import ROOT, Place, run_probe
from probe_cli.core.terminal import display_width
from ranks import running_ranks

_LINE = re.compile(r"\x1b\[(\d+);1H\x1b\[2K([^\r\n]*?)(?=\x1b\[\d+;1H|\x1b\[\?|$)")
"""A line that the view drew, and where."""


def lines_drawn(shown: str) -> list[tuple[int, str]]:
    """(row, text) of each line that was drawn."""
    return [(int(row), plain(text)) for row, text in _LINE.findall(shown)]


def test_a_job_of_two_ranks_is_watched_asked_paused_and_seen_to_lose_a_server_and_a_rank(
    place: Place, tmp_path: Path
) -> None:
    place.start_server()
    meeting = str(tmp_path / "meeting")
    with running_ranks(
        place, 2, "ranks_that_reduce", "--forever", "--pace-ms", "20", "--meeting", meeting, name="gpt"
    ) as ranks:
        once_in_a_pipe(place)
        its_picture_is_what_the_terminal_shows(place, tmp_path)
        environ = place.environ(NO_COLOR="1")
        with Typist(["gpt", "top", "--interval", "0.2"], environ, tmp_path, lines=24) as typist:
            first = typist.wait_for("q quit")
            assert "RANK" in first and first.count("running") == 2, first
            typist.type("\x1b[B")
            typist.wait_for("> 1 ")
            typist.type("b")
            assert "probe gpt/1 backtrace" in typist.wait_for("ranks_that_reduce.py")
            typist.type("\x1b")
            typist.wait_for("> 1 ")
            typist.type("h")
            typist.wait_for("not measured")
            typist.type("\x1b")
            typist.wait_for("> 1 ")
            typist.type("p")
            assert "all 2 ranks" in typist.wait_for("y/n")
            typist.type("n")
            typist.wait_for("not paused")
            acted(typist, "py", "the training is paused")
            typist.type("\x1b")
            typist.wait_for("paused")
            acted(typist, "r", "the training continues")
            typist.type("\x1b")
            typist.wait_for("running")

            narrow = len(typist.shown)
            typist.resize(60, 10)
            typist.wait_for("RANK")
            typist.wait_for("running")
            drawn = lines_drawn(typist.shown[narrow:])
            assert drawn and all(row <= 10 and display_width(text) <= 60 for row, text in drawn), drawn
            typist.resize(80, 24)
            typist.wait_for("q quit")

            server = place.server_pid()
            assert server is not None
            os.kill(server, signal.SIGKILL)
            typist.wait_for("retrying")
            wait_until(lambda: place.server_pid() not in (None, server))
            seen = len(typist.shown)
            os.kill(ranks[1].pid, signal.SIGKILL)
            typist.wait_for("dead")
            typist.type("q")
            assert typist.ends() == 0
            assert typist.modes == typist.modes_before
            assert typist.shown.endswith("\x1b[?7h\x1b[?25h\x1b[?1049l"), typist.shown[-200:]
            whole = [text for _, text in lines_drawn(typist.shown[:narrow] + typist.shown[seen:])]
            assert whole and max(map(display_width, whole)) <= 80, max(whole, key=display_width)
            assert re.search(r"\x1b\[[0-9;]*m", typist.shown) is None, "a colour, with NO_COLOR"
        every_ending_gives_the_terminal_back(place, tmp_path)


def its_picture_is_what_the_terminal_shows(place: Place, folder: Path) -> None:
    """With colours; for the documents, if they were asked for."""
    with Typist(["gpt", "top"], place.environ(), folder, columns=88, lines=8) as typist:
        typist.wait_for("MiB")
        typist.wait_for("█")
        typist.type("\x1b[B")
        typist.wait_for("> 1 ")
        lines = screen(typist.shown)
        picture = svg(lines, 88, "probe top: the ranks of a job")
        typist.type("q")
        assert typist.ends() == 0
    assert len(lines) == 8 and plain(lines[3]).startswith("> 1 ") and "q quit" in lines[7], lines
    shown = "".join(ElementTree.fromstring(picture).itertext())
    assert all(plain(line) in shown for line in lines) and "\x1b" not in picture
    if os.environ.get("PAGE_PICTURES"):
        (ROOT / "docs" / "pictures" / "top.svg").write_text(picture, encoding="utf-8")


def acted(typist: Typist, keys: str, done: str) -> None:
    """Ask for an action until its page says that it is done: on a busy machine a rank may answer too late,
    which the page then says."""
    for _ in range(5):
        typist.type(keys)
        said = typist.wait_for(f"({done}|busy machine)")
        if done in said:
            return
        typist.type("\x1b")
        typist.wait_for("> 1 ")
    raise AssertionError(said)


def once_in_a_pipe(place: Place) -> None:
    """`top` of all jobs and of one, in a pipe."""
    done = run_probe(place, "top")
    assert done.returncode == 0 and "\x1b" not in done.stdout, done
    heading, row = done.stdout.splitlines()
    assert " ".join(heading.split()) == "JOB RANKS STATE STEP STEP/S LOSS PHASES MEMORY VERDICT"
    assert row.split()[:3] == ["gpt", "2", "running"], row
    done = run_probe(place, "top", "gpt", "--once")
    assert [line.split()[:2] for line in done.stdout.splitlines()[1:]] == [["0", "running"], ["1", "running"]]
    assert run_probe(place, "nobody", "top").returncode == 3


def every_ending_gives_the_terminal_back(place: Place, folder: Path) -> None:
    """Ctrl-C, SIGTERM, SIGHUP; and a terminal that cannot be drawn on."""
    endings: Mapping[int | str, int] = {"\x03": 130, signal.SIGTERM: 143, signal.SIGHUP: 129}
    for ending, code in endings.items():
        with Typist(["top"], place.environ(), folder, lines=24) as typist:
            typist.wait_for("all jobs of this host")
            typist.wait_for("q quit")
            if isinstance(ending, str):
                typist.type(ending)
            else:
                typist.process.send_signal(ending)
            assert typist.ends() == code
            assert typist.modes == typist.modes_before
            assert typist.shown.endswith("\x1b[?1049l"), typist.shown[-100:]
    with Typist(["top"], place.environ(), folder, term="dumb") as typist:
        assert typist.ends() == 0
        assert "does not support the live view" in typist.shown and "gpt" in typist.shown
        assert "\x1b" not in typist.shown


def wait_until(happened: Callable[[], bool], patience_s: float = 60.0) -> None:
    """Until something has happened that nothing tells us."""
    deadline = time.monotonic() + patience_s
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.02)
