"""The hot path in C, if it can be loaded: chooses between it and the plain source when a process starts.

The Python classes and functions are complete and stay the reference. `form` gives a class its compiled form:
the fields that change in every step lie in a C struct, and methods implemented in C replace the Python ones;
in uncommon cases they call the Python ones, renamed `_plain_…`. The plain source runs with PROBE_COMPILED=0,
in a Python without the stable ABI, without a compiled library, and if the library is from other sources.

Standard library only; any thread. Loaded before the first step, never inside one.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Mapping
from types import FunctionType
from typing import Any, TypeVar

from probe.base.clock import ANCHOR_NS
from probe.base.settings import BY_NAME

_Class = TypeVar("_Class", bound=type)
SETTING = BY_NAME["compiled"]
TAKEN = "_plain_"
"""Before the name of a Python method whose compiled form is used."""


class _Choice:
    """Which form this process uses. `library` is None for the plain source, and `why` gives the reason."""

    made = False
    library: Any = None
    why = ""


def choose(environ: Mapping[str, str]) -> None:
    """Choose by the settings of an environment; the first choice of a process stands."""
    if _Choice.made:
        return
    _Choice.made = True
    if is_off(environ):
        _Choice.why = f"{SETTING.env}=0"
        return
    try:
        found: Any = importlib.import_module("probe.base.compiled._hot")
    except ModuleNotFoundError:
        _Choice.why = "this installation has no compiled library"
        return
    except ImportError as error:
        _Choice.why = f"the library cannot be loaded: {error}"
        return
    from probe.base.compiled import build

    if build.digest() != found.SOURCES:
        _Choice.why = "the library was compiled from a different version of the sources"
        return
    found.begin(ANCHOR_NS)
    _Choice.library = found


def is_off(environ: Mapping[str, str]) -> bool:
    """Whether an environment asks for the plain source; an invalid value is reported by `Settings`."""
    try:
        return not SETTING.parse(environ.get(SETTING.env, "") or SETTING.default)
    except ValueError:
        return False


def library() -> Any:
    """The module in C; None if the plain source runs."""
    choose(os.environ)
    return _Choice.library


def why_plain() -> str:
    """Why the plain source runs in this process; empty if it does not."""
    choose(os.environ)
    return _Choice.why


def form(name: str) -> Callable[[_Class], _Class]:
    """A decorator: derives the class from the C type of this name; without the library, leaves it unchanged.

    `plain` of the compiled class is the Python class."""

    def formed(plain: _Class) -> _Class:
        base: Any = getattr(library(), name, None)
        return plain if base is None else _derived(plain, base)

    return formed


def _derived(plain: Any, base: type) -> Any:
    fields = vars(base)
    names: dict[str, Any] = {"plain": plain}
    for key, value in vars(plain).items():
        if key in fields and isinstance(value, FunctionType):
            names[TAKEN + key] = value
        elif key not in ("__dict__", "__weakref__", *vars(plain).get("__slots__", ())):
            names[key] = value
    if "__slots__" in names:
        names["__slots__"] = tuple(slot for slot in names["__slots__"] if slot not in fields)
    return type(plain.__name__, (base,), names)
