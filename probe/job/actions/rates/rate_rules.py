"""Rate rules: replace the learning rate of a group during the optimizer's step only.

The schedule continues underneath, undisturbed: its rate is put back right after the step. Rules on the same
group apply in the order they were made, and each can be removed separately. Training thread; `remove` also on
others, when probe leaves the process. Standard library; torch inside functions.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any, NamedTuple

from probe.job.actions.device import capturing, is_tensor, on_device
from probe.job.actions.rates.schedules import fill, same, to_float


class Rule(NamedTuple):
    """The rate of some groups: `value` itself, or `value` times the scheduled rate."""

    owner: object
    groups: frozenset[int]
    scales: bool
    value: float

    def of(self, rate: Any) -> Any:
        """The rate that the step uses if `rate` is scheduled."""
        return rate * self.value if self.scales else self.value


class Lent(NamedTuple):
    """A group's rate before the step, and during it."""

    scheduled: Any
    used: Any


class Rules:
    """All rules on one optimizer. The owner of the first one applies them all."""

    def __init__(self, optimizer: Any) -> None:
        self._optimizer = weakref.ref(optimizer)
        self._rules: tuple[Rule, ...] = ()
        self._lent: dict[int, Lent] = {}

    def are_of(self, optimizer: Any) -> bool:
        """Whether these rules are that optimizer's, not those of an earlier one at the same address."""
        return self._optimizer() is optimizer

    def add(self, rule: Rule) -> None:
        """Add a rule after the others."""
        self._rules = (*self._rules, rule)
        _OF[id(self._optimizer())] = self

    def remove(self, owner: object) -> None:
        """Remove the rules of `owner`; puts back the rates of a step that raised, or still runs."""
        self._rules = tuple(rule for rule in self._rules if rule.owner is not owner)
        self.give_back()
        if not self._rules:
            _OF.pop(id(self._optimizer()), None)

    def on(self, groups: Sequence[int]) -> bool:
        """Whether there is a rule on any of these groups."""
        return any(rule.groups & set(groups) for rule in self._rules)

    def scheduled(self, group: int, now: Any) -> Any:
        """The rate without any rule, if the group holds `now`."""
        lent = self._lent.get(group)
        return now if lent is None else lent.scheduled

    def used(self, group: int, rate: Any) -> Any:
        """The rate that a step uses if `rate` is scheduled."""
        for rule in self._rules:
            if group in rule.groups:
                rate = rule.of(rate)
        return rate

    # HOT PATH ---------------------------------------------------------------

    def before(self, owner: object, optimizer: Any) -> None:
        """Right before the optimizer's step: put the ruled rates in place."""
        if self._rules and self._rules[0].owner is owner:
            self.lend(optimizer)

    def after(self, owner: object) -> None:
        """Right after it: put the scheduled rates back."""
        if self._rules and self._rules[0].owner is owner:
            self.give_back()

    def lend(self, optimizer: Any) -> None:
        """Put the ruled rates in place, unless they are there already."""
        for index, group in enumerate(optimizer.param_groups):
            if not any(index in rule.groups for rule in self._rules):
                continue
            now = group["lr"]
            if capturing(now):
                return
            lent = self._lent.get(index)
            if lent is not None and same(now, lent.used):
                continue  # the last step raised, so the rates were not put back
            scheduled = now.detach().clone() if is_tensor(now) else now
            used = self.used(index, scheduled)
            self._lent[index] = Lent(scheduled, used)
            _put(group, used)

    def give_back(self) -> None:
        """Put back rates that are still ours: a schedule that advanced inside the step takes precedence."""
        optimizer = self._optimizer()
        for index in list(self._lent):
            lent = self._lent.pop(index, None)
            if lent is None or optimizer is None or index >= len(optimizer.param_groups):
                continue
            group = optimizer.param_groups[index]
            if on_device(group["lr"]) or same(group["lr"], lent.used):
                _put(group, lent.scheduled)


_OF: dict[int, Rules] = {}
"""Rules by the optimizer's address, while it has any: an optimizer with its own `__eq__` has no hash."""


def rules_of(optimizer: Any) -> Rules:
    """The rules on that optimizer, possibly none."""
    found = _OF.get(id(optimizer))
    return found if found is not None and found.are_of(optimizer) else Rules(optimizer)


def _put(group: dict[str, Any], rate: Any) -> None:
    held = group["lr"]
    if is_tensor(held):
        fill(held, rate)
    else:
        group["lr"] = rate if not is_tensor(rate) else to_float(rate)
