"""What an attribute of a value is, found without asking the object for it.

Part of the guard: see `guard.py`. Standard library only.
"""

from __future__ import annotations

import ast
import functools
import types
from collections.abc import Mapping
from typing import Any, NamedTuple

from probe.job.snippets.guard import lookup
from probe.job.snippets.guard.rules import (
    CHANGING,
    LOOKS_AT_GRADIENTS,
    SETTLED,
    SETTLED_ATTRIBUTES,
    SETTLED_PREFIXES,
    SEVERITY,
)
from probe.job.snippets.guard.tracked import (
    NOTED,
    NOTHING,
    NUMBERS,
    OPAQUE,
    PURE,
    Absent,
    Attribute,
    Class,
    Function,
    Known,
    Method,
    Own,
    Some,
    Value,
    Values,
    known,
    rulebook,
)

_C_ATTRIBUTES = (types.GetSetDescriptorType, types.MemberDescriptorType)
_REFLECTION = frozenset(
    ("__dict__", "__globals__", "__builtins__", "__closure__", "__subclasses__", "f_globals", "f_locals",
     "gi_frame", "tb_frame", "f_back", "__self__", "__func__", "__wrapped__")
)
"""Attributes through which one gets from anything to everything."""
_LONGEST_SOURCE = 60


class Finding(NamedTuple):
    """One thing in a snippet that makes it more than reading."""

    kind: str
    line: int
    what: str
    """Its source text, cut."""
    why: str


class State:
    """What is known while a snippet is judged; the rounds go on until nothing is added to it."""

    def __init__(self, names: Mapping[str, Any]) -> None:
        self.names = names
        self.rules = rulebook()
        self.found: dict[Finding, None] = {}
        self.env: dict[str, Values] = {}
        """What the variables of the scope at hand may be at this point."""
        self.ever: dict[str, set[Value]] = {}
        """What each variable was ever given, in any scope."""
        self.loose: set[str] = set()
        """Variables that functions may assign at any time."""
        self.contents: dict[tuple[int, int], set[Value]] = {}
        self.fields: dict[tuple[int, str], set[Value]] = {}
        """What attributes of instances of the snippet's own classes were ever given."""
        self.imported: set[str] = set()
        self.repeats = 0
        """Loops and functions around this point: what is here may run more than once."""
        self.grew = False

    def note(self, node: ast.AST, why: str, kind: str = CHANGING) -> None:
        """A finding at `node`."""
        what = " ".join(ast.unparse(node).split())
        if len(what) > _LONGEST_SOURCE:
            what = what[: _LONGEST_SOURCE - 1] + "…"
        self.found[Finding(kind, getattr(node, "lineno", 0), what, why)] = None

    def findings(self) -> tuple[Finding, ...]:
        """All, the worst first."""
        return tuple(sorted(self.found, key=lambda one: (-SEVERITY[one.kind], one.line)))

    def add(self, to: set[Value], values: Values) -> None:
        """Widen a set, and remember whether it grew."""
        before = len(to)
        to.update(values)
        if len(to) > 500:  # more than can be looked at one by one; of anything, then
            to.add(Some.OPAQUE)
        self.grew = self.grew or len(to) != before

    def put(self, own: Own, values: Values) -> None:
        """Something goes into what the snippet made."""
        if own.site:
            self.add(self.contents.setdefault((own.site, own.level), set()), values - {own})

    def inside(self, own: Own) -> Values:
        """What is in something that the snippet made."""
        found = frozenset(self.contents.get((own.site, own.level), ()))
        return found if own.kind in ("container", "instance", "endless") else found | PURE

    def made(self, node: ast.AST, contents: Values = NOTHING, kind: str = "container", level: int = 0) -> Own:
        """Something new made at `node`."""
        own = Own(id(node), level, kind)
        self.put(own, contents)
        return own

    def assign(self, name: str, values: Values) -> None:
        """A variable of the scope at hand is given a value."""
        self.add(self.ever.setdefault(name, set()), values)
        self.env[name] = values


