"""Update samples: follow a gradient from the end of backward to the step and on to the next backward.

Writes python.updates, and python.graphs through `graphs`. HOT PATH on the training thread, on sampled steps:
copies `ELEMENTS` elements of at most `MOST_PARAMETERS` parameters at each of five moments, and walks the
graph of the loss. Gradients are touched only if this is the only training thread. Nothing waits for a device.
The agent's thread computes the rows and chooses the parameters of the next sample; `tensors/pace` chooses
its step.
"""

from __future__ import annotations

import math
import sys
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from probe.base.accelerator import capturing, measurable
from probe.base.isolation import Isolation
from probe.job.instruments.core.delivery import Delivery, host_number
from probe.job.instruments.core.recorder import Recorder
from probe.job.instruments.loop.losses import Losses
from probe.job.instruments.loop.optimizers import NEVER, Optimizers
from probe.job.instruments.tensors.gradient_norm import GradientNorm, usual_wall_ns
from probe.job.instruments.tensors.pace import Pace
from probe.job.instruments.updates.graphs import Graphs
from probe.job.instruments.updates.reached_parameters import kept_for, reached
from probe.job.instruments.updates.update_rows import Entry, UpdateRows, taken, wall_ns
from probe.job.instruments.updates.watched_parameters import Plan, WatchedParameters
from probe.recording.layout import NULL_DOUBLE

_now = time.monotonic_ns
_cpu = time.thread_time_ns
FIRST_STEP, EARLY = 3, (3, 6, 12, 24, 48)
"""Step of the first sample, and the steps between early samples: most errors exist from the start."""
SHORTEST_STEPS = 24
"""Minimum number of steps between two later samples."""
LATE_STEPS = 2
"""A sample ends this many steps after it began, even if some parameter was not stepped."""
RETRY_STEPS = 64
"""Steps to wait after an abandoned sample."""
WALK_NS, WALK_PORTION = 2_000_000, 0.05
"""Time limit for walking a loss's graph: this time, or this fraction of a step if that is longer."""
PATIENCE = 3
"""After this many graphs that are too large, no graph is walked any more."""


