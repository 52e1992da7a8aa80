"""Frames of other threads: whose code they are, and their variables, read without traces.

Runs on the agent's threads with the GIL, never on the training thread. Standard
library only.

Reading `frame.f_locals` before Python 3.13 makes a copy of the variables that
the frame keeps until it ends: main() of a training script would hold on to a
batch and a loss for ever. So the copy is emptied again right after reading,
unless the job itself holds it (`locals()` was called there).
"""

from __future__ import annotations

import inspect
import sys
import sysconfig
from collections.abc import Iterator
from types import FrameType
from typing import Any

_LIBRARY_FOLDERS = tuple(
    {sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")}
)
_PACKAGES = ("/site-packages/", "/dist-packages/")
_OURS = __file__.rpartition("/control/")[0] + "/"
_HOLDERS = 2
"""References to a frame's copy that are not the job's: the frame's own and our variable."""


def is_user_code(file: str) -> bool:
    """Whether a file is the user's own: not the standard library, an installed package, or probe."""
    if file.startswith("<") or any(part in file for part in _PACKAGES):
        return False
    return not file.startswith((*_LIBRARY_FOLDERS, _OURS))


def walk(frame: FrameType | None) -> Iterator[FrameType]:
    """A frame and its callers, the innermost first."""
    while frame is not None:
        yield frame
        frame = frame.f_back


def variables(frame: FrameType) -> dict[str, Any]:
    """The local variables of a frame as they are now."""
    found = frame.f_locals
    copy = dict(found)
    # Only a function's frame has a copy: that of a module or class body is the real thing.
    if sys.version_info >= (3, 13) or not frame.f_code.co_flags & inspect.CO_OPTIMIZED:
        return copy
    # getrefcount counts its own argument too.
    if sys.getrefcount(found) <= _HOLDERS + 1 and frame.f_trace is None:
        found.clear()
    return copy


def function_name(frame: FrameType) -> str:
    """Qualified name where Python knows it (3.11+), else the plain name."""
    return getattr(frame.f_code, "co_qualname", frame.f_code.co_name)
