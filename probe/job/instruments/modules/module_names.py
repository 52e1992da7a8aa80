"""Module names: maps each module object to its path in its root.

HOT PATH: `of`, for every module call of a sampled step: one dictionary lookup and one check of a weak
reference. The agent's thread walks new roots (milliseconds for thousands of modules); nothing is sampled
before the first walk.

A root is named by its class. Modules of the first root have plain paths; paths in further roots start with
their root's class, so the two networks of a GAN share no names. `DistributedDataParallel`, `DataParallel` and
DeepSpeed's engine are skipped. A submodule that a framework calls directly is named, from the first walk on,
as a part of the model that the framework's trainer holds. A module keeps one name: nothing is sampled between
the creation of the first optimizer and the next walk, and rows of a module called before a walk has found it
wait for its name (`settled`).
"""

from __future__ import annotations

import sys
import time
import weakref
from typing import Any, NamedTuple

from probe.job.instruments.core.object_access import attributes, entries, unwrapped
from probe.job.instruments.core.recorder import Recorder
from probe.job.instruments.loop.forward import Forward
from probe.job.introspection import python_frames, training_frameworks

_REST_S = 1.0
"""Minimum seconds between two walks while no name is missing."""
_SHARE, _MISSED_SHARE = 1000, 100
"""Pause after a walk, as a multiple of its duration; the second one if names are missing. A walk holds the
GIL: at most 0.1 % of the time, or 1 %."""


class Unnamed(NamedTuple):
    """A module that was called before its path was known."""

    module: weakref.ref[Any]
    label: int
    """String number of its class."""
    walk: int
    """Number of the last walk that had started by then."""


