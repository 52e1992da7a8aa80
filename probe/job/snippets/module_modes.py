"""Module modes: train and eval modes that a snippet has left changed because it did not run to its end.

`model.eval()` is meant to last, if the snippet says so and ends. If it is stopped or raises before its own
`model.train()`, the training would go on in eval mode. On the training thread. Runs no code of the job:
modules are read through their dictionaries. torch only if the job has it.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from typing import Any

from probe.job.introspection.training_frameworks import own_dictionary

_CHANGES = re.compile(r"\.(eval|train|training)\b")
MOST_MODULES = 100_000


def may_change(code: str) -> bool:
    """Whether a snippet's text can change the mode of a module."""
    return _CHANGES.search(code) is not None


class ModuleModes:
    """The modes of all modules among some objects and among their attributes, when it is made."""

    def __init__(self, objects: Iterable[Any]) -> None:
        self._before: list[tuple[dict[str, Any], bool]] = []
        kind = getattr(sys.modules.get("torch.nn"), "Module", None)
        if kind is None:
            return
        waiting: list[Any] = []
        for one in objects:
            if kind in type(one).__mro__:
                waiting.append(one)
            elif not isinstance(one, type):
                held = list(own_dictionary(one).values())
                waiting += [value for value in held if kind in type(value).__mro__]
        seen: set[int] = set()
        while waiting and len(seen) < MOST_MODULES:
            module = waiting.pop()
            if id(module) in seen:
                continue
            seen.add(id(module))
            fields = own_dictionary(module)
            if isinstance(fields.get("training"), bool):
                self._before.append((fields, fields["training"]))
            inside = list((fields.get("_modules") or {}).values())
            waiting += [one for one in inside if kind in type(one).__mro__]

    def restore(self) -> bool:
        """Restore the modes; returns whether one had changed."""
        changed = [(fields, mode) for fields, mode in self._before if fields.get("training") is not mode]
        for fields, mode in changed:
            fields["training"] = mode
        return bool(changed)
