"""Gradient direction: checks the gradients of backward against finite differences of the outputs.

Runs only in a forked child (`dependence_audit`). Moves a parameter slightly along its gradient, in both
directions, and measures the slope of the outputs. If the gradient is the derivative of the outputs, the slope
is what the gradient predicts. A layer, function or hook that reverses the gradient makes it -1 times that for
all parameters before it. Uses the job's torch.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

from probe.job.instruments.dependence.repeated_forwards import RepeatedForwards

MOST_PARAMETERS = 8
"""Parameters measured, evenly spaced: each takes two forwards per output, and four if it seems reversed."""
MOST_OUTPUTS = 3
LEAST_ELEMENTS = 16
SHIFTS = (1e-2, 2e-3, 1e-3, 5e-3)
"""Step sizes, relative to the parameter's norm. Where a gradient seems reversed, all slopes must be the
same at each: curvature, or a function with steps (a straight-through estimator), may seem so at one."""
EXACT = (0.67, 1.5)
"""Range of the ratio of slope to gradient for a true derivative, given curvature and rounding."""
LONGEST_S = 6.0


def gradient_row(torch: Any, model: Any, forwards: RepeatedForwards) -> dict[str, Any] | None:
    """The row of python.dependence; None if no parameter could be measured."""
    named = [(name, one) for name, one in model.named_parameters() if _is_measured(one)]
    if not named:
        return None
    every = -(-len(named) // MOST_PARAMETERS)
    chosen = [*named[:-1:every], named[-1]]
    ends_s = time.monotonic() + LONGEST_S
    slopes: dict[str, list[float]] = {}
    outputs = [number for number, one in enumerate(forwards.run({})) if one.numel()][:MOST_OUTPUTS]
    for number in outputs:  # one after the other: the gradients of several would need more memory
        gradients = forwards.gradients_of(number, [one for _, one in chosen])
        seems_turned = False
        for shift in SHIFTS:
            for (name, parameter), gradient in zip(chosen, gradients, strict=True):
                if gradient is None or not bool(gradient.any()):
                    continue
                if time.monotonic() > ends_s:
                    if shift == SHIFTS[0]:
                        continue
                    return None
                slope = _slope(torch, forwards, number, parameter, gradient, shift)
                seems_turned = seems_turned or _turned(slope)
                if slope == slope or shift == SHIFTS[0]:
                    slopes.setdefault(name, []).append(slope)
            if not seems_turned:
                break
    if not slopes:
        return None
    turned = {name: each for name, each in slopes.items() if all(_turned(one) for one in each)}
    right = {name: each for name, each in slopes.items() if all(_is_exact(one) for one in each)}
    row: dict[str, Any] = {
        "question": "gradient", "effect": _median(right), "leak": _median(turned),
        "effect_ratio": len(right) / len(slopes), "leak_ratio": len(turned) / len(slopes),
    }
    if turned:
        row |= {"subject": next(iter(turned)), "module": list(turned)[-1]}
    return row


def _is_measured(parameter: Any) -> bool:
    return bool(
        parameter.requires_grad and parameter.is_floating_point() and parameter.numel() >= LEAST_ELEMENTS
        and parameter.dim() > 1 and parameter.any()
    )


def _slope(
    torch: Any, forwards: RepeatedForwards, number: int, parameter: Any, gradient: Any, shift: float
) -> float:
    """Ratio of an output's change along a gradient to the change the gradient predicts; NaN if that cannot be
    distinguished from rounding."""
    way = gradient.double() / gradient.double().norm()
    length = shift * float(parameter.detach().double().norm())
    kept = parameter.detach().clone()
    sums, moved = [], []
    with torch.no_grad():
        for sign in (1.0, -1.0):
            parameter.copy_((kept.double() + sign * length * way).to(kept.dtype))
            moved.append(float(((parameter.double() - kept.double()) * way).sum()))
            sums.append(forwards.weighted(number))
        parameter.copy_(kept)
    change, scale = sums[0][0] - sums[1][0], max(sums[0][1], sums[1][1])
    said = (moved[0] - moved[1]) * float(gradient.double().norm())
    rounding = float(torch.finfo(kept.dtype).eps) * scale
    return change / said if abs(said) > 8 * rounding else float("nan")


def _turned(slope: float) -> bool:
    return _is_exact(-slope)


def _is_exact(slope: float) -> bool:
    return EXACT[0] <= slope <= EXACT[1]


def _median(slopes: dict[str, list[float]]) -> float | None:
    return statistics.median(one for each in slopes.values() for one in each) if slopes else None
