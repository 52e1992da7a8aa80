"""All snippets of these tests in any order, by several people at once: the training is still its own."""

from __future__ import annotations

import random
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

from acting.bystander import snippet, undisturbed
from acting.test_eval_changing import ACCIDENTS, WITHOUT_TRACE
from acting.test_eval_reading import LOOKS, WAITING
from acting.test_faults import ENDLESS, RAISING, REFUSED
from agent.asking import query
from agent.nursery import Nursery
from harness import Place
from probe.base.errors import EvalBusy, EvalTimeout, NoBoundary, ProbeError, SnippetRefused

PEOPLE = 6
FOR_S = 60.0
EVERY = (
    *LOOKS, *WAITING, *WITHOUT_TRACE, *RAISING, *REFUSED, *ENDLESS,
    *(code for codes in ACCIDENTS.values() for code in codes),
)


@pytest.mark.campaign
@pytest.mark.parametrize("seed", range(3))
def test_everything_at_once_in_any_order_leaves_a_training_bit_identical(
    nursery: Nursery, place: Place, seed: int
) -> None:
    asked: Counter[str] = Counter()

    def person(number: int) -> None:
        chance = random.Random(f"{seed} {number}")
        until = time.monotonic() + FOR_S
        while time.monotonic() < until:
            code, when = chance.choice(EVERY), chance.choice(("auto", "auto", "step"))
            try:
                answer = snippet(place, job.pid, code, when=when, timeout_s=chance.choice((0.1, 5.0)))
                asked["answered"] += 1
                assert answer["where"] in ("at once", "step boundary", None), answer
            except (EvalBusy, EvalTimeout, NoBoundary, SnippetRefused) as error:
                asked[type(error).__name__] += 1

    with undisturbed(nursery, place) as job:
        with ThreadPoolExecutor(PEOPLE) as people:
            for one in [people.submit(person, number) for number in range(PEOPLE)]:
                one.result()
        outcomes = dict(query(place, job.pid, "SELECT outcome, count(*) FROM probe.evals GROUP BY outcome"))
        refused_early = sum(count for outcome, count in outcomes.items() if outcome != "started")
        assert refused_early == sum(asked.values())  # each once, and none is lost
    print(asked, outcomes)


@pytest.mark.campaign
@pytest.mark.parametrize("when", ["auto", "step", "now"])
def test_each_snippet_is_answered_or_refused_wherever_it_is_to_run(
    nursery: Nursery, place: Place, when: str
) -> None:
    """With `now` those that draw or set something are left out: beside the training they are felt."""
    felt = {code for codes in ACCIDENTS.values() for code in codes} | set(WITHOUT_TRACE)
    thrown = [code for code in EVERY if when != "now" or not (code in felt or "model(1)" in code)]
    with undisturbed(nursery, place) as job:
        for code in thrown:
            try:
                assert snippet(place, job.pid, code, when=when, timeout_s=1.0)["elapsed_ms"] >= 0
            except ProbeError as error:
                assert (code, error.message) != (code, "")
