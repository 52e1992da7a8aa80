"""Models and loss functions: layers, axes and masks, ranges of values. Pure."""

from __future__ import annotations

from probe.diagnose.code.model.axes import RULES as AXES
from probe.diagnose.code.model.layers import RULES as LAYERS
from probe.diagnose.code.model.masks import RULES as MASKS
from probe.diagnose.code.model.ranges import RULES as RANGES
from probe.diagnose.code.rule import Rule

RULES: tuple[Rule, ...] = (*LAYERS, *RANGES, *AXES, *MASKS)
