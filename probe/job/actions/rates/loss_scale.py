"""loss-scale: the factor of the gradient scaler in use, set in place; it grows and shrinks from there.

Standard library; torch's tensors are written in place.
"""

from __future__ import annotations

import weakref
from typing import Any, NamedTuple

from probe.base.errors import ActionRefused, NotUndoable
from probe.job.actions.action import Action, Site, number
from probe.job.actions.chosen_optimizer import refuse_alone


class Before(NamedTuple):
    """A scaler's factor and its count of steps since the last growth; None before its first use."""

    scale: float | None
    tracked: int | None
    first_scale: float
    first_tracked: int


class LossScale(Action):
    """One change of the loss scale."""

    name = "loss_scale"
    takes = ("set", "force")

    def __init__(self, arguments: dict[str, Any], site: Site) -> None:
        super().__init__(arguments, site)
        self._value = number(arguments, "set", above=True)
        found = site.scalers()
        if not found:
            raise ActionRefused("no GradScaler is in use in this process")
        working = [scaler for scaler in found if scaler.is_enabled()]
        if not working:
            raise ActionRefused("the GradScaler is not enabled: it scales nothing")
        refuse_alone(site, arguments, "gradients of different scales would be added up over the ranks")
        self._scaler = weakref.ref(working[0])
        self._name = site.name_of(working[0], "scaler")
        self._before: Before | None = None

    def begin(self) -> None:
        """Write the factor where the scaler keeps it, and restart its count."""
        scaler = self._scaler()
        if scaler is None:
            raise ActionRefused(f"{self._name} is gone")
        self._before = Before(
            None if scaler._scale is None else float(scaler._scale),
            None if scaler._growth_tracker is None else int(scaler._growth_tracker),
            scaler._init_scale,
            scaler._init_growth_tracker,
        )
        _write(scaler, self._value, 0)

    def report(self) -> dict[str, Any]:
        """The factor before, and the one that was set; it may have grown by now."""
        before = self._before
        assert before is not None
        was = before.first_scale if before.scale is None else before.scale
        what = f"{self._name}: loss scale {was:g} → {self._value:g}"
        if before.scale is None:
            what += ", from its first use on"
        return {"what": what, "notes": [], "scaler": self._name, "before": was, "now": self._value}

    def undo(self) -> str:
        """Restore factor and count."""
        scaler, before = self._scaler(), self._before
        if scaler is None or before is None:
            raise NotUndoable(f"{self._name} is gone")
        if before.scale is None:
            scaler._init_scale, scaler._init_growth_tracker = before.first_scale, before.first_tracked
            _write(scaler, before.first_scale, before.first_tracked)
            return f"{self._name}: loss scale {before.first_scale:g} again, as at its first use"
        _write(scaler, before.scale, before.tracked or 0)
        return f"{self._name}: loss scale {before.scale:g} again"


def _write(scaler: Any, scale: float, tracked: int) -> None:
    """In place: a fused optimizer or a graph may hold the tensors."""
    if scaler._scale is None:
        scaler._init_scale, scaler._init_growth_tracker = scale, tracked
        return
    scaler._scale.fill_(scale)
    scaler._growth_tracker.fill_(tracked)
