"""Attributes: the values of a snippet's variables while the guard reads it, and the attributes of values.

Attributes are never read through the objects, but looked up in their dictionaries. Standard library only.
"""

from __future__ import annotations

import ast
import functools
import types
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from probe.job.snippets.guard import lookup, rules
from probe.job.snippets.guard.kinds import (
    ANY,
    DATA,
    NOTED,
    NOTHING,
    NUMBERS,
    Absent,
    Code,
    Known,
    Method,
    Own,
    Some,
    Value,
    Values,
    known,
    rulebook,
)

_IN_C = (types.GetSetDescriptorType, types.MemberDescriptorType)
_LONGEST_SOURCE = 60
_MOST_CONSTANTS, _MOST_VALUES = 64, 500


class Finding(NamedTuple):
    """One thing in a snippet that makes it more than reading."""

    kind: str
    line: int
    what: str
    """Its source text, truncated."""
    why: str


class Snippet:
    """The values that variables and containers of a snippet may hold: all that they are ever given.

    If a value turns up after its variable was read, the snippet is read once more (`again`)."""

    def __init__(self, names: Mapping[str, Any]) -> None:
        self.names = names
        self.rules = rulebook()
        self.found: dict[Finding, None] = {}
        self.again = False
        self._held: dict[object, Values] = {}
        self._read: set[object] = set()
        self._elements: dict[int, tuple[Any, Values]] = {}
        self.imported: set[str] = set()

    def note(self, node: ast.AST, why: str, kind: str = rules.CHANGING) -> Values:
        """A finding at `node`."""
        what = " ".join(ast.unparse(node).split())
        if len(what) > _LONGEST_SOURCE:
            what = what[: _LONGEST_SOURCE - 1] + "…"
        self.found[Finding(kind, getattr(node, "lineno", 0), what, why)] = None
        return NOTED

    def get(self, key: object) -> Values:
        """The values that a variable, a container or the result of a function may have."""
        self._read.add(key)
        return self._held.get(key, NOTHING)

    def was_read(self, key: object) -> bool:
        """Whether it has been read already."""
        return key in self._read

    def replace(self, key: object, values: Values) -> None:
        """Set its values: from here on it has none of the earlier ones."""
        self._held[key] = values

    def put(self, key: object, values: Iterable[Value]) -> None:
        """Add to its values."""
        before = self._held.get(key, NOTHING)
        after = before.union(values)
        if after == before:
            return
        if len(after) > _MOST_CONSTANTS:
            plain = {one for one in after if isinstance(one, Known) and type(one.thing) in lookup.IMMUTABLE}
            after = after - plain | NUMBERS if len(plain) > _MOST_CONSTANTS else after
        self._held[key] = after if len(after) <= _MOST_VALUES else ANY
        self.again = self.again or (key in self._read and self._held[key] != before)

    def inside(self, own: Own) -> Values:
        """The values inside an object that the snippet made."""
        found = self.get(own) if own.site is not None else NOTHING
        return found | DATA if own.kind == "fresh" else found

    def made(
        self, node: ast.AST, contents: Values = NOTHING, kind: str = "container", level: int = 0
    ) -> Values:
        """Something new that the snippet makes at `node`."""
        own = Own(node, kind, level)
        self.put(own, contents)
        return frozenset({own})

    @staticmethod
    def each(values: Iterable[Value], of: Callable[[Value], Values]) -> Values:
        """The union of `of` over all values."""
        return NOTHING.union(*(of(value) for value in values))

    # -- attributes --------------------------------------------------------------------------

    def attribute(self, value: Value, name: str, node: ast.AST) -> Values:
        """What `value.name` may be; notes a finding if getting it is more than reading."""
        if is_settled(name) and may_be_torchs(value):
            self.note(node, rules.LOOKS_AT_GRADIENTS, rules.SETTLED)
        if name == "f_locals":
            self.note(node, "makes a frame keep a copy of its variables")
        if isinstance(value, Known):
            of_ranks = lookup.of_ranks(lookup.module_name(type(value.thing)))  # a process group
            if of_ranks and name in rules.COLLECTIVE_METHODS:
                return self.note(node, "waits for the other ranks", rules.COLLECTIVE)
            return self._of_object(value, name, node)
        if isinstance(value, Absent):
            return frozenset({Absent(f"{value.dotted}.{name}")})
        named_alike = rules.TENSOR_METHODS_CALLED_ALIKE
        if name in rules.COLLECTIVE_METHODS - named_alike and not isinstance(value, Code):
            self.note(node, "waits for the other ranks", rules.COLLECTIVE)
        if value is Some.NOTED:
            return NOTED
        if name == "__call__" and isinstance(value, Code | Method):
            return frozenset({value})
        if value is Some.ANY:
            return self.note(node, f"`.{name}` of something that is not known here")
        if isinstance(value, Method):
            return frozenset({value.receiver}) if name == "__self__" else ANY
        if name in rules.REFLECTION:
            return ANY
        if isinstance(value, Code) or (isinstance(value, Own) and value.kind == "instance"):
            return self.of_class(value, name)
        if (name.endswith("_") and not name.endswith("__")) or name in rules.CHANGING_METHODS:
            self.note(node, rules.CHANGING_METHODS.get(name, "changes something in place"))
        return self.inside(value) | DATA if isinstance(value, Own) else DATA

    def of_class(self, value: Code | Own, name: str) -> Values:
        """An attribute of a class of the snippet, of an instance, or of a function."""
        node = value.node if isinstance(value, Code) else value.site
        body = node.body if isinstance(node, ast.ClassDef) else []
        methods = [one for one in body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)]
        inherited = DATA if isinstance(node, ast.ClassDef) and node.bases else NOTHING
        named = (Code(one) for one in methods if one.name == name)
        return self.get(Own(node, "instance")).union(named, inherited)

    def _of_object(self, value: Known, name: str, node: ast.AST) -> Values:
        thing = value.thing
        if lookup.is_module(thing):
            return self._of_module(thing, name, node)
        if name == "__class__":
            return frozenset({Known(type(thing))})
        hook = lookup.find(type(thing), "__getattribute__")
        if hook is not None and not lookup.library_function(hook[1], hook[0]):
            return self.note(node, f"`{lookup.class_name(hook[0])}` runs code of its own for each attribute")
        if lookup.is_class(thing):
            return self._of_class(thing, name, node)
        if type(thing) is types.MethodType and name in ("__self__", "__func__"):
            return frozenset({Known(thing.__self__ if name == "__self__" else thing.__func__)})
        if name == "__call__":
            return frozenset({value}) if callable(thing) else NOTHING
        return self._of_instance(value, name, node)

    def _of_module(self, module: Any, name: str, node: ast.AST) -> Values:
        entries = lookup.module_dict(module)
        dotted = f"{entries.get('__name__')}.{name}"
        if name in entries:
            return frozenset({Known(entries[name])})
        if name == "__dict__":
            return frozenset({Known(entries)})
        if any(one == dotted or one.startswith(dotted + ".") for one in self.imported):
            return frozenset({Absent(dotted)})
        if type(module) is types.ModuleType and "__getattr__" not in entries:
            return NOTHING
        if lookup.library_module(dotted.rpartition(".")[0]):
            return frozenset({Absent(dotted)})
        return self.note(node, f"the module makes `{name}` on access")

    def _of_class(self, cls: type, name: str, node: ast.AST) -> Values:
        entry = lookup.find(cls, name)
        if entry is None or name == "__dict__":
            return DATA if name == "__dict__" else self._made_on_demand(type(cls), name, node, DATA)
        kind = type(entry[1])
        if kind is classmethod:
            return frozenset({Known(types.MethodType(entry[1].__func__, cls))})
        if kind is property or kind in _IN_C:
            return DATA
        if kind in (types.FunctionType, staticmethod, *lookup.C_CALLABLES) or not _computes(entry[1]):
            return frozenset({Known(lookup.unwrapped(entry[1]))})
        return self._descriptor(entry, name, node)

    def _made_on_demand(self, cls: type, name: str, node: ast.AST, otherwise: Values) -> Values:
        hook = lookup.find(cls, "__getattr__")
        if hook is None or lookup.library_class(cls) or hook[0] in self.rules.module:
            return otherwise
        return self.note(node, f"`{lookup.class_name(hook[0])}` makes `{name}` on access")

    def _descriptor(self, entry: tuple[type, Any], name: str, node: ast.AST) -> Values:
        if lookup.library_function(entry[1], entry[0]) and lookup.library_class(type(entry[1])):
            of_ranks = lookup.of_ranks(lookup.module_name(entry[0]))  # the module in a sharded one
            return ANY if of_ranks and lookup.derives(entry[0], self.rules.module) else DATA
        where = f"`{lookup.class_name(entry[0])}.{name}`"
        self.note(node, f"{where} is computed by code that is not known to be pure")
        return ANY

    def _of_instance(self, value: Known, name: str, node: ast.AST) -> Values:
        thing = value.thing
        entry = lookup.find(type(thing), name)
        kind = type(entry[1]) if entry is not None else None
        own = lookup.instance_dict(thing) or {}
        if entry is not None and kind in _IN_C:
            return self._from_slot(entry, thing, name)
        if entry is not None and (kind is property or (_computes(entry[1]) and _stores(entry[1]))):
            return self._descriptor(entry, name, node)
        tables: tuple[Any, ...] = (own, *map(own.get, ("_parameters", "_buffers", "_modules")))
        for entries in tables:
            if type(entries) in lookup.MAPPINGS and name in entries:
                return frozenset({Known(entries[name])})
        if entry is None:
            wrapped: Any = own.get("_modules")
            if type(wrapped) in lookup.MAPPINGS and "_orig_mod" in wrapped:  # the result of torch.compile
                return self.attribute(Known(wrapped["_orig_mod"]), name, node)
            return self._made_on_demand(type(thing), name, node, NOTHING)
        if kind is types.FunctionType or kind in lookup.C_CALLABLES:
            return frozenset({Method(value, name)})
        if kind in (classmethod, staticmethod):
            function = entry[1].__func__
            bound = types.MethodType(function, type(thing)) if kind is classmethod else function
            return frozenset({Known(bound)})
        if kind is functools.cached_property or _computes(entry[1]):
            return self._descriptor(entry, name, node)
        return frozenset({Known(entry[1])})

    def _from_slot(self, entry: tuple[type, Any], thing: Any, name: str) -> Values:
        """An attribute that C code reads."""
        if name == "__dict__":
            own = lookup.instance_dict(thing)
            return DATA if own is None else frozenset({Known(own)})
        if type(entry[1]) is types.MemberDescriptorType:
            try:
                return frozenset({Known(entry[1].__get__(thing))})
            except AttributeError:  # an empty slot
                return NOTHING
        if type(thing) in lookup.IMMUTABLE:
            return NUMBERS
        return DATA if lookup.library_class(entry[0]) else ANY

    def elements(self, thing: Any) -> Values:
        """The elements of a container of the job."""
        found = self._elements.get(id(thing))
        if found is None:
            found = self._elements[id(thing)] = (thing, self._elements_of(thing))
        return found[1]

    def _elements_of(self, thing: Any) -> Values:
        kind = type(thing)
        if kind in (range, str, bytes, bytearray):
            return NUMBERS
        for base in (list, tuple, set, frozenset):
            if lookup.derives(kind, (base,)):
                return known(*base.__iter__(thing))
        if kind in lookup.CONTAINERS:
            return known(*tuple(thing))
        if lookup.derives(kind, (dict,)):
            return known(*list(dict.keys(thing)))
        if lookup.derives(kind, self.rules.module):
            return known(*lookup.children(thing))
        return DATA


def is_settled(name: str) -> bool:
    """Whether a tensor's attribute of that name may only be read while no backward runs."""
    return name in rules.SETTLED_ATTRIBUTES or name.startswith(rules.SETTLED_PREFIXES)


def may_be_torchs(value: Value) -> bool:
    """Whether a value may be a tensor, or a node of the autograd graph."""
    if isinstance(value, Known):
        thing = value.thing
        return not lookup.is_module(thing) and not lookup.is_class(thing) and (
            lookup.module_name(type(thing)).partition(".")[0] == "torch"
            or any(lookup.module_name(base) == "torch" for base in lookup.mro(type(thing)))
        )
    if isinstance(value, Own):
        return value.site is not None and value.kind == "fresh"
    return isinstance(value, Some)


def _computes(entry: Any) -> bool:
    return lookup.find(type(entry), "__get__") is not None


def _stores(entry: Any) -> bool:
    return lookup.find(type(entry), "__set__") is not None
