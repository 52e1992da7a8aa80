"""Losses: records the value that backward is called on, and the duration of backward.

Writes python.losses, and the loss, forward and backward of python.steps. HOT PATH: the wrapper around
`torch.autograd.backward`, which `Tensor.backward` calls, runs in every micro step. A loss on the CPU is read
at once, one on a device when its copy has arrived (`delivery`). Nested calls (reentrant activation
checkpoints) and calls from other threads pass through. The common cases run in C where that is loaded
(`base/compiled/losses.c`).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from probe.base import compiled
from probe.base.clock import ANCHOR_NS
from probe.base.isolation import Isolation
from probe.job.instruments.core.delivery import Delivery
from probe.job.instruments.core.loss_share import LossShare
from probe.job.instruments.core.patch import Patches
from probe.job.instruments.core.recorder import Recorder
from probe.job.instruments.core.step_listeners import (
    BackwardEnd,
    BackwardSampler,
    BackwardStart,
    LateLoss,
    RootSampler,
)
from probe.job.instruments.loop.manual_updates import ManualUpdates
from probe.recording.layout import NULL_DOUBLE

_now = time.monotonic_ns
FIRST_STEPS = 2
"""Steps in which every loss's share and scale are read, because it is not yet known whether the job
accumulates or scales its loss itself."""


@compiled.form("Losses")
class Losses:
    """Installs the wrapper. `after_backward` and `nested_backward` are set by the modules instrument, `on_…`
    by the NaN detector."""

    def __init__(self, recorder: Recorder, isolation: Isolation, *, values: bool) -> None:
        self.recorder = recorder
        self.values = values
        self.after_backward: Callable[[int], object] | None = None
        self.nested_backward: Callable[[int | None], int] | None = None
        self.on_backward_begin: BackwardStart | None = None
        self.on_backward_end: Callable[[], object] | None = None
        """Called before and after each backward in steps with timed phases, and in any step while
        `Recorder.alert`. Before: with its root, its loss if that is on the host, and whether a GradScaler
        scaled it. After: without arguments, and also if only `follows` was set."""
        self.follows = False
        """Whether to call `on_backward_end` after the current or next backward."""
        self.manual_updates: ManualUpdates | None = None
        """Counts steps while the job has no optimizer."""
        self.roots: RootSampler | None = None
        """Set by the installation: inspects the roots of some backwards (`LossFunctions`)."""
        self.on_late_loss: LateLoss | None = None
        """Called on the agent's thread with step, micro step and value of a loss delivered by a device."""
        self.sent: Any = None
        """The newest loss copied from a device: its copy and event, see `Delivery.send`."""
        self.updates: BackwardSampler | None = None
        """Set by the updates instrument: `backward_begins`, with the root, and `backward_ends`, called from
        step `due` on."""
        self.sums: BackwardEnd | None = None
        """Set by the weight sums if there are replicas: `backward_ends`, called from step `due` on."""
        self._depth = 0
        self._start_ns = 0
        self._unscaled: tuple[int, Any, float] | None = None
        self._share: LossShare | None = None
        self._accumulates = False
        self._scales = False
        """Whether the job was seen to multiply its loss by a loss scale, without a GradScaler."""
        self._delivery = Delivery()
        self._arrived: dict[int, list[tuple[float, float]]] = {}
        self._patches = Patches()
        self._isolation = isolation

    @property
    def in_backward(self) -> bool:
        """Whether the training thread is inside backward."""
        return self._depth > 0

    def install(self) -> None:
        """Put the wrappers in place; off the hot path."""
        import torch

        self._tensor = torch.Tensor
        if self.values:
            self._share = self._isolation.attempt("losses", lambda: LossShare(torch))
        begin = self._isolation.guard("losses", self._begin, traced=False)
        end = self._isolation.guard("losses", self._end, traced=False)
        scaled = self._isolation.guard("losses", self._note_scaled, traced=False)
        recorder = self.recorder
        live = self._patches.live

        def wrap_backward(original: Any) -> Any:
            def backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
                if not live[0]:
                    return original(tensors, *args, **kwargs)
                if self._depth:
                    if recorder.elsewhere():
                        recorder.note_trainer()
                        return original(tensors, *args, **kwargs)
                    nested = self.nested_backward if recorder.sampling else None
                    mark = nested(None) if nested is not None else None
                    try:
                        return original(tensors, *args, **kwargs)
                    finally:
                        if nested is not None and mark is not None:
                            nested(mark)
                self._depth = 1
                try:
                    begin(tensors)  # may raise from a signal handler of the job
                    return original(tensors, *args, **kwargs)
                finally:
                    self._depth = 0
                    end()

            return backward

        def wrap_scale(original: Any) -> Any:
            def scale(scaler: Any, outputs: Any) -> Any:
                result = original(scaler, outputs)
                scaled(outputs, result)
                return result

            return scale

        self._patches.wrap(torch.autograd, "backward", wrap_backward)
        if self.values:
            self._patches.wrap(torch.amp.GradScaler, "scale", wrap_scale)

    def uninstall(self) -> None:
        """Put the originals back."""
        self._patches.undo()
        self._delivery.clear()
        self._unscaled = self.sent = None

    # HOT PATH ---------------------------------------------------------------

    def _begin(self, tensors: Any) -> None:
        now = _now()
        recorder = self.recorder
        root = tensors if isinstance(tensors, self._tensor) else next(iter(tensors), None)
        if self.manual_updates is not None and not self.manual_updates.backward_begins(root):
            self.manual_updates = None
        unscaled, share, scale = None, NULL_DOUBLE, 1.0
        if self._unscaled is not None:
            unscaled, share = self._before_scaling(root)
        if unscaled is None and (self._scales or recorder.step < FIRST_STEPS):
            scale = self._scale_of(root)
        if unscaled is None and (self._accumulates or recorder.micro_step or recorder.step < FIRST_STEPS):
            share = self._share_of(root, scale)
        loss = None
        if self.values:
            whole = root if unscaled is None else unscaled
            if whole is not None and whole.numel() == 1:
                if not whole.is_cpu:
                    self._send(whole, now, share, scale)
                else:
                    loss = float(whole.item()) / scale
        recorder.backward_begins(now, loss, share)
        if (recorder.timing or recorder.alert) and self.on_backward_begin is not None:
            self.follows = True
            self.on_backward_begin(root, loss, unscaled is not None or scale != 1.0)
        updates = self.updates
        if updates is not None and recorder.step >= updates.due:
            updates.backward_begins(root)
        self._start_ns = start = _now()
        recorder.cost_ns += start - now
        roots = self.roots
        if roots is not None and recorder.step >= roots.pace.due:
            roots.sample(root, unscaled is not None or scale != 1.0)
            self._start_ns = _now()

    def _end(self) -> None:
        now = _now()
        recorder = self.recorder
        if recorder.sampling and self.after_backward is not None:
            self.after_backward(now)
        recorder.backward_ends(now, self._start_ns)
        if self.manual_updates is not None:
            self.manual_updates.backward_ends()
        if self.follows:
            self.follows = False
            if self.on_backward_end is not None:
                self.on_backward_end()
        updates = self.updates
        if updates is not None and recorder.step >= updates.due:
            updates.backward_ends()
        sums = self.sums
        if sums is not None and recorder.step >= sums.due:
            sums.backward_ends()
        recorder.cost_ns += _now() - now

    def _note_scaled(self, outputs: Any, result: Any) -> None:
        """Remember the loss from before a GradScaler scaled it: the unscaled loss is recorded."""
        if hasattr(result, "detach") and hasattr(outputs, "detach"):
            self._unscaled = (id(result), outputs.detach(), self._share_of(outputs))

    def _before_scaling(self, root: Any) -> tuple[Any, float]:
        """The loss from which a GradScaler made this root, and its share; None if none did."""
        unscaled, self._unscaled = self._unscaled, None
        return unscaled[1:] if unscaled is not None and unscaled[0] == id(root) else (None, NULL_DOUBLE)

    def _scale_of(self, root: Any) -> float:
        """The loss scale by which the job itself multiplied this root; 1 without one."""
        if self._share is None or root is None or root.numel() != 1:
            return 1.0
        scale = self._share.scale(root, 2.0) if self._scales else self._share.scale(root)
        self._scales = self._scales or scale != 1.0
        if self._scales:
            self.recorder.loss_scale = scale
        return scale

    def _share_of(self, root: Any, scale: float = 1.0) -> float:
        """The root's share of the step's loss; NULL if unknown. Most jobs do not accumulate: for those it is
        computed in the first steps only."""
        self._accumulates = self._accumulates or self.recorder.micro_step > 0
        if self._share is None or root is None or root.numel() != 1:
            return NULL_DOUBLE
        return self._share.of(root, scale)

    def _send(self, loss: Any, now: int, share: float, scale: float = 1.0) -> None:
        """Copy a loss from a device. A separate function: a closure would cost the caller on every call."""
        step, micro_step = self.recorder.step, self.recorder.micro_step
        loss = loss.detach().reshape(())
        self.sent = self._delivery.send(
            loss, lambda value: self._deliver(step, micro_step, now, value / scale, share)
        )

    # The agent's thread -----------------------------------------------------

    def _deliver(self, step: int, micro_step: int, now: int, value: float, share: float) -> None:
        self.recorder.note_loss(step, micro_step, now + ANCHOR_NS, value, share)
        self._arrived.setdefault(step, []).append((value, share))
        if self.on_late_loss is not None:
            self.on_late_loss(step, micro_step, value)

    def collect(self) -> None:
        """Write the device losses that have arrived, and put them into the rows of their steps."""
        self._delivery.collect()
        arrived, self._arrived = self._arrived, {}
        for step, values in arrived.items():
            self.recorder.deliver_loss(step, values)
