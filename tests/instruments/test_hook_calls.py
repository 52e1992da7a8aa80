"""What a short step pays: a bound on probe's Python calls, which no load of a machine moves."""

from __future__ import annotations

import pytest

from agent.nursery import Nursery, forked
from harness import NO_SERVER, Place

STEPS = 140
LOOP, LOADER = 18, 35
"""Calls in a step whose phases are not timed: backward and optimizer, and with a batch of a DataLoader.
`bench/hooks.py` shows them."""


@pytest.mark.parametrize(("options", "most"), [((), LOOP), (("--loader",), LOADER)])
def test_a_step_that_is_not_timed_takes_few_calls(
    options: tuple[str, ...], most: int, nursery: Nursery, place: Place
) -> None:
    command = ("counts_calls", "--steps", str(STEPS), *options)
    with forked(nursery, place, command, watched=False, **NO_SERVER) as [job]:
        result = job.result()
        assert job.let_go() == 0
    assert result["counted_steps"] > STEPS // 3, "most steps are not timed"
    assert 0 < result["calls"] <= most, result["names"]
    assert not [name for name in result["names"] if name.startswith("nan_detector.")], "it has nothing to do"
