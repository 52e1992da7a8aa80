"""Replaces an attribute of a class or module with a wrapper, and puts the original back.

Used when an instrument starts and stops, never during a step. The original is put back unless another patch
was made on top of ours: that one stays, and ours becomes a pass-through (`Patches.live`). Standard library
only.

A wrapper adds a frame, which `warnings.warn(…, stacklevel=2)` would count: the warning would name our file
and be shown once for all callers. So wrappers get a file name that `warnings` skips (`unseen`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import CodeType, FunctionType
from typing import Any

from probe.base import package

_unseen: dict[int, tuple[CodeType, CodeType]] = {}


class Patches:
    """The wrappers of one instrument. `live[0]` is false once they must pass everything through."""

    def __init__(self) -> None:
        self.live = [True]
        self._made: list[tuple[Any, str, Any, Any, bool]] = []

    @property
    def made(self) -> bool:
        """Whether any wrapper is in place."""
        return bool(self._made)

    def has(self, owner: Any, name: str) -> bool:
        """Whether `owner.name` is wrapped by this object."""
        return any(made[0] is owner and made[1] == name for made in self._made)

    def wrap(
        self, owner: Any, name: str, make: Callable[[Any], Callable[..., Any]], *, traced: bool = False
    ) -> None:
        """Replace `owner.name` with `make(original)`.

        `traced`: torch.compile traces the original, so it must trace the wrapper too; the wrapper then only
        calls the original."""
        self.live[0] = True
        own = name in vars(owner)
        original = getattr(owner, name)
        wrapper = pass_over(functools.wraps(original)(make(original)))
        # All other originals are never part of a graph: torch.compile must not trace their wrappers.
        if not traced:
            wrapper._torchdynamo_disable = True
        # Keep the raw class attribute: C++ classes bind their methods through a descriptor.
        stood = vars(owner)[name] if own else None
        setattr(owner, name, wrapper)
        self._made.append((owner, name, stood, wrapper, own))

    def undo(self) -> None:
        """Put back every attribute that still holds our wrapper."""
        self.live[0] = False
        while self._made:  # one at a time: another thread may be adding
            owner, name, stood, wrapper, own = self._made.pop()
            if vars(owner).get(name) is not wrapper:
                continue
            if own:
                setattr(owner, name, stood)
            else:
                delattr(owner, name)


def pass_over(wrapper: Any) -> Any:
    """Make `warnings` skip the frame of `wrapper`, and return it."""
    if isinstance(wrapper, FunctionType):
        wrapper.__code__ = unseen(wrapper.__code__)
    return wrapper


def unseen(code: CodeType) -> CodeType:
    """The same code under another path of its file, with `importlib` and `_bootstrap` in it: `warnings` and
    `logging` skip it. The same object each time, because torch.compile has been told to ignore it."""
    known = _unseen.get(id(code))
    if known is not None:
        return known[1]
    found = code
    if code.co_filename.startswith(package.FOLDER) and package.DETOUR not in code.co_filename:
        inside = code.co_filename[len(package.FOLDER) :]
        found = code.replace(co_filename=f"{package.FOLDER}{package.DETOUR}{inside}")
    _unseen[id(code)] = (code, found)  # holding `code` keeps its id unique
    return found
