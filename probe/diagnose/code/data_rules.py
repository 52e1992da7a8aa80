"""Data sets, loaders, splits, augmentation, metrics and evaluation. Pure."""

from __future__ import annotations

from probe.diagnose.code.rule import Rule

RULES: tuple[Rule, ...] = ()
