"""Parameter names: name and place of each parameter in its model, looked up by identity.

HOT PATH: `of`, once for each parameter of a sampled step: one dictionary look-up and one check of a weak
reference. The walk over a model is done by the agent's thread (`collect`), past everything that the model's
classes do when they are asked. Names are those of `named_parameters()`; of models after the first they begin
with the model's class, as module names do (`module_names`).

FSDP puts other tensors into the modules while they compute: what was found stays known, and a parameter that
was missed is looked for again.
"""

from __future__ import annotations

import time
import weakref
from typing import Any, NamedTuple

from probe.job.instruments.core.recorder import Recorder
from probe.job.instruments.modules.module_names import ModuleNames

MOST_BYTES = 1 << 18
"""Text of all names together: a quarter of the recording's strings. Parameters beyond it have no name."""
_SHARE = 200
"""A walk holds the GIL: it takes at most 0.5 % of the time."""
_REST_S = 0.05


class Known(NamedTuple):
    """What a parameter is called."""

    number: int
    """Of the name among the recording's strings; 0 when there was no room for it."""
    place: int
    """In the order of its model's parameters, from 0."""
    text: str


class ParameterNames:
    """Names of the parameters of all models that were seen."""

    def __init__(self, recorder: Recorder, names: ModuleNames) -> None:
        self._intern = recorder.intern
        self._modules = names
        self._known: dict[int, tuple[weakref.ref[Any], Known]] = {}
        self._walked: set[int] = set()
        self._bytes = 0
        self._missed = True
        self._next_s = 0.0

    def of(self, parameter: Any) -> Known | None:
        """Name and place; None when they are not known (yet)."""
        known = self._known.get(id(parameter))
        if known is not None and known[0]() is parameter:
            return known[1]
        self._missed = True
        return None

    # The agent's thread -----------------------------------------------------

    def collect(self) -> None:
        """Walk the models again when there are others, or when a name was missed."""
        now_s = time.monotonic()
        roots = self._modules.roots()
        same = {id(root) for root in roots} == self._walked
        if not roots or (same and not self._missed) or now_s < self._next_s:
            return
        self._missed = False
        inside: set[int] = set()
        first = True
        for root in roots:
            if id(root) not in inside:
                first = not self._walk(root, inside, first) and first
        self._walked = {id(root) for root in roots}
        self._known = {key: one for key, one in list(self._known.items()) if one[0]() is not None}
        took_s = time.monotonic() - now_s
        self._next_s = now_s + max(_REST_S, _SHARE * took_s)

    def _walk(self, root: Any, inside: set[int], first: bool) -> bool:
        """Name the parameters of one model; whether it has any."""
        inner = self._modules.inner(root)
        children = [child for child in _entries(inner, "_modules").values() if child is not None]
        prefix = self._prefix(type(inner).__name__, children, first)
        inside.update((id(root), id(inner)))
        waiting = [(prefix, inner)]
        seen: set[int] = set()
        place = 0
        while waiting:
            path, module = waiting.pop()
            if id(module) in seen:
                continue
            seen.add(id(module))
            inside.add(id(module))
            for key, parameter in _entries(module, "_parameters").items():
                if parameter is not None and id(parameter) not in seen:
                    seen.add(id(parameter))
                    self._name(parameter, f"{path}{key}", place)
                    place += 1
            below = _entries(module, "_modules").items()
            waiting += [(f"{path}{key}.", child) for key, child in reversed(below) if child is not None]
        return place > 0

    def _prefix(self, label: str, children: list[Any], first: bool) -> str:
        paths = (self._modules.path(child) for child in children)
        known = next((path for path in paths if path is not None), None)
        plain = first if known is None else not known.startswith(f"{label}.")
        return "" if plain else f"{label}."

    def _name(self, parameter: Any, text: str, place: int) -> None:
        known = self._known.get(id(parameter))
        if known is not None and known[0]() is parameter:
            return
        self._bytes += len(text)
        number = self._intern(text) if self._bytes < MOST_BYTES else 0
        self._known[id(parameter)] = (weakref.ref(parameter), Known(number, place, text))


def _entries(module: Any, name: str) -> dict[str, Any]:
    """A copy of one of a module's own tables, as it is this instant."""
    found = vars(module).get(name)
    return dict(found) if isinstance(found, dict) else {}
