"""The norm of an optimizer's gradients right before it steps, and scaling them.

HOT PATH: the training thread, in each step while an intervention stands. The arithmetic is that of
`torch.nn.utils.clip_grad_norm_`, so that a run that clips by itself and one that is clipped are
bit-identical; sparse gradients are clipped as well. Standard library; torch inside functions.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

_SMALL = 1e-6
"""Added to a norm before dividing by it, as in torch."""


def gradients_of(optimizer: Any) -> list[Any]:
    """Every gradient that the optimizer is about to use."""
    groups = optimizer.param_groups
    return [found for group in groups for one in group["params"] if (found := one.grad) is not None]


def total_norm(gradients: Iterable[Any], kind: float) -> Any:
    """The norm of all gradients together, a tensor; None if there are no elements."""
    import torch

    alike: dict[tuple[Any, Any], list[Any]] = {}
    for gradient in gradients:
        values = gradient.coalesce()._values() if gradient.is_sparse else gradient
        if values.numel():
            alike.setdefault((values.device, values.dtype), []).append(values)
    norms: list[Any] = []
    for (_, dtype), values in alike.items():
        if dtype == torch.float16:  # its norm can overflow although no gradient does
            norms += [torch.linalg.vector_norm(one, kind, dtype=torch.float32) for one in values]
        else:
            norms += torch._foreach_norm(values, kind)
    if not norms:
        return None
    first = norms[0].device
    total = torch.linalg.vector_norm(torch.stack([norm.to(first) for norm in norms]), kind)
    whole = getattr(total, "full_tensor", None)  # gradients sharded over devices
    return total if whole is None else whole()


def unscaled(norm: Any, optimizer: Any) -> Any:
    """The norm without a gradient scaler's factor, which a fused optimizer divides by inside its step."""
    scale = getattr(optimizer, "grad_scale", None)
    return norm if scale is None else norm / scale.to(norm.device)


def handled_by_scaler(optimizer: Any) -> bool:
    """Whether a gradient scaler has already checked for NaN and infinity, for a fused step to skip."""
    return getattr(optimizer, "found_inf", None) is not None


def coefficient(norm: Any, most: float) -> Any:
    """The factor that limits gradients of this norm to `most`; exactly 1 below that."""
    import torch

    return torch.clamp(most / (norm + _SMALL), max=1.0)


def multiply(gradients: Iterable[Any], factor: Any) -> None:
    """Multiply them all in place; `factor` is a tensor of one element."""
    import torch

    by_device: dict[Any, list[Any]] = {}
    for gradient in gradients:
        values = gradient._values() if gradient.is_sparse else gradient
        by_device.setdefault(values.device, []).append(values)
    for device, values in by_device.items():
        torch._foreach_mul_(values, factor.to(device))
