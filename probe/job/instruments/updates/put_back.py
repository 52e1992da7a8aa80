"""Put back: detects weights that were reset to an earlier state of the training, or overwritten with
unrelated values.

Writes python.put_back and python.overwritten. HOT PATH on the training thread, around each step of the
leading optimizer: reads torch's count of in-place writes to one parameter. `ELEMENTS` of its elements are
copied only if something other than the optimizer wrote to it since the last step. The agent's thread
compares them with those at the start and at the last evaluations. Weights that an evaluation swaps and
restores are not reported: they equal those at the start of that evaluation.
"""

from __future__ import annotations

import math
import sys
from collections import deque
from collections.abc import Callable
from typing import Any

from probe.base.accelerator import capturing
from probe.base.isolation import Isolation
from probe.job.instruments.core.delivery import Delivery
from probe.job.instruments.core.recorder import Recorder
from probe.job.instruments.loop.forward import Forward
from probe.job.instruments.loop.optimizers import Optimizers
from probe.job.instruments.updates.update_rows import Watched, taken, wall_ns
from probe.job.instruments.updates.watched_parameters import WatchedParameters
from probe.recording.journal import Journal

MOST_KEPT = 64
"""Evaluations remembered."""
EVALUATION_STEPS = 20
"""Minimum number of steps between two remembered evaluations."""
MOST_PAUSE_STEPS = 64
"""Maximum number of steps between two comparisons, if something else writes to the weights every step."""
MOST_ROWS = 500
UNRELATED = 0.35
"""Values with a cosine up to this are unrelated: for 64 random values it is smaller in 199 of 200 cases, and
training keeps weights similar for thousands of steps."""
LEAST_COMPARED = 48
BEGINNING, EVALUATION, CHANGED = range(3)


def _none() -> None:
    """Stands in for the weak reference while no parameter is watched."""


class PutBack:
    """Watches one parameter of the leading optimizer."""

    def __init__(
        self, recorder: Recorder, isolation: Isolation, optimizers: Optimizers, forward: Forward,
        watched: WatchedParameters, journal: Journal,
    ) -> None:
        self._recorder = recorder
        self._isolation = isolation
        self._optimizers, self._forward = optimizers, forward
        self._watched, self._journal = watched, journal
        self._one: Watched | None = None
        self.leader = 0
        """`id` of the optimizer around whose steps `Optimizers` checks `parameter`."""
        self.parameter: Callable[[], Any] = _none
        self.version = 0
        """torch's count of in-place writes to the parameter when the last step ended; 0 before the first."""
        self._kept_step = self._next_step = 0
        self._pause = 1
        self._taken: deque[tuple[int, int, int, Any]] = deque(maxlen=MOST_KEPT)
        self._delivery = Delivery()
        # The agent's thread.
        self._history: deque[tuple[int, Any]] = deque(maxlen=MOST_KEPT)
        self._first: tuple[int, Any] | None = None
        self._last_step = self._written = 0

    def install(self) -> None:
        """Watch from the next step on; off the hot path."""
        guard = self._isolation.guard
        self.written = guard("put back", self._was_written)
        self._optimizers.put_back = self
        self._forward.evaluates = guard("put back", self._evaluates)

    def uninstall(self) -> None:
        """Stop watching, and release everything."""
        self._optimizers.put_back = self._forward.evaluates = None
        self._one, self.parameter = None, _none
        self._taken.clear()
        self._history.clear()
        self._delivery.clear()

    # HOT PATH ---------------------------------------------------------------

    def _was_written(self, parameter: Any) -> None:
        """A step begins, and somebody other than the optimizer wrote to the parameter since the last one."""
        one = self._one
        if one is None:
            return
        if not self.version:
            self._take(BEGINNING, one, parameter)
        elif self._recorder.step >= self._next_step:
            self._take(CHANGED, one, parameter)
            self._next_step = self._recorder.step + self._pause
            self._pause = min(2 * self._pause, MOST_PAUSE_STEPS)

    def _evaluates(self) -> None:
        """The first call of a module without gradients since the last step."""
        one, step = self._one, self._recorder.step
        if one is None or not self.version or step < self._kept_step + EVALUATION_STEPS:
            return
        parameter = one.parameter()
        if parameter is not None:
            self._kept_step = step
            self._take(EVALUATION, one, parameter)

    def _take(self, kind: int, one: Watched, parameter: Any) -> None:
        torch: Any = sys.modules["torch"]
        if capturing() or torch._C._len_torch_dispatch_stack():
            return
        step, t_ns = self._recorder.step, wall_ns()
        with torch.no_grad(), torch._C.DisableTorchFunctionSubclass():
            values = taken(parameter, one)
        if values is None:
            return
        if values.is_cpu:
            self._taken.append((kind, step, t_ns, values))
        else:
            self._delivery.send(values, lambda row: self._taken.append((kind, step, t_ns, row)))

    # The agent's thread -----------------------------------------------------

    def collect(self) -> None:
        """Compare the samples taken, and choose the parameter."""
        self._delivery.collect()
        while self._taken:
            self._compare(*self._taken.popleft())
        leader = self._optimizers.expected_leader()
        one = self._one
        if leader is not None and (one is None or one.parameter() is None or id(leader) != self.leader):
            chosen = self._watched.largest_of(leader)
            if chosen is not None:
                self._history.clear()
                self._first = None
                self.parameter, self.version = _none, 0
                self._one, self.leader = chosen, id(leader)
                self.parameter = chosen.parameter  # last: from here on the training thread checks it

    def _compare(self, kind: int, step: int, t_ns: int, found: Any) -> None:
        values = found if isinstance(found, list) else found.tolist()
        if kind != CHANGED:
            if kind == BEGINNING:
                self._first = (step, values)
            self._history.append((step, values))
            return
        if not self._history or values == self._history[-1][1]:
            return  # the weights were restored, or overwritten with the same values
        before_step, before = self._history[-1]
        seen = [one for one in (self._first, *self._history) if one is not None and one[1] == values]
        self._history.append((step, values))
        if not seen:
            self._compare_unrelated(step, t_ns, before_step, before, values)
            return
        as_of = seen[0][0]
        self._pause, self._next_step = 1, 0
        one = self._one
        if one is not None and self._written < MOST_ROWS:
            self._written += 1
            self._journal.append({"table": "python.put_back", "rows": [{
                "step": step, "t_ns": t_ns, "param": self._watched.name_of(one), "as_of_step": as_of,
                "lost_steps": step - max(self._last_step, as_of), "looked_at": one.looked_at,
            }]})
        self._last_step = step

    def _compare_unrelated(
        self, step: int, t_ns: int, before_step: int, before: list[float], values: list[float]
    ) -> None:
        """Write a row if the new values have about the same size as the old ones but do not resemble them."""
        one = self._one
        size = math.sqrt(sum(value * value for value in values))
        size_before = math.sqrt(sum(value * value for value in before))
        if one is None or one.looked_at < LEAST_COMPARED or not 0.2 * size_before < size < 5 * size_before:
            return
        cosine = sum(new * old for new, old in zip(values, before, strict=True)) / (size * size_before)
        if abs(cosine) > UNRELATED or self._written >= MOST_ROWS:
            return
        self._pause, self._next_step = 1, 0
        self._written += 1
        self._journal.append({"table": "python.overwritten", "rows": [{
            "step": step, "t_ns": t_ns, "param": self._watched.name_of(one), "before_step": before_step,
            "cosine": cosine, "size_ratio": size / size_before, "looked_at": one.looked_at,
        }]})
