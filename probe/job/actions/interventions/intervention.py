"""Intervention: changes gradients before an optimizer's step, until it is undone.

It applies to one optimizer, or to all that step; LBFGS computes its gradients inside its step, where nothing
can intervene. The answer waits for the first step. Standard library only.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any

from probe.base.errors import ActionRefused
from probe.job.actions.action import Action, Site, enumerated
from probe.job.actions.chosen_optimizer import NAMED, Chosen, choose, refuse_alone
from probe.job.actions.device import capturing, on_device
from probe.job.actions.interventions.gradient_scaling import gradients_of

LONGEST_WAIT_S = 5.0
"""The longest time that the answer waits for the first step."""


class Intervention(Action):
    """Base of the interventions; `_meet` is called with the gradients of each step of its optimizers."""

    about = ""
    """What it does, for refusals."""

    def __init__(self, arguments: dict[str, Any], site: Site) -> None:
        super().__init__(arguments, site)
        wanted = arguments.get("optimizer")
        self._chosen: Chosen | None = None if wanted is None else choose(site, wanted)
        self.steps = 0
        """How many steps it saw."""
        self._waits_for_device = False
        refuse_alone(site, arguments, f"{self.about} here, the replicas on the other ranks would differ")
        candidates = site.optimizers() if self._chosen is None else [self._chosen.optimizer()]
        if not any(self.fits(one) for one in candidates):
            raise self._misfit(candidates)
        fitting = [site.name_of(one, type(one).__name__) for one in candidates if self.fits(one)]
        self.whose = enumerated(fitting, NAMED)
        """The optimizers that it applies to."""
        walls_s = [wall_ns / 1e9 for wall_ns, *_ in site.recorder.recent] or [LONGEST_WAIT_S]
        self.waits_s = min(LONGEST_WAIT_S, 3.0 + 3 * statistics.median(walls_s))

    def fits(self, optimizer: Any) -> bool:
        """Whether it can do anything for this optimizer."""
        return all(kind.__name__ != "LBFGS" for kind in type(optimizer).__mro__)

    def _misfit(self, candidates: Sequence[Any]) -> ActionRefused:
        """Why it can do nothing here."""
        if not candidates:
            return ActionRefused("no optimizer is known in this process")
        return ActionRefused(
            "LBFGS computes its gradients inside its step, where probe cannot intervene",
            hint="`lr --scale` makes its steps smaller.",
        )

    def begin(self) -> None:
        """Apply it from the next step on."""
        if self._chosen is not None:
            self._chosen.optimizer()
        self.standing = True

    def before_step(self, optimizer: Any) -> None:
        """Right before a step, when its gradients are complete."""
        if self._chosen is not None and optimizer is not self._chosen.reference():
            return
        if not self.fits(optimizer):
            return
        self.steps += 1
        gradients = gradients_of(optimizer)
        self._meet(optimizer, [] if gradients and capturing(gradients[0]) else gradients)
        self.finished.set()

    def _meet(self, optimizer: Any, gradients: list[Any]) -> None:
        """Handle the gradients of this step; `gradients` is empty while a device graph is captured."""
        raise NotImplementedError

    def _note_wait(self, gradients: list[Any]) -> None:
        """Note whether reading these gradients waits for a device."""
        self._waits_for_device = self._waits_for_device or on_device(next(iter(gradients), None))

    def so_far(self) -> dict[str, Any]:
        """What it saw and did so far, as plain JSON; from any thread, may wait for a device."""
        raise NotImplementedError

    def in_words(self) -> str:
        """The same as a sentence."""
        raise NotImplementedError

    def report(self) -> dict[str, Any]:
        """What it does from now on, and what it has seen."""
        notes = self._notes()
        if self._waits_for_device:
            notes.append("reading the gradients waits for the device once a step")
        if not self.steps:
            notes.append("no step has been seen since, so this is not verified")
        return {"what": self._what(), "notes": notes, **self._limits(), **self.so_far()}

    def _what(self) -> str:
        """What it does from now on."""
        raise NotImplementedError

    def _notes(self) -> list[str]:
        return []

    def _limits(self) -> dict[str, Any]:
        """Its arguments, for the answer."""
        return {}

    def undo(self) -> str:
        """End it, from the next step on."""
        self.standing = False
        return f"{self.name.replace('_', '-')} has ended; {self.in_words()}"

    def cancel(self) -> None:
        """End it, and release the answer that waits for it."""
        self.standing = False
        self.finished.set()


def plain(value: Any) -> float | None:
    """A number for JSON; None if it is not finite, or missing."""
    if value is None:
        return None
    number = float(value)
    return number if math.isfinite(number) else None


def shown(value: float) -> str:
    """A norm in words."""
    return f"{value:.4g}"
