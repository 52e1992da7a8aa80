"""Each rule on data and evaluation remarks on its mistakes, and is quiet on what looks like them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from probe.diagnose.code.all_rules import RULES as ALL
from probe.diagnose.code.program import Program

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

RULES = [rule for rule in ALL if rule.area == "data"]
CASES: dict[str, dict[str, Any]] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())
HEAD = """
import copy, math, random
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, SubsetRandomSampler
from torch.utils.data import TensorDataset, WeightedRandomSampler, random_split
from torchvision import datasets, transforms
"""


def _remarks(text: str) -> list[str]:
    program = Program({"train.py": HEAD + text})
    assert not program.failed
    return [rule.name for rule in RULES for _ in rule.find(program)]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_a_rule_remarks_on_its_mistakes_and_not_on_what_looks_like_them(rule: Any) -> None:
    cases = CASES[rule.name]
    for text in cases["wrong"]:
        assert _remarks(text) == [rule.name], text
    for text in cases["right"]:
        assert _remarks(text) == [], text
    assert len(cases["wrong"]) >= 3 and len(cases["right"]) >= 2


def test_every_case_is_of_a_rule() -> None:
    assert set(CASES) == {rule.name for rule in RULES}
