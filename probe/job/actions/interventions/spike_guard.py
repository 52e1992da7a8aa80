"""spike-guard: scales gradients far above the usual norm down to it, and resets the optimizer's momenta.

After arXiv 2501.06842 (SPAM): a spike stays in the moments of Adam for many steps. A norm above `threshold`
times the median of the last `window` norms is a spike; before that step the gradients are scaled to the
median, and the optimizer's moments and step counts are reset to their state before the first step. Checking
waits for the device once a step. Standard library; torch inside functions.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Sequence
from typing import Any

from probe.base.errors import ActionRefused
from probe.job.actions.action import Site, number, whole_number
from probe.job.actions.device import is_tensor
from probe.job.actions.interventions.gradient_scaling import multiply, total_norm, unscaled
from probe.job.actions.interventions.intervention import Intervention, shown

WARM_UP_STEPS = 10
"""Norms seen before any counts as a spike."""
LISTED = 100
_BLANK = {
    "exp_avg": 0.0, "exp_avg_sq": 0.0, "max_exp_avg_sq": 0.0, "exp_inf": 0.0, "mu_product": 1.0, "step": 0.0,
}
"""State that an Adam-like optimizer keeps for a parameter, with its values before the first step."""
_LIKE_ADAM = frozenset({"Adam", "AdamW", "NAdam", "RAdam", "Adamax", "SparseAdam"})


class SpikeGuard(Intervention):
    """Momentum reset on gradient spikes."""

    name = "spike_guard"
    about = "resetting momenta"
    takes = ("threshold", "window", "optimizer", "force")

    def __init__(self, arguments: dict[str, Any], site: Site) -> None:
        self._threshold = number(arguments, "threshold", 5.0, least=1.0, above=True)
        self._window = whole_number(arguments, "window", 50, least=WARM_UP_STEPS)
        self._norms: dict[int, deque[float]] = {}
        self._spikes: deque[dict[str, Any]] = deque(maxlen=LISTED)
        self._count = 0
        super().__init__(arguments, site)

    def fits(self, optimizer: Any) -> bool:
        """Whether it keeps moments as Adam does."""
        kept = next(iter(optimizer.state.values()), None)
        if kept:
            return "exp_avg" in kept
        return any(kind.__name__ in _LIKE_ADAM for kind in type(optimizer).__mro__)

    def _misfit(self, candidates: Sequence[Any]) -> ActionRefused:
        kinds = ", ".join(type(one).__name__ for one in candidates) or "none"
        return ActionRefused(
            f"no optimizer here keeps moments as Adam does ({kinds})",
            hint="`clip --max-norm` limits the gradients of any optimizer.",
        )

    def _meet(self, optimizer: Any, gradients: list[Any]) -> None:
        import torch

        self._note_wait(gradients)
        with torch.no_grad():
            total = total_norm(gradients, 2.0)
            norm = math.nan if total is None else float(unscaled(total, optimizer))
            if not math.isfinite(norm):
                return  # not a spike but a broken step: skip-nonfinite is for those
            before = self._norms.setdefault(id(optimizer), deque(maxlen=self._window))
            usual = statistics.median(before) if len(before) >= WARM_UP_STEPS else math.inf
            before.append(norm)
            if 0.0 < self._threshold * usual < norm:
                multiply(gradients, torch.full_like(total, usual / norm))
                _forget_moments(optimizer)
                self._count += 1
                step = self.site.recorder.counted_step
                self._spikes.append({"step": step, "norm": norm, "usual_norm": usual})

    def so_far(self) -> dict[str, Any]:
        """The last spikes."""
        return {"steps": self.steps, "spikes": self._count, "events": list(self._spikes)}

    def in_words(self) -> str:
        """How many spikes there were, and the last."""
        words = f"spikes in {self.steps} steps: {self._count}"
        if not self._spikes:
            return words
        last = self._spikes[-1]
        return (
            f"{words}, the last in step {last['step']}: norm {shown(last['norm'])}, "
            f"usually {shown(last['usual_norm'])}; momenta that were reset stay reset"
        )

    def _what(self) -> str:
        return (
            f"gradients of {self.whose} beyond {self._threshold:g} times the usual norm are scaled down "
            "to it, and the momenta are reset"
        )

    def _notes(self) -> list[str]:
        return [f"the first {WARM_UP_STEPS} steps only measure the usual norm"]

    def _limits(self) -> dict[str, Any]:
        return {"threshold": self._threshold, "window": self._window}


def _forget_moments(optimizer: Any) -> None:
    """Reset the optimizer's state to that before the first step, in place."""
    for kept in optimizer.state.values():
        for name, blank in _BLANK.items():
            value = kept.get(name)
            if is_tensor(value):
                value.fill_(blank)
            elif isinstance(value, (int, float)):
                kept[name] = type(value)(blank)
    for group in optimizer.param_groups:
        if isinstance(group.get("step"), int):
            group["step"] = 0  # some optimizers count once for a group