class ModuleNames:
    """Names of the modules of all known roots."""

    def __init__(self, recorder: Recorder, forward: Forward) -> None:
        self._recorder = recorder
        self._intern = recorder.intern
        self._forward = forward
        self._numbers: dict[int, tuple[weakref.ref[Any], int, str, int]] = {}
        self._walked: dict[int, tuple[weakref.ref[Any], int]] = {}
        self._holders: dict[int, weakref.ref[Any]] = {}
        """Models of a framework's trainer, of which parts were called."""
        self._first: weakref.ref[Any] | None = None
        self._without_root: dict[int, tuple[weakref.ref[Any], int]] = {}
        """Modules that belong to no root, such as a loss, with the string numbers of their classes."""
        self.training = False
        """Whether a walk was made after the creation of the first optimizer."""
        self._walks = 0
        self._missed = False
        self._walked_s = self._took_s = 0.0
        self._walked_step = 0

    @property
    def ready(self) -> bool:
        """Whether the roots have their final names. A module called before the first optimizer exists may
        turn out to be a part of a model that a framework trains."""
        return bool(self._walked) and (self.training or not self._forward.made_optimizer())

    def of(self, module: Any) -> int | None:
        """String number of a module's path, or of its class if it is known to be in no root; None while
        unknown."""
        known = self._numbers.get(id(module)) or self._without_root.get(id(module))
        if known is not None and known[0]() is module:
            return known[1]
        self._missed = True
        return None

    def unnamed(self, module: Any) -> Unnamed:
        """An entry for `settled` for a module that is still unknown."""
        return Unnamed(weakref.ref(module), self._intern(type(module).__name__), self._walks)

    def path(self, module: Any) -> str | None:
        """A module's path; None if unknown."""
        known = self._numbers.get(id(module))
        return known[2] if known is not None and known[0]() is module else None

    def find(self, path: str) -> Any:
        """The module with that path; None without one."""
        for reference, _, text, _ in list(self._numbers.values()):
            if text == path and (module := reference()) is not None:
                return module
        return None

    def known(self) -> list[str]:
        """Paths of all known modules that are alive."""
        return [text for reference, _, text, _ in list(self._numbers.values()) if reference() is not None]

    def roots(self) -> list[Any]:
        """The root modules that are alive, the largest tree first."""
        walked = sorted(self._walked.values(), key=lambda entry: -entry[1])
        return [root for reference, _ in walked if (root := reference()) is not None]

    def prefix(self, model: Any, *, first: bool) -> str:
        """Prefix of the names in a model: empty for the first model, the class and a dot for others.

        `first` decides while none of its modules is named."""
        label = f"{type(model).__name__}."
        children = (child for _, child in entries(attributes(model).get("_modules")) if child is not None)
        known = next((path for child in children if (path := self.path(child)) is not None), None)
        plain = first if known is None else not known.startswith(label)
        return "" if plain else label

    # The agent's thread -----------------------------------------------------

    def settled(self, unnamed: Unnamed) -> int | None:
        """`of` for a module that was unknown when it was called; None until a later walk has searched for
        it."""
        module = unnamed.module()
        if module is None:
            return unnamed.label
        number = self.of(module)
        if number is None and self._walks > unnamed.walk:
            self._without_root[id(module)] = (unnamed.module, unnamed.label)
            return unnamed.label
        return number

    def collect(self) -> None:
        """Walk new roots, and all roots again from time to time, because modules may be renamed."""
        begun_s = time.monotonic()
        again = self._rewalk_due(begun_s)
        self._walks += again
        training = self._forward.made_optimizer()
        roots = {key: root for key, one in list(self._forward.roots.items()) if (root := one()) is not None}
        if training > self.training or not roots.keys() <= self._walked.keys():
            self._remember_trained(list(roots.values()))
        for key, reference in list({**self._holders, **self._forward.roots}.items()):
            root = reference()
            if root is None:
                self._forward.roots.pop(key, None)
                self._holders.pop(key, None)
                self._walked.pop(key, None)
            elif again or key not in self._walked or self._walked[key][0]() is not root:
                self._walk(key, root)
        self.training = training
        if again:
            named, loose = list(self._numbers.items()), list(self._without_root.items())
            self._numbers = {key: entry for key, entry in named if entry[0]() is not None}
            self._without_root = {key: entry for key, entry in loose if entry[0]() is not None}
            self._walked_s = time.monotonic()
            self._took_s = self._walked_s - begun_s

    def _remember_trained(self, roots: list[Any]) -> None:
        """Remember the models that a framework trains, if they contain one of these roots."""
        frame = sys._current_frames().get(self._recorder.thread or 0)
        for model in training_frameworks.find(python_frames.walk(frame)).held("model"):
            if id(model) in self._holders or any(model is root for root in roots):
                continue
            inside = set(map(id, model.modules()))
            if any(id(unwrapped(root)) in inside for root in roots):
                self._holders[id(model)] = weakref.ref(model)

    def _rewalk_due(self, now_s: float) -> bool:
        """Whether to walk all roots again: soon after a missing name, and less often the longer it takes."""
        step = self._recorder.step
        if step == self._walked_step and not self._missed:
            return False
        rest_s = _MISSED_SHARE * self._took_s if self._missed else max(_REST_S, _SHARE * self._took_s)
        if now_s - self._walked_s < rest_s:
            return False
        self._missed = False
        self._walked_step = step
        return True

    def _walk(self, key: int, root: Any) -> None:
        inner = unwrapped(root)
        try:
            modules = list(inner.named_modules())
        except RuntimeError:  # the training thread is changing the model
            self._missed = True
            return
        has_children = len(modules) > 1
        first = self._first() if self._first is not None else None
        if has_children and (first is None or any(first is module for _, module in modules)):
            self._first = weakref.ref(inner)
            first = inner
        label = type(inner).__name__
        if has_children and not self._inside_another(root):
            prefix = "" if first is inner else f"{label}."
            for name, module in modules:
                text = f"{prefix}{name}" if name else label
                self._name(module, text, key)
        elif id(inner) not in self._numbers or self._numbers[id(inner)][0]() is not inner:
            self._name(inner, label, key)
        if root is not inner:
            self._name(root, type(root).__name__, key)
        self._walked[key] = (weakref.ref(root), len(modules))

    def _inside_another(self, root: Any) -> bool:
        """Whether another root's walk named this one: a part of a model that is also called directly."""
        known = self._numbers.get(id(root))
        return known is not None and known[0]() is root and known[3] != id(root)

    def _name(self, module: Any, text: str, root: int) -> None:
        self._numbers[id(module)] = (weakref.ref(module), self._intern(text), text, root)
