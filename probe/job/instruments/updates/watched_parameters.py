"""Watched parameters: chooses the parameters of each update sample, and finds the optimizers of each.

Runs on the agent's thread and calls no code of the job; only `note_leaves` is called on the training thread
(HOT PATH, on sampled steps). Each sample has the same `CORE` parameters of the optimizers, others in turn,
and some that are in no optimizer. Uses the job's torch.
"""

from __future__ import annotations

import sys
import time
import weakref
from collections.abc import Iterable
from typing import Any, NamedTuple

from probe.job.instruments.core import statistics
from probe.job.instruments.core.object_access import attributes
from probe.job.instruments.core.recorder import Recorder
from probe.job.instruments.facts.hyperparameters import models_in_frames
from probe.job.instruments.facts.model_facts import has_one_of
from probe.job.instruments.loop.forward import Forward
from probe.job.instruments.loop.optimizers import Optimizers
from probe.job.instruments.modules.module_names import ModuleNames
from probe.job.instruments.modules.parameter_names import ParameterNames
from probe.job.instruments.updates.reached_parameters import places_of
from probe.job.instruments.updates.update_rows import Watched, watched
from probe.recording.layout import NULL_BOOLEAN, NULL_INTEGER, NULL_STRING

MOST_PARAMETERS, CORE, MOST_UNOWNED = 24, 12, 8
"""Parameters of one sample: in total, the same in every sample, and in no optimizer."""
MOST_LEAVES, MOST_TENSORS = 256, 64
"""Remembered parameters, and plain tensors, that a loss depends on and no optimizer holds."""
SEARCHES = 20
"""Maximum number of searches for models in the variables of the training thread."""
AGAIN_S = 5.0
"""Seconds between two reads of the optimizers' parameter groups."""

Owner = tuple[tuple[int, ...], int, int]
"""Ids of the optimizers that hold a parameter; the first one's class, and the group in it."""


class Plan(NamedTuple):
    """The parameters of a sample, and the owners of all parameters."""

    parameters: list[Watched]
    owners: dict[int, Owner]


