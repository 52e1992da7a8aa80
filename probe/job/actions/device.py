"""Whether reading a tensor waits for a device, or would be captured in a device graph. Any thread."""

from __future__ import annotations

import sys
from typing import Any

from probe.base import accelerator


def is_tensor(value: Any) -> bool:
    """Whether it is a torch tensor, without importing torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def on_device(value: Any) -> bool:
    """Whether reading it would wait for a device."""
    return is_tensor(value) and value.device.type != "cpu"


def capturing(value: Any) -> bool:
    """Whether a graph of its device is being captured, which would include anything done to this value."""
    return on_device(value) and accelerator.capturing()
