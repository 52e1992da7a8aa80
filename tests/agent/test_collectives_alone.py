"""What watching collectives leaves as it is, in one process; and that it costs the same after many calls."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from agent.nursery import Nursery, forked
from harness import Place

MOST_GROWTH_BYTES = 4 << 20


@pytest.fixture(scope="module")
def found(nursery: Nursery) -> Iterator[dict[str, Any]]:
    """What the program found; it starts and stops probe itself."""
    place = Place()
    try:
        with forked(nursery, place, ("collectives_alone",), watched=False) as [job]:
            yield job.result()
            assert job.let_go() == 0
        left = place.close()
        assert not any(left.values()), left
    finally:
        place.remove()


def test_everything_that_was_replaced_is_put_back(found: dict[str, Any]) -> None:
    assert found["replaced"] >= 20
    assert found["left"] == []


def test_a_call_fails_as_it_does_without_probe(found: dict[str, Any]) -> None:
    plain = found["plain"]["failure"]
    assert plain
    ours = ("call", "wait")  # around functions in C, which have no frames
    assert [name for name in found["failure"] if name not in ours] == plain


def test_compiled_code_is_the_same_with_a_collective_in_it(found: dict[str, Any]) -> None:
    assert found["compiled"] == found["plain"]["compiled"]


def test_neither_tensors_nor_works_are_kept_and_many_calls_leave_nothing(found: dict[str, Any]) -> None:
    kept = found["kept"]
    assert kept["alive"] == [False, False, False]
    assert kept["works"] == 0
    assert kept["garbage"] < 2_000  # not one for each call
    assert kept["rows"] > 10_000
    assert kept["grew_bytes"] < MOST_GROWTH_BYTES
    assert kept["failures"] == {}


def test_every_thread_is_recorded(found: dict[str, Any]) -> None:
    made, written = found["threads"]
    assert written == made


def test_what_is_called_while_probe_acts_is_no_row_of_the_job(found: dict[str, Any]) -> None:
    assert found["hushed"] == 0