class WatchedParameters:
    """Chooses the parameters of each sample."""

    def __init__(
        self, recorder: Recorder, optimizers: Optimizers, forward: Forward, modules: ModuleNames,
        names: ParameterNames,
    ) -> None:
        self._recorder = recorder
        self._forward = forward
        self._optimizers, self._modules, self._names = optimizers, modules, names
        self._leaves: dict[int, weakref.ref[Any]] = {}
        self._tensors: dict[int, weakref.ref[Any]] = {}
        self.owners: dict[int, Owner] = {}
        self._owned: list[weakref.ref[Any]] = []
        self._read_s, self.made = 0.0, 0
        """`made`: `Optimizers.made_count` when `owners` was built."""
        self._turn = self._searches = self._tensor_searches = 0
        self._hidden: dict[int, tuple[weakref.ref[Any], str]] = {}

    def note_leaves(self, leaves: dict[int, Any]) -> None:
        """Remember the leaves of a graph that no optimizer holds; on the training thread."""
        kind = sys.modules["torch"].nn.Parameter
        for key, leaf in leaves.items():
            if key not in self.owners:
                table, most = (
                    (self._leaves, MOST_LEAVES) if isinstance(leaf, kind) else (self._tensors, MOST_TENSORS)
                )
                known = table.get(key)
                if (known is None and len(table) < most) or (known is not None and known() is not leaf):
                    table[key] = weakref.ref(leaf)

    # The agent's thread -----------------------------------------------------

    def plan(self) -> Plan | None:
        """Choose the parameters of the next sample; None while no model or optimizer is known."""
        if not self._modules.ready:
            return None
        self.keep_up()
        owned = [one for reference in self._owned if (one := reference()) is not None]
        if not owned:
            return None
        self._turn += 1
        chosen = _evenly(owned, CORE, 0)
        core = {id(one) for one in chosen}
        rest = [one for one in owned if id(one) not in core]
        unowned = self._unowned()[:MOST_UNOWNED]
        self._find_models(unowned)
        chosen += _evenly(rest, MOST_PARAMETERS - len(chosen) - len(unowned), self._turn)
        found = {id(one): one for one in (*chosen, *unowned) if _is_plain(one)}
        device = next((one.device for one in found.values()), None)
        return Plan([self._describe(one) for one in found.values() if one.device == device], self.owners)

    def keep_up(self) -> None:
        """Read the optimizers' parameter groups if an optimizer was made since, or after a while."""
        now_s, made = time.monotonic(), self._optimizers.made_count
        if not self.owners or made != self.made or now_s > self._read_s + AGAIN_S:
            self._read_s, self.made = now_s, made
            self._read_optimizers()

    def owner_of(self, parameters: Iterable[Any]) -> int:
        """The class of the optimizer that holds any of these parameters, as text number; NULL_STRING if none
        does."""
        owners = (self.owners.get(id(one)) for one in parameters)
        return next((one[1] for one in owners if one is not None), NULL_STRING)

    def largest_of(self, optimizer: Any) -> Watched | None:
        """The largest parameter of an optimizer that can be sampled."""
        groups = attributes(optimizer).get("param_groups")
        ones = [one for group in groups or () for one in list(group.get("params", ())) if _is_plain(one)]
        if not ones:
            return None
        return self._describe(max(ones, key=lambda one: one.numel()))

    def name_of(self, one: Watched) -> str | None:
        """The name of a watched parameter; None while unknown."""
        parameter = one.parameter()
        return None if parameter is None else self.text_of(parameter)

    def text_of(self, parameter: Any) -> str | None:
        """The name of a parameter; None while unknown."""
        known = self._names.of(parameter)
        return None if known is None else known.text

    def _read_optimizers(self) -> None:
        owners: dict[int, Owner] = {}
        owned: list[weakref.ref[Any]] = []
        for optimizer in self._optimizers.alive():
            kind = self._recorder.intern(type(optimizer).__name__)
            groups = attributes(optimizer).get("param_groups")
            for number, group in enumerate(groups if isinstance(groups, list) else ()):
                for parameter in list(group.get("params", ())):
                    before = owners.get(id(parameter))
                    if before is None:
                        owned.append(weakref.ref(parameter))
                        owners[id(parameter)] = ((id(optimizer),), kind, number)
                    elif id(optimizer) not in before[0]:
                        owners[id(parameter)] = ((*before[0], id(optimizer)), *before[1:])
        self.owners, self._owned = owners, owned

    def _find_models(self, unowned: list[Any]) -> None:
        """Find the models of parameters without a name: models that were never the first call of a step.
        From then on the parameters have names, and rows in python.parameters."""
        missing = {id(one) for one in unowned if self._names.of(one) is None and id(one) not in self._hidden}
        if not missing or self._searches >= SEARCHES:
            return
        self._searches += 1
        for model in models_in_frames(self._recorder.thread, sys.modules["torch"].nn.Module):
            if id(model) not in self._forward.roots and has_one_of(model, missing):
                self._forward.roots[id(model)] = weakref.ref(model)

    def _unowned(self) -> list[Any]:
        """Parameters that require a gradient and are in no optimizer, first those that a loss depends on."""
        leaves = [*_living(self._leaves), *self._placed(_living(self._tensors))]
        known = [one for reference, _ in self._names.known() if (one := reference()) is not None]
        found = {id(one): one for one in (*leaves, *known)}
        return [one for key, one in found.items() if key not in self.owners and one.requires_grad]

    def _placed(self, tensors: list[Any]) -> list[Any]:
        """The plain tensors that are attributes of a known module; the others are inputs of the job."""
        fresh = {id(one) for one in tensors if not self._is_hidden(one)}
        if fresh and self._tensor_searches < SEARCHES:
            self._tensor_searches += 1
            names = places_of(fresh, self._modules.roots())
            for one in tensors:
                if id(one) in names:
                    self._hidden[id(one)] = (weakref.ref(one), names[id(one)])
        return [one for one in tensors if self._is_hidden(one)]

    def _is_hidden(self, parameter: Any) -> bool:
        known = self._hidden.get(id(parameter))
        return known is not None and known[0]() is parameter

    def _describe(self, parameter: Any) -> Watched:
        known = self._names.of(parameter)
        dtype = self._recorder.intern(str(parameter.dtype)[6:])
        if known is not None:
            return watched(parameter, known.number, known.place, 1, dtype)
        hidden = self._hidden.get(id(parameter))
        if hidden is None or hidden[0]() is not parameter:
            names = places_of({id(parameter)}, self._modules.roots())
            hidden = (weakref.ref(parameter), names.get(id(parameter), ""))
            if hidden[1] and len(self._hidden) < 2 * MOST_LEAVES:
                self._hidden[id(parameter)] = hidden
        if hidden[1]:
            plain = not isinstance(parameter, sys.modules["torch"].nn.Parameter)
            name = self._recorder.intern(hidden[1])
            return watched(parameter, name, NULL_INTEGER, 0, dtype, plain=plain)
        return watched(parameter, 0, NULL_INTEGER, NULL_BOOLEAN, dtype)


def _living(table: dict[int, weakref.ref[Any]]) -> list[Any]:
    """The tensors in the table that are still alive; removes the others."""
    found = []
    for key, reference in list(table.items()):
        one = reference()
        if one is not None:
            found.append(one)
        elif table.get(key) is reference:
            table.pop(key, None)
    return found


def _evenly(ones: list[Any], count: int, turn: int) -> list[Any]:
    """Choose `count` of them, evenly spaced; different ones for each `turn`."""
    if count <= 0 or not ones:
        return []
    if count >= len(ones):
        return list(ones)
    start = (turn * 7919) % len(ones) if turn else 0
    return [ones[(start + place * len(ones) // count) % len(ones)] for place in range(count)]


def _is_plain(parameter: Any) -> bool:
    """Whether its values can be sampled: dense, real, not sharded, not empty."""
    kinds = statistics.common_kinds()
    if not statistics.is_common(parameter, kinds) or not parameter.numel():
        return False
    return not (parameter.__dict__ and statistics.is_sharded(parameter))
