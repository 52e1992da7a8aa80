"""What a short step pays, in either form: a bound on calls of probe in Python, which no load moves."""

from __future__ import annotations

import pytest

from agent.nursery import Nursery, forked
from harness import NO_SERVER, Place
from probe.base import compiled

STEPS = 140
PLAIN, COMPILED = "0", "1"
MOST = {PLAIN: {(): 18, ("--loader",): 35}, COMPILED: {(): 4, ("--loader",): 16}}
"""Calls in a step whose phases are not timed: backward and optimizer, and with a batch of a DataLoader.
`bench/hooks.py` shows them."""


@pytest.mark.parametrize("options", [(), ("--loader",)])
def test_a_step_that_is_not_timed_takes_few_calls_and_trains_the_same(
    options: tuple[str, ...], nursery: Nursery, place: Place
) -> None:
    forms = [PLAIN] if compiled.library() is None else [PLAIN, COMPILED]
    command = ("counts_calls", "--steps", str(STEPS), *options)
    trained = set()
    for form in forms:  # the program starts probe itself, which a fork imports anew for that
        with forked(nursery, place, command, watched=False, PROBE_COMPILED=form, **NO_SERVER) as [job]:
            result = job.result()
            assert job.let_go() == 0
        assert result["counted_steps"] > STEPS // 3, "most steps are not timed"
        assert result["form"] == form
        assert 0 < result["calls"] <= MOST[form][options], (form, result["names"])
        seen = [name for name in result["names"] if name.startswith("nan_detector.")]
        assert not seen, "it has nothing to do"
        trained.add((result["parameters_sha256"], *result["losses"]))
    assert len(trained) == 1, "bit for bit"
