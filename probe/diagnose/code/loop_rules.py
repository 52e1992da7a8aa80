"""The training loop: losses and their terms, backward, optimizers, schedules, checkpoints. Pure."""

from __future__ import annotations

from probe.diagnose.code.rule import Rule

RULES: tuple[Rule, ...] = ()
