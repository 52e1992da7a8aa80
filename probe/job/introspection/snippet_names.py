"""Names: resolves `model`, `optimizer`, `train_loader`, … in a snippet.

Runs on the eval thread. A name is looked up in the user's frames of the training thread, from the innermost
outwards, locals before globals; then in `__main__`; then among the objects in a framework's trainer; then
among the objects the instruments have seen; `rank` and `world_size` exist in every job, and so do `torch`,
`np`, `gc`, `sys` and `os` if it has loaded them. The name of a builtin (`input`, `max`) means the user's
variable only in the innermost of those frames, as in Python. A snippet that asks for the names themselves
(`globals()`, `dir()`) gets all of them. Standard library only.
"""

from __future__ import annotations

import ast
import builtins
import difflib
import functools
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import FrameType, FunctionType, ModuleType
from typing import Any

from probe.base import package
from probe.job.introspection import python_frames, training_frameworks

NAMES = "__names__"
"""In a snippet: the names that it can use, sorted, except builtins."""
ASK_FOR_NAMES = frozenset({"globals", "locals", "vars", "dir"})
"""Builtins that return the names a snippet sees: a snippet that uses one gets all names."""
_MODULES = {"torch": "torch", "np": "numpy", "gc": "gc", "sys": "sys", "os": "os"}


def names_used(tree: ast.AST) -> set[str]:
    """Names that a snippet reads or deletes."""
    named = [node for node in ast.walk(tree) if isinstance(node, ast.Name)]
    return {node.id for node in named if isinstance(node.ctx, (ast.Load, ast.Del))}


class Names(dict[str, Any]):
    """Names and their values. The repr shows the kind of each value and runs none of its code."""

    def __repr__(self) -> str:
        shown = sorted(name for name in self if type(name) is str and name[:2] != "__")
        return "{" + ",\n ".join(f"{name!r}: {_in_short(self[name])}" for name in shown) + "}"


class Scope:
    """Everything a snippet may name, in the order of lookup."""

    def __init__(
        self, training_thread: int | None, seen: Callable[[], dict[str, Any]],
        failed: Sequence[FrameType] = (), job: Callable[[], dict[str, Any]] = dict,
    ) -> None:
        """`failed`: frames of an exception, innermost first, which are used instead of the thread's. `job`:
        names that every job has (`place_in_job`)."""
        found: Iterable[FrameType] = failed
        if training_thread is not None and not failed:
            found = python_frames.walk(sys._current_frames().get(training_thread))
        # Without our own: at a boundary they refer to this object, a cycle that only the collector frees.
        self._all = [frame for frame in found if not frame.f_code.co_filename.startswith(package.FOLDER)]
        self._frames = [frame for frame in self._all if python_frames.is_user_code(frame.f_code.co_filename)]
        self._seen = seen
        self._job = job

    @functools.cached_property
    def framework(self) -> training_frameworks.Framework:
        """The trainers of frameworks in these frames."""
        return training_frameworks.find(self._all)

    @property
    def closed(self) -> list[str]:
        """Functions whose variables were not read, because that would leave a trace."""
        unreadable = [frame for frame in self._frames if not python_frames.readable(frame)]
        return [python_frames.function_name(frame) for frame in unreadable]

    def resolve(self, wanted: Iterable[str]) -> dict[str, Any]:
        """The values of the wanted names that exist; of all names if `globals` or the like is wanted."""
        wanted = set(wanted)
        if wanted & ASK_FOR_NAMES:
            wanted |= {name for name in self.known() if not hasattr(builtins, name)}
        builtin = {name for name in wanted if hasattr(builtins, name)}
        missing = wanted - builtin
        found: dict[str, Any] = {}
        if builtin and self._frames:
            innermost = self._frames[0]
            for layer in (innermost.f_globals, python_frames.variables(innermost)):
                found.update({name: layer[name] for name in builtin if name in layer and name[:2] != "__"})
        if NAMES in missing:
            found[NAMES] = sorted(self.known())
            missing.discard(NAMES)
        for layer in self._layers():
            for name in [name for name in missing if name in layer]:
                found[name] = layer[name]
                missing.discard(name)
            if not missing:
                break
        return found

    def name_of(self, thing: Any) -> str | None:
        """The first name, in the order of lookup, for exactly this object or a framework's wrapper of it."""
        for layer in self._layers():
            named = [(name, value) for name, value in list(layer.items()) if isinstance(name, str)]
            for same in (_itself, training_frameworks.unwrapped):
                for name, value in named:
                    if same(value) is thing and not name.startswith("_") and name != "self":
                        return name
        return None

    def near(self, name: str) -> list[str]:
        """Names that exist and look like `name`, best first."""
        return difflib.get_close_matches(name, sorted(self.known()), n=3, cutoff=0.6)

    def known(self) -> set[str]:
        """All names that exist."""
        found: set[str] = set()
        for layer in self._layers():
            found.update(key for key in layer if isinstance(key, str) and not key.startswith("__"))
        return found

    def _layers(self) -> Iterator[dict[str, Any]]:
        for frame in self._frames:
            yield python_frames.variables(frame)
        for frame in self._frames:
            yield frame.f_globals
        main = sys.modules.get("__main__")
        if main is not None:
            yield vars(main)
        yield self.framework.names()
        yield self._seen()
        yield self._job()
        yield {name: sys.modules[module] for name, module in _MODULES.items() if module in sys.modules}


_NAME_OF = type.__dict__["__name__"].__get__
_PLAIN = (bool, int, float, complex, str, bytes, type(None))
_LONGEST = 60


def _in_short(value: Any) -> str:
    """A plain value as it is, anything else by its kind: `<Tensor [8, 64] torch.int64>`, `<list of 3>`."""
    kind = type(value)
    name = _NAME_OF(kind)
    if kind in _PLAIN and (kind not in (int, str, bytes) or sys.getsizeof(value) < 10 * _LONGEST):
        text = repr(value)
        return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"
    torch: Any = sys.modules.get("torch")
    if torch is not None and kind in (torch.Tensor, torch.nn.Parameter):
        return f"<{name} {list(value.shape)} {value.dtype}>"
    if kind in (list, tuple, set, frozenset, dict):
        return f"<{name} of {len(value)}>"
    if kind in (ModuleType, FunctionType):
        return f"<{name} {value.__name__}>"
    return f"<class {_NAME_OF(value)}>" if kind is type else f"<{name}>"


def _itself(thing: Any) -> Any:
    return thing


def place_in_job(rank: int, world_size: int | None) -> dict[str, Any]:
    """`rank` and `world_size`: as torch.distributed says, else as the launcher did."""
    distributed = process_groups()
    if distributed is not None:
        return {"rank": distributed.get_rank(), "world_size": distributed.get_world_size()}
    return {"rank": rank, "world_size": 1 if world_size is None else world_size}


def process_groups() -> Any:
    """`torch.distributed` in a job that has made its default group; else None. Imports nothing."""
    distributed: Any = sys.modules.get("torch.distributed")
    made = distributed is not None and distributed.is_available() and distributed.is_initialized()
    return distributed if made else None
