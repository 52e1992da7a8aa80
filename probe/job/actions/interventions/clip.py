"""clip: scales gradients with a norm above `max_norm` down to it before each step.

Bit for bit as `torch.nn.utils.clip_grad_norm_`. Never waits for a device: counts and norms stay where the
gradients are. Standard library; torch inside functions.
"""

from __future__ import annotations

from typing import Any

from probe.job.actions.action import Site, number
from probe.job.actions.interventions.gradient_scaling import coefficient, multiply, total_norm, unscaled
from probe.job.actions.interventions.intervention import Intervention, plain, shown


class Norms:
    """Norms of one optimizer's gradients, as tensors on its device."""

    def __init__(self) -> None:
        self.first: Any = None
        self.last: Any = None
        self.largest: Any = None
        self.clipped: Any = None

    def note(self, norm: Any, most: float) -> None:
        """Add one; NaN is never the largest."""
        import torch

        above = (norm > most).to(torch.int64)
        self.last = norm
        if self.first is None:
            self.first = norm
        self.largest = norm if self.largest is None else torch.fmax(self.largest, norm)
        self.clipped = above if self.clipped is None else self.clipped + above


class Clip(Intervention):
    """Clipping of the gradient norm."""

    name = "clip"
    takes = ("max_norm", "norm_type", "optimizer", "force")
    about = "clipped"

    def __init__(self, arguments: dict[str, Any], site: Site) -> None:
        self._max_norm = number(arguments, "max_norm", above=True)
        infinite = arguments.get("norm_type") == "inf"
        self._kind = float("inf") if infinite else number(arguments, "norm_type", 2.0, above=True)
        self._norms: dict[int, Norms] = {}
        super().__init__(arguments, site)

    def _meet(self, optimizer: Any, gradients: list[Any]) -> None:
        import torch

        with torch.no_grad():
            norm = total_norm(gradients, self._kind)
            if norm is None:
                return
            norm = unscaled(norm, optimizer)
            multiply(gradients, coefficient(norm, self._max_norm))
            self._norms.setdefault(id(optimizer), Norms()).note(norm, self._max_norm)

    def so_far(self) -> dict[str, Any]:
        """How often it clipped, and the norms before that."""
        norms = list(self._norms.values())
        largest = [value for one in norms if (value := plain(one.largest)) is not None]
        return {
            "steps": self.steps,
            "clipped": sum(int(one.clipped) for one in norms),
            "first_norm": plain(norms[0].first) if norms else None,
            "last_norm": plain(norms[-1].last) if norms else None,
            "largest_norm": max(largest) if largest else None,
        }

    def in_words(self) -> str:
        """How often it clipped."""
        seen = self.so_far()
        if seen["largest_norm"] is None:
            return f"it saw no norm in {seen['steps']} steps"
        largest = shown(seen["largest_norm"])
        return f"it clipped {seen['clipped']} of {seen['steps']} steps, the largest norm was {largest}"

    def _what(self) -> str:
        first = self.so_far()["first_norm"]
        what = f"gradients of {self.whose} are clipped to norm {self._max_norm:g} before each step"
        return what if first is None else f"{what}; the norm before the first was {shown(first)}"

    def _limits(self) -> dict[str, Any]:
        return {"max_norm": self._max_norm, "norm_type": str(self._kind)}
