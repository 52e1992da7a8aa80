"""Converts numbers that the job logs to Python numbers, without touching a device. HOT PATH: called when the
job logs.

A tensor is converted only if it has one element and is in host memory: reading one on a device would wait
for the device. Standard library, and torch and numpy if the job has imported them.
"""

from __future__ import annotations

import sys
from typing import Any


def plain_number(value: Any) -> int | float | None:
    """The value of a number, or of a one-element tensor or scalar in host memory; None for anything else."""
    kind = type(value)
    if kind is float or kind is int:
        return value  # type: ignore[no-any-return]
    if isinstance(value, (bool, str, bytes)):
        return None
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    if torch is not None and isinstance(value, torch.Tensor):
        plain = kind is torch.Tensor or kind is torch.nn.Parameter
        if not plain or value.device.type != "cpu" or value.numel() != 1:
            return None
        return _real(value.detach().item())
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value)
    return _real(value.item()) if numpy is not None and isinstance(value, numpy.generic) else None


def _real(value: Any) -> int | float | None:
    """An element as a number (a boolean as 0 or 1); None if it is neither."""
    return value + 0 if isinstance(value, (int, float)) else None
