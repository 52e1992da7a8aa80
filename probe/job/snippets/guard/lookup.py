"""Lookup: inspects objects without running any of their code: no property, no `__getattr__`, no `__eq__`.

Everything goes through C slots of `object` and `type` and through dictionaries. Runs on the thread
that classifies a snippet, while the training continues. Standard library only.
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

from probe.job.introspection.snippet_names import Names
from probe.job.snippets.guard.rules import COLLECTIVE_MODULES, LIBRARIES, SPECIAL_METHODS

_MRO = type.__dict__["__mro__"].__get__
_CLASS_DICT = type.__dict__["__dict__"].__get__
_MODULE_DICT: Any = vars(types.ModuleType)["__dict__"]
_NAME = type.__dict__["__name__"].__get__
_MODULE = type.__dict__["__module__"].__get__
_STANDARD = tuple({sysconfig.get_paths()[name] + os.sep for name in ("stdlib", "platstdlib")})
_INSTALLED = (os.sep + "site-packages" + os.sep, os.sep + "dist-packages" + os.sep)
CONTAINERS = (list, tuple, set, frozenset, deque)
MAPPINGS = (dict, OrderedDict, defaultdict)
_MOST_DATA = 20_000
IMMUTABLE = (int, float, complex, str, bytes, bool, type(None), type(Ellipsis), range, slice)
C_CALLABLES = (
    types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType,
    types.ClassMethodDescriptorType, types.MethodWrapperType,
)


def mro(cls: type) -> tuple[type, ...]:
    """The classes in which names are looked up, the class itself first."""
    found: tuple[type, ...] = _MRO(cls)
    return found


def class_dict(cls: type) -> Mapping[str, Any]:
    """The entries that a class itself defines."""
    found: Mapping[str, Any] = _CLASS_DICT(cls)
    return found


def is_class(thing: Any) -> bool:
    """Whether a thing is a class, regardless of its `__class__`."""
    return any(base is type for base in mro(type(thing)))


def is_module(thing: Any) -> bool:
    """Whether a thing is a module, subclasses included."""
    return any(base is types.ModuleType for base in mro(type(thing)))


def module_dict(module: Any) -> dict[str, Any]:
    """The names in a module."""
    found = _MODULE_DICT.__get__(module)
    return found if type(found) is dict else {}


def class_name(cls: type) -> str:
    """Its plain name."""
    return str(_NAME(cls))


def module_name(cls: type) -> str:
    """Its `__module__`; empty if that is not a text."""
    found = _MODULE(cls)
    return found if type(found) is str else ""


def find(cls: type, name: str) -> tuple[type, Any] | None:
    """The class that defines a name for instances of `cls`, and the entry."""
    for base in mro(cls):
        entries = class_dict(base)
        if name in entries:
            return base, entries[name]
    return None


def instance_dict(thing: Any) -> dict[str, Any] | None:
    """The instance's own attributes; None if it has none, or if reading them would run code."""
    found = find(type(thing), "__dict__")
    if found is None or type(found[1]) is not types.GetSetDescriptorType:
        return None
    entries = found[1].__get__(thing)
    return entries if type(entries) is dict else None


def derives(cls: type, bases: tuple[type, ...]) -> bool:
    """`issubclass` by identity."""
    return any(base is one for base in mro(cls) for one in bases)


def by_name(dotted: str) -> Any:
    """The object with a dotted name in the loaded modules; None if there is none."""
    parts = dotted.split(".")
    for cut in range(len(parts), 0, -1):
        module = sys.modules.get(".".join(parts[:cut]))
        if module is None or not is_module(module):
            continue
        thing: Any = module
        for part in parts[cut:]:
            if is_module(thing):
                thing = module_dict(thing).get(part)
            elif is_class(thing):
                entry = find(thing, part)
                thing = None if entry is None else unwrapped(entry[1])
            else:
                thing = None
            if thing is None:
                break
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
    return any(file.startswith(folder) for folder in _library_folders())


def _library_folders() -> Iterator[str]:
    for name in LIBRARIES:
        module = sys.modules.get(name)
        file = module_dict(module).get("__file__") if module is not None and is_module(module) else None
        if type(file) is str:
            yield os.path.dirname(file) + os.sep


def library_module(name: str) -> bool:
    """Whether a module of that name is of the standard library, torch or numpy."""
    top = name.partition(".")[0]
    if top in sys.builtin_module_names or name == "builtins":
        return True
    if top not in sys.stdlib_module_names and top not in LIBRARIES:
        return False
    module = sys.modules.get(name) or sys.modules.get(top)
    file = module_dict(module).get("__file__") if module is not None and is_module(module) else None
    return type(file) is not str or library_file(file)


def library_class(cls: type) -> bool:
    """Whether a class is of the standard library, torch or numpy."""
    return library_module(module_name(cls))


