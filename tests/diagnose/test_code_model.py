"""Rules about models and rollouts: each finds its mistake, and is quiet on what looks alike."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from probe.diagnose.code.all_rules import RULES as ALL
from probe.diagnose.code.program import Program

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

IMPORTS = """
import copy, random
import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.distributions import Categorical, Normal
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler
"""
RULES = {rule.name: rule for rule in ALL if rule.area in ("model", "rollout")}
CASES = tomllib.loads((Path(__file__).parent / "test_code_model.toml").read_text())


def said(rule: str, text: str) -> list[str]:
    program = Program({"train.py": IMPORTS + text})
    assert not program.failed
    return [remark.said for remark in RULES[rule].find(program)]


@pytest.mark.parametrize("rule", RULES)
def test_each_rule_finds_its_mistake_however_it_is_written(rule: str) -> None:
    for text in CASES[rule]["wrong"]:
        assert said(rule, text), text


@pytest.mark.parametrize("rule", RULES)
def test_each_rule_is_quiet_where_the_program_only_looks_alike(rule: str) -> None:
    for text in CASES[rule]["fine"]:
        assert not said(rule, text), text


def test_every_case_is_of_a_rule() -> None:
    assert set(CASES) == set(RULES)
