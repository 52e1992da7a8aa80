"""Weight sums: hashes of a few weights of each model, to compare ranks, and each model's distance moved.

Writes python.weights. HOT PATH on the training thread, in a few steps: copies `SAMPLED` elements of at most
`MOST_PARAMETERS` parameters of each model after the leading optimizer's step, and for replicas also of the
gradients, after backward and before the step. The sampled steps are the same on every rank: 2, 8, 32, then
multiples of 128, 256, …, as `tensors/pace` allows. Nothing waits for a device. The agent's thread finds the
models and computes the rows.
"""

from __future__ import annotations

import math
import struct
import sys
import time
import weakref
import zlib
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from probe.base.accelerator import capturing, measurable
from probe.base.isolation import Isolation
from probe.job.instruments.core import statistics
from probe.job.instruments.core.delivery import Delivery
from probe.job.instruments.core.object_access import attributes, entries, unwrapped
from probe.job.instruments.core.recorder import Recorder
from probe.job.instruments.facts.hyperparameters import models_in_frames
from probe.job.instruments.loop.losses import Losses
from probe.job.instruments.loop.optimizers import NEVER, Optimizers
from probe.job.instruments.modules.module_names import ModuleNames
from probe.job.instruments.tensors.pace import Pace
from probe.job.instruments.updates.update_rows import is_allocated, wall_ns
from probe.job.instruments.updates.watched_parameters import WatchedParameters
from probe.recording.layout import NULL_DOUBLE, NULL_INTEGER

_now = time.monotonic_ns
FIRST_STEP, EARLY, SHORTEST_STEPS = 2, (8, 32), 128
SAMPLED, MOST_PARAMETERS, MOST_MODELS = 8, 64, 4
SEARCH_S = 2.0
"""Minimum seconds between two searches for models in the variables of the training thread."""
SEARCHES = 60
REST = 1000
"""Pause after a search, as a multiple of its duration: a search holds the GIL, at most 0.1 % of the time."""
_REPLICAS = "DistributedDataParallel"


class Model(NamedTuple):
    """A model to sample."""

    number: int
    label: int
    optimizer: int
    replicated: bool
    precision: float
    """Relative precision of its dtype."""
    parameters: list[tuple[weakref.ref[Any], Any]]
    """Each with the positions of the elements to copy."""
    shapes: tuple[tuple[int, ...], ...]


