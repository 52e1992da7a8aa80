"""The job's own linear probe, no relation."""

from __future__ import annotations

from torch import nn

MEASURED: list[float] = []


def measure(model: nn.Module) -> None:
    """Note how large the weights are."""
    MEASURED.append(float(sum(parameter.detach().abs().sum() for parameter in model.parameters())))
