"""Optimizer steps: time inside them, which one counts steps, skipped updates, learning rate.

Writes python.steps (through the recorder) and the `step` rows of
python.torch_trace. HOT PATH: `_before`, `_after` and the scaler's wrapper run on
the training thread around every optimizer step. torch is the job's own.

The leading optimizer ends steps: the one with the most parameters among those
alive, as long as it steps. When another one stepped `SILENCE` times while the
leader did not, that one leads. Optimizers are seen when they are made (a wrapper
around `Optimizer.__init__`), so that a GAN's steps are counted right from the
first.
"""

from __future__ import annotations

import functools
import sys
import time
import weakref
from typing import Any

from probe.base.isolation import Isolation
from probe.job.instruments.core.hook_tables import change_between_hooks
from probe.job.instruments.core.living import living
from probe.job.instruments.core.patch import Patches, pass_over
from probe.job.instruments.core.recorder import Recorder
from probe.recording.layout import NULL_BOOLEAN, NULL_DOUBLE

_now = time.monotonic_ns
SILENCE = 8
NEVER = sys.maxsize
"""Of `Optimizers.look_at`: no step is that late."""


class Optimizers:
    """Installs the hooks; `seen` are the optimizers known, oldest first."""

    def __init__(self, recorder: Recorder, isolation: Isolation) -> None:
        self.recorder = recorder
        self.seen: list[weakref.ref[Any]] = []
        self._schedulers: list[weakref.ref[Any]] = []
        self._scalers: list[weakref.ref[Any]] = []
        self.made_any = False
        self.made_count = 0
        """Optimizers that were made or found so far."""
        self.trace_step: Any = None
        """Set by the modules instrument: writes a `step` row on sampled steps."""
        self.before_step: Any = None
        self.after_step: Any = None
        """Called with the optimizer right before and after each of its steps while an action is in force."""
        self.look: Any = None
        """Set by the gradients instrument: called with the optimizer, its arguments and keywords right before
        a step, from step `look_at` on."""
        self.look_at = NEVER
        self.look_after: Any = None
        """Set by what looked before a step: called once with the optimizer and its learning rate after it."""
        self._leader: weakref.ref[Any] | None = None
        self._scaler: weakref.ref[Any] | None = None
        self._others = 0
        self._depth = self._stepping = self._micro_step = 0
        self._start_ns = 0
        self._nested_ns = 0
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
        before, after = guard("optimizers", self._before), guard("optimizers", self._after)

        def register() -> None:
            self._handles = [
                module.register_optimizer_step_pre_hook(before),
                module.register_optimizer_step_post_hook(after),
            ]

        if not change_between_hooks(register):
            raise RuntimeError("an optimizer's hook is running and does not end")
        made = guard("optimizers", self._made)

        def wrap_init(original: Any) -> Any:
            def __init__(optimizer: Any, *args: Any, **kwargs: Any) -> None:
                original(optimizer, *args, **kwargs)
                made(optimizer)

            return __init__

        self._patches.wrap(module.Optimizer, "__init__", wrap_init)
        self._wrap_scaler(torch.amp.GradScaler)
        self._watch_schedulers()

    def _watch_schedulers(self) -> None:
        """Know every learning-rate scheduler: nothing leads from an optimizer to its schedulers."""
        from torch.optim import lr_scheduler

        made = self._isolation.guard("optimizers", self._made_scheduler)

        def wrap_init(original: Any) -> Any:
            def __init__(scheduler: Any, *args: Any, **kwargs: Any) -> None:
                made(scheduler)
                original(scheduler, *args, **kwargs)

            return __init__

        # Those that do not call the base class's.
        alone = (lr_scheduler.SequentialLR, lr_scheduler.ChainedScheduler, lr_scheduler.ReduceLROnPlateau)
        for kind in (lr_scheduler.LRScheduler, *alone):
            self._patches.wrap(kind, "__init__", wrap_init)

    def find(self) -> None:
        """Look for optimizers that were made before the instruments came; off the hot path."""
        from torch.optim import Optimizer
        from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

        for one in living(Optimizer, LRScheduler, ReduceLROnPlateau):
            if issubclass(type(one), Optimizer):
                self._made(one)
            else:
                self._made_scheduler(one)

    def around(self, compiled: Any, optimizer: Any) -> Any:
        """A compiled `optimizer.step`, timed from outside: inside it the hooks are not seen."""
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
        """Remove every hook and wrapper; hooks stay, and do nothing, where a step hangs between two."""
        self._patches.undo()
        if self._handles and change_between_hooks(self._remove):
            self._handles.clear()

    def _remove(self) -> None:
        for handle in self._handles:
            handle.remove()

    def schedulers_of(self, optimizer: Any) -> list[Any]:
        """The schedulers of an optimizer; of nested ones the outermost."""
        self._schedulers = [reference for reference in self._schedulers if reference() is not None]
        alive = [one for reference in self._schedulers if (one := reference()) is not None]
        found = [one for one in alive if getattr(one, "optimizer", None) is optimizer]
        inner = {id(one) for outer in found for one in getattr(outer, "_schedulers", ())}
        return [one for one in found if id(one) not in inner]

    def alive(self) -> list[Any]:
        """Every optimizer that is known and lives, the leading one first."""
        leader = self.leader()
        found = [one for reference in self.seen if (one := reference()) is not None]
        return sorted(found, key=lambda one: one is not leader)

    def scaler(self) -> Any:
        """The gradient scaler that stepped last; None when none did, or it is gone."""
        return self._scaler() if self._scaler is not None else None

    def newest_scaler(self) -> Any:
        """The gradient scaler that stepped last, else the one made last; None without."""
        found = self.scaler()
        if found is None and self._scalers:
            found = self._scalers[-1]()
        return found

    def leader(self) -> Any:
        """The optimizer that counts steps; None when none is alive."""
        return self._leader() if self._leader is not None else None

    def expected_leader(self) -> Any:
        """The optimizer that counts steps, or is going to: before its first step nobody is elected."""
        leader = self.leader()
        return max(self.alive(), key=_parameter_count, default=None) if leader is None else leader

    # HOT PATH ---------------------------------------------------------------

    def _made_scheduler(self, scheduler: Any) -> None:
        self._schedulers.append(weakref.ref(scheduler))

    def _made(self, optimizer: Any) -> None:
        self.made_any = True
        self.made_count += 1
        self.seen.append(weakref.ref(optimizer))
        self._leader = None

    def _before(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        now = _now()
        recorder = self.recorder
        if self._depth and self._stepping == id(optimizer) and self._micro_step == recorder.micro_step:
            self._depth += 1  # a subclass calls its base's step, which torch has hooked too
            return
        self._depth, self._stepping, self._micro_step = 1, id(optimizer), recorder.micro_step
        self._nested_ns = recorder.optimizer_begins(now)
        self.look_after = None
        recorder.cost_ns += _now() - now
        if recorder.step >= self.look_at:
            look = self.look
            if look is not None:
                look(optimizer, args, kwargs)
        self._start_ns = _now()  # looking is not stepping
        if self.before_step is not None:
            self.before_step(optimizer)

    def _after(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        now = _now()
        recorder = self.recorder
        if self._depth > 1 and self._stepping == id(optimizer):
            self._depth -= 1
            return
        self._depth = 0
        self._finished += 1
        self.made_any = True
        if self._start_ns:
            known = recorder.forward_ns + recorder.backward_ns + recorder.data_ns + recorder.comm_ns
            recorder.optimizer_ns += max(0, now - self._start_ns - (known - self._nested_ns))
            if recorder.sampling and self.trace_step is not None:
                self.trace_step(type(optimizer).__name__, self._start_ns, now)
            self._start_ns = 0
        if self.look_after is not None:
            self._look_after(optimizer)
        if not recorder.explicit and self._leads(optimizer):
            unknown = self._scaled and hasattr(optimizer, "_step_supports_amp_scaling")
            rate = _learning_rate(optimizer)  # as it was used: what is in force may give another back
            if self.after_step is not None:
                self.after_step(optimizer)
            recorder.end_step(now, "optimizer", rate, NULL_BOOLEAN if unknown else False)
        else:
            recorder.optimizer_ends(now)
            recorder.cost_ns += _now() - now
            if self.after_step is not None:
                self.after_step(optimizer)

    def _look_after(self, optimizer: Any) -> None:
        """What was looked at before this step is looked at again, once."""
        look, self.look_after = self.look_after, None
        look(optimizer, _learning_rate(optimizer))

    def _leads(self, optimizer: Any) -> bool:
        leader = self.leader()
        if leader is optimizer:
            self._others = 0
            return True
        if leader is None:
            leader = self._elect(optimizer)
        else:
            self._others += 1
            if self._others >= SILENCE:
                leader = optimizer
        self._leader = weakref.ref(leader)
        if leader is optimizer:
            self._others = 0
        return leader is optimizer

    def _elect(self, stepping: Any) -> Any:
        """The largest of the living optimizers; the one that steps when they are equal."""
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
        """After `scaler.step(optimizer)`: no optimizer step in between means a skipped update."""
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
    """Of the first group, as a float; NULL when a device would have to be asked."""
    groups = optimizer.param_groups
    rate = groups[0].get("lr") if groups else None
    return rate if type(rate) is float else _plain(rate)


def _scale_of(scaler: Any) -> float:
    """The scaler's factor, NULL when it lives on a device or is not made yet."""
    scale = getattr(scaler, "_scale", None)
    return _plain(scale) if scale is not None else NULL_DOUBLE


def _plain(value: Any) -> float:
    if isinstance(value, (int, float)):
        return float(value)
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor) and value.device.type == "cpu":
        return float(value.detach())
    return NULL_DOUBLE
