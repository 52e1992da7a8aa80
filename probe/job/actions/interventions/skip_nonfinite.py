"""skip-nonfinite: a step whose gradients hold a NaN or an infinity changes nothing.

The optimizer sees no gradients in that step, so parameters, moments and step counts stay as they are; the
gradients are put back right after it. Checking waits for the device once a step. Standard library; torch
inside functions.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from probe.base.errors import BadRequest
from probe.job.actions.action import Site
from probe.job.actions.interventions.gradient_scaling import handled_by_scaler, total_norm
from probe.job.actions.interventions.intervention import Intervention

LISTED = 100
"""How many skipped steps are listed by number."""


class SkipNonfinite(Intervention):
    """Skipping of steps whose gradients are not finite."""

    name = "skip_nonfinite"
    about = "skipping a step"
    takes = ("on", "optimizer", "force")
    ends_on_training_thread = True  # during a skipped step it holds the gradients

    def __init__(self, arguments: dict[str, Any], site: Site) -> None:
        if arguments.get("on", True) is not True:
            raise BadRequest("`on` must be true", hint="`probe PID undo ID` ends it.")
        self._skipped = 0
        self._numbers: deque[int | None] = deque(maxlen=LISTED)
        self._hidden: tuple[Any, list[tuple[Any, Any]]] | None = None
        """The optimizer whose step is being skipped, and its parameters with their gradients."""
        super().__init__(arguments, site)

    def _meet(self, optimizer: Any, gradients: list[Any]) -> None:
        self._hidden = None
        if handled_by_scaler(optimizer):
            return
        self._note_wait(gradients)
        if _all_finite(gradients):
            return
        self._skipped += 1
        self._numbers.append(self.site.recorder.counted_step)
        parameters = [one for group in optimizer.param_groups for one in group["params"]]
        self._hidden = optimizer, [(one, one.grad) for one in parameters if one.grad is not None]
        for parameter, _ in self._hidden[1]:
            parameter.grad = None

    def after_step(self, optimizer: Any) -> None:
        """Put the gradients back."""
        if self._hidden is None or self._hidden[0] is not optimizer:
            return
        hidden, self._hidden = self._hidden[1], None
        for parameter, gradient in hidden:
            if parameter.grad is None:
                parameter.grad = gradient

    def so_far(self) -> dict[str, Any]:
        """The last skipped steps."""
        return {"steps": self.steps, "skipped": self._skipped, "skipped_steps": list(self._numbers)}

    def in_words(self) -> str:
        """How many steps were skipped."""
        return f"it skipped {self._skipped} of {self.steps} steps"

    def _what(self) -> str:
        return f"steps of {self.whose} whose gradients are not finite change nothing"


def _all_finite(gradients: list[Any]) -> bool:
    """Whether there is no NaN and no infinity; waits for the device."""
    import torch

    with torch.no_grad():
        for kind in (2.0, float("inf")):  # the first is quick, and overflows where the second does not
            norm = total_norm(gradients, kind)
            if norm is None or bool(torch.isfinite(norm)):
                return True
    return False
