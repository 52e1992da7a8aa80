"""Schedules: writes learning rates where every later step reads them, in groups and schedulers.

A scheduler of torch computes the next rate from numbers in several places: the groups' `lr` and `initial_lr`,
its own `base_lrs`, its floor or ceiling, keys of its own in the groups. Multiplying all of them by one factor
multiplies every later rate by it, in the chainable and in the closed form, because each formula is linear in
them. `Change` finds these places, writes them all, and reverts that.

Runs on the training thread at a step boundary. Standard library and, inside functions, torch.
"""

from __future__ import annotations

import math
import sys
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from probe.job.actions.device import is_tensor


class Parts(NamedTuple):
    """Where a scheduler class keeps rates, apart from `base_lrs` and `_last_lr`, which all have."""

    lists: tuple[str, ...] = ()
    """Attributes with one rate for each group."""
    shared: tuple[str, ...] = ()
    """Attributes with one rate for all groups, on which every rate depends."""
    thresholds: tuple[str, ...] = ()
    """Attributes with one rate for all groups that only decide whether a change is worth it."""
    keys: tuple[str, ...] = ()
    """Keys in the optimizer's groups."""


KNOWN: dict[str, Parts] = {
    "LambdaLR": Parts(),
    "MultiplicativeLR": Parts(),
    "StepLR": Parts(),
    "MultiStepLR": Parts(),
    "ConstantLR": Parts(),
    "LinearLR": Parts(),
    "ExponentialLR": Parts(),
    "PolynomialLR": Parts(),
    "CosineAnnealingLR": Parts(shared=("eta_min",)),
    "CosineAnnealingWarmRestarts": Parts(shared=("eta_min",)),
    "CyclicLR": Parts(lists=("max_lrs",)),
    "OneCycleLR": Parts(keys=("max_lr", "min_lr")),
    "ReduceLROnPlateau": Parts(lists=("min_lrs",), thresholds=("default_min_lr", "eps")),
    "SWALR": Parts(keys=("swa_lr",)),
    "SequentialLR": Parts(),
    "ChainedScheduler": Parts(),
}
"""Every scheduler class of torch by name. Subclasses are unknown: they may compute anything."""

_MODULES = frozenset({"torch.optim.lr_scheduler", "torch.optim.swa_utils"})
_FORMULAS = ("get_lr", "_get_closed_form_lr", "step")


def nested(schedulers: Sequence[Any]) -> Iterator[Any]:
    """The schedulers and all those inside them."""
    for scheduler in schedulers:
        yield scheduler
        inner = vars(scheduler).get("_schedulers")
        if isinstance(inner, (list, tuple)):
            yield from nested(inner)


def is_known(scheduler: Any) -> bool:
    """Whether this is exactly a class of torch, with unchanged formulas."""
    kind = type(scheduler)
    if kind.__module__ not in _MODULES or kind.__name__ not in KNOWN:
        return False
    return not any(name in vars(scheduler) for name in _FORMULAS)


def obstacle(optimizer: Any, schedulers: Sequence[Any], groups: Sequence[int]) -> str | None:
    """Why the schedule of these groups cannot be rescaled in place; None if it can."""
    count = len(optimizer.param_groups)
    for scheduler in nested(schedulers):
        name = type(scheduler).__name__
        if not is_known(scheduler):
            return f"{name} is a class of the job's own, whose formula is not known"
        parts = KNOWN[name]
        for attribute in ("base_lrs", *parts.lists):
            rates = vars(scheduler).get(attribute)
            if rates is not None and (not isinstance(rates, list) or len(rates) != count):
                return f"{name}.{attribute} does not fit the {count} groups"
        for attribute in parts.shared:
            if len(set(groups)) < count and to_float(vars(scheduler).get(attribute, 0.0)) != 0.0:
                return f"{name}.{attribute} is one number for all groups"
    return None


def left_alone(optimizer: Any, schedulers: Sequence[Any], groups: Sequence[int]) -> list[str]:
    """Thresholds that stay as they are, because other groups share them: `ReduceLROnPlateau.eps`."""
    if len(set(groups)) == len(optimizer.param_groups):
        return []
    return [
        f"{type(scheduler).__name__}.{attribute}"
        for scheduler in nested(schedulers)
        for attribute in KNOWN[type(scheduler).__name__].thresholds
        if vars(scheduler).get(attribute)
    ]


class Place(NamedTuple):
    """One number: a key of a group (`item` is the group's number), or an attribute or one of its items.

    Held weakly and looked up each time: a job that loads a checkpoint replaces groups and lists."""

    owner: weakref.ref[Any]
    in_group: bool
    name: str
    item: int | None

    def container(self) -> tuple[Any, Any] | None:
        """The container and key to read and write; None if it is gone."""
        owner = self.owner()
        if owner is None:
            return None
        if self.in_group:
            groups = owner.param_groups
            if self.item is None or self.item >= len(groups) or self.name not in groups[self.item]:
                return None
            return groups[self.item], self.name
        own = vars(owner)
        if self.name not in own:
            return None
        if self.item is None:
            return own, self.name
        rates = own[self.name]
        return (rates, self.item) if isinstance(rates, list) and self.item < len(rates) else None


