"""Replacing a class's or module's attribute with a wrapper, and putting it back.

Used when an instrument starts and stops; never during a step. A wrapper is put
back only if nobody wrapped it again in between: somebody else's patch on top of
ours stays, and ours under it turns into a plain pass-through (`Patches.live`).
Standard library only.

A wrapper is one frame more between the caller and what it calls. `warnings.warn(…, stacklevel=2)` would
count it: the warning would name our file, be filtered under our module's name, and be shown once for all
callers. So wrappers are given a file name that `warnings` passes over (`unseen`).
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from types import CodeType, FunctionType
from typing import Any

from probe.base import package

_unseen: dict[int, tuple[CodeType, CodeType]] = {}


class Patches:
    """The wrappers of one instrument. `live[0]` is false once they are to pass everything through."""

    def __init__(self) -> None:
        self.live = [True]
        self._made: list[tuple[Any, str, Any, Any, bool]] = []

    @property
    def made(self) -> bool:
        """Whether any wrapper is in place."""
        return bool(self._made)

    def has(self, owner: Any, name: str) -> bool:
        """Whether `owner.name` has a wrapper of these."""
        return any(made[0] is owner and made[1] == name for made in self._made)

    def wrap(
        self, owner: Any, name: str, make: Callable[[Any], Callable[..., Any]], *, traced: bool = False
    ) -> None:
        """Replace `owner.name` by `make(original)`. `traced`: torch.compile traces what is wrapped, and so
        has to trace the wrapper, which then does nothing but call the original."""
        self.live[0] = True
        own = name in vars(owner)
        original = getattr(owner, name)
        wrapper = pass_over(functools.wraps(original)(make(original)))
        # What we wrap is never part of a graph; torch.compile stops in front of it with us or
        # without, and must not trace the wrapper.
        if not traced:
            wrapper._torchdynamo_disable = True
        # What stands in the class is kept as it is: C++ classes bind their methods by a descriptor.
        stood = vars(owner)[name] if own else None
        setattr(owner, name, wrapper)
        self._made.append((owner, name, stood, wrapper, own))

    def undo(self) -> None:
        """Put everything back that is still ours."""
        self.live[0] = False
        for owner, name, stood, wrapper, own in reversed(self._made):
            if vars(owner).get(name) is not wrapper:
                continue
            if own:
                setattr(owner, name, stood)
            else:
                delattr(owner, name)
        self._made.clear()


def pass_over(wrapper: Any) -> Any:
    """`wrapper`, whose frame `warnings` does not count from now on."""
    if isinstance(wrapper, FunctionType):
        wrapper.__code__ = unseen(wrapper.__code__)
    return wrapper


def unseen(code: CodeType) -> CodeType:
    """The same code under a name of the same file at which `warnings` and `logging` look no closer: one that
    holds `importlib` and `_bootstrap`. Always the same object, which torch.compile is told to leave alone."""
    known = _unseen.get(id(code))
    if known is not None:
        return known[1]
    found = code
    if code.co_filename.startswith(package.FOLDER) and "importlib_bootstrap" not in code.co_filename:
        inside = code.co_filename[len(package.FOLDER) :]
        name = os.path.join(package.FOLDER, "importlib_bootstrap", os.pardir, inside)
        found = code.replace(co_filename=name)
    _unseen[id(code)] = (code, found)  # the first keeps its id its own
    return found
