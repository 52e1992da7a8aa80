"""Frames of other threads: whose code they are, and their variables, read without a trace.

Runs on the agent's threads with the GIL, never on the training thread. Standard library only.

Before Python 3.13 `frame.f_locals` is a copy of the variables that the frame keeps until it ends and updates
at each reading. Reading it would keep a batch and a loss alive in main() of a training script, and change the
dictionary that `locals()` returned an hour ago. So on 3.12 each variable is read by itself; before that the
copy is emptied right after reading, and a function that calls `locals()`, `vars()` or `exec()` is not read.
"""

from __future__ import annotations

import ctypes
import dis
import functools
import inspect
import sys
import sysconfig
from collections.abc import Iterator
from types import CodeType, FrameType
from typing import Any

from probe.base import package

_LIBRARY_FOLDERS = tuple(
    {sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")}
)

_PACKAGES = ("/site-packages/", "/dist-packages/")
_COPY_USERS = frozenset({"locals", "vars", "exec"})
_HOLDERS = 2
"""References to a frame's copy that are not the job's: the frame's own and our variable."""


def is_user_code(file: str) -> bool:
    """Whether a file is the user's own: not the standard library, an installed package, or probe."""
    if file.startswith("<") or any(part in file for part in _PACKAGES):
        return False
    return not file.startswith((*_LIBRARY_FOLDERS, package.FOLDER))


def walk(frame: FrameType | None) -> Iterator[FrameType]:
    """A frame and its callers, the innermost first."""
    while frame is not None:
        yield frame
        frame = frame.f_back


def variables(frame: FrameType) -> dict[str, Any]:
    """The local variables of a frame as they are now; empty if the frame must not be read."""
    code = frame.f_code
    # Only a function's frame has a copy: for a module or class body this is the dictionary itself.
    if sys.version_info >= (3, 13) or not code.co_flags & inspect.CO_OPTIMIZED:
        return dict(frame.f_locals)
    if sys.version_info >= (3, 12):
        return _one_by_one(frame)
    if not readable(frame):
        return {}
    found = frame.f_locals
    copy = dict(found)
    # getrefcount counts its own argument too.
    if sys.getrefcount(found) <= _HOLDERS + 1 and frame.f_trace is None:
        found.clear()
    return copy


def readable(frame: FrameType) -> bool:
    """Whether reading the variables of a frame changes nothing that the job can see."""
    if sys.version_info >= (3, 12) or not frame.f_code.co_flags & inspect.CO_OPTIMIZED:
        return True
    return not _asks_for_its_copy(frame.f_code)


@functools.lru_cache(maxsize=256)
def _asks_for_its_copy(code: CodeType) -> bool:
    return any(
        instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME") and instruction.argval in _COPY_USERS
        for instruction in dis.get_instructions(code)
    )


def _one_by_one(frame: FrameType) -> dict[str, Any]:
    """Python 3.12: `PyFrame_GetVar` reads a variable and leaves the frame as it is."""
    get = ctypes.pythonapi.PyFrame_GetVar
    get.restype = ctypes.py_object
    code = frame.f_code
    found: dict[str, Any] = {}
    for name in (*code.co_varnames, *code.co_cellvars, *code.co_freevars):
        try:
            found[name] = get(ctypes.py_object(frame), ctypes.py_object(name))
        except NameError:  # not assigned yet, or deleted
            continue
    return found


def function_name(frame: FrameType) -> str:
    """Qualified name where Python knows it (3.11+), else the plain name."""
    return code_name(frame.f_code)


def code_name(code: CodeType) -> str:
    """The same for a function's code."""
    return getattr(code, "co_qualname", code.co_name)
