"""Looking at objects without running anything of theirs: no property, no `__getattr__`, no `__eq__`.

Everything goes through C slots of `object` and `type`, and through what lies in dictionaries. Runs
on whichever thread judges a snippet, while the training runs on. Standard library only.
"""

from __future__ import annotations

import functools
import os
import sys
import sysconfig
import types
from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterator, Mapping
from typing import Any

from probe.job.snippets.guard.rules import LIBRARIES

_MRO = type.__dict__["__mro__"].__get__
_CLASS_DICT = type.__dict__["__dict__"].__get__
_MODULE_DICT: Any = vars(types.ModuleType)["__dict__"]
_NAME = type.__dict__["__name__"].__get__
_MODULE = type.__dict__["__module__"].__get__
_STANDARD = tuple({sysconfig.get_paths()[name] + os.sep for name in ("stdlib", "platstdlib")})
_INSTALLED = (os.sep + "site-packages" + os.sep, os.sep + "dist-packages" + os.sep)
_CONTAINERS = (list, tuple, set, frozenset, deque)
_MAPPINGS = (dict, OrderedDict, defaultdict)
IMMUTABLE = (int, float, complex, str, bytes, bool, type(None), type(Ellipsis), range, slice)
C_CALLABLES = (
    types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType,
    types.ClassMethodDescriptorType, types.MethodWrapperType,
)
_MOST_LOOKED_AT = 100_000


def mro(cls: type) -> tuple[type, ...]:
    """The classes in which names are looked up, the class itself first."""
    found: tuple[type, ...] = _MRO(cls)
    return found


def class_dict(cls: type) -> Mapping[str, Any]:
    """What a class itself defines."""
    found: Mapping[str, Any] = _CLASS_DICT(cls)
    return found


def derives(cls: type, bases: tuple[type, ...]) -> bool:
    """`issubclass` by identity."""
    return any(base is one for base in mro(cls) for one in bases)


def is_class(thing: Any) -> bool:
    """Whether a thing is a class, whatever it says of itself."""
    return derives(type(thing), (type,))


def is_module(thing: Any) -> bool:
    """Whether a thing is a module, be it one of a class of its own."""
    return derives(type(thing), (types.ModuleType,))


def module_dict(module: Any) -> dict[str, Any]:
    """The names in a module."""
    found = _MODULE_DICT.__get__(module)
    return found if type(found) is dict else {}


def class_name(cls: type) -> str:
    """Its plain name."""
    return str(_NAME(cls))


def module_name(cls: type) -> str:
    """Where it says it is from; empty where it does not."""
    found = _MODULE(cls)
    return found if type(found) is str else ""


def find(cls: type, name: str) -> tuple[type, Any] | None:
    """The class that defines a name for instances of `cls`, and what lies there."""
    for base in mro(cls):
        entries = class_dict(base)
        if name in entries:
            return base, entries[name]
    return None


def instance_dict(thing: Any) -> dict[str, Any]:
    """The instance's own attributes; empty when it has none or they cannot be had without running code."""
    found = find(type(thing), "__dict__")
    if found is None or type(found[1]) is not types.GetSetDescriptorType:
        return {}
    entries = found[1].__get__(thing)
    return entries if type(entries) is dict else {}


def by_name(dotted: str) -> Any:
    """What a dotted name means in the modules that are loaded; None when there is nothing."""
    parts = dotted.split(".")
    for cut in range(len(parts), 0, -1):
        thing: Any = sys.modules.get(".".join(parts[:cut]))
        for part in parts[cut:] if thing is not None and is_module(thing) else ():
            if is_module(thing):
                thing = module_dict(thing).get(part)
            else:
                entry = find(thing, part) if is_class(thing) else None
                thing = None if entry is None else unwrapped(entry[1])
        if thing is not None:
            return thing
    return None


def unwrapped(entry: Any) -> Any:
    """The function in a static or class method, or the entry itself."""
    return entry.__func__ if type(entry) in (staticmethod, classmethod) else entry


