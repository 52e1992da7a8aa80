"""What diagnose says of real small trainings: with one thing wrong in how they learn, and with nothing."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

from agent.nursery import Forked, Nursery
from harness import PATIENCE_S, ROOT, Place, run_probe

SPEC = importlib.util.spec_from_file_location("learning", ROOT / "bench" / "learning.py")
assert SPEC is not None and SPEC.loader is not None
learning = sys.modules[SPEC.name] = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(learning)

DAILY = {"no-zero-grad": ("zero-grad-forgotten", 1, "gradients")}
"""Fault: recipe, the step it must name, and the symptom that is asked about: all recipes take seconds. The
others are in the campaign, and each recipe has its cases in tests/recipes."""
MISSED = {
    "explodes-one-layer": "on short steps, a parameter is sampled once in about six hundred of them",
}
"""Faults that are missed, with the reason, as in docs/accuracy.md."""


class Trainings:
    """Trainings of 260 steps that run at the same time, made their steps and live on."""

    def __init__(self, nursery: Nursery, place: Place, names: list[str]) -> None:
        self._place = place
        self.jobs: dict[str, Forked] = {}
        words = ("--steps", "260", "--at", "160", "--hold")
        for name in names:
            environ = place.watched(PROBE_NAME=name)
            command = ("learning_faults", "--fault", name, *words)
            self.jobs[name] = Forked(nursery, *command, environ=environ, folder=place.directory)
        for job in self.jobs.values():
            job.wait_for("RESULT")

    def findings(self, name: str, *symptom: str) -> list[dict[str, Any]]:
        """What diagnose finds."""
        done = run_probe(self._place, str(self.jobs[name].pid), "diagnose", *symptom, "--format", "json")
        found: list[dict[str, Any]] = json.loads(done.stdout)["findings"]
        return found

    def finding(self, name: str, recipe: str, symptom: str) -> dict[str, Any]:
        """That recipe's finding, as soon as it is there: some rows are written by the agent's thread."""
        deadline_s = time.monotonic() + PATIENCE_S
        while True:
            found = self.findings(name, symptom, "--no-watch")
            if right := [one for one in found if one["recipe"] == recipe]:
                return right[0]
            assert time.monotonic() < deadline_s, found
            time.sleep(0.1)


@pytest.fixture(scope="module")
def trainings(nursery: Nursery) -> Iterator[Trainings]:
    place = Place()
    made = None
    try:
        made = Trainings(nursery, place, [*DAILY, "clean"])
        yield made
    finally:
        for job in made.jobs.values() if made else ():
            with contextlib.suppress(ProcessLookupError):
                job.kill()
        place.close()
        place.remove()


@pytest.mark.parametrize("fault", DAILY)
def test_a_learning_fault_is_named_with_its_step_and_what_to_do(trainings: Trainings, fault: str) -> None:
    recipe, step, symptom = DAILY[fault]
    found = trainings.finding(fault, recipe, symptom)
    assert found["step"] == step
    assert found["severity"] in ("notice", "alarm")
    assert found["why"]
    assert all(line.startswith("probe ") for line in found["next"])


def test_a_clean_training_gives_no_verdict_above_info(trainings: Trainings) -> None:
    assert [one for one in trainings.findings("clean") if one["severity"] != "info"] == []


@pytest.mark.alone
@pytest.mark.campaign
@pytest.mark.parametrize("fault", [
    pytest.param(fault, marks=pytest.mark.xfail(reason=MISSED[fault])) if fault in MISSED else fault
    for fault in learning.FAULTS
])
def test_each_learning_fault_is_named(fault: str) -> None:
    trial = learning.plant(fault, 0)
    assert trial.named, trial


@pytest.mark.alone
@pytest.mark.campaign
@pytest.mark.parametrize("name", learning.CLEAN)
def test_no_clean_training_gives_a_verdict_above_info(name: str) -> None:
    assert learning.clean(name, 0, 20.0)[0] == []