def library_function(entry: Any, definer: type | None = None) -> bool:
    """Whether a function, or an entry of a class, is of the standard library, torch or numpy."""
    entry = unwrapped(entry)
    if type(entry) is property:
        return entry.fget is None or library_function(entry.fget, definer)
    if type(entry) is functools.partial:
        return library_function(entry.func)
    if type(entry) is types.FunctionType:
        file = entry.__code__.co_filename
        if definer is not None and _made_by_dataclasses(entry, definer):
            return True
        return library_file(file) or (file.startswith("<") and definer is not None and library_class(definer))
    return definer is None or library_class(definer)


def _made_by_dataclasses(function: types.FunctionType, definer: type) -> bool:
    entries = class_dict(definer)
    file = function.__code__.co_filename
    if "__dataclass_fields__" in entries:
        # `__repr__` is wrapped in a function of reprlib or dataclasses; the rest is made from text.
        return file == "<string>" or library_file(file)
    return "_fields" in entries and library_file(file)


def own_special(thing_type: type, names: frozenset[str] = SPECIAL_METHODS) -> str | None:
    """A special method of a class that is not a library's code; None if there is none."""
    for base in mro(thing_type):
        if library_class(base) or base is Names:
            continue
        for name, entry in tuple(class_dict(base).items()):
            plain = name[2:-2] if type(name) is str and name[:2] == "__" and name[-2:] == "__" else ""
            if plain in names and entry is not None and not library_function(entry, base):
                return f"{class_name(base)}.{name}"
            if plain in names and type(entry) not in (types.FunctionType, *C_CALLABLES, type(None)):
                return f"{class_name(base)}.{name}"
    return None


_TEXT = frozenset({"repr", "str", "format", "getattribute"})


def own_text(thing: Any) -> str | None:
    """Code outside the libraries that runs when a text is made of a thing; None if there is none."""
    for one in within(thing, 2000):
        kind = type(one)
        found = own_special(kind, _TEXT)
        extra = find(kind, "extra_repr")  # a torch module's `__repr__` calls it
        if found is None and extra is not None and not library_function(extra[1], extra[0]):
            found = f"{class_name(kind)}.extra_repr"
        if found is not None:
            return found
    return None


def plain(thing: Any) -> bool:
    """Whether a thing and everything in it is data: of Python's own types, torch's or numpy's, and neither
    callable nor an iterator."""
    found = list(within(thing, _MOST_DATA))
    return len(found) < _MOST_DATA and all(
        library_class(kind) and find(kind, "__call__") is None and find(kind, "__next__") is None
        for kind in set(map(type, found))
    )


def modules_within(module: Any) -> list[Any]:
    """A torch module and all modules in it."""
    return list(within(module, 3000)) if children(module) else [module]


def within(thing: Any, most: int) -> Iterator[Any]:
    """A thing and everything in its containers, modules and data classes, except numbers and texts."""
    waiting, seen = [thing], set[int]()
    while waiting and len(seen) < most:
        one = waiting.pop()
        if type(one) in IMMUTABLE or id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        waiting.extend(_inside(one)[:most])


def _inside(thing: Any) -> list[Any]:
    kind = type(thing)
    if kind in CONTAINERS:
        return list(thing)
    if kind in MAPPINGS:
        return [part for pair in list(thing.items()) for part in pair]
    entries = instance_dict(thing)
    if entries is not None and (kind is types.SimpleNamespace or find(kind, "__dataclass_fields__")):
        return list(entries.values())
    return children(thing)


def children(module: Any) -> list[Any]:
    """The direct children of a torch module, from its dictionary."""
    held: Any = (instance_dict(module) or {}).get("_modules")
    return [one for one in held.values() if one is not None] if type(held) in MAPPINGS else []


def is_collective(thing: Any) -> bool:
    """Whether a function or class is from a module for communication with other ranks."""
    if type(thing) is types.FunctionType:
        module = thing.__globals__.get("__name__")
        module = thing.__module__ if module in (None, "torch.distributed.c10d_logger") else module
    elif type(thing) in C_CALLABLES:
        definer = getattr(thing, "__objclass__", int)
        module = getattr(thing, "__module__", None) or module_name(definer)
    else:
        module = module_name(thing if is_class(thing) else type(thing))
    return type(module) is str and of_ranks(module)


def of_ranks(module: str) -> bool:
    """Whether a module is for communication with other ranks."""
    return any(module == one or module.startswith(one + ".") for one in COLLECTIVE_MODULES)


def function_name(thing: Any) -> str:
    """The plain name of a function or class; empty for everything else."""
    if is_class(thing):
        return class_name(thing)
    return str(thing.__name__) if type(thing) in (types.FunctionType, *C_CALLABLES) else ""