@functools.lru_cache(maxsize=4096)
def library_file(file: str) -> bool:
    """Whether a file is of the standard library, torch or numpy."""
    if file.startswith("<frozen "):
        return True
    if file.startswith(_STANDARD) and not any(part in file for part in _INSTALLED):
        return True
    folders = (os.path.dirname(str(module_dict(sys.modules[name]).get("__file__"))) + os.sep
        for name in LIBRARIES if name in sys.modules)
    return any(file.startswith(folder) for folder in folders)


def library_class(cls: type) -> bool:
    """Whether a class is of the standard library, torch or numpy."""
    return library_module(module_name(cls))


def library_module(name: str) -> bool:
    """Whether a module of that name is of the standard library, torch or numpy."""
    top = name.partition(".")[0]
    if top not in sys.stdlib_module_names and top not in LIBRARIES:
        return top in sys.builtin_module_names
    module = sys.modules.get(name) or sys.modules.get(top)
    file = module_dict(module).get("__file__") if module is not None and is_module(module) else None
    return type(file) is not str or library_file(file)


def library_function(entry: Any, definer: type | None = None) -> bool:
    """Whether a function, or what lies in a class, is of the standard library, torch or numpy."""
    entry = entry.fget if type(entry) is property else unwrapped(entry)
    if type(entry) is functools.partial:
        return library_function(entry.func)
    if type(entry) is not types.FunctionType:
        return definer is None or library_class(definer)
    file = entry.__code__.co_filename
    if library_file(file):
        return True
    of_library = definer is not None and library_class(definer)
    of_dataclass = definer is not None and "__dataclass_fields__" in class_dict(definer)
    return (of_library and file.startswith("<")) or (of_dataclass and file == "<string>")


def own_code(cls: type, names: frozenset[str]) -> str | None:
    """A method or property of those names that is somebody's own code; None when there is none."""
    for base in mro(cls):
        if not library_class(base):
            for name, entry in tuple(class_dict(base).items()):
                plain = type(entry) in (*IMMUTABLE, types.MemberDescriptorType)
                if name in names and not plain and not library_function(entry, base):
                    return f"{class_name(base)}.{name}"
    return None


def within(thing: Any) -> Iterator[Any]:
    """A thing and all in its containers, modules and fields; MemoryError where that is very much."""
    waiting, seen = [thing], set()
    while waiting:
        one = waiting.pop()
        kind = type(one)
        if kind not in IMMUTABLE and id(one) not in seen:
            seen.add(id(one))
            if len(seen) > _MOST_LOOKED_AT:
                raise MemoryError
            yield one
            if kind in _CONTAINERS:
                waiting.extend(one)
            elif kind in _MAPPINGS:
                waiting.extend(part for pair in list(one.items()) for part in pair)
            elif find(kind, "__dataclass_fields__") is not None or kind is types.SimpleNamespace:
                waiting.extend(instance_dict(one).values())
            else:
                waiting.extend(children(one))


def children(module: Any) -> list[Any]:
    """The direct children of a torch module, from its dictionary."""
    within: Any = instance_dict(module).get("_modules")
    return [one for one in within.values() if one is not None] if type(within) in _MAPPINGS else []


def is_torch_module(thing: Any) -> bool:
    """Whether a thing is a module of torch, by what each of them holds."""
    held = instance_dict(thing)
    return "_modules" in held and "_parameters" in held


def is_tensor_like(thing: Any) -> bool:
    """Whether a thing is a tensor, or a node of the autograd graph."""
    return not is_module(thing) and not is_class(thing) and any(
        module_name(base).partition(".")[0] == "torch" for base in mro(type(thing)))


def is_loader(cls: type) -> bool:
    """Whether going through one starts workers or draws random numbers."""
    return any(module_name(base).startswith("torch.utils.data") and "__iter__" in class_dict(base)
        for base in mro(cls))
