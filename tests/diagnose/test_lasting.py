"""A verdict holds as long as what it found: asked for early, late and after death. See bench/lasting.py."""

from __future__ import annotations

import functools
import importlib.util
import sys

import pytest

from agent.nursery import Nursery, ready
from harness import ROOT, Place

SPEC = importlib.util.spec_from_file_location("lasting", ROOT / "bench" / "lasting.py")
assert SPEC is not None and SPEC.loader is not None
lasting = sys.modules[SPEC.name] = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(lasting)


def test_a_verdict_is_the_same_a_thousand_steps_later_and_after_death(
    place: Place, nursery: Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lasting, "running", functools.partial(ready, nursery))  # no interpreter of its own
    answers = lasting.ask(place, "nan", 1100)
    assert lasting.wrong(lasting.FAULTS["nan"], answers) == [], answers


@pytest.mark.alone
@pytest.mark.campaign
@pytest.mark.parametrize("fault", lasting.FAULTS)
def test_a_verdict_is_the_same_twenty_thousand_steps_later(place: Place, fault: str) -> None:
    answers = lasting.ask(place, fault, 20_000)
    assert lasting.wrong(lasting.FAULTS[fault], answers) == [], answers
