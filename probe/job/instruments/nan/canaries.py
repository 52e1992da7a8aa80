"""Canaries: small parameters whose gradient shows a NaN from anywhere in a backward.

A canary is one of a model's first parameters: backward reaches it last. Chosen on the agent's thread, or on
the training thread at the first call of a model. HOT PATH: `StaleGradients`. Standard library and the job's
torch.
"""

from __future__ import annotations

import itertools
import sys
import weakref
from typing import Any

from probe.job.instruments.core.recorder import Recorder
from probe.job.instruments.loop.optimizers import Optimizers
from probe.job.instruments.modules.module_names import ModuleNames
from probe.recording.layout import NULL_BOOLEAN

LARGEST = 4096
"""Maximum number of elements; summing so few costs little more than summing one."""
MOST_PASSED = 256
"""Parameters searched for a small one."""
MOST = 2
"""Maximum number of models checked: two, for two networks that train alternately."""
_FULL_BYTES = 4


class Canaries:
    """The canaries chosen for the models being trained."""

    def __init__(self, names: ModuleNames, optimizers: Optimizers) -> None:
        self.chosen: list[tuple[weakref.ref[Any], bool]] = []
        """Each with whether its elements have less than 32 bits; the leading model's first."""
        self.draw = True
        """Whether the models may draw random numbers in their forward."""
        self.asked_for = 0
        """Id of the model for which `choose_now` was called last."""
        self._names, self._optimizers = names, optimizers
        self._chosen_for: tuple[Any, ...] = ()

    def choose_now(self, module: Any) -> None:
        """Choose before the agent's thread does: a NaN may occur in the first steps."""
        self.asked_for = id(module)
        trained = {
            id(one): True
            for optimizer in self._optimizers.alive()
            for group in optimizer.param_groups
            for one in group["params"][:MOST_PASSED]
        }
        canary = _first_small(module, trained)
        if canary is not None:
            self.chosen = [_canary(canary)]

    def choose(self) -> None:
        """Choose a small parameter of each model, near its input; again when the models change. On the
        agent's thread."""
        roots = self._names.roots()[: 2 * MOST]
        leader = self._optimizers.leader()
        key = (*map(id, roots), id(leader))
        if key == self._chosen_for or leader is None:
            return
        trained = {
            id(one): optimizer is leader
            for optimizer in reversed(self._optimizers.alive())
            for group in optimizer.param_groups
            for one in group["params"]
        }
        found: list[tuple[bool, Any]] = []
        for root in roots:
            canary = _first_small(root, trained)
            if canary is not None and all(canary is not one for _, one in found):
                found.append((trained[id(canary)], canary))
        found.sort(key=lambda entry: not entry[0])
        self.chosen = [_canary(one) for _, one in found[:MOST]]
        self.draw = any(_draws(module) for root in roots for module in root.modules())
        self._chosen_for = key

    def version(self) -> int:
        """Version of the first canary's values, which changes with every write; -1 without a canary."""
        parameter = self.chosen[0][0]() if self.chosen else None
        return -1 if parameter is None else int(parameter._version)


class StaleGradients:
    """Detects a step whose gradients contain those of an earlier one: `stale_gradients` of python.steps.

    The first backward that adds to a gradient left over makes it so. A later one of the same step that finds
    it cleared shows that it was not: an actor's loss goes through a critic before the gradients of that are
    cleared."""

    def __init__(self, recorder: Recorder) -> None:
        self.gradient: Any = None
        """The canary's gradient before this backward."""
        self._recorder = recorder
        self._version = self._step = self._settled = -1
        self._stale = False
        self._left = (0, 0)

    def asks(self) -> bool:
        """Whether this backward can still tell something about its step."""
        recorder = self._recorder
        return recorder.stale_gradients != 0 and self._settled != recorder.step

    def begins(self, parameter: Any) -> None:
        """Before backward: note whether the leading model still has a gradient."""
        gradient = parameter.grad if parameter is not None else None
        self.gradient, self._step = gradient, self._recorder.step
        self._stale = False
        if gradient is not None:
            self._version = gradient._version
            if gradient.is_cpu:
                self._stale = bool(gradient.any())
            else:  # without a read from the device: unchanged since the last backward
                self._stale = self._left == (id(gradient), gradient._version)

    def ends(self, now: Any) -> None:
        """After backward: the gradient was stale if this backward added to it. A backward through another
        model shows nothing."""
        recorder = self._recorder
        if self._step == recorder.step:
            before, self.gradient, self._step = self.gradient, None, -1
            unchanged = now is None or (now is before and now._version == self._version)
            # On a device, if the version did not show it as stale, only its values could decide.
            if not unchanged and (before is None or before.is_cpu or self._stale):
                recorder.stale_gradients = self._stale
            elif not unchanged and recorder.stale_gradients != NULL_BOOLEAN:
                recorder.stale_gradients, self._settled = NULL_BOOLEAN, recorder.step
        if now is not None and not now.is_cpu:
            self._left = (id(now), now._version)


def _canary(parameter: Any) -> tuple[weakref.ref[Any], bool]:
    return weakref.ref(parameter), parameter.element_size() < _FULL_BYTES


def _draws(module: Any) -> bool:
    """Whether a module may draw random numbers in its forward, by its class or its dropout rate."""
    name = type(module).__name__.lower()
    rate = getattr(module, "p", None) if "dropout" in name else getattr(module, "dropout", None)
    return (isinstance(rate, float) and rate > 0) or "rrelu" in name or "droppath" in name


def _first_small(root: Any, trained: dict[int, bool]) -> Any:
    """A model's first parameter that is small, trained and not sharded."""
    torch: Any = sys.modules["torch"]
    plain = (torch.Tensor, torch.nn.Parameter)
    for one in itertools.islice(root.parameters(), MOST_PASSED):
        fits = type(one) in plain and one.requires_grad and one.is_floating_point()
        if fits and id(one) in trained and 0 < one.numel() <= LARGEST:
            return one
    return None