def places_of_groups(optimizer: Any, groups: Sequence[int], keys: Sequence[str]) -> list[Place]:
    """The given keys of the given groups, where they are."""
    owner = weakref.ref(optimizer)
    found = [Place(owner, True, key, index) for index in groups for key in keys]
    return [place for place in found if place.container() is not None]


def places_of_schedule(optimizer: Any, schedulers: Sequence[Any], groups: Sequence[int]) -> list[Place]:
    """Every number that the rates of these groups are computed from, each once."""
    everyone = len(set(groups)) == len(optimizer.param_groups)
    keys = ["lr", "initial_lr"]
    found: list[Place] = []
    for scheduler in nested(schedulers):
        parts, owner = KNOWN[type(scheduler).__name__], weakref.ref(scheduler)
        keys += [key for key in parts.keys if key not in keys]
        for attribute in ("base_lrs", "_last_lr", *parts.lists):
            found += [Place(owner, False, attribute, index) for index in groups]
        for attribute in (*parts.shared, *parts.thresholds) if everyone else ():
            found.append(Place(owner, False, attribute, None))
    return _each_once(places_of_groups(optimizer, groups, keys) + found)


def _each_once(places: Sequence[Place]) -> list[Place]:
    """The places that exist, each once: schedulers may share a list."""
    seen: set[tuple[int, Any]] = set()
    kept = []
    for place in places:
        where = place.container()
        if where is not None and (id(where[0]), where[1]) not in seen:
            seen.add((id(where[0]), where[1]))
            kept.append(place)
    return kept


class Written(NamedTuple):
    """The old and the new value at a place; a tensor's values are copies."""

    place: Place
    old: Any
    new: Any


class Change:
    """One change of many places at once: `apply`, then `undo`.

    `compute` gives the new value for an old one; `revert` the value to restore if it has changed since."""

    def __init__(
        self, places: Sequence[Place], compute: Callable[[Any], Any], revert: Callable[[Any], Any]
    ) -> None:
        self._places = places
        self._compute = compute
        self._revert = revert
        self._written: list[Written] = []

    @classmethod
    def scale(cls, places: Sequence[Place], factor: float) -> Change:
        """Multiply each place by `factor`; undoing divides a value that has changed since by it."""
        return cls(places, lambda old: old * factor, lambda now: now / factor)

    @classmethod
    def set(cls, places: Sequence[Place], value: float) -> Change:
        """Set each place to `value`; undoing leaves a value that the job has written since."""
        return cls(places, lambda old: value, lambda now: now)

    def vanishing(self) -> bool:
        """Whether a number other than 0 would become 0 or infinite, which could not be undone."""
        for place in self._places:
            where = place.container()
            old = None if where is None else where[0][where[1]]
            if old is None or to_float(old) == 0.0:
                continue
            new = to_float(self._compute(old))
            if not math.isfinite(new) or abs(new) < sys.float_info.min:
                return True
        return False

    def apply(self) -> None:
        """Write all places; every new value is computed first, as tensors may share memory."""
        plan = []
        for place in self._places:
            where = place.container()
            old = None if where is None else where[0][where[1]]
            if where is not None and old is not None and not _is_zero_number(old, self._compute):
                plan.append((place, where, old, _copy(old), _like(old, self._compute(old))))
        try:
            self._write(plan)
        except BaseException:
            self.undo()
            raise

    def _write(self, plan: Sequence[tuple[Place, tuple[Any, Any], Any, Any, Any]]) -> None:
        for place, (container, key), old, kept, new in plan:
            if place.in_group and is_tensor(old):
                fill(old, new)
                self._written.append(Written(place, kept, new))
            else:
                container[key] = new
                self._written.append(Written(place, old, _copy(new)))

    def undo(self, skip: Callable[[Place], bool] = lambda place: False) -> list[str]:
        """Revert: exactly, where nothing has changed since. Returns the names of the places that have."""
        moved = []
        for place, old, new in reversed(self._written):
            where = place.container()
            if where is None or skip(place):
                continue
            container, key = where
            now = container[key]
            still = same(now, new)
            if not still:
                moved.append(place.name)
            back = old if still else self._revert(now)
            if place.in_group and is_tensor(now):
                fill(now, back)
            else:
                container[key] = back
        self._written.clear()
        return moved


def to_float(value: Any) -> float:
    """A rate as a number, NaN if it is not one; waits for the device if it is on one."""
    try:
        return float(value)
    except (TypeError, ValueError):
        return math.nan


def same(one: Any, other: Any) -> bool:
    """Whether two rates are the same number."""
    return one is other or to_float(one) == to_float(other)


def _is_zero_number(old: Any, compute: Callable[[Any], Any]) -> bool:
    """Whether it is a plain number that does not change; an int 0 then stays an int."""
    return not is_tensor(old) and compute(old) == old


def _copy(value: Any) -> Any:
    return value.detach().clone() if is_tensor(value) else value


def _like(old: Any, new: Any) -> Any:
    """`new` in the form of `old`: a tensor where a tensor was."""
    if not is_tensor(old):
        return new
    import torch

    with torch.no_grad():
        return new.detach() if is_tensor(new) else torch.full_like(old, new)


def fill(tensor: Any, value: Any) -> None:
    """In place: fused kernels, device graphs and compiled steps hold this very tensor."""
    import torch

    with torch.no_grad():
        if is_tensor(value):
            tensor.copy_(value)
        else:
            tensor.fill_(value)
