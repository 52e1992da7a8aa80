"""Axes."""
from __future__ import annotations
from probe.diagnose.code.rule import Rule
RULES: tuple[Rule, ...] = ()
