"""What the guard knows of the values in a snippet, and which rule a value falls under.

A value stands for whatever an expression may be: a very object of the job, something of a library,
something that the snippet itself made, or nothing that is known. A variable has a set of them. Pure
data; standard library only.
"""

from __future__ import annotations

import ast
import sys
import types
from dataclasses import dataclass
from enum import Enum
from typing import Any, Union

from probe.job.snippets.guard import lookup
from probe.job.snippets.guard.rules import COLLECTIVE_CLASSES, GROUPS, REFUSED, Group


class Known:
    """An object that is there now: the job's, a module, a constant."""

    __slots__ = ("_key", "thing")

    def __init__(self, thing: Any) -> None:
        self.thing = thing
        self._key: object = lookup.scalar_key(thing) or id(thing)

    def __eq__(self, other: object) -> bool:
        return type(other) is Known and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)


class Some(Enum):
    """Values of which nothing but their origin is known."""

    PURE = "from a reading call: of a library, and maybe the job's own"
    OPAQUE = "anything"
    NOTED = "anything, from what was already found to be more than reading"


@dataclass(frozen=True)
class Own:
    """Made by the snippet at one place of it; nobody else has it."""

    site: int
    level: int = 0
    kind: str = "fresh"
    """`container`: holds what was put in. `fresh`: may hold more. `endless`: an iterator without an end.
    `wrapper`: gives back what it is called with. `getter`: gives something out of that.
    `instance`: of a class in the snippet."""


@dataclass(frozen=True)
class Function:
    """A function or lambda of the snippet, by its node."""

    node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


@dataclass(frozen=True)
class Class:
    """A class of the snippet."""

    node: ast.ClassDef


@dataclass(frozen=True)
class Method:
    """A method of an object of the job."""

    receiver: Known
    name: str


@dataclass(frozen=True)
class Attribute:
    """An attribute of something that is not known: a value, or a method when it is called."""

    base: Value
    name: str


@dataclass(frozen=True)
class Absent:
    """Something in a module that is not loaded yet."""

    dotted: str


Value = Union[Known, Some, Own, Function, Class, Method, "Attribute", Absent]
Values = frozenset[Value]

NOTHING: Values = frozenset()
"""An expression that cannot have a value: it raises."""
PURE: Values = frozenset({Some.PURE})
OPAQUE: Values = frozenset({Some.OPAQUE})
NOTED: Values = frozenset({Some.NOTED})
NUMBER = Own(0)
"""A number, text or the like, which no assignment changes."""
NUMBERS: Values = frozenset({NUMBER})
MOST = 64
"""Values of one variable; beyond that one of each class stands for all."""


def known(*things: Any) -> Values:
    """Values for objects that are there; many of them by one of each class."""
    if len(things) <= MOST:
        return frozenset(Known(thing) for thing in things)
    if lookup.plain(things):
        tensors = any(type(thing) not in lookup.IMMUTABLE for thing in things)
        return PURE if tensors else NUMBERS
    found: dict[int, Any] = {}
    for thing in things:
        found.setdefault(id(type(thing)), thing)
    containers = (*lookup.CONTAINERS, *lookup.MAPPINGS)
    return frozenset(
        Some.OPAQUE if type(thing) in containers else Known(thing) for thing in found.values()
    )


class Rulebook:
    """The rules, resolved to the objects that are loaded now."""

    def __init__(self) -> None:
        self._things: dict[int, Group] = {}
        self._methods: dict[int, dict[str, Group]] = {}
        self._dotted: dict[str, Group] = {}
        self._kept: list[Any] = []
        """What is known by its identity must live as long."""
        for group in GROUPS:
            self._add(group, lookup.by_name(group.of))
        found = (lookup.by_name(name) for name in COLLECTIVE_CLASSES)
        self.collective = tuple(cls for cls in found if cls is not None and lookup.is_class(cls))
        module, loader = lookup.by_name("torch.nn.Module"), lookup.by_name("torch.utils.data.DataLoader")
        self.module: tuple[type, ...] = () if module is None else (module,)
        self.loader: tuple[type, ...] = () if loader is None else (loader,)

    def _add(self, group: Group, owner: Any) -> None:
        for name in group.names:
            self._dotted.setdefault(f"{group.of}.{name}", group)
        if owner is None:
            return
        if lookup.is_class(owner):
            table = self._methods.setdefault(id(owner), {})
            for name in group.names:
                table.setdefault(name, group)
                entry = lookup.find(owner, name)
                if entry is not None and lookup.library_function(entry[1], entry[0]):
                    self._keep(lookup.unwrapped(entry[1]), group)
        elif lookup.is_module(owner):
            entries = lookup.module_dict(owner)
            public = [name for name in entries if type(name) is str and name[:1] != "_"]
            for name in public if group.names == ("*",) else group.names:
                thing = entries.get(name)
                if thing is not None and (group.kind == REFUSED or _can_be_ruled(thing)):
                    self._keep(thing, group)
                if group.kind == REFUSED:  # whoever wrapped it, as our own look at `os._exit` does
                    while type(thing) is types.FunctionType and "__wrapped__" in vars(thing):
                        thing = vars(thing)["__wrapped__"]
                        self._keep(thing, group)

    def _keep(self, thing: Any, group: Group) -> None:
        self._kept.append(thing)
        self._things.setdefault(id(thing), group)

    def of(self, thing: Any) -> Group | None:
        """The rule for calling an object."""
        return self._things.get(id(thing))

    def dotted(self, name: str) -> Group | None:
        """The rule for what a name means in a module that is not loaded."""
        return self._dotted.get(name) or self._dotted.get(name.rpartition(".")[0] + ".*")

    def method(self, cls: type, name: str) -> Group | None:
        """The rule for a method, unless somebody's own class defines it anew."""
        entry = lookup.find(cls, name)
        if entry is None or not lookup.library_function(entry[1], entry[0]):
            return None
        for base in lookup.mro(cls):
            table = self._methods.get(id(base), {})
            group = table.get(name) or table.get("*")
            if group is not None:
                return group
        return None


def _can_be_ruled(thing: Any) -> bool:
    """Modules and constants are not called; a function that the job put there itself is not the library's."""
    if lookup.is_module(thing) or type(thing) in lookup.IMMUTABLE:
        return False
    return type(thing) is not types.FunctionType or lookup.library_function(thing)


_made: tuple[object, Rulebook] | None = None


def rulebook() -> Rulebook:
    """The rules for the modules that are loaded now."""
    global _made
    state = (len(sys.modules), "torch" in sys.modules)
    if _made is None or _made[0] != state:
        _made = (state, Rulebook())
    return _made[1]
