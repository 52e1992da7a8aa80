"""Gradient norm: the L2 norm of all gradients of the leading optimizer, for python.steps.

HOT PATH, on the training thread. The job's own `clip_grad_norm_` gives the norm for free; its inner functions
are wrapped, so that a reference imported before the wrapping is covered too. Without clipping, gradients are
measured right before the step, as often as `SHARE` of the budget allows. NULL for parameters sharded over
ranks, unless the job's own clipping computed the norm of all shards: nothing here communicates.

torch.compile traces through the wrappers. A job that compiled before the installation gets none, because they
could make it recompile.
"""

from __future__ import annotations

import math
import sys
import time
from collections import deque
from collections.abc import Callable
from statistics import median
from types import GeneratorType
from typing import Any

from probe.base.accelerator import measurable
from probe.base.isolation import Isolation
from probe.job.instruments.core import statistics
from probe.job.instruments.core.delivery import Delivery, host_number
from probe.job.instruments.core.patch import Patches
from probe.job.instruments.core.recorder import Recorder
from probe.job.instruments.loop.optimizers import Optimizers

_now = time.monotonic_ns
_cpu = time.thread_time_ns
"""CPU time: unaffected by other load."""
SHARE = 0.1
"""Fraction of the budget for measuring: 0.1 % of step time at the default of 1 %."""
FIRST_STEPS = 3
"""First measurements, made in any case: they warm caches, so their cost is not representative."""
LONGEST_STEPS = 10_000
CLIPS_STEPS = 16
"""Steps without measuring after a step that clipped."""
_SMALL = 1e-6
"""torch adds this to a norm before dividing by it."""
_BYTES_PER_NS = 1000
"""Estimated memory bandwidth of a device: our clock does not see the time of a kernel."""