def attribute(state: State, value: Value, name: str, node: ast.AST) -> Values:
    """What `value.name` may be; notes what is more than reading in finding it."""
    if is_settled(name) and may_be_torchs(value):
        state.note(node, LOOKS_AT_GRADIENTS, SETTLED)
    if name == "f_locals":
        state.note(node, "makes a frame keep a copy of its variables")
    if isinstance(value, Known):
        return of_object(state, value, name, node)
    if name == "__call__" and isinstance(value, Function | Method | Attribute | Absent):
        return frozenset({value})
    if value is Some.OPAQUE:
        state.note(node, f"`.{name}` of something that is not known here")
        return NOTED
    if isinstance(value, Method):
        if name in ("__self__", "__func__", "__wrapped__"):
            return frozenset({value.receiver}) if name == "__self__" else OPAQUE
        return PURE
    if name in _REFLECTION:
        return OPAQUE
    if isinstance(value, Absent):
        return frozenset({Absent(f"{value.dotted}.{name}")})
    if isinstance(value, Function):
        return PURE
    if isinstance(value, Class):
        return class_attribute(state, value, name)
    if isinstance(value, Attribute):
        return NOTHING.union(*(attribute(state, one, name, node) for one in data(state, value)))
    return frozenset({Attribute(value, name)})


def is_settled(name: str) -> bool:
    """Whether a tensor's attribute of that name is only to be touched while no backward runs."""
    return name in SETTLED_ATTRIBUTES or name.startswith(SETTLED_PREFIXES)


def may_be_torchs(value: Value) -> bool:
    """Whether a value may be a tensor, or a node of the autograd graph."""
    if isinstance(value, Known):
        return not lookup.is_module(value.thing) and not lookup.is_class(value.thing) and (
            lookup.module_name(type(value.thing)).partition(".")[0] == "torch"
            or any(lookup.module_name(base) == "torch" for base in lookup.mro(type(value.thing)))
        )
    if isinstance(value, Own):
        return value.site != 0 and value.kind == "fresh"
    return isinstance(value, Some | Attribute)


def data(state: State, value: Value) -> Values:
    """A value that is used for what it is, and not called."""
    if isinstance(value, Method):
        return PURE
    if not isinstance(value, Attribute):
        return frozenset({value})
    base = value.base
    if not isinstance(base, Own):
        return NOTED if base is Some.NOTED else PURE
    if base.kind != "instance":
        return state.inside(base) - {value} | PURE
    named = state.fields.get((base.site, value.name))
    if named is None:
        return state.inside(base) - {value} | PURE
    return frozenset(named) | frozenset(state.contents.get((base.site, -1), ())) - {value}


def class_attribute(state: State, cls: Class, name: str) -> Values:
    """Methods and variables of a class of the snippet."""
    methods = [
        Function(one) for one in cls.node.body
        if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef) and one.name == name
    ]
    return frozenset(methods) | state.inside(Own(id(cls.node), 0, "instance"))


def of_object(state: State, value: Known, name: str, node: ast.AST) -> Values:
    """An attribute of an object of the job."""
    thing = value.thing
    if lookup.is_module(thing):
        return _of_module(state, thing, name, node)
    if name == "__class__":
        return frozenset({Known(type(thing))})
    hook = lookup.find(type(thing), "__getattribute__")
    if hook is not None and not lookup.library_function(hook[1], hook[0]):
        state.note(node, f"`{lookup.class_name(hook[0])}` runs code of its own for each attribute")
        return NOTED
    if lookup.is_class(thing):
        return _of_class(state, thing, name, node)
    if type(thing) is types.MethodType and name in ("__self__", "__func__"):
        return frozenset({Known(thing.__self__ if name == "__self__" else thing.__func__)})
    if name == "__call__":
        return frozenset({value}) if callable(thing) else NOTHING
    return _of_instance(state, value, name, node)


def _of_module(state: State, module: Any, name: str, node: ast.AST) -> Values:
    entries = lookup.module_dict(module)
    if name in entries:
        return frozenset({Known(entries[name])})
    dotted = entries.get("__name__")
    if any(one == f"{dotted}.{name}" or one.startswith(f"{dotted}.{name}.") for one in state.imported):
        return frozenset({Absent(f"{dotted}.{name}")})
    if name == "__dict__":
        return frozenset({Known(entries)})
    if type(module) is not types.ModuleType or "__getattr__" in entries:
        if lookup.library_module(str(dotted)):
            return frozenset({Absent(f"{dotted}.{name}")})
        state.note(node, f"the module makes `{name}` when it is asked for")
        return NOTED
    return NOTHING


