"""Optimizer state: figures of an optimizer's moments and settings, in python.optimizers.

HOT PATH on sampled and requested steps, on the training thread, right after an optimizer's step. Reads the
state of one parameter per group, a different one each time, at most `MOST_ELEMENTS` values of it. The states
of torch's own optimizers are recognized by name; for others the row has only the group's settings. For state
on a device, the agent's thread writes the row when the figures arrive. The agent's thread also writes rows
with the settings alone when another optimizer takes the lead: so that a training which follows another in the
same process is known even where no sample comes. torch inside functions.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

from probe.base.clock import ANCHOR_NS
from probe.job.instruments.core import statistics
from probe.job.instruments.core.delivery import Delivery, host_number
from probe.job.instruments.core.recorder import Recorder
from probe.recording.layout import NULL_DOUBLE, NULL_INTEGER

MOST_GROUPS = 8
MOST_ELEMENTS = 1 << 16
FIRST = ("exp_avg", "momentum_buffer")
"""First moments: a running mean of the gradient."""
SECOND = ("exp_avg_sq", "square_avg", "sum")
"""Second moments: a running mean, or a sum, of the squared gradient. The update is divided by their root."""


class OptimizerState:
    """Writes the rows; `write` is called after a step."""

    def __init__(self, recorder: Recorder, delivery: Delivery, made_step: Callable[[Any], int]) -> None:
        self._recorder = recorder
        self._made_step = made_step
        self._delivery = delivery
        self._append = recorder.rings["python.optimizers"].append
        self._turn = 0
        self._sizes: dict[tuple[int, ...], int] = {}

    def write(self, optimizer: Any) -> None:
        """One row for each of the first `MOST_GROUPS` groups."""
        self._turn += 1
        for number, group in enumerate(optimizer.param_groups[:MOST_GROUPS]):
            settings = self._settings(optimizer, number, group)
            parameters = group["params"]
            state = optimizer.state.get(parameters[self._turn % len(parameters)]) if parameters else None
            figures = None if not isinstance(state, dict) else _figures(state, host_number(group.get("eps")))
            if figures is None:
                self._put(settings, None)
            elif figures.is_cpu:
                self._put(settings, figures.tolist())
            else:
                self._delivery.send(figures, lambda row, settings=settings: self._put(settings, row))  # type: ignore[misc]

    def write_settings(self, optimizer: Any, groups: list[Any]) -> None:
        """The same rows without figures of the state. The agent's thread."""
        for number, group in enumerate(groups[:MOST_GROUPS]):
            self._put(self._settings(optimizer, number, group), None)

    def _settings(self, optimizer: Any, number: int, group: dict[str, Any]) -> list[Any]:
        """The first columns of a group's row."""
        return [
            self._recorder.step, time.monotonic_ns() + ANCHOR_NS,
            self._recorder.intern(type(optimizer).__name__), number,
            self._numel(optimizer, number, group["params"]), host_number(group.get("lr")),
            host_number(group.get("weight_decay")), _momentum(group), host_number(group.get("eps")),
            self._made_step(optimizer),
        ]

    def _numel(self, optimizer: Any, number: int, parameters: list[Any]) -> int:
        """Elements of a group's parameters, counted once. Another optimizer may get the same id later."""
        key = (id(optimizer), self._made_step(optimizer), number, len(parameters))
        if key not in self._sizes:
            if len(self._sizes) > 64:
                self._sizes.clear()
            self._sizes[key] = sum(parameter.numel() for parameter in parameters)
        return self._sizes[key]

    def _put(self, settings: list[Any], row: list[float] | None) -> None:
        """Write a row from a group's settings and the numbers of `_figures`."""
        if row is None:
            self._append(*settings, NULL_INTEGER, *[NULL_DOUBLE] * 4, NULL_INTEGER, NULL_INTEGER)
            return
        steps, norm, least, most, floor, nonfinite, checked = row
        doubles = [NULL_DOUBLE if value != value else value for value in (norm, least, most, floor)]
        self._append(
            *settings, NULL_INTEGER if steps != steps else int(steps), *doubles,
            NULL_INTEGER if checked == 0 else int(nonfinite), int(checked),
        )


def _figures(state: dict[str, Any], eps: float) -> Any:
    """Steps, norm of the first moments, smallest and largest second moment, share of those below eps²,
    non-finite values, values checked: float64 on the state's device, NaN for missing figures. None without a
    known state."""
    torch: Any = sys.modules["torch"]
    first, second = _values(state, FIRST), _values(state, SECOND)
    known = [one for one in (first, second) if one is not None]
    if not known:
        return None
    device = known[0].device

    def single(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return value.to(device, torch.float64, non_blocking=True).reshape(())
        return torch.full((), value, dtype=torch.float64, device=device)

    none = float("nan")
    least = most = floor = none
    if second is not None and second.numel():
        least, most = torch.aminmax(second)
        if eps != NULL_DOUBLE:
            floor = torch.count_nonzero(second.double() < eps * eps) / second.numel()
    odd = sum(torch.count_nonzero(~torch.isfinite(one)) for one in known)
    steps = state.get("step", none)
    if isinstance(steps, torch.Tensor) and steps.numel() != 1:
        steps = none
    norm = none if first is None else statistics.norm(first)
    checked = sum(one.numel() for one in known)
    return torch.stack([single(one) for one in (steps, norm, least, most, floor, odd, checked)])


def _values(state: dict[str, Any], names: tuple[str, ...]) -> Any:
    """At most `MOST_ELEMENTS` values of the first of these states that exists; None without."""
    for name in names:
        values = statistics.values_of(state.get(name))
        if values is not None and values.flat.is_floating_point():
            stride = -(-values.flat.numel() // MOST_ELEMENTS) or 1
            return values.flat[::stride]
    return None


def _momentum(group: dict[str, Any]) -> float:
    betas = group.get("betas")
    return host_number(betas[0] if isinstance(betas, (tuple, list)) and betas else group.get("momentum"))
