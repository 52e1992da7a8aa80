"""Environments, episodes and replay; ranks, processes and seeds. Pure."""

from __future__ import annotations

from probe.diagnose.code.rollout.one_rank import RULES as ONE_RANK
from probe.diagnose.code.rollout.several_ranks import RULES as RANKS
from probe.diagnose.code.rollout.signs import RULES as SIGNS
from probe.diagnose.code.rollout.steps import RULES as STEPS
from probe.diagnose.code.rollout.targets import RULES as TARGETS
from probe.diagnose.code.rule import Rule

RULES: tuple[Rule, ...] = (*SIGNS, *TARGETS, *STEPS, *ONE_RANK, *RANKS)
