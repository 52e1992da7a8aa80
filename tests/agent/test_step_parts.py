"""A step's loss is the one that the job would log, and its optimizer's time is that of the update."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from agent.asking import query
from agent.nursery import Forked
from harness import Place

WAYS = ("divided", "multiplied", "by items", "whole", "weighted", "packed", "scaled")
CLOSURE_S = 0.02
"""As in the program."""


@pytest.mark.parametrize("way", WAYS)
def test_parts_of_a_loss_are_added_up_and_whole_losses_averaged(
    place: Place, fork: Callable[..., Forked], way: str
) -> None:
    """`packed`: hooks of the job's packed what autograd saved, so the divisor is not looked at."""
    job = fork("parts_of_a_step", "--way", way, "--steps", "12", "--hold")
    result = job.result()
    steps = query(place, job.pid, "SELECT loss FROM python.steps ORDER BY step")
    assert [row[0] for row in steps] == pytest.approx(result["logged"], rel=1e-5)
    raw = query(place, job.pid, "SELECT loss, share FROM python.losses ORDER BY t_ns")
    assert [float(row[0]).hex() for row in raw] == result["losses"]
    shares = {None if row[1] is None else round(row[1], 6) for row in raw}
    known = {
        "divided": {0.25}, "multiplied": {0.25}, "scaled": {0.25}, "whole": {1.0}, "weighted": {1.0, 0.1},
        "by items": {round(size / 18, 6) for size in range(3, 7)}, "packed": {None},
    }
    assert shares == known[way]


def test_what_a_closure_does_is_not_the_optimizers_time(place: Place, fork: Callable[..., Forked]) -> None:
    job = fork("parts_of_a_step", "--way", "closure", "--steps", "12", "--hold")
    result = job.result()
    rows = query(
        place, job.pid,
        "SELECT optimizer_s, other_s, loss, wall_s - optimizer_s - forward_s - backward_s - other_s "
        "FROM python.steps WHERE NOT shadow AND step > 0 ORDER BY step",
    )
    assert [row[2] for row in rows] == pytest.approx(result["logged"][1:])
    assert sorted(row[0] for row in rows)[len(rows) // 2] < CLOSURE_S
    assert all(row[1] >= CLOSURE_S for row in rows)
    assert all(abs(row[3]) < 1e-6 for row in rows)
