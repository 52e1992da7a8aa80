"""Kinds: what the guard knows of a value in a snippet, and which rule applies to an object of the job.

A value is an existing object, something that the snippet made, or one of three kinds of which only the origin
is known. A variable has a set of them. Standard library only.
"""

from __future__ import annotations

import ast
import sys
import types
from dataclasses import dataclass
from enum import Enum
from typing import Any

from probe.job.snippets.guard import lookup
from probe.job.snippets.guard.rules import COLLECTIVE_CLASSES, GROUPS, REFUSED, Group

_MOST = 64
"""Limit of values of one container; beyond it, one of each class stands for all."""


class Known:
    """An existing object: the job's, a module, a constant."""

    __slots__ = ("_key", "thing")

    def __init__(self, thing: Any) -> None:
        self.thing = thing
        plain = type(thing) in lookup.IMMUTABLE and type(thing) is not slice
        self._key: object = (type(thing), thing) if plain else id(thing)
        if type(thing) is types.MethodType:  # each access makes a new object
            self._key = (id(thing.__self__), id(thing.__func__))

    def __eq__(self, other: object) -> bool:
        return type(other) is Known and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)


class Some(Enum):
    """Values of which nothing but their origin is known."""

    DATA = "of a library's class, from a reading call; maybe the job's own"
    ANY = "anything"
    NOTED = "anything, from what is a finding already"


@dataclass(frozen=True)
class Own:
    """An object made by the snippet at `site`; the job does not have it."""

    site: ast.AST | None
    kind: str = "container"
    """`container`: holds what was put in. `fresh`: may hold data, too. `endless`: an iterator without an end.
    `wrapper`: returns the arguments of its call. `instance`: of a class in the snippet."""
    level: int = 0


@dataclass(frozen=True)
class Code:
    """A function, lambda or class of the snippet."""

    node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef


@dataclass(frozen=True)
class Method:
    """A method of an object of the job."""

    receiver: Known
    name: str


@dataclass(frozen=True)
class Absent:
    """Something in a module that is not loaded yet."""

    dotted: str


Value = Known | Some | Own | Code | Method | Absent
Values = frozenset[Value]
NOTHING: Values = frozenset()
"""An expression that cannot have a value: it raises, or nothing calls the function it is in."""
DATA: Values = frozenset({Some.DATA})
ANY: Values = frozenset({Some.ANY})
NOTED: Values = frozenset({Some.NOTED})
NUMBER = Own(None, "fresh")
"""A number, text or other immutable value."""
NUMBERS: Values = frozenset({NUMBER})


def known(*things: Any) -> Values:
    """Values for existing objects; of many objects, one of each class."""
    if len(things) <= _MOST:
        return frozenset(map(Known, things))
    if lookup.plain(things):
        return DATA if any(type(thing) not in lookup.IMMUTABLE for thing in things) else NUMBERS
    first = {type(thing): thing for thing in things}
    return frozenset(Known(thing) if _stands_for_others(thing) else Some.ANY for thing in first.values())


def _stands_for_others(thing: Any) -> bool:
    """Whether another of its class would be judged alike: not a container, module, class or function."""
    kind = type(thing)
    if kind in (*lookup.CONTAINERS, *lookup.MAPPINGS) or lookup.is_module(thing):
        return False
    called = lookup.find(kind, "__call__") is not None
    return not called or "_modules" in (lookup.instance_dict(thing) or {})


class Rulebook:
    """The rules, resolved to the objects that are loaded now."""

    def __init__(self) -> None:
        self._things: dict[int, Group] = {}
        self._methods: dict[int, dict[str, Group]] = {}
        self._dotted: dict[str, Group] = {}
        self._kept: list[Any] = []
        """Objects that are known by their id, kept alive so that the id stays theirs."""
        for group in GROUPS:
            self._add(group, lookup.by_name(group.of))
        found = (lookup.by_name(name) for name in COLLECTIVE_CLASSES)
        self.collective = tuple(cls for cls in found if cls is not None and lookup.is_class(cls))
        one_of = (lookup.by_name(name) for name in ("torch.nn.Module", "torch.utils.data.DataLoader"))
        self.module, self.loader = (() if cls is None else (cls,) for cls in one_of)

    def _add(self, group: Group, owner: Any) -> None:
        for name in group.names:
            self._dotted.setdefault(f"{group.of}.{name}", group)
        if owner is not None and lookup.is_class(owner):
            table = self._methods.setdefault(id(owner), {})
            for name in group.names:
                table.setdefault(name, group)
                entry = lookup.find(owner, name)
                if entry is not None and lookup.library_function(entry[1], entry[0]):
                    self._keep(lookup.unwrapped(entry[1]), group)
        elif owner is not None:
            entries = lookup.module_dict(owner)
            public = [name for name in entries if type(name) is str and name[:1] != "_"]
            for name in public if group.names == ("*",) else group.names:
                self._keep(entries.get(name), group)

    def _keep(self, thing: Any, group: Group) -> None:
        """Add an object; not modules and constants, nor a function that the job put there."""
        if thing is None or lookup.is_module(thing) or type(thing) in lookup.IMMUTABLE:
            return
        if group.kind == REFUSED or type(thing) is not types.FunctionType or lookup.library_function(thing):
            self._kept.append(thing)
            self._things.setdefault(id(thing), group)
        # Also the function inside a wrapper, such as ours around `os._exit`.
        if group.kind == REFUSED and type(thing) is types.FunctionType and "__wrapped__" in vars(thing):
            self._keep(vars(thing)["__wrapped__"], group)

    def of(self, thing: Any) -> Group | None:
        """The rule for calling an object."""
        return self._things.get(id(thing))

    def dotted(self, name: str) -> Group | None:
        """The rule for a name in a module that is not loaded."""
        return self._dotted.get(name) or self._dotted.get(name.rpartition(".")[0] + ".*")

    def method(self, cls: type, name: str) -> Group | None:
        """The rule for a method, unless a class outside the libraries overrides it."""
        entry = lookup.find(cls, name)
        if entry is None or not lookup.library_function(entry[1], entry[0]):
            return None
        tables = (self._methods.get(id(base), {}) for base in lookup.mro(cls))
        return next((one for table in tables if (one := table.get(name) or table.get("*"))), None)


_made: tuple[int, Rulebook] | None = None


def rulebook() -> Rulebook:
    """The rules for the modules that are loaded now."""
    global _made
    if _made is None or _made[0] != len(sys.modules):
        _made = (len(sys.modules), Rulebook())
    return _made[1]
