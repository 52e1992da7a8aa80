"""Optimizer steps: their duration, which optimizer counts steps, skipped updates, learning rate.

Writes python.steps (through the recorder) and the `step` rows of python.torch_trace. HOT PATH: `_before`,
`_after` and the scaler's wrapper run on the training thread around every optimizer step, the first two in C
where that is loaded (`base/compiled/optimizers.c`). Uses the job's torch.

The leading optimizer ends steps: the living one with the most parameters. If another one steps `SILENCE`
times without a step of the leader, it becomes the leader. A wrapper around `Optimizer.__init__` sees
optimizers when they are created, so a GAN's steps are counted correctly from the first.
"""

from __future__ import annotations

import functools
import sys
import time
import weakref
from collections.abc import Callable
from typing import Any

from probe.base import compiled
from probe.base.isolation import Isolation
from probe.job.instruments.core.delivery import host_number
from probe.job.instruments.core.hook_tables import change_between_hooks
from probe.job.instruments.core.living import living
from probe.job.instruments.core.patch import Patches, pass_over
from probe.job.instruments.core.recorder import Recorder
from probe.job.instruments.core.step_listeners import (
    OptimizerSampler,
    SeedListener,
    StepCallback,
    StepFinisher,
    StepSampler,
    StepTracer,
    WeightSampler,
    WriteWatch,
)
from probe.job.introspection.training_frameworks import unwrapped
from probe.recording.layout import NULL_BOOLEAN, NULL_INTEGER

_now = time.monotonic_ns
SILENCE = 8
MOST_REMEMBERED = 64
"""Optimizers of which the first parameter, or the last step, is remembered."""
NEVER = sys.maxsize
"""A value of `Optimizers.sample_from_step`."""