class Updates:
    """Samples gradients and updates. `due`: the step from which on backwards and steps are reported to it."""

    def __init__(
        self, recorder: Recorder, isolation: Isolation, optimizers: Optimizers, losses: Losses,
        watched: WatchedParameters, norm: GradientNorm, budget_ratio: float, spend: Callable[[int], None],
    ) -> None:
        self.recorder = recorder
        self.due = NEVER
        self.pace = Pace(
            recorder, budget_ratio, first=FIRST_STEP, early=EARLY, shortest=SHORTEST_STEPS, common=False
        )
        self._isolation = isolation
        self._optimizers, self._losses, self._norm = optimizers, losses, norm
        self._watched = watched
        self._spend = spend
        self._rows = UpdateRows(recorder)
        self._graphs = Graphs(recorder, optimizers, watched)
        self._delivery = Delivery()
        self._finished: deque[tuple[int, int, list[Entry], Any]] = deque(maxlen=16)
        self._plan: Plan | None = None
        """Prepared by the agent's thread for the next sample."""
        self._entries: list[Entry] = []
        """The current sample; used by the training thread only."""
        self._reached: set[int] | None = set()
        """Leaves of all graphs of the current sample; None if one was too large to be walked."""
        self._leaves: set[int] | None = None
        """Ids of the leaves of the newest of these graphs."""
        self._began = 0
        self._stepped = False
        """Whether an optimizer has stepped since the last backward."""
        self._cost_ns = self._too_large = 0

    def install(self) -> None:
        """Listen to backwards and steps; off the hot path."""
        guard = self._isolation.guard
        self._torch: Any = sys.modules["torch"]
        self.backward_begins = guard("updates", self._backward_begins)
        self.backward_ends = guard("updates", self._backward_ends)
        self.step_begins = guard("updates", self._step_begins)
        self.step_ends = guard("updates", self._step_ends)
        self._losses.updates = self._optimizers.updates = self
        self._norm.clipping = self._clips

    def uninstall(self) -> None:
        """Stop listening, and release everything."""
        self.due = NEVER
        self._losses.updates = self._optimizers.updates = self._norm.clipping = None
        self._entries, self._plan = [], None
        self._finished.clear()
        self._delivery.clear()

    # HOT PATH ---------------------------------------------------------------

    def _backward_begins(self, root: Any) -> None:
        """Backward is about to run, from step `due` on."""
        begun, begun_cpu = _now(), _cpu()
        recorder, torch = self.recorder, self._torch
        if not self._may_sample():
            return
        with torch.no_grad(), torch._C.DisableTorchFunctionSubclass():
            if self._entries:
                self._sample_later()
                if self._is_over():
                    self._close(begun_cpu)
                    recorder.cost_ns += _now() - begun
                    return
            elif recorder.micro_step or not recorder.timing or self._plan is None:
                return
            else:
                self._open(self._plan)
                if not self._entries:  # its parameters are gone, with a training that is over
                    self._plan, self.due = None, NEVER
                    return
            self._walk(root)
        self._stepped = False
        self._account(begun, begun_cpu)

    def _backward_ends(self) -> None:
        if not self._entries or not self._may_sample():
            return
        begun, begun_cpu = _now(), _cpu()
        with self._torch.no_grad(), self._torch._C.DisableTorchFunctionSubclass():
            clip = self._norm.last_clip
            for entry in self._entries:
                if not entry.stepped and not self._is_clipped_and_passed(entry, clip):
                    gradient = entry.parameter.grad
                    entry.ended = taken(gradient, entry.watched)
                    entry.ended_at = _state(gradient, entry.ended)
                    entry.clip_before = clip
        self._account(begun, begun_cpu)

    def _is_clipped_and_passed(self, entry: Entry, clip: Any) -> bool:
        """Whether its gradient was clipped since its last backward, and this one, of another loss, does not
        lead to it: what the clipping is to be compared with would be lost."""
        if entry.ended is None or self._leaves is None or clip is entry.clip_before:
            return False
        return id(entry.parameter) not in self._leaves

    def _step_begins(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """Right before a step of an optimizer, from step `due` on."""
        if not self._entries or not self._may_sample():
            return
        begun, begun_cpu = _now(), _cpu()
        if self._losses.in_backward:  # gradients freed layer by layer: no moment between backward and step
            self._give_up()
            return
        closure = any(callable(one) for one in (*args, *kwargs.values()) if one is not optimizer)
        own = id(optimizer)
        with self._torch.no_grad(), self._torch._C.DisableTorchFunctionSubclass():
            factors = self._factors(optimizer)
            for entry in self._entries:
                if own not in entry.owners:
                    continue
                if entry.stepped:
                    entry.spoiled = entry.spoiled or entry.later is None
                    continue
                entry.before = taken(entry.parameter, entry.watched)
                if not closure:
                    gradient = entry.parameter.grad
                    entry.entered = taken(gradient, entry.watched)
                    entry.at_step = _state(gradient, entry.entered)
                    entry.differentiable = gradient is not None and gradient.requires_grad
                    entry.kept = kept_for(gradient) if entry.differentiable else 0
                self._note_settings(entry, optimizer, factors)
        self._account(begun, begun_cpu)

    def _step_ends(self, optimizer: Any) -> None:
        self._stepped = True
        if not self._entries:
            return
        begun, begun_cpu = _now(), _cpu()
        own = id(optimizer)
        with self._torch.no_grad(), self._torch._C.DisableTorchFunctionSubclass():
            for entry in self._entries:
                if own in entry.owners and not entry.stepped and entry.before is not None:
                    entry.after = taken(entry.parameter, entry.watched)
                    entry.stepped = True
                    if entry.kept and kept_for(entry.parameter.grad) != entry.kept:
                        entry.kept = 0  # the step ran a backward through it
        self._account(begun, begun_cpu)

    def _clips(self, is_over: bool) -> None:
        """Gradients that are still scaled are about to be clipped, or have been clipped (`is_over`)."""
        with self._torch.no_grad(), self._torch._C.DisableTorchFunctionSubclass():
            for entry in self._entries:
                if entry.ended is not None and not entry.stepped:
                    entry.clipped, entry.clip_is_in = taken(entry.parameter.grad, entry.watched), is_over

    def _may_sample(self) -> bool:
        """Whether gradients may be read now; if not, abandon the current sample."""
        if not self.recorder.owns_gradients() or capturing() or self._torch._C._len_torch_dispatch_stack():
            self._give_up()
            return False
        return True

    def _give_up(self) -> None:
        self._entries, self._plan = [], None
        self.pace.wait(RETRY_STEPS)
        self.due = NEVER

    def _open(self, plan: Plan) -> None:
        self._began, self._cost_ns = self.recorder.step, 0
        self._reached = set() if self._too_large < PATIENCE else None
        inside = self._optimizers.in_step
        leader, others = id(self._optimizers.leader()), self._stepped_lately()
        for one in plan.parameters:
            parameter = one.parameter()
            if parameter is None:
                continue
            entry = Entry(one, parameter, *plan.owners.get(id(parameter), ((), 0, 0)))
            if not entry.owners:  # no optimizer will step it
                entry.before = entry.after = taken(parameter, one)
            elif inside:  # in the closure of a step, before it updates
                entry.before = taken(parameter, one)
            if others and (not others.isdisjoint(entry.owners) or leader in entry.owners):
                _note_left(entry)  # its optimizer and another one step in turn
            self._entries.append(entry)

    def _stepped_lately(self) -> set[int]:
        """Ids of the optimizers beside the leader that stepped in the last step."""
        since = self.recorder.step - 1
        return {key for key, step in self._optimizers.others_stepped.items() if step >= since}

    def _sample_later(self) -> None:
        """Before a later backward: read the values after the last step, and check for cleared gradients."""
        for entry in self._entries:
            if entry.stepped or (not entry.owners and self.recorder.step > self._began):
                if entry.later is None and not entry.spoiled:
                    entry.later = taken(entry.parameter, entry.watched)
            elif entry.ended is not None and not self._stepped and _is_gone(entry.parameter.grad, entry):
                entry.cleared += 1
                entry.between = taken(entry.parameter, entry.watched)
                entry.left = None
            elif entry.left_known and self._stepped:
                _note_left(entry)

    def _is_over(self) -> bool:
        late = self.recorder.step - self._began
        if late >= LATE_STEPS:
            return True
        waiting = (not entry.stepped for entry in self._entries if entry.owners)
        return late > 0 and not any(waiting)

    def _walk(self, root: Any) -> None:
        self._leaves = None
        if self._reached is None:
            return
        limit_ns = max(WALK_NS, int(WALK_PORTION * usual_wall_ns(self.recorder)))
        found = reached(root, limit_ns)
        if found is None:
            self._reached = None
            self._too_large += 1
            return
        self._leaves = set(found.leaves)
        self._reached |= self._leaves
        self._watched.note_leaves(found.leaves)
        self._graphs.note(found, root, limit_ns)

    def _factors(self, optimizer: Any) -> tuple[Any, Any]:
        """The factor that undoes the clipping of its gradients (NaN without), and the loss scale in them
        after backward: numbers, or one-element tensors still on a device."""
        undone = self._norm.clip_of(optimizer)
        scaler = self._optimizers.newest_scaler()
        scale: Any = self._optimizers.own_scale()
        if scaler is not None and scaler.is_enabled():
            scale = getattr(scaler, "_scale", None)
        return self._carried(undone), self._carried(scale)

    def _carried(self, number: Any) -> Any:
        known = host_number(number)
        if known != NULL_DOUBLE:
            return known
        if not isinstance(number, self._torch.Tensor) or number.numel() != 1 or not measurable(number):
            return math.nan
        return number.detach().reshape(1).clone()  # the scaler writes its next factor into the same tensor

    def _note_settings(self, entry: Entry, optimizer: Any, factors: tuple[Any, Any]) -> None:
        """Note the decay of its group, and how the gradient was scaled and clipped."""
        group = optimizer.param_groups[entry.group]
        rate, decay = host_number(group.get("lr")), host_number(group.get("weight_decay"))
        kind = type(optimizer)
        entry.rounds = kind.__module__.startswith("torch.optim") and rate not in (0.0, NULL_DOUBLE)
        if decay > 0 and rate > 0:
            entry.decay = _decay(kind.__name__, group, rate * decay)
        entry.clip_undone, entry.scale = factors

    def _close(self, begun_cpu: int) -> None:
        """Pass the values to the agent's thread, and choose the step of the next sample."""
        entries, self._entries = self._entries, []
        self._plan, self.due = None, NEVER
        carried: list[Any] = []
        values = [one for entry in entries for one in entry.release(self._reached, carried)]
        if values:
            whole = self._torch.cat([*values, *carried]).double()
            step, t_ns = self._began, wall_ns()
            if whole.is_cpu:
                self._finished.append((step, t_ns, entries, whole))
            else:
                self._delivery.send(
                    whole, lambda row: self._finished.append((step, t_ns, entries, self._on_host(row)))
                )
        cost = self._cost_ns + _cpu() - begun_cpu
        self._spend(cost)
        self.pace.took(cost)

    def _on_host(self, row: list[float]) -> Any:
        return self._torch.tensor(row, dtype=self._torch.float64)

    def _account(self, begun: int, begun_cpu: int) -> None:
        self._cost_ns += _cpu() - begun_cpu
        self.recorder.cost_ns += _now() - begun

    # The agent's thread -----------------------------------------------------

    def collect(self) -> None:
        """Write the rows of finished samples, and prepare the next one."""
        self._delivery.collect()
        self._graphs.collect()
        while self._finished:
            left = self._rows.write(*self._finished.popleft())
            self._norm.scale_left = self._norm.scale_left if left is None else left
        if self.due == NEVER:
            plan = self._watched.plan()
            if plan is not None:
                self._plan = plan
                self.due = self.pace.due


def _state(gradient: Any, values: Any) -> str:
    """`none`, `present`, or empty for a gradient of a kind that is not sampled."""
    return "none" if gradient is None else "present" if values is not None else ""


def _note_left(entry: Entry) -> None:
    """A backward begins after a step of another optimizer: take what that one left behind as the gradient.
    A gradient of a kind that is not sampled is not known."""
    gradient = entry.parameter.grad
    entry.left = taken(gradient, entry.watched)
    entry.left_known = gradient is None or entry.left is not None


def _is_gone(gradient: Any, entry: Entry) -> bool:
    """Whether a backward's gradient has been cleared. On a device only None counts as cleared: reading values
    would wait for it."""
    if gradient is None:
        return True
    if not gradient.is_cpu or not bool(entry.ended.any()):
        return False
    now = taken(gradient, entry.watched)
    return now is not None and not bool(now.any())


def _decay(kind: str, group: dict[str, Any], coefficient: float) -> float:
    """Fraction of a value that weight decay removes per step; NULL if it goes through the adaptive
    gradient."""
    if kind == "SGD":
        momentum = host_number(group.get("momentum"))
        if not 0.0 <= momentum < 1.0:
            return coefficient
        # If the momentum's memory is longer than the decay takes, it limits the rate: the two oscillate.
        return min(coefficient / (1.0 - momentum), 1.0 - math.sqrt(momentum) if momentum else 1.0)
    return coefficient if kind == "AdamW" or group.get("decoupled_weight_decay") is True else NULL_DOUBLE