class WeightSums:
    """Samples the weights. `due`: the step from which on optimizer steps are reported to it."""

    def __init__(
        self, recorder: Recorder, isolation: Isolation, optimizers: Optimizers, losses: Losses,
        modules: ModuleNames, watched: WatchedParameters, budget_ratio: float, spend: Callable[[int], None],
        from_start: Callable[[], bool],
    ) -> None:
        self.due = NEVER
        self._recorder = recorder
        self._isolation = isolation
        self._optimizers, self._losses = optimizers, losses
        self._modules, self._watched = modules, watched
        self.pace = Pace(recorder, budget_ratio, first=FIRST_STEP, early=EARLY, shortest=SHORTEST_STEPS)
        self._spend = spend
        self._from_start = from_start
        self._append = recorder.rings["python.weights"].append
        self._models: list[Model] = []
        self._leader = 0
        self._gradients: dict[int, Any] = {}
        self._before: dict[int, Any] = {}
        """Weights on entry to the step, of untrained models and of trained models of the same shapes."""
        self._made: dict[int, Any] = {}
        """Gradients after the last backward; `_gradients`: on entry to the step."""
        self._finished: deque[tuple[int, int, Model, int, list[int], Any]] = deque(maxlen=64)
        self._delivery = Delivery()
        # The agent's thread.
        self._known: dict[int, tuple[weakref.ref[Any], int]] = {}
        self._beside: list[weakref.ref[Any]] = []
        self._replicas: set[int] = set()
        self._first: dict[int, tuple[list[float], int]] = {}
        self._searches = 0
        self._next_s = 0.0

    def install(self) -> None:
        """Listen to optimizer steps; off the hot path."""
        self.backward_ends = self._isolation.guard("weights", self._backward_ends)
        self.step_begins = self._isolation.guard("weights", self._step_begins)
        self.step_ends = self._isolation.guard("weights", self._step_ends)
        self._optimizers.sums = self

    def uninstall(self) -> None:
        """Stop listening, and release everything."""
        self.due = NEVER
        self._losses.sums = self._optimizers.sums = None
        self._models = []
        self._gradients.clear()
        self._before.clear()
        self._made.clear()
        self._finished.clear()
        self._delivery.clear()

    # HOT PATH ---------------------------------------------------------------

    def _backward_ends(self) -> None:
        """A backward ended, from step `due` on."""
        recorder = self._recorder
        if recorder.step != self.pace.due or not recorder.owns_gradients():
            return
        begun = _now()
        for model in self._models:
            if model.optimizer and model.replicated:
                self._made[model.number] = self._take(model, gradients=True)
        recorder.cost_ns += _now() - begun

    def _step_begins(self, optimizer: Any) -> None:
        recorder = self._recorder
        self._gradients, self._before = {}, {}
        if id(optimizer) != self._leader or not recorder.owns_gradients():
            return
        if recorder.step != self.pace.due:
            self._skip_step()
            return
        begun = _now()
        for model in self._models:
            if model.optimizer and model.replicated:
                self._gradients[model.number] = self._take(model, gradients=True)
        beside = {model.shapes for model in self._models if not model.optimizer}
        for model in self._models:
            if model.shapes in beside:
                self._before[model.number] = self._take(model, gradients=False)
        recorder.cost_ns += _now() - begun

    def _step_ends(self, optimizer: Any) -> None:
        recorder = self._recorder
        step = recorder.step
        if id(optimizer) != self._leader or step != self.pace.due:
            return
        begun = _now()
        taken = {model.number: self._take(model, gradients=False) for model in self._models}
        for model in self._models:
            weights = taken[model.number]
            if weights is not None:
                made, gradients = self._made.get(model.number), self._gradients.get(model.number)
                self._send(step, model, [weights, made, gradients, self._lag(model, taken)])
        self._gradients, self._made, self._before = {}, {}, {}
        cost = _now() - begun
        recorder.cost_ns += cost
        self._spend(cost)
        self.pace.took(cost)
        self.due = self.pace.due

    def _skip_step(self) -> None:
        """This step is not sampled. If the due step was missed, choose the next one."""
        step = self._recorder.step
        if step > self.pace.due:
            self.pace.wait(next((one for one in EARLY if one > step), SHORTEST_STEPS))
        self.due = self.pace.due

    def _take(self, model: Model, *, gradients: bool) -> Any:
        """The sampled elements of its parameters, concatenated; None if one cannot be read or none is left.
        Parameters without a gradient are skipped for `gradients`."""
        torch: Any = sys.modules["torch"]
        if capturing() or torch._C._len_torch_dispatch_stack():
            return None
        pieces = []
        with torch.no_grad(), torch._C.DisableTorchFunctionSubclass():
            for reference, places in model.parameters:
                parameter = reference()
                tensor = parameter.grad if gradients and parameter is not None else parameter
                if tensor is None:
                    if not gradients:
                        return None
                    continue
                if tensor.layout is not torch.strided or tensor.device != places.device:
                    return None
                if not is_allocated(tensor) or not measurable(tensor):
                    return None
                pieces.append(torch.take(tensor.detach(), places))
            return torch.cat(pieces) if pieces else None

    def _lag(self, model: Model, after: dict[int, Any]) -> Any:
        """Distance of an untrained model from the trained one before the step, relative to the step's change;
        to the nearest one if several have its shapes. None for trained models, or if none has its shapes."""
        own = self._before.get(model.number)
        if model.optimizer or own is None:
            return None
        found = []
        for other in self._models:
            before, now = self._before.get(other.number), after[other.number]
            if not other.optimizer or other.shapes != model.shapes or before is None or now is None:
                continue
            if before.device == own.device and before.dtype == own.dtype:
                found.append((own - before).norm() / (now - before).norm())
        torch: Any = sys.modules["torch"]
        return torch.stack(found).amin().reshape(1) if found else None

    def _send(self, step: int, model: Model, taken: list[Any]) -> None:
        """Deliver the weights, their gradients after backward and at the step, and the lag."""
        first = model.parameters[0][0]()
        writes = 0 if first is None else first._version
        torch: Any = sys.modules["torch"]
        whole = torch.cat([one for one in taken if one is not None]).double()
        sizes = [0 if one is None else one.numel() for one in taken]
        t_ns = wall_ns()

        def arrived(row: Any) -> None:
            self._finished.append((step, t_ns, model, writes, sizes, row))

        if whole.is_cpu:
            arrived(whole)
        else:
            self._delivery.send(whole, arrived)

    # The agent's thread -----------------------------------------------------

    def collect(self) -> None:
        """Write the rows, and search for models that appeared or disappeared."""
        self._delivery.collect()
        if self._finished:
            self._watched.keep_up()
        while self._finished:
            self._put(*self._finished.popleft())
        now_s = time.monotonic()
        if now_s < self._next_s or not self._modules.ready or not self._watched.owners:
            return
        leader = self._optimizers.expected_leader()
        if leader is None:
            return
        self._search()
        self._models = self._described()
        self._losses.sums = self if any(model.replicated for model in self._models) else None
        self._leader = id(leader)
        if self.due == NEVER:
            self.due = 0
        ended_s = time.monotonic()
        self._next_s = ended_s + max(SEARCH_S, REST * (ended_s - now_s))

    def _search(self) -> None:
        """Find models that are not roots of a training forward, such as target networks and averages, and
        replicas whose inner model is called directly."""
        if self._searches >= SEARCHES:
            return
        self._searches += 1
        torch: Any = sys.modules["torch"]
        inside = {id(unwrapped(root)) for root in self._modules.roots()}
        for found in models_in_frames(self._recorder.thread, torch.nn.Module):
            if type(found).__name__ == _REPLICAS:
                self._replicas.add(id(unwrapped(found)))
                continue
            known = id(found) in inside or any(one() is found for one in self._beside)
            if not known and len(self._beside) < MOST_MODELS and not self._is_part(found):
                self._beside.append(weakref.ref(found))

    def _is_part(self, model: Any) -> bool:
        """Whether a module shares parameters with a known model, or has no parameters or no children: a layer
        or a loss."""
        own = {id(one) for one in _parameters(model)}
        if not own or not any(child for _, child in entries(attributes(model).get("_modules"))):
            return True
        known = [unwrapped(root) for root in self._modules.roots()]
        known += [one for reference in self._beside if (one := reference()) is not None]
        return any(own & {id(one) for one in _parameters(other)} for other in known)

    def _described(self) -> list[Model]:
        roots = self._modules.roots()
        for root in roots:
            if type(root).__name__ == _REPLICAS:
                self._replicas.add(id(unwrapped(root)))
        models = [unwrapped(root) for root in roots]
        models += [one for reference in self._beside if (one := reference()) is not None]
        found: list[Model] = []
        seen: set[int] = set()
        for model in models:
            parameters = _parameters(model)
            if not parameters or id(parameters[0]) in seen or len(found) >= MOST_MODELS:
                continue
            seen.update(id(one) for one in parameters)
            described = self._describe(model, parameters)
            if described is not None:
                found.append(described)
        return found

    def _describe(self, model: Any, parameters: list[Any]) -> Model | None:
        torch: Any = sys.modules["torch"]
        kinds = statistics.common_kinds()
        plain = [
            one for one in parameters if statistics.is_common(one, kinds) and one.numel()
            and not (one.__dict__ and statistics.is_sharded(one))
        ]
        if not plain:
            return None
        known = self._known.get(id(model))
        if known is None or known[0]() is not model:
            known = self._known[id(model)] = (weakref.ref(model), len(self._known))
        step = -(-len(plain) // MOST_PARAMETERS)
        chosen = [one for one in plain[::step] if one.device == plain[0].device]
        owner = self._watched.owner_of(plain)
        along = torch.arange(SAMPLED, device=plain[0].device)
        return Model(
            known[1], self._recorder.intern(type(model).__name__), owner, id(model) in self._replicas,
            float(torch.finfo(plain[0].dtype).eps),
            [(weakref.ref(one), along * one.numel() // SAMPLED) for one in chosen],
            tuple(tuple(one.shape) for one in plain),
        )

    def _put(
        self, step: int, t_ns: int, model: Model, writes: int, sizes: list[int], values: Any
    ) -> None:
        known = values if isinstance(values, list) else values.tolist()
        weights, rest = known[: sizes[0]], known[sizes[0] :]
        backward, gradients = rest[: sizes[1]], rest[sizes[1] : sizes[1] + sizes[2]]
        # Its optimizer may have been made after the model was found.
        held = (one for reference, _ in model.parameters if (one := reference()) is not None)
        optimizer = model.optimizer or self._watched.owner_of(held)
        lag = known[-1] if sizes[3] and not optimizer else float("nan")
        first = self._first.get(model.number)
        if first is None or len(first[0]) != len(weights):
            first = self._first[model.number] = (weights, writes)
        size = _norm(first[0])
        apart = _norm([now - then for now, then in zip(weights, first[0], strict=True)])
        made = writes - first[1]
        self._append(
            step, t_ns, model.label, model.number, optimizer, model.replicated,
            self._from_start(), len(weights),
            _hash(weights), *(_hash(one) if one else NULL_INTEGER for one in (gradients, backward)),
            _finite(_norm(weights) / len(weights) ** 0.5), _finite(apart / size if size else float("nan")),
            made, model.precision * made, _finite(lag),
        )


def _parameters(model: Any) -> list[Any]:
    """All parameters of a model, in the order of `named_parameters()`, without running its code."""
    found: dict[int, Any] = {}
    waiting, seen = [model], set()
    while waiting:
        module = waiting.pop()
        if module is None or id(module) in seen:
            continue
        seen.add(id(module))
        held = attributes(module)
        found.update({id(one): one for _, one in entries(held.get("_parameters")) if one is not None})
        waiting += [child for _, child in reversed(entries(held.get("_modules")))]
    return list(found.values())


def _norm(values: list[float]) -> float:
    return math.sqrt(sum(value * value for value in values))


def _hash(values: list[float]) -> int:
    return zlib.crc32(struct.pack(f"<{len(values)}d", *values))


def _finite(value: float) -> float:
    return value if value - value == 0.0 else NULL_DOUBLE
