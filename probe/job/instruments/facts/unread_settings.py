"""Settings that nothing reads: attributes of torch's own optimizers, entries of their groups, defaults.

An optimizer of torch takes its settings from `param_groups` alone. Python lets a program write
`optimizer.lr`, `group["learning_rate"]` or, once the groups are made, `optimizer.defaults["lr"]`: no step
reads them.
Runs on the agent's thread; reads dictionaries only (`object_access`). Standard library only.
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
"""Names that other libraries have for settings, in letters only."""
_LEAST_LETTERS = 5
"""Of a name that is taken for a misspelt one."""
_MOST_NAMES = 64

Unread = tuple[str, str, str, Value]
"""The setting that is meant, where it was written (`attribute`, `key`, `defaults`), as what, the value."""


class UnreadSettings:
    """Looks at optimizers; remembers the defaults that each was first seen with."""

    def __init__(self) -> None:
        self._first: dict[int, tuple[weakref.ref[Any], dict[str, Any]]] = {}

    def of(self, optimizer: Any) -> Iterator[Unread]:
        """What is written where no step reads it; nothing of optimizers that are not torch's own."""
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
    """The setting of the optimizer that a name means; None for any other name."""
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
    """Whether two words have the same letters, but for one of each."""
    if len(other) < _LEAST_LETTERS or one[0] != other[0]:
        return False
    left, right = Counter(one), Counter(other)
    return max((left - right).total(), (right - left).total()) <= 1
