"""Gradient rows: builds the rows of python.gradients, one parameter before and after an optimizer's step.

HOT PATH on sampled steps, on the training thread. For parameters on a device, the agent's thread writes the
rows when the figures arrive. torch inside functions.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from probe.base.clock import ANCHOR_NS
from probe.job.instruments.core import statistics
from probe.job.instruments.core.delivery import Delivery, host_number
from probe.job.instruments.core.recorder import Recorder
from probe.job.instruments.modules.parameter_names import Known
from probe.recording.layout import NULL_DOUBLE, NULL_INTEGER, NULL_STRING

_NONE = [math.nan] * statistics.MOMENTS


class StatisticsRequest:
    """A request for statistics of all parameters on the following steps.

    `updates`: measure the updates of all parameters. `histograms`, unless None, is called with step, kind,
    name, and the row of `statistics.distribution`."""

    def __init__(self, *, updates: bool = False, histograms: Callable[..., object] | None = None) -> None:
        self.updates = updates
        self.histograms = histograms
        self.rows = 0
        self.done: set[int] = set()
        """Ids of the parameters measured so far, while one step has no time for all."""
        self.late_steps: list[int] = []
        """Steps without time for all parameters."""


class Entry:
    """One parameter of a sample. Figures are numbers for a CPU, tensors for a device."""

    __slots__ = ("before", "group", "moments", "name", "numel", "parameter", "place", "sharded", "text",
                 "update", "values", "weight", "weight_norm")

    def __init__(
        self, parameter: Any, group: int, known: Known | None, weight: statistics.Values, weight_norm: Any
    ) -> None:
        self.parameter = parameter
        self.group = group
        self.name, self.place = (NULL_STRING, NULL_INTEGER) if known is None else known[:2]
        self.text: str | None = None if known is None else known.text
        self.numel = weight.numel
        self.sharded = weight.sharded
        self.weight = weight.flat
        self.weight_norm = weight_norm
        self.before: Any = None
        """A copy from before the step; None if there was no room for it."""
        self.values: statistics.Values | None = None
        """The gradient's values; None without a gradient, or for a kind without statistics."""
        self.moments: Any = None
        self.update: Any = None
        """Norm of the update."""

    @property
    def copied_bytes(self) -> int:
        """Size of the copy."""
        return 0 if self.before is None else self.before.numel() * self.before.element_size()

    def measure_gradient(self) -> None:
        """Measure the current gradient."""
        self.values = statistics.values_of(self.parameter.grad)
        if self.values is not None:
            self.moments = statistics.moments(self.values.flat)

    def measure_update(self) -> None:
        """Measure the update, after the step. Frees the copy."""
        before, self.before = self.before, None
        after = statistics.values_of(self.parameter)
        if before is not None and after is not None and after.flat.shape == before.shape:
            self.update = statistics.difference_norm(before, after.flat)


class OpenSample(NamedTuple):
    """A sample between the two sides of an optimizer's step."""

    entries: list[Entry]
    closure: bool
    request: StatisticsRequest | None
    unscale: Any
    """A scaler's factor that the gradients still contain."""
    unclip: Any
    """Factor that undoes clipping."""
    measure: bool
    """Whether to measure the norm of all gradients after the step: the step's closure computes them."""


class Rows:
    """Writes the entries of a sample."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._append = recorder.rings["python.gradients"].append
        intern = recorder.intern
        self._reasons = {False: intern("sampled"), True: intern("asked")}
        self._measured, self._estimated = intern("measured"), intern("estimated")

    def write(self, optimizer: Any, sample: OpenSample, rate: float, delivery: Delivery) -> None:
        """Write the rows of all entries: immediately on a CPU, else when their figures arrive."""
        step, t_ns = self._recorder.step, time.monotonic_ns() + ANCHOR_NS
        reason = self._reasons[sample.request is not None]
        elsewhere: dict[Any, list[tuple[Entry, float]]] = {}
        for entry in sample.entries:
            own_rate = _rate(optimizer, entry.group, rate)
            if entry.weight.is_cpu:
                factors = [_number(sample.unscale), _number(sample.unclip)]
                row = [*(entry.moments or _NONE), float(entry.weight_norm), _number(entry.update), *factors]
                self._put(step, t_ns, reason, entry, own_rate, row)
            else:
                elsewhere.setdefault(entry.weight.device, []).append((entry, own_rate))
        for device, entries in elsewhere.items():
            self._send(step, t_ns, reason, sample, device, entries, delivery)

    def _send(
        self, step: int, t_ns: int, reason: int, sample: OpenSample, device: Any,
        entries: list[tuple[Entry, float]], delivery: Delivery,
    ) -> None:
        torch: Any = sys.modules["torch"]

        def single(value: Any) -> Any:
            if isinstance(value, torch.Tensor):
                return value.to(device, torch.float64, non_blocking=True).reshape(1)
            return torch.full((1,), _number(value), dtype=torch.float64, device=device)

        factors = [single(sample.unscale), single(sample.unclip)]
        none = torch.full((statistics.MOMENTS,), math.nan, dtype=torch.float64, device=device)
        pieces: list[Any] = []
        for entry, _ in entries:
            moments = none if entry.moments is None else entry.moments
            pieces += [moments, single(entry.weight_norm), single(entry.update), *factors]

        def arrived(figures: list[float]) -> None:
            size = len(figures) // len(entries)
            for number, (entry, rate) in enumerate(entries):
                self._put(step, t_ns, reason, entry, rate, figures[number * size : (number + 1) * size])

        for entry, _ in entries:
            entry.parameter = entry.weight = None
            has = entry.values
            entry.values = None if has is None else has._replace(flat=None)
        delivery.send(torch.cat(pieces), arrived)

    def _put(
        self, step: int, t_ns: int, reason: int, entry: Entry, rate: float, row: list[float]
    ) -> None:
        """Write one row. `row`: the gradient's moments, the norms of weight and update, the scaler's factor
        still in the gradient, the factor that undoes clipping; NaN for unknown."""
        weight_norm, update, scale, unclip = row[statistics.MOMENTS :]
        unscale = 1.0 if scale != scale or not scale else 1.0 / scale
        gradient = [NULL_DOUBLE] * 4
        counts = [NULL_INTEGER, NULL_INTEGER]
        zero_ratio = used = NULL_DOUBLE
        if entry.values is not None:
            found = statistics.figures(row[: statistics.MOMENTS], entry.values.numel)
            whole = unscale * (1.0 if unclip != unclip else unclip)
            used = found.norm * unscale
            counts = [found.nan_count, found.inf_count]
            if found.numel:
                gradient = [found.norm * whole, found.mean * whole, found.std * whole, found.abs_max * whole]
                zero_ratio = found.zero_ratio
        kind = NULL_STRING
        if entry.update is not None:
            kind = self._measured
        elif used != NULL_DOUBLE and rate != NULL_DOUBLE:
            kind, update = self._estimated, abs(rate) * used
        known = kind != NULL_STRING
        self._append(
            step, t_ns, entry.name, entry.place, entry.numel, *gradient, *counts, zero_ratio, weight_norm,
            update if known else NULL_DOUBLE,
            update / weight_norm if known and weight_norm > 0 else NULL_DOUBLE,
            kind, entry.sharded, reason,
        )


def _number(value: Any) -> float:
    return math.nan if value is None else float(value)


def _rate(optimizer: Any, group: int, first: float) -> float:
    """Learning rate of a group; NULL if it is on a device."""
    if group == 0:
        return first
    return host_number(
        optimizer.param_groups[group].get("lr") if group < len(optimizer.param_groups) else None
    )
