"""What a short step pays, in either form: a bound on calls of probe in Python, which no load moves."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from agent.nursery import Nursery, forked
from harness import NO_SERVER, Place, form_of_hooks
from probe.base import compiled

STEPS = 140
PLAIN, COMPILED = "0", "1"
MOST = {PLAIN: {(): 18, ("--loader",): 35}, COMPILED: {(): 4, ("--loader",): 16}}
"""Calls in a step whose phases are not timed: backward and optimizer, and with a batch of a DataLoader.
`bench/hooks.py` shows them."""


@pytest.fixture(scope="module")
def forms(nursery: Nursery) -> Iterator[dict[str, Nursery]]:
    """A process that forks jobs, for each form of the hooks that there is: that of all tests has one of
    them, and another imports torch once more."""
    there = [PLAIN] if compiled.library() is None else [PLAIN, COMPILED]
    usual = form_of_hooks().get("PROBE_COMPILED", there[-1])
    with contextlib.ExitStack() as stack:
        made = {usual: nursery}
        for form in there:
            if form not in made:
                made[form] = Nursery(PROBE_COMPILED=form)
                stack.callback(made[form].close)
        yield made


@pytest.mark.parametrize("options", [(), ("--loader",)])
def test_a_step_that_is_not_timed_takes_few_calls_and_trains_the_same(
    options: tuple[str, ...], forms: dict[str, Nursery], place: Place
) -> None:
    command = ("counts_calls", "--steps", str(STEPS), *options)
    trained = set()
    for form, nursery in forms.items():
        with forked(nursery, place, command, watched=False, **NO_SERVER) as [job]:
            result = job.result()
            assert job.let_go() == 0
        assert result["counted_steps"] > STEPS // 3, "most steps are not timed"
        assert 0 < result["calls"] <= MOST[form][options], (form, result["names"])
        seen = [name for name in result["names"] if name.startswith("nan_detector.")]
        assert not seen, "it has nothing to do"
        trained.add((result["parameters_sha256"], *result["losses"]))
    assert len(trained) == 1, "bit for bit"
