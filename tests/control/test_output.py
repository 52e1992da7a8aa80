"""Whatever is diverted at the same time and in whatever order it ends, the streams are the job's again."""

from __future__ import annotations

import contextlib
import gc
import io
import itertools
import sys
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from probe.job.snippets.output import Buffer, Diversion


class Person:
    """A thread that runs snippets, one word at a time."""

    def __init__(self) -> None:
        self.buffer = Buffer(1000)
        self.diversion = Diversion(self.buffer)
        self._thread = ThreadPoolExecutor(1)

    def does(self, work: Callable[[], object]) -> None:
        self._thread.submit(work).result()


def own_streams(monkeypatch: pytest.MonkeyPatch) -> tuple[io.StringIO, io.StringIO, io.StringIO]:
    """In the test itself: pytest sets its own between a fixture and the test."""
    streams = (io.StringIO(), io.StringIO(), io.StringIO())
    for name, stream in zip(("stdin", "stdout", "stderr"), streams, strict=True):
        monkeypatch.setattr(sys, name, stream)
    return streams


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_diversions_that_overlap_leave_no_stand_in_behind(
    monkeypatch: pytest.MonkeyPatch, order: tuple[int, ...]
) -> None:
    streams = own_streams(monkeypatch)
    people = [Person() for _ in range(3)]
    for one in people:
        one.does(one.diversion.begin)
    for number in order:
        one = people[number]
        one.does(lambda number=number: print(f"{number} says this"))
        one.does(one.diversion.end)
        print("the job")
        one.does(lambda: print("after"))
    assert (sys.stdin, sys.stdout, sys.stderr) == streams
    assert [one.buffer.text() for one in people] == [f"{number} says this\n" for number in range(3)]
    assert streams[1].getvalue() == "the job\nafter\n" * 3


def test_what_the_job_replaces_meanwhile_stays_and_still_diverts(monkeypatch: pytest.MonkeyPatch) -> None:
    streams = own_streams(monkeypatch)
    first, second = Person(), Person()
    first.does(first.diversion.begin)
    replaced = sys.stdout = io.StringIO()
    second.does(second.diversion.begin)
    second.does(lambda: print("second"))
    first.does(first.diversion.end)
    second.does(second.diversion.end)
    assert sys.stdout is replaced
    assert (second.buffer.text(), replaced.getvalue()) == ("second\n", "")
    assert (sys.stdin, sys.stderr) == (streams[0], streams[2])


def test_a_stand_in_that_is_kept_is_the_real_stream_to_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    streams = own_streams(monkeypatch)
    one = Person()
    one.does(one.diversion.begin)
    kept = sys.stdout
    one.does(one.diversion.end)
    one.does(lambda: print("to the job", file=kept))
    again = Diversion(Buffer(1000))
    one.does(again.begin)
    print("as well", file=kept)
    one.does(again.end)
    assert streams[1].getvalue() == "to the job\nas well\n"


def test_a_stand_in_that_the_job_puts_back_later_does_not_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    streams = own_streams(monkeypatch)
    first, second = Person(), Person()
    first.does(first.diversion.begin)
    with contextlib.redirect_stdout(io.StringIO()):  # keeps the stand-in, and puts it back at its end
        first.does(first.diversion.end)
    print("the job")
    second.does(second.diversion.begin)
    second.does(second.diversion.end)
    assert (sys.stdin, sys.stdout, sys.stderr) == streams
    assert streams[1].getvalue() == "the job\n"


def test_a_stand_in_outlives_the_print_that_is_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """`print` holds the stream it began with without a reference of its own."""
    own_streams(monkeypatch)
    one = Person()
    one.does(one.diversion.begin)
    under_way = weakref.ref(sys.stdout)
    one.does(one.diversion.end)
    gc.collect()
    assert under_way() is not None


def test_streams_that_a_job_made_and_left_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    own_streams(monkeypatch)
    one, made = Person(), []
    for _ in range(30):
        with contextlib.redirect_stdout(io.StringIO()) as stream:
            made.append(weakref.ref(stream))
            one.does(one.diversion.begin)
            one.does(one.diversion.end)
    del stream
    gc.collect()
    assert sum(stream() is not None for stream in made) < 10


def test_a_child_that_was_forked_in_the_middle_has_its_own_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    streams = own_streams(monkeypatch)
    from probe.job.snippets import output

    one = Person()
    one.does(one.diversion.begin)
    held = threading.Lock()
    held.acquire()
    output._changing = held  # whoever held it does not exist in the child
    one.diversion.abandon()
    assert (sys.stdin, sys.stdout, sys.stderr) == streams
    Diversion(Buffer(10)).end()