@compiled.form("Optimizers")
class Optimizers:
    """Installs the hooks; `seen` are the optimizers known, oldest first."""

    def __init__(self, recorder: Recorder, isolation: Isolation) -> None:
        self.recorder = recorder
        self.seen: list[weakref.ref[Any]] = []
        self._schedulers: list[weakref.ref[Any]] = []
        self._scalers: list[weakref.ref[Any]] = []
        self.made_any = False
        self.made_count = 0
        """Number of optimizers created or found so far."""
        self.others_stepped: dict[int, int] = {}
        """The last step of each optimizer other than the leader, by id."""
        self._made_steps: dict[int, tuple[weakref.ref[Any], int]] = {}
        """The step before which each optimizer was made, by id."""
        self._held_first: dict[tuple[str, int, int], weakref.ref[Any]] = {}
        self.remade: dict[str, int] = {}
        """Optimizers created after the first step for parameters that already had one of the same class: how
        often, and the steps of the first and the last time."""
        self.clips_of_nothing: dict[str, int] = {}
        """Calls of `clip_grad_norm_` without any parameter: how often, and the steps of the first and the
        last; set by the gradient norm."""
        self.trace_step: StepTracer | None = None
        """Set by the modules instrument: writes a `step` row on sampled steps."""
        self.before_update: Callable[[], object] | None = None
        """Set by the NaN detector if losses come from a device: called first, before each step."""
        self.before_step: StepCallback | None = None
        self.after_step: StepCallback | None = None
        """Called with the optimizer right before and after each of its steps, while an action is active."""
        self.sample: StepSampler | None = None
        """Set by the gradients instrument: called with an optimizer and its arguments right before its step,
        from step `sample_from_step` on."""
        self.sample_from_step = NEVER
        self.finish_sample: StepFinisher | None = None
        """Set by `sample`: called once after the step with the optimizer and its learning rate."""
        self.updates: OptimizerSampler | None = None
        """Set by the updates instrument: `step_begins` and `step_ends`, called from step `due` on."""
        self.put_back: WriteWatch | None = None
        """Set by the put-back instrument: `written`, called before a step of the leader if another writer
        changed the watched parameter."""
        self.sums: WeightSampler | None = None
        """Set by the weights instrument: `step_begins` and `step_ends`, called from step `due` on."""
        self.seeded: SeedListener | None = None
        """Set after a random generator was seeded: `step_begins`, called at the next step."""
        self._leader: weakref.ref[Any] | None = None
        self._scaler: weakref.ref[Any] | None = None
        self._others = 0
        self._depth = self._stepping = self._micro_step = 0
        self._start_ns = self._closure_start_ns = self._known_ns = 0
        self._closure_begins: Callable[[], object] = self._begin_closure
        self._closure_ends: Callable[[], object] = self._end_closure
        self._nested_ns = self._closure_ns = 0
        self._finished = 0
        self._scaled = False
        self._patches = Patches()
        self._handles: list[Any] = []
        self._isolation = isolation

    def install(self) -> None:
        """Put the hooks in place; called once, off the hot path."""
        import torch
        from torch.optim import optimizer as module

        guard = self._isolation.guard
        self._closure_begins = guard("optimizers", self._begin_closure)
        self._closure_ends = guard("optimizers", self._end_closure)
        before, after = guard("optimizers", self._before), guard("optimizers", self._after)

        def register() -> None:
            self._handles = [
                module.register_optimizer_step_pre_hook(before),
                module.register_optimizer_step_post_hook(after),
            ]

        if not change_between_hooks(register):
            raise RuntimeError("an optimizer's hook is running and does not end")
        made = guard("optimizers", self._created)

        def wrap_init(original: Any) -> Any:
            def __init__(optimizer: Any, *args: Any, **kwargs: Any) -> None:
                original(optimizer, *args, **kwargs)
                made(optimizer)

            return __init__

        self._patches.wrap(module.Optimizer, "__init__", wrap_init)
        self._wrap_scaler(torch.amp.GradScaler)
        self._watch_schedulers()

    def _watch_schedulers(self) -> None:
        """Track every learning-rate scheduler created: an optimizer does not refer to its schedulers."""
        from torch.optim import lr_scheduler

        made = self._isolation.guard("optimizers", self._made_scheduler)

        def wrap_init(original: Any) -> Any:
            def __init__(scheduler: Any, *args: Any, **kwargs: Any) -> None:
                made(scheduler)
                original(scheduler, *args, **kwargs)

            return __init__

        # These do not call the base class's `__init__`.
        alone = (lr_scheduler.SequentialLR, lr_scheduler.ChainedScheduler, lr_scheduler.ReduceLROnPlateau)
        for kind in (lr_scheduler.LRScheduler, *alone):
            self._patches.wrap(kind, "__init__", wrap_init)

    def find(self) -> None:
        """Find optimizers made before the instruments were installed; off the hot path."""
        from torch.optim import Optimizer
        from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

        for one in living(Optimizer, LRScheduler, ReduceLROnPlateau):
            if issubclass(type(one), Optimizer):
                if unwrapped(one) is one:  # a wrapper's step is a step of the wrapped optimizer
                    self._made(one)
            else:
                self._made_scheduler(one)

    def around(self, compiled: Any, optimizer: Any) -> Any:
        """Time a compiled `optimizer.step` from outside: the hooks do not run inside it."""
        before = self._isolation.guard("optimizers", self._before)
        after = self._isolation.guard("optimizers", self._after)

        @functools.wraps(compiled)
        def step(*args: Any, **kwargs: Any) -> Any:
            before(optimizer, args, kwargs)
            result = compiled(*args, **kwargs)
            after(optimizer, args, kwargs)
            return result

        return pass_over(step)

    def uninstall(self) -> None:
        """Remove hooks and wrappers; if a step hangs between two hooks, they stay and do nothing."""
        self._patches.undo()
        if self._handles and change_between_hooks(self._remove):
            self._handles.clear()

    def _remove(self) -> None:
        for handle in self._handles:
            handle.remove()

    def schedulers(self) -> list[Any]:
        """The living schedulers, without those nested in others."""
        for reference in list(self._schedulers):  # one at a time: the training thread may be adding
            if reference() is None:
                self._schedulers.remove(reference)
        alive = [one for reference in list(self._schedulers) if (one := reference()) is not None]
        inner = {id(one) for outer in alive for one in getattr(outer, "_schedulers", ())}
        return [one for one in alive if id(one) not in inner]

    def schedulers_of(self, optimizer: Any) -> list[Any]:
        """The schedulers of an optimizer or of its wrapper, without those nested in others."""
        optimizer = unwrapped(optimizer)
        return [one for one in self.schedulers() if unwrapped(getattr(one, "optimizer", None)) is optimizer]

    def alive(self) -> list[Any]:
        """All known living optimizers, the leading one first."""
        leader = self.leader()
        found = [one for reference in self.seen if (one := reference()) is not None]
        return sorted(found, key=lambda one: one is not leader)

    def scaler(self) -> Any:
        """The living gradient scaler that stepped last, if any."""
        return self._scaler() if self._scaler is not None else None

    def newest_scaler(self) -> Any:
        """The gradient scaler that stepped last, else the newest one; None without."""
        found = self.scaler()
        if found is None and self._scalers:
            found = self._scalers[-1]()
        return found

    def own_scale(self) -> float:
        """The loss scale that the job multiplies itself, without a GradScaler; 1 without one."""
        return max(self.recorder.loss_scale, 1.0) if self.newest_scaler() is None else 1.0

    @property
    def in_step(self) -> bool:
        """Whether an optimizer is inside its step, for example while its closure runs."""
        return self._depth > 0

    def leader(self) -> Any:
        """The optimizer that counts steps; None without a living one."""
        return self._leader() if self._leader is not None else None

    def expected_leader(self) -> Any:
        """The optimizer that counts steps, or will do so from its first step on."""
        leader = self.leader()
        return max(self.alive(), key=_parameter_count, default=None) if leader is None else leader

    def made_step(self, optimizer: Any) -> int:
        """The step before which an optimizer was made; NULL_INTEGER if that was not seen. Any thread."""
        reference, step = self._made_steps.get(id(optimizer), (None, NULL_INTEGER))
        return step if reference is not None and reference() is optimizer else NULL_INTEGER

    def device_index(self) -> int | None:
        """Index of the device with the leading optimizer's parameters; None if that is the host or unknown.
        The current device of our threads is not that of the training."""
        groups = getattr(self.expected_leader(), "param_groups", None) or [{}]
        first = next(iter(groups[0].get("params", ())), None)
        device = getattr(first, "device", None)
        return None if device is None or device.type == "cpu" else device.index

    # HOT PATH ---------------------------------------------------------------

    def _made_scheduler(self, scheduler: Any) -> None:
        self._schedulers.append(weakref.ref(scheduler))

    def _created(self, optimizer: Any) -> None:
        if len(self._made_steps) >= MOST_REMEMBERED:  # living ones stay: one without its step would look new
            self._made_steps = {key: one for key, one in self._made_steps.items() if one[0]() is not None}
        self._made_steps[id(optimizer)] = weakref.ref(optimizer), self.recorder.step
        self._made(optimizer)

    def _made(self, optimizer: Any) -> None:
        self.made_any = True
        self.made_count += 1
        self.seen.append(weakref.ref(optimizer))
        self._leader = None
        self._note_remade(optimizer)

    def _note_remade(self, optimizer: Any) -> None:
        """Count an optimizer that replaces one of its class with as many parameters and the same first."""
        groups = optimizer.param_groups
        first = groups[0]["params"][0] if groups and groups[0]["params"] else None
        if first is None:
            return
        known, step = self._held_first, self.recorder.step
        key = (type(optimizer).__name__, id(first), sum(len(group["params"]) for group in groups))
        before = known.get(key)
        if before is not None and before() is first:
            if step <= 0:
                return
            self.remade.setdefault("from", step)
            self.remade["until"] = step
            self.remade["times"] = self.remade.get("times", 0) + 1
        elif len(known) < MOST_REMEMBERED:
            known[key] = weakref.ref(first)

    def _before(self, optimizer: Any, args: Any, kwargs: Any) -> tuple[Any, Any] | None:
        now = _now()
        recorder = self.recorder
        if self._depth and self._stepping == id(optimizer) and self._micro_step == recorder.micro_step:
            self._depth += 1  # a subclass calls its base's step, which torch hooks too
            return None
        self._depth, self._stepping, self._micro_step = 1, id(optimizer), recorder.micro_step
        self._nested_ns = recorder.optimizer_begins(now)
        self._closure_ns = 0
        self.finish_sample = None
        if self.before_update is not None:
            self.before_update()
        recorder.cost_ns += _now() - now
        step, updates, sums, watch = recorder.step, self.updates, self.sums, self.put_back
        if watch is not None and watch.leader == id(optimizer):
            parameter = watch.parameter()
            if parameter is not None and parameter._version != watch.version:
                watch.written(parameter)
        if self.seeded is not None:
            self.seeded.step_begins()
        if sums is not None and step >= sums.due:
            sums.step_begins(optimizer)
        if updates is not None and step >= updates.due:
            updates.step_begins(optimizer, args, kwargs)
        if step >= self.sample_from_step:
            sample = self.sample
            if sample is not None:
                sample(optimizer, args, kwargs)
        self._start_ns = _now()  # sampling does not count as part of the step
        if self.before_step is not None:
            self.before_step(optimizer)
        if len(args) > 1 or kwargs:
            return self._with_closure(args, kwargs)
        return None

    def _with_closure(self, args: Any, kwargs: Any) -> tuple[Any, Any] | None:
        """The arguments of an optimizer's step with its closure timed: time in a closure is forward, backward
        or other, not the optimizer's. None without a closure."""
        closure = args[1] if len(args) > 1 else kwargs.get("closure")
        if not callable(closure):
            return None
        timed = pass_over(self._timed(closure))
        if len(args) > 1:
            return (args[0], timed, *args[2:]), kwargs
        return args, {**kwargs, "closure": timed}

    def _timed(self, closure: Any) -> Any:
        begins, ends = self._closure_begins, self._closure_ends

        @functools.wraps(closure, updated=())
        def timed(*args: Any, **kwargs: Any) -> Any:
            begins()
            try:
                return closure(*args, **kwargs)
            finally:
                ends()

        return timed

    def _begin_closure(self) -> None:
        recorder = self.recorder
        if self._start_ns and not recorder.elsewhere():
            self._closure_start_ns = now = _now()
            self._known_ns = recorder.known_ns()
            recorder.optimizer_ends(now)

    def _end_closure(self) -> None:
        recorder = self.recorder
        if self._closure_start_ns and not recorder.elsewhere():
            now, start, self._closure_start_ns = _now(), self._closure_start_ns, 0
            recorder.optimizer_goes_on(now)
            self._closure_ns += max(0, now - start - (recorder.known_ns() - self._known_ns))

    def _after(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        now = _now()
        recorder = self.recorder
        if self._depth > 1 and self._stepping == id(optimizer):
            self._depth -= 1
            return
        self._depth = 0
        self._finished += 1
        step, updates, sums, watch = recorder.step, self.updates, self.sums, self.put_back
        if updates is not None and step >= updates.due:
            updates.step_ends(optimizer)
        if sums is not None and step >= sums.due:
            sums.step_ends(optimizer)
        if watch is not None and watch.leader == id(optimizer):
            parameter = watch.parameter()
            if parameter is not None:
                watch.version = parameter._version
        self.made_any = True
        if self._start_ns:
            known = recorder.forward_ns + recorder.backward_ns + recorder.data_ns + recorder.comm_ns
            own = now - self._start_ns - self._closure_ns - (known - self._nested_ns)
            recorder.optimizer_ns += max(0, own)
            if recorder.sampling and self.trace_step is not None:
                self.trace_step(type(optimizer).__name__, now - max(0, own), now)
            self._start_ns = 0
        if self.finish_sample is not None:
            finish, self.finish_sample = self.finish_sample, None
            finish(optimizer, _learning_rate(optimizer))
        leader = self._leader
        leads = leader is not None and leader() is optimizer
        if not recorder.explicit and (leads or self._leads(optimizer)):
            self._others = 0
            unknown = self._scaled and hasattr(optimizer, "_step_supports_amp_scaling")
            groups = optimizer.param_groups
            rate = groups[0].get("lr") if groups else None  # the rate used: `after_step` may restore another
            if type(rate) is not float:
                rate = host_number(rate)
            if self.after_step is not None:
                self.after_step(optimizer)
            recorder.end_step(now, "optimizer", rate, NULL_BOOLEAN if unknown else False)
        else:
            recorder.optimizer_ends(now)
            recorder.cost_ns += _now() - now
            if self.after_step is not None:
                self.after_step(optimizer)

    def _leads(self, optimizer: Any) -> bool:
        leader = self.leader()
        if leader is optimizer:
            self._others = 0
            return True
        if leader is None:
            leader = self._elect(optimizer)
        else:
            self._others += 1
            if len(self.others_stepped) >= MOST_REMEMBERED:
                self.others_stepped.clear()
            self.others_stepped[id(optimizer)] = self.recorder.step
            if self._others >= SILENCE:
                leader = optimizer
        self._leader = weakref.ref(leader)
        if leader is optimizer:
            self._others = 0
        return leader is optimizer

    def _rate(self, optimizer: Any) -> float:
        """`_learning_rate` for the compiled form."""
        return _learning_rate(optimizer)

    def _elect(self, stepping: Any) -> Any:
        """The largest living optimizer; among equals, the one that is stepping."""
        best, most = stepping, _parameter_count(stepping)
        self.seen = [reference for reference in self.seen if reference() is not None]
        known = False
        for reference in self.seen:
            candidate = reference()
            known = known or candidate is stepping
            if candidate is not None and _parameter_count(candidate) > most:
                best, most = candidate, _parameter_count(candidate)
        if not known:
            self.seen.append(weakref.ref(stepping))
        return best

    def _wrap_scaler(self, scaler_class: Any) -> None:
        skipped_by = self._isolation.guard("optimizers", self._scaler_stepped)

        def wrap_step(original: Any) -> Any:
            def step(scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
                before = self._finished
                self._scaled = True
                result = original(scaler, optimizer, *args, **kwargs)
                skipped_by(scaler, optimizer, before)
                return result

            return step

        def wrap_init(original: Any) -> Any:
            def __init__(scaler: Any, *args: Any, **kwargs: Any) -> None:
                original(scaler, *args, **kwargs)
                self._scalers[:] = [one for one in self._scalers if one() is not None]
                self._scalers.append(weakref.ref(scaler))

            return __init__

        self._patches.wrap(scaler_class, "step", wrap_step)
        self._patches.wrap(scaler_class, "__init__", wrap_init)

    def _scaler_stepped(self, scaler: Any, optimizer: Any, before: int) -> None:
        """After `scaler.step(optimizer)`: if no optimizer step ran in it, the update was skipped."""
        recorder = self.recorder
        if self._scaler is None or self._scaler() is not scaler:
            self._scaler = weakref.ref(scaler)
        recorder.loss_scale = _scale_of(scaler)
        if self._finished != before or not scaler.is_enabled() or recorder.explicit:
            return
        if self._leads(optimizer):
            recorder.end_step(_now(), "optimizer", _learning_rate(optimizer), True)


def _parameter_count(optimizer: Any) -> int:
    return sum(parameter.numel() for group in optimizer.param_groups for parameter in group["params"])


def _learning_rate(optimizer: Any) -> float:
    """Learning rate of the first group; NULL if it is on a device."""
    groups = optimizer.param_groups
    rate = groups[0].get("lr") if groups else None
    return rate if type(rate) is float else host_number(rate)


def _scale_of(scaler: Any) -> float:
    """The scaler's factor; NULL if it is on a device or not created yet."""
    return host_number(getattr(scaler, "_scale", None))
