"""Unread settings: detects settings of torch's optimizers written where no step reads them.

A torch optimizer reads its settings only from `param_groups`. Python also lets a program write
`optimizer.lr`, `group["learning_rate"]` or, after the groups are created, `optimizer.defaults["lr"]`: no step
reads these. Runs on the agent's thread; reads dictionaries only (`object_access`). Standard library only.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Iterator
from typing import Any

from probe.job.instruments.core.object_access import attributes, entries
from probe.job.instruments.facts.hyperparameters import Value, plain

_OTHER_NAMES = {
    "learningrate": "lr", "rate": "lr", "lrate": "lr", "wd": "weight_decay", "l2": "weight_decay",
    "beta": "betas", "mom": "momentum",
}
"""Names of settings in other libraries, letters only."""
_LEAST_LETTERS = 5
"""Minimum length of a name to be considered a misspelling."""
_MOST_NAMES = 64

Unread = tuple[str, str, str, Value]
"""The intended setting, where it was written (`attribute`, `key`, `defaults`), the name used, the value."""


class UnreadSettings:
    """Checks optimizers; remembers the defaults that each one had when first seen."""

    def __init__(self) -> None:
        self._first: dict[int, tuple[weakref.ref[Any], dict[str, Any]]] = {}

    def of(self, optimizer: Any) -> Iterator[Unread]:
        """The unread settings of an optimizer; none for optimizers that are not torch's own."""
        if not type(optimizer).__module__.startswith("torch.optim."):
            return
        held = attributes(optimizer)
        defaults, groups = dict(entries(held.get("defaults"))), held.get("param_groups")
        if not defaults or not isinstance(groups, list) or not groups:
            return
        group = dict(entries(groups[0]))
        for place, table in (("attribute", held), ("key", group)):
            for name in list(table)[:_MOST_NAMES]:
                meant = None if place == "key" and name in defaults else _setting(name, defaults)
                if meant is not None and (value := plain(table[name])) is not None:
                    yield meant, place, name, value
        known = self._first.get(id(optimizer))
        if known is None or known[0]() is not optimizer:
            self._first[id(optimizer)] = weakref.ref(optimizer), defaults
            return
        for name, before in known[1].items():
            value = plain(defaults.get(name))
            if value is not None and value != plain(before):
                yield name, "defaults", name, value


def _setting(name: Any, defaults: dict[str, Any]) -> str | None:
    """The optimizer's setting that a name stands for; None for any other name."""
    if not isinstance(name, str) or name.startswith("_"):
        return None
    if name in defaults:
        return name
    letters = _letters(name)
    meant = _OTHER_NAMES.get(letters)
    if meant is not None:
        return meant if meant in defaults else None
    if len(letters) < _LEAST_LETTERS:
        return None
    return next((one for one in defaults if _is_nearly(letters, _letters(one))), None)


def _letters(name: str) -> str:
    return "".join(one for one in name.lower() if one.isalnum())


def _is_nearly(one: str, other: str) -> bool:
    """Whether two words have the same letters, except at most one in each."""
    if len(other) < _LEAST_LETTERS or one[0] != other[0]:
        return False
    left, right = Counter(one), Counter(other)
    return max((left - right).total(), (right - left).total()) <= 1
