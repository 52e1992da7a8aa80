"""Parameter names: maps each parameter object to its name and position in its model.

HOT PATH: `of`, once per parameter of a sampled step: one dictionary lookup and one check of a weak reference.
The agent's thread walks the models (`collect`) without calling their code. Names are those of
`named_parameters()`, with the prefixes of `module_names`.

FSDP and `functional_call` replace the tensors in modules while they compute: so known names are kept, only
parameters get one, and a missing one starts another walk. Determined anew are only names from before the
first optimizer, as in `module_names`, and names whose model is gone or has become a part of another one, as a
backbone that is fine-tuned.
"""

from __future__ import annotations

import sys
import time
import weakref
from typing import Any, NamedTuple

from probe.job.instruments.core.object_access import attributes, entries, unwrapped
from probe.job.instruments.core.recorder import Recorder
from probe.job.instruments.modules.module_names import ModuleNames

MOST_BYTES = 1 << 18
"""Maximum size of all names: a quarter of the recording's strings. Further parameters get no name."""
_SHARE = 200
"""Pause after a walk, as a multiple of its duration: a walk holds the GIL, at most 0.5 % of the time."""
_REST_S = 0.05


class Known(NamedTuple):
    """A parameter's name."""

    number: int
    """String number of the name; 0 if there was no room for it."""
    place: int
    """Position in its model, from 0."""
    text: str


class ParameterNames:
    """Names of the parameters of all known models."""

    def __init__(self, recorder: Recorder, names: ModuleNames) -> None:
        self._intern = recorder.intern
        self._modules = names
        self._known: dict[int, tuple[weakref.ref[Any], Known, weakref.ref[Any]]] = {}
        """Per parameter: itself, its name, and the model that it was named in."""
        self._walked: set[int] = set()
        self._training = False
        self._bytes = 0
        self._missed = True
        self._next_s = 0.0

    @property
    def ready(self) -> bool:
        """Whether the names are final: determined after the first optimizer was created."""
        return self._training and self._modules.ready

    def of(self, parameter: Any) -> Known | None:
        """Name and position; None while unknown."""
        known = self._known.get(id(parameter))
        if known is not None and known[0]() is parameter:
            return known[1]
        self._missed = True
        return None

    # The agent's thread -----------------------------------------------------

    def known(self) -> list[tuple[weakref.ref[Any], Known]]:
        """All parameters with names."""
        return [(reference, known) for reference, known, _ in list(self._known.values())]

    def collect(self) -> None:
        """Walk the models if they have changed or a name was missing."""
        now_s = time.monotonic()
        if self._modules.training > self._training:
            self._training = True
            self._known.clear()
            self._walked.clear()
            self._next_s = now_s
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
        """Name the parameters of one model; False if it has none."""
        inner = unwrapped(root)
        inside.update((id(root), id(inner)))
        waiting = [(self._modules.prefix(inner, first=first), inner)]
        seen: set[int] = set()
        place = 0
        kind: Any = sys.modules["torch"].nn.Parameter
        while waiting:
            path, module = waiting.pop()
            if id(module) in seen:
                continue
            seen.add(id(module))
            inside.add(id(module))
            held = attributes(module)
            for key, parameter in entries(held.get("_parameters")):
                if parameter is not None and id(parameter) not in seen:
                    seen.add(id(parameter))
                    if not isinstance(parameter, kind):  # put there for one call
                        self._missed = True
                    elif not self._keeps_its_name(parameter, inner, inside):
                        self._name(parameter, f"{path}{key}", place, inner)
                    place += 1
            below = reversed(entries(held.get("_modules")))
            waiting += [(f"{path}{key}.", child) for key, child in below if child is not None]
        return place > 0

    def _keeps_its_name(self, parameter: Any, model: Any, inside: set[int]) -> bool:
        """Whether a parameter was named in `model`, or in another one that is a model of its own still."""
        known = self._known.get(id(parameter))
        if known is None or known[0]() is not parameter:
            return False
        named_in = known[2]()
        return named_in is model or (named_in is not None and id(named_in) not in inside)

    def _name(self, parameter: Any, text: str, place: int, model: Any) -> None:
        self._bytes += len(text)
        number = self._intern(text) if self._bytes < MOST_BYTES else 0
        self._known[id(parameter)] = (weakref.ref(parameter), Known(number, place, text), weakref.ref(model))