class GradientNorm:
    """Finds the norm, from clipping or by measuring. `due`: the step from which on to measure."""

    def __init__(
        self, recorder: Recorder, isolation: Isolation, optimizers: Optimizers, delivery: Delivery,
        budget_ratio: float, compiles: Callable[[], bool],
    ) -> None:
        self.recorder = recorder
        self.due = 0
        self.fixed_interval: int | None = None
        """Steps between measurements regardless of cost, as in `Gradients`."""
        self.measures = True
        """If False, norms are taken from clipping only."""
        self.spent_ns = self.spent_cpu_ns = 0
        """Total cost; CPU time of measuring only."""
        self._isolation = isolation
        self._optimizers = optimizers
        self._delivery = delivery
        self._budget_ratio = budget_ratio
        self._compiles = compiles
        self._patches = Patches()
        self._kind: float | None = None
        self._covered: dict[tuple[int, int, int, int], frozenset[int]] = {}
        self._clip: tuple[int, frozenset[int], Any] | None = None
        """The last clipping: step, optimizers covered, the factor that undoes it."""
        self.scale_left: bool | None = None
        """Whether gradients still contain the scaler's factor when they are clipped without `unscale_`, as
        measured by `updates`: the job may divide them itself. None if not known yet."""
        self.clipping: Callable[[bool], None] | None = None
        """Called at each clipping of such gradients, with whether the clipping is over."""
        self._costs: deque[int] = deque(maxlen=5)
        self._measured = 0

    def wrap(self) -> None:
        """Wrap the functions that clip; off the hot path."""
        if self._compiles() or self._patches.made:
            self._patches.live[0] = True
            return
        import torch
        from torch.nn.utils import clip_grad

        if hasattr(clip_grad, "_clip_grads_with_norm_"):  # from torch 2.6 on
            places: list[tuple[Any, str, Any]] = [
                (clip_grad, "_get_total_norm", self._around_norm),
                (clip_grad, "_clip_grads_with_norm_", self._around_clip),
                (torch.nn.utils, "get_total_norm", self._around_norm),
                (torch.nn.utils, "clip_grads_with_norm_", self._around_clip),
            ]
        else:
            places = [
                (clip_grad, "clip_grad_norm_", self._around_whole),
                (torch.nn.utils, "clip_grad_norm_", self._around_whole),
            ]
        for owner, name, around in places:
            if hasattr(owner, name):
                self._patches.wrap(owner, name, around, traced=True)
        self.wrap_fsdp()

    def unwrap(self) -> None:
        """Put the originals back; in a job that compiles, wrappers stay and pass everything through."""
        if self._compiles():
            self._patches.live[0] = False
        else:
            self._patches.undo()
        self._clip = None

    def wrap_fsdp(self) -> None:
        """Wrap FSDP's own method once the job imported FSDP; off the hot path."""
        module: Any = sys.modules.get("torch.distributed.fsdp.fully_sharded_data_parallel")
        kind = getattr(module, "FullyShardedDataParallel", None)
        if kind is not None and self._patches.live[0] and not self._patches.has(kind, "clip_grad_norm_"):
            self._patches.wrap(kind, "clip_grad_norm_", self._around_method, traced=True)

    # HOT PATH: clipping -----------------------------------------------------

    def _around_norm(self, original: Any) -> Any:
        live, tracing = self._patches.live, sys.modules["torch"].compiler.is_compiling

        def get_total_norm(tensors: Any, norm_type: float = 2.0, *args: Any, **kwargs: Any) -> Any:
            result = original(tensors, norm_type, *args, **kwargs)
            if not tracing() and live[0]:
                self._kind = norm_type
            return result

        return get_total_norm

    def _around_clip(self, original: Any) -> Any:
        live, tracing = self._patches.live, sys.modules["torch"].compiler.is_compiling
        note = self._isolation.guard("gradients", self._clipped)

        def clip_grads_with_norm_(
            parameters: Any, max_norm: Any, total_norm: Any, *args: Any, **kwargs: Any
        ) -> Any:
            if tracing() or not live[0]:
                return original(parameters, max_norm, total_norm, *args, **kwargs)
            if isinstance(parameters, GeneratorType):
                parameters = list(parameters)
            note(parameters, max_norm, total_norm, self._kind, False)
            return original(parameters, max_norm, total_norm, *args, **kwargs)

        return clip_grads_with_norm_

    def _around_whole(self, original: Any) -> Any:
        live, tracing = self._patches.live, sys.modules["torch"].compiler.is_compiling
        note = self._isolation.guard("gradients", self._clipped)

        def clip_grad_norm_(
            parameters: Any, max_norm: Any, norm_type: float = 2.0, *args: Any, **kwargs: Any
        ) -> Any:
            if tracing() or not live[0]:
                return original(parameters, max_norm, norm_type, *args, **kwargs)
            if isinstance(parameters, GeneratorType):
                parameters = list(parameters)
            total_norm = original(parameters, max_norm, norm_type, *args, **kwargs)
            note(parameters, max_norm, total_norm, norm_type, True)
            return total_norm

        return clip_grad_norm_

    def _around_method(self, original: Any) -> Any:
        live = self._patches.live
        note = self._isolation.guard("gradients", self._clipped)

        def clip_grad_norm_(model: Any, max_norm: Any, norm_type: float = 2.0, *args: Any) -> Any:
            total_norm = original(model, max_norm, norm_type, *args)
            if live[0]:
                note(list(model.parameters()), max_norm, total_norm, norm_type, True)
            return total_norm

        return clip_grad_norm_

    def _clipped(
        self, parameters: Any, max_norm: Any, total_norm: Any, kind: float | None, is_over: bool
    ) -> None:
        """The job clips gradients: take the norm if it covers the leading optimizer's gradients."""
        begun = _now()
        recorder = self.recorder
        tensor = sys.modules["torch"].Tensor
        leader = self._optimizers.expected_leader()
        if not recorder.owns_gradients():
            return  # another thread's backward may be writing gradients
        if leader is None or not isinstance(total_norm, tensor):
            return
        ones = parameters if isinstance(parameters, (list, tuple)) else [parameters]
        if not ones:
            counts = self._optimizers.clips_of_nothing
            counts.setdefault("from", recorder.step)
            counts["until"], counts["times"] = recorder.step, counts.get("times", 0) + 1
            return
        covered = self._covers(ones)
        if id(leader) not in covered:
            return
        plain = type(total_norm) is tensor
        if not plain and statistics.is_sharded(total_norm):
            return
        norm = total_norm if plain else getattr(total_norm, "_local_tensor", total_norm)
        most = host_number(max_norm)
        if norm.is_cpu:
            norm = norm.item()
            undone = max((norm + _SMALL) / most, 1.0) if most > 0 and math.isfinite(norm) else 1.0
        elif measurable(norm):
            norm = norm.detach()
            undone = _undone(norm, max_norm)
        else:
            return
        self._clip = (recorder.step, covered, undone)
        recorder.clip_norm = most
        scale = self._scale_before_step(leader)
        left: bool | None = False
        if scale is not None:
            left = self.scale_left
            if self.clipping is not None:
                self.clipping(is_over)
        if left is not None:
            recorder.clip_scaled = left
        if kind == 2.0:
            if left is not None:
                self._record_norm(norm, scale if left else None)
            self.due = max(self.due, recorder.step + CLIPS_STEPS)
        self._spend(_now() - begun)

    def _covers(self, parameters: Any) -> frozenset[int]:
        """Ids of the optimizers whose gradients are all among those of `parameters`."""
        if not parameters:
            return frozenset()
        made = self._optimizers.made_count
        key = (len(parameters), id(parameters[0]), id(parameters[-1]), made)
        found = self._covered.get(key)
        if found is None:
            if len(self._covered) > 64:
                self._covered.clear()
            those = {id(parameter) for parameter in parameters}
            found = self._covered[key] = frozenset(
                id(optimizer) for optimizer in self._optimizers.alive() if _within(optimizer, those)
            )
        return found

    def _scale_before_step(self, optimizer: Any) -> Any:
        """The loss scale if the optimizer's gradients may still contain it; else None."""
        scaler = self._optimizers.newest_scaler()
        if scaler is None:
            own = self._optimizers.own_scale()
            return own if own > 1.0 else None
        if not scaler.is_enabled():
            return None
        states = scaler._per_optimizer_states
        stage = states[id(optimizer)]["stage"].name if id(optimizer) in states else "READY"
        return scaler._scale if stage == "READY" else None

    @property
    def last_clip(self) -> object:
        """Stands for the job's last clipping: another object for each."""
        return self._clip

    def undone_by(self, optimizer: Any) -> Any:
        """The factor that undoes the job's clipping in this step: a number, or a tensor on a device; 1 if it
        did not clip."""
        clip = self._clip
        if clip is None or clip[0] != self.recorder.step or id(optimizer) not in clip[1]:
            return 1.0
        return clip[2]

    def clip_of(self, optimizer: Any) -> Any:
        """`undone_by`, but None without clipping."""
        clip = self._clip
        if clip is None or clip[0] != self.recorder.step or id(optimizer) not in clip[1]:
            return None
        return clip[2]

    # HOT PATH: measuring ----------------------------------------------------

    def measure(self, optimizer: Any) -> None:
        """Measure the norm right before the leading optimizer's step, unless clipping gave it."""
        begun, begun_cpu = _now(), _cpu()
        recorder = self.recorder
        if not self.measures:
            self.due = sys.maxsize
            return
        if self._clip is not None and self._clip[0] == recorder.step:
            self.due = max(self.due, recorder.step + 1)
            return
        flats = _whole_gradients(optimizer)
        if flats is None:
            self.due = recorder.step + LONGEST_STEPS
            return
        total = statistics.total_norm(flats)
        if total is not None:
            self._record_norm(total, getattr(optimizer, "grad_scale", None))
        self._spend(_now() - begun)
        cost = _cpu() - begun_cpu
        self.spent_cpu_ns += cost
        if total is not None and not isinstance(total, float):
            cost += sum(flat.numel() * flat.element_size() for flat in flats) // _BYTES_PER_NS
        self._choose_next(cost)

    def _choose_next(self, cost_ns: int) -> None:
        self._costs.append(cost_ns)
        self._measured += 1
        interval = 1
        if self._measured >= FIRST_STEPS:
            allowed_ns = self._budget_ratio * SHARE * usual_wall_ns(self.recorder)
            interval = interval_for(median(self._costs), allowed_ns)
        self.due = self.recorder.step + (self.fixed_interval or interval)

    def _record_norm(self, norm: Any, scale: Any) -> None:
        """Put a norm into the row of the current step; for a device, later when it has arrived."""
        recorder = self.recorder
        if isinstance(norm, float) or norm.is_cpu:
            factor = 1.0 if scale is None else float(scale)
            recorder.grad_norm = float(norm) / factor
            return
        here = scale if scale is None or isinstance(scale, float) else scale.to(norm.device)
        whole = norm if here is None else norm / here
        step = recorder.step
        self._delivery.send(whole.reshape(1), lambda row: recorder.deliver_grad_norm(step, row[0]))

    def _spend(self, cost_ns: int) -> None:
        self.spent_ns += cost_ns
        self.recorder.cost_ns += cost_ns


