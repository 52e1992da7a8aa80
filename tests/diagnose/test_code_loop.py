"""Each rule of the training loop finds its mistake in programs of several styles; look-alikes pass."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from probe.diagnose.code import reading
from probe.diagnose.code.all_rules import RULES
from probe.diagnose.code.program import Program
from probe.diagnose.code.reading import remarks_of
from probe.diagnose.code.rule import Remark, Rule

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

CASES = tomllib.loads(Path(__file__).with_name("code_loop.toml").read_text())
SETUP: str = CASES.pop("setup")["text"]


LOOP = {rule.name: rule for rule in RULES if rule.area == "loop"}


def found(text: str, *asked: str) -> list[str]:
    """The rules of the loop, all or the ones that are asked for, that remark on a program: the common setup,
    and the lines of the case."""
    program = Program({"train.py": SETUP + text})
    assert not program.failed
    return [name for name in asked or LOOP for _ in LOOP[name].find(program)]


@pytest.mark.parametrize("rule", CASES)
def test_no_rule_of_any_area_fails_on_a_training_loop(rule: str) -> None:
    rows = remarks_of(Program({"train.py": SETUP + CASES[rule]["wrong"][0]}))
    assert rule in [row["rule"] for row in rows]
    assert all(row["state"] == "read" for row in rows), "a rule failed"


@pytest.mark.parametrize(
    ("rule", "text"), [(rule, text) for rule, case in CASES.items() for text in case["wrong"]],
)
def test_a_rule_finds_its_mistake(rule: str, text: str) -> None:
    assert rule in found(text, rule)


@pytest.mark.parametrize(
    ("rule", "text"), [(rule, text) for rule, case in CASES.items() for text in case["right"]],
)
def test_look_alikes_are_passed_over(rule: str, text: str) -> None:
    assert found(text) == []


def test_a_rule_that_fails_costs_its_own_remarks_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(program: Program) -> Iterator[Remark]:
        raise KeyError(program.sources[0].path)

    text = SETUP + next(case["wrong"][0] for case in CASES.values())
    before = remarks_of(Program({"train.py": text}))
    monkeypatch.setattr(reading, "RULES", (Rule("broken", "loop", "why", "remedy", (fails,)), *RULES))
    failed, *rest = remarks_of(Program({"train.py": text}))
    assert rest == before != []
    assert (failed["state"], failed["said"]) == ("not read", "the rule broken failed")


def test_each_rule_of_the_loop_has_cases() -> None:
    assert {rule.name for rule in RULES if rule.area == "loop"} == set(CASES)
    assert all(len(case["wrong"]) >= 2 and len(case["right"]) >= 2 for case in CASES.values())
