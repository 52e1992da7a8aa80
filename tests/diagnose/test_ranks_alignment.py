"""Lining up the steps of ranks that count from different ones, on step ends made for it."""

from __future__ import annotations

import random

import pytest

from probe.diagnose.ranks.alignment import offsets

STEP_NS = 100_000_000


def ends(
    first: int, count: int, *, late: int = 0, begins: int = 0, jitter: float = 0.1, seed: int = 0
) -> list[tuple[int, int]]:
    """Ends of `count` steps of a job from its step `begins`, which this rank calls `first`."""
    draw = random.Random(seed)
    return [
        (first + index, (begins + index + 1) * STEP_NS + late + int(draw.uniform(0, jitter) * STEP_NS))
        for index in range(count)
    ]


def test_ranks_that_count_alike_have_no_offset() -> None:
    assert offsets({rank: ends(0, 30, seed=rank) for rank in range(4)}) == {0: 0, 1: 0, 2: 0, 3: 0}


@pytest.mark.parametrize("seed", range(5))
def test_a_rank_recorded_later_is_found_by_when_its_steps_end(seed: int) -> None:
    found = offsets({
        0: ends(100, 40, begins=100, seed=seed), 1: ends(3, 30, begins=110, seed=seed + 10),
        3: ends(131, 30, begins=105, seed=seed + 20),
    })
    assert found == {0: 0, 1: 107, 3: -26}


def test_steps_that_end_in_between_are_not_clear() -> None:
    assert offsets({0: ends(0, 30), 1: ends(0, 30, late=STEP_NS // 2, seed=1)}) is None


def test_too_few_steps_or_none_at_the_same_time_are_not_clear() -> None:
    assert offsets({0: ends(0, 30), 1: ends(0, 3)}) is None
    assert offsets({0: ends(0, 30), 1: ends(0, 30, begins=200)}) is None
    assert offsets({0: ends(0, 30), 1: []}) is None
    assert offsets({}) is None


def test_one_long_pause_of_all_ranks_does_not_matter() -> None:
    pause = [[(step, t_ns + (20 * STEP_NS if step > 15 else 0)) for step, t_ns in one]
             for one in (ends(0, 30), ends(0, 30, seed=1))]
    assert offsets({0: pause[0], 1: [(step - 7, t_ns) for step, t_ns in pause[1]]}) == {0: 0, 1: 7}