def _whole_gradients(optimizer: Any) -> list[Any] | None:
    """All gradients of an optimizer; None if one is sharded or has no real elements."""
    found = []
    kinds = statistics.common_kinds()
    for parameter in _parameters(optimizer):
        gradient = parameter.grad
        if gradient is None:
            continue
        if not statistics.is_common(gradient, kinds) or type(parameter) not in kinds[0] or parameter.__dict__:
            if statistics.is_sharded(gradient) or statistics.is_sharded(parameter):
                return None
            values = statistics.values_of(gradient)
            if values is None:
                return None
            gradient = values.flat
        found.append(gradient)
    return found


def _within(optimizer: Any, those: set[int]) -> bool:
    """Whether all gradients of an optimizer belong to parameters with these ids."""
    parameters = _parameters(optimizer)
    with_gradient = [one for one in parameters if one.grad is not None]
    return all(id(one) in those for one in with_gradient or parameters)


def _parameters(optimizer: Any) -> list[Any]:
    return [one for group in optimizer.param_groups for one in group["params"]]


def _undone(norm: Any, max_norm: Any) -> Any:
    """The factor that undoes clipping, on the device of the norm; 1 if it is not finite."""
    undone = ((norm + _SMALL) / max_norm).clamp(min=1.0).double()
    torch: Any = sys.modules["torch"]
    return torch.where(torch.isfinite(undone), undone, 1.0)


def usual_wall_ns(recorder: Recorder) -> float:
    """Median duration of the last steps; 0 before the first."""
    last = [step.wall_ns for step in recorder.past.costs(recorder.step, 9)]
    return float(median(last)) if last else 0.0


def interval_for(cost_ns: float, allowed_ns: float) -> int:
    """Interval in steps at which an operation of `cost_ns` costs at most `allowed_ns` per step."""
    if allowed_ns <= 0:
        return LONGEST_STEPS
    return max(1, min(LONGEST_STEPS, math.ceil(cost_ns / allowed_ns)))
