"""Environments, episodes and replay buffers; ranks, processes and seeds. Pure."""

from __future__ import annotations

from probe.diagnose.code.rule import Rule

RULES: tuple[Rule, ...] = ()
