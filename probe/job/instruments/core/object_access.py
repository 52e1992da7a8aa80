"""Reads the attributes and contents of the job's objects without running the job's code.

No property, `__getattr__` or method of a user's class is called, only instance dictionaries and the methods
of built-in containers. HOT PATH: `contents`. Any thread; standard library only.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

_WRAPPERS = ("DistributedDataParallel", "DataParallel", "DeepSpeedEngine")


def attributes(thing: Any) -> dict[str, Any]:
    """A copy of an instance's own dictionary; empty when it has none."""
    try:
        found = object.__getattribute__(thing, "__dict__")
    except AttributeError:
        return {}
    return dict.copy(found) if isinstance(found, dict) else {}


def entries(table: Any) -> list[tuple[Any, Any]]:
    """A copy of the entries of a dictionary, or of a class's `__dict__`; empty for anything else."""
    if isinstance(table, dict):
        return list(dict.items(table))
    return list(table.items()) if isinstance(table, MappingProxyType) else []


def contents(kind: type, value: Any) -> Any:
    """The items of a container whose class `kind` derives from dict, list or tuple, or of a dataclass. HOT
    PATH."""
    if issubclass(kind, dict):
        return dict.values(value)
    if issubclass(kind, list):
        return list.__iter__(value)
    if issubclass(kind, tuple):
        return tuple.__iter__(value)
    if hasattr(kind, "__dataclass_fields__") and kind.__dictoffset__:
        return vars(value).values()
    return ()


def unwrapped(model: Any) -> Any:
    """The model inside a wrapper that holds it as `module`; any other model itself."""
    if type(model).__name__ in _WRAPPERS:
        return dict(entries(attributes(model).get("_modules"))).get("module", model)
    return model
