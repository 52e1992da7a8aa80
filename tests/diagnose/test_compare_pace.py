"""When the watch compares the ranks of a job, by its own clock in rounds of a second."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

from probe.server.watch.compare_pace import URGENT_AGAIN_S, ComparePace


def compared(
    rounds: int, cost_s: Callable[[int], float], step_s: Callable[[int], tuple[float, float]]
) -> list[int]:
    """The rounds in which ranks are compared. A round's comparison costs `cost_s`; `step_s` are the usual and
    the recent time of a step."""
    pace, found = ComparePace(), []
    for number in range(rounds):
        if pace.is_due(float(number), *step_s(number)):
            found.append(number)
            pace.compared(float(number), cost_s(number))
    return found


def steady(_round: int) -> tuple[float, float]:
    return 0.03, 0.03


def gaps(rounds: list[int]) -> set[int]:
    return {after - before for before, after in pairwise(rounds)}


def test_comparisons_cost_a_hundredth_of_a_core() -> None:
    assert compared(10, lambda _round: 0.005, steady) == list(range(10))
    assert gaps(compared(100, lambda _round: 0.2, steady)) == {20}
    assert len(compared(300, lambda _round: 0.015, steady)) == 200, "rounds do not turn 1.5 s into 2 s"


def test_one_expensive_comparison_does_not_delay_the_next() -> None:
    assert gaps(compared(20, lambda number: 0.08 if number == 4 else 0.01, steady)) == {1}


def test_after_steps_became_slower_ranks_are_compared_often_for_a_while() -> None:
    def slower(number: int) -> tuple[float, float]:  # the usual time follows at once: fast steps
        return (0.03, 0.03) if number < 45 else (0.07, 0.07)

    found = compared(45 + int(URGENT_AGAIN_S), lambda _round: 0.04, slower)
    assert gaps([number for number in found if number <= 44]) == {4}
    assert {46, 47, 48, 49, 50} <= set(found)
    assert gaps([number for number in found if number >= 52]) == {4}


def test_steps_that_become_slower_again_and_again_do_not_make_it_cost_more_for_ever() -> None:
    def restless(number: int) -> tuple[float, float]:
        return 0.03, 0.03 if number % 2 else 0.07

    found = compared(10 * int(URGENT_AGAIN_S), lambda _round: 0.04, restless)
    assert len(found) < 10 * (6 + URGENT_AGAIN_S / 4 + 1)
