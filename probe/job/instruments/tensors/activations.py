"""Activations: statistics of module outputs, on requested steps.

Writes python.activations. HOT PATH on those steps only: `begin` registers one global forward hook between
two steps, `end` removes it. Never active without a request: a hook on every module call and a pass over every
output do not fit into a budget of 1 %. Outputs are read right after the call, before they can change in
place. For outputs on a device, rows are written when the figures arrive. Not used in a job that compiles: the
hook would be traced into its graph. torch inside functions.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from typing import Any

from probe.base.accelerator import capturing
from probe.base.clock import ANCHOR_NS
from probe.base.isolation import Isolation
from probe.job.instruments.core import statistics
from probe.job.instruments.core.delivery import Delivery
from probe.job.instruments.core.object_access import contents
from probe.job.instruments.core.recorder import Recorder
from probe.job.instruments.loop.forward import Forward
from probe.job.instruments.modules.module_names import ModuleNames
from probe.recording.layout import NULL_DOUBLE

_now = time.monotonic_ns
MOST_CALLS = 2048
"""Maximum number of calls measured in one step."""
DEADLINE_NS = 1_000_000_000
"""Maximum time spent in one step; if exceeded, the next step measures every other call."""
_BOUNDS = {
    "Sigmoid": (0.0, 1.0), "Tanh": (-1.0, 1.0), "Softmax": (0.0, 1.0), "Softmax2d": (0.0, 1.0),
    "Hardsigmoid": (0.0, 1.0), "Hardtanh": (-1.0, 1.0), "Softsign": (-1.0, 1.0),
}
"""Bounds of bounded activations, by the name of the class."""
_CHANNELS = ("Conv", "BatchNorm", "InstanceNorm", "GroupNorm", "MaxPool", "AvgPool", "AdaptiveAvgPool")
"""Prefixes of classes whose units are in the second dimension."""


class Activations:
    """The hook; off until `begin`."""

    def __init__(
        self, recorder: Recorder, isolation: Isolation, forward: Forward, names: ModuleNames,
        delivery: Delivery,
    ) -> None:
        self._recorder = recorder
        self._forward = forward
        self._names = names
        self._delivery = delivery
        self._hook = isolation.guard("activations", self._after_call)
        self._append = recorder.rings["python.activations"].append
        self._asked = recorder.intern("asked")
        self._handle: Any = None
        self._histograms: Callable[..., object] | None = None
        self._micro_step = (-1, -1)
        self._place = self._taken = 0
        self._stride = 1
        self._offset = 0
        self._spent_ns = 0
        self._waiting: dict[Any, list[tuple[list[Any], int, Any]]] = {}
        self.rows = 0
        self.late_steps: list[int] = []
        """Steps in which calls were left out."""

    # Between two steps ------------------------------------------------------

    def begin(self, histograms: Callable[..., object] | None) -> None:
        """Measure the calls of the step that begins. `histograms` as in `StatisticsRequest`."""
        if self._handle is None:
            module: Any = sys.modules["torch.nn.modules.module"]
            self._handle = module.register_module_forward_hook(self._hook)
        self._histograms = histograms
        self._spent_ns = self._taken = 0
        self._offset += 1

    def end(self) -> None:
        """Remove the hook, and copy the figures that a device computed. From any thread."""
        handle, self._handle = self._handle, None
        if handle is not None:
            handle.remove()
        waiting, self._waiting = self._waiting, {}
        for rows in waiting.values():
            self._send(rows)

    def forget(self) -> None:
        """Reset for a new request."""
        self.rows, self.late_steps = 0, []
        self._stride, self._offset = 1, 0

    # HOT PATH ---------------------------------------------------------------

    def _after_call(self, module: Any, _args: Any, output: Any) -> None:
        recorder = self._recorder
        if recorder.elsewhere() or recorder.phase == "backward" or not self._forward.trains():
            return
        begun = _now()
        if self._micro_step != (recorder.step, recorder.micro_step):
            self._micro_step, self._place = (recorder.step, recorder.micro_step), 0
        place = self._place
        self._place += 1
        if (place + self._offset) % self._stride or not self._within_limits():
            return
        torch: Any = sys.modules["torch"]
        tensor = first_tensor(output, torch.Tensor)
        if tensor is None or transformed(torch):
            return
        with torch.no_grad(), torch._C.DisableTorchFunctionSubclass():
            self._record(module, tensor, place, begun)
        spent = _now() - begun
        self._spent_ns += spent
        recorder.cost_ns += spent

    def _within_limits(self) -> bool:
        if self._spent_ns < DEADLINE_NS and self._taken < MOST_CALLS:
            return True
        step = self._recorder.step
        if step not in self.late_steps[-1:]:
            self.late_steps.append(step)
            self._stride *= 2
        return False

    def _record(self, module: Any, tensor: Any, place: int, begun: int) -> None:
        values = statistics.values_of(tensor)
        if values is None:
            return
        recorder = self._recorder
        self._taken += 1
        self.rows += 1
        moments = statistics.moments(values.flat)
        dead, saturated = _dead(module, tensor), _saturated(module, values.flat)
        label, name = recorder.intern(type(module).__name__), self._names.of(module)
        fields = [
            recorder.step, recorder.micro_step, begun + ANCHOR_NS, label if name is None else name,
            label, place, recorder.intern(str(list(tensor.shape))),
        ]
        if values.flat.is_cpu:
            ends = [math.nan if one is None else float(one) for one in (dead, saturated)]
            self._put(fields, values.numel, [*moments, *ends])
        else:
            torch: Any = sys.modules["torch"]
            none = torch.full((), math.nan, dtype=torch.float64, device=values.flat.device)
            both = torch.stack([none if one is None else one for one in (dead, saturated)])
            rows = self._waiting.setdefault(values.flat.device, [])
            rows.append((fields, values.numel, torch.cat([moments, both])))
        if self._histograms is not None:
            self._distribution(module, values.flat)

    def _distribution(self, module: Any, flat: Any) -> None:
        found, step, tell = statistics.distribution(flat), self._recorder.step, self._histograms
        assert tell is not None
        name = self._names.path(module) or type(module).__name__
        if found.is_cpu:
            tell(step, "activation", name, found.tolist())
        else:
            self._delivery.send(found, lambda row: tell(step, "activation", name, row))

    def _send(self, rows: list[tuple[list[Any], int, Any]]) -> None:
        torch: Any = sys.modules["torch"]
        if capturing():
            return

        def arrived(figures: list[float]) -> None:
            size = statistics.MOMENTS + 2
            for number, (fields, numel, _) in enumerate(rows):
                self._put(fields, numel, figures[number * size : (number + 1) * size])

        self._delivery.send(torch.cat([vector for _, _, vector in rows]), arrived)

    def _put(self, fields: list[Any], numel: int, row: list[float]) -> None:
        found = statistics.figures(row[: statistics.MOMENTS], numel)
        dead, saturated = row[statistics.MOMENTS :]
        known = [found.mean, found.std, found.min, found.max, found.zero_ratio]
        self._append(
            *fields, *([NULL_DOUBLE] * 5 if not numel else known), _or_null(dead), _or_null(saturated),
            found.nan_count, found.inf_count, self._asked,
        )


def first_tensor(value: Any, kind: type, depth: int = 2) -> Any:
    """The first tensor in an output, up to `depth` levels deep in containers."""
    if isinstance(value, kind):
        return value
    items = contents(type(value), value) if depth else ()
    found = (first_tensor(item, kind, depth - 1) for item in items)
    return next((one for one in found if one is not None), None)


def transformed(torch: Any) -> bool:
    """Whether a dispatch mode or transform of the job is active, which would see our operations."""
    stacked = torch._C._len_torch_dispatch_stack() or capturing()
    return bool(stacked or torch._C._functorch.peek_interpreter_stack() is not None)


def _dead(module: Any, tensor: Any) -> Any:
    """Share of units that are 0 for the whole batch; None if the output has no units."""
    local = getattr(tensor, "_local_tensor", tensor).detach()
    if local.dim() < 2 or not local.numel() or not local.is_floating_point():
        return None
    channels = local.dim() >= 4 or type(module).__name__.startswith(_CHANNELS)
    return statistics.dead_ratio(local, 1 if channels else -1)


def _saturated(module: Any, flat: Any) -> Any:
    bounds = _BOUNDS.get(type(module).__name__)
    if bounds is None or not flat.numel() or not flat.is_floating_point():
        return None
    if type(module).__name__ == "Hardtanh":
        bounds = (float(module.min_val), float(module.max_val))
    return statistics.saturated_ratio(flat, *bounds)


def _or_null(value: float) -> float:
    return NULL_DOUBLE if value != value else value
