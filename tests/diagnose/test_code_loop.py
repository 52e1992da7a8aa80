"""Each rule of the training loop finds its mistake in programs of several styles; look-alikes pass."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from probe.diagnose.code.program import Program
from probe.diagnose.code.reading import remarks_of

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

CASES = tomllib.loads(Path(__file__).with_name("code_loop.toml").read_text())
SETUP: str = CASES.pop("setup")["text"]


def found(text: str) -> list[str]:
    """The rules of the loop that remark on a program: the common setup, and the case's own lines."""
    program = Program({"train.py": SETUP + text})
    assert not program.failed
    return [row["rule"] for row in remarks_of(program) if row["area"] == "loop"]


@pytest.mark.parametrize(
    ("rule", "text"), [(rule, text) for rule, case in CASES.items() for text in case["wrong"]],
)
def test_a_rule_finds_its_mistake(rule: str, text: str) -> None:
    assert rule in found(text)


@pytest.mark.parametrize(
    ("rule", "text"), [(rule, text) for rule, case in CASES.items() for text in case["right"]],
)
def test_look_alikes_are_passed_over(rule: str, text: str) -> None:
    assert found(text) == []


def test_each_rule_of_the_loop_has_cases() -> None:
    from probe.diagnose.code.loop.call_order_rules import RULES

    assert {rule.name for rule in RULES} == set(CASES)
    assert all(len(case["wrong"]) >= 2 and len(case["right"]) >= 2 for case in CASES.values())
