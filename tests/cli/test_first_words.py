"""What a new user types is answered with the right thing or the right next command: `first_words.toml`."""

from __future__ import annotations

import contextlib
import io
import itertools
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from terminal_harness import run_on_terminal

from harness import Job, Place, run_probe

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

WORDS: list[dict[str, Any]] = tomllib.loads(
    Path(__file__).with_name("first_words.toml").read_text(encoding="utf-8")
)["word"]
LEAST = 120
WIDTHS = (80, 200)
PIPE = 0
ALL = (PIPE, *WIDTHS)
NOBODY = "999999999"
"""No process has such a PID."""


@pytest.fixture
def job(place: Place, start: Callable[..., Job], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    """A GPT that trains until the test ends, and rests most of the time; files that nobody named come into a
    folder of the test."""
    monkeypatch.chdir(tmp_path)
    return start("gpt_in_main", "--size", "tiny", "--forever", PROBE_NAME="gpt", REST_S="0.2")


def test_the_words_are_many_and_each_is_there_once() -> None:
    assert len(WORDS) >= LEAST
    named = [(one["typed"], one.get("stdin", "")) for one in WORDS]
    assert len(set(named)) == len(named)
    assert all(set(one) <= {"typed", "says", "never", "code", "stdin", "only"} for one in WORDS)


@pytest.mark.parametrize("everywhere", [False, pytest.param(True, marks=pytest.mark.campaign)])
def test_everything_that_is_typed_first_gets_its_answer_or_the_next_command(
    place: Place, job: Job, everywhere: bool
) -> None:
    """In a pipe, on a narrow or on a wide terminal in turns; `everywhere`: in all three."""
    place.start_server()
    wrong = [
        f"probe {one['typed']}  ({where}): {what}\n{said}"
        for one, places in zip(WORDS, (itertools.repeat(ALL) if everywhere else in_turns()), strict=False)
        for where, code, said in answers(place, job, one, places)
        for what in faults(one, job, code, said)
    ]
    assert not wrong, "\n\n".join(wrong)


def in_turns() -> Iterator[Sequence[int]]:
    """For each of the words one place, where it is typed only in a pipe or on a terminal one of those."""
    for number, one in enumerate(WORDS):
        wanted = {"pipe": (PIPE,), "terminal": WIDTHS}.get(one.get("only", ""), (PIPE, *WIDTHS))
        yield (wanted[number % len(wanted)],)


def answers(
    place: Place, job: Job, one: dict[str, Any], places: Sequence[int]
) -> Iterator[tuple[str, int, str]]:
    """(where it was typed, exit code, what was shown); `places`: columns of terminals, PIPE for a pipe."""
    words = shlex.split(named(one["typed"], job))
    if one.get("only") != "terminal" and PIPE in places:
        with contextlib.redirect_stdout(io.StringIO()) as helped:  # where a command's --help goes
            done = run_probe(place, *words, stdin=one.get("stdin", ""))
        yield "pipe", done.returncode, helped.getvalue() + done.stdout + done.stderr
    if one.get("only") != "pipe":
        for columns in filter(None, places):
            code, said = run_on_terminal(words, place.environ(), columns)
            yield f"terminal of {columns} columns", code, said


def named(text: str, job: Job) -> str:
    """A text of the list with the PID and the name of the job."""
    return text.replace("PID", str(job.pid)).replace("JOB", "gpt").replace("OTHER", NOBODY)


def faults(one: dict[str, Any], job: Job, code: int, said: str) -> Iterator[str]:
    """What is wrong with an answer; a line may be broken where the terminal ends."""
    flat = " ".join(said.split())
    if code != one.get("code", 0):
        yield f"exit code {code}"
    for text in one["says"]:
        if " ".join(named(text, job).split()) not in flat and " ".join(text.split()) not in flat:
            yield f"does not say {text!r}"
    for text in one.get("never", ()):
        if text in flat:
            yield f"says {text!r}"
    if "Traceback (most recent call last)" in said and one.get("code") != 1:
        yield "shows a traceback"