def _of_class(state: State, cls: type, name: str, node: ast.AST) -> Values:
    if name == "__dict__":
        return PURE
    entry = lookup.find(cls, name)
    if entry is None:
        return PURE if lookup.library_class(type(cls)) else _unknown_hook(state, type(cls), name, node)
    kind = type(entry[1])
    if kind is classmethod:
        return frozenset({Known(types.MethodType(entry[1].__func__, cls))})
    if kind is property or kind in _C_ATTRIBUTES:
        return PURE
    if kind not in (types.FunctionType, staticmethod, *lookup.C_CALLABLES) and _computes(entry[1]):
        return _unknown_descriptor(state, entry, name, node)
    return frozenset({Known(lookup.unwrapped(entry[1]))})


def _unknown_hook(state: State, cls: type, name: str, node: ast.AST) -> Values:
    if lookup.find(cls, "__getattr__") is None:
        return PURE
    state.note(node, f"`{lookup.class_name(cls)}` makes `{name}` when it is asked for")
    return NOTED


def _unknown_descriptor(state: State, entry: tuple[type, Any], name: str, node: ast.AST) -> Values:
    if lookup.library_function(entry[1], entry[0]) and lookup.library_class(type(entry[1])):
        return PURE
    state.note(node, f"`{lookup.class_name(entry[0])}.{name}` is computed by code that is not known to be "
        "pure")
    return OPAQUE


def _computes(entry: Any) -> bool:
    return lookup.find(type(entry), "__get__") is not None


def _stores(entry: Any) -> bool:
    return lookup.find(type(entry), "__set__") is not None


def _of_instance(state: State, value: Known, name: str, node: ast.AST) -> Values:
    thing = value.thing
    entry = lookup.find(type(thing), name)
    kind = type(entry[1]) if entry is not None else None
    own = lookup.instance_dict(thing)
    if entry is not None and kind in _C_ATTRIBUTES:
        return _from_slot(entry, thing, name, own)
    if entry is not None and (kind is property or (_computes(entry[1]) and _stores(entry[1]))):
        return _unknown_descriptor(state, entry, name, node)
    if own is not None and name in own:
        return frozenset({Known(own[name])})
    for table in ("_parameters", "_buffers", "_modules"):
        entries: Any = None if own is None else own.get(table)
        if type(entries) in lookup.MAPPINGS and name in entries:
            return frozenset({Known(entries[name])})
    if entry is None:
        return _missing(state, value, name, node, own)
    if kind is types.FunctionType or kind in lookup.C_CALLABLES:
        return frozenset({Method(value, name)})
    if kind is classmethod:
        return frozenset({Known(types.MethodType(entry[1].__func__, type(thing)))})
    if kind is staticmethod:
        return frozenset({Known(entry[1].__func__)})
    if kind is functools.cached_property or _computes(entry[1]):
        return _unknown_descriptor(state, entry, name, node)
    return frozenset({Known(entry[1])})


def _from_slot(entry: tuple[type, Any], thing: Any, name: str, own: dict[str, Any] | None) -> Values:
    """An attribute that is read in C."""
    if name == "__dict__":
        return PURE if own is None else frozenset({Known(own)})
    if type(entry[1]) is types.MemberDescriptorType:
        try:
            return frozenset({Known(entry[1].__get__(thing))})
        except AttributeError:  # a slot that is empty
            return NOTHING
    if type(thing) in lookup.IMMUTABLE:
        return NUMBERS
    return PURE if lookup.library_class(entry[0]) else OPAQUE


def _missing(state: State, value: Known, name: str, node: ast.AST, own: dict[str, Any] | None) -> Values:
    """An attribute that neither the object nor its class has."""
    hook = lookup.find(type(value.thing), "__getattr__")
    if hook is None:
        return NOTHING
    wrapped = (own or {}).get("_modules", {})
    if type(wrapped) in lookup.MAPPINGS and "_orig_mod" in wrapped:  # what torch.compile gives
        return attribute(state, Known(wrapped["_orig_mod"]), name, node)
    modules = state.rules.module
    if modules and hook[0] is modules[0]:
        return NOTHING
    state.note(node, f"`{lookup.class_name(hook[0])}` makes `{name}` when it is asked for")
    return NOTED


def elements(state: State, thing: Any) -> Values:
    """What is in a container of the job."""
    kind = type(thing)
    if kind is range or kind in (str, bytes, bytearray):
        return NUMBERS
    for base in (list, tuple, set, frozenset):
        if lookup.derives(kind, (base,)):
            return known(*base.__iter__(thing))
    if kind in lookup.CONTAINERS:
        return known(*tuple(thing))
    if lookup.derives(kind, (dict,)):
        return known(*list(dict.keys(thing)))
    if state.rules.module and lookup.derives(kind, state.rules.module):
        return known(*lookup.children(thing))
    return PURE
