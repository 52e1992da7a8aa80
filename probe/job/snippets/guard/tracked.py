"""What the guard knows of the values in a snippet, and which rule an object falls under.

A value is an object that is there now, or one of a few kinds that say whose it is. Standard library only.
"""

from __future__ import annotations

import sys
import types
from dataclasses import dataclass
from enum import Enum
from typing import Any

from probe.job.snippets.guard import lookup
from probe.job.snippets.guard.rules import GROUPS, REFUSED, Group


class Kind(Enum):
    """Values of which only the kind is known."""

    FRESH = "the snippet's own with all that is in it: a number, a text, a new tensor"
    HOLDER = "the snippet's own, and holds what may be the job's"
    HOLDER_OF_MODULES = "the same, and some of it may be modules"
    DATA = "may be the job's; a tensor, number, text or container with nobody's own code in it"
    MODULE = "a module of the job, or its name"
    FUNCTION = "a function of the snippet"
    WRAPPER = "gives back what it is called with, or something of it"
    ENDLESS = "an iterator of the snippet without an end"
    OPAQUE = "anything"
    NOTED = "anything, from what was already found to be more than reading; or it raises"


OWN = (Kind.FRESH, Kind.HOLDER, Kind.HOLDER_OF_MODULES, Kind.ENDLESS)
"""What the snippet may change."""


@dataclass(frozen=True, eq=False)
class Known:
    """An object that is there now: the job's, a module, a constant."""

    thing: Any


@dataclass(frozen=True, eq=False)
class Method:
    """A method of an object that is there now."""

    thing: Any
    name: str


@dataclass(frozen=True)
class Absent:
    """Something in a module that is not loaded yet."""

    dotted: str


Value = Kind | Known | Method | Absent


class Rulebook:
    """The rules, resolved to the objects that are loaded now."""

    def __init__(self) -> None:
        self._things: dict[int, Group] = {}
        self._methods: dict[int, dict[str, Group]] = {}
        self._dotted: dict[str, Group] = {}
        self._kept: list[Any] = []
        """What is known by its identity must live as long."""
        for group in GROUPS:
            self._dotted.update(
                {
                    f"{group.of}.{name}": group
                    for name in group.names
                    if f"{group.of}.{name}" not in self._dotted
                }
            )
            owner = lookup.by_name(group.of)
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
        """Modules and constants are not called; a function that the job put there is not the library's."""
        if lookup.is_module(thing) or type(thing) in lookup.IMMUTABLE:
            return
        if group.kind == REFUSED or lookup.library_function(thing):
            self._kept.append(thing)
            self._things.setdefault(id(thing), group)
        # Whoever wrapped it, as our own look at `os._exit` does.
        if group.kind == REFUSED and type(thing) is types.FunctionType and "__wrapped__" in vars(thing):
            self._keep(vars(thing)["__wrapped__"], group)

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
        tables = (self._methods.get(id(base), {}) for base in lookup.mro(cls))
        return next(
            (table.get(name) or table["*"] for table in tables if name in table or "*" in table), None
        )


_made: tuple[int, Rulebook] | None = None


def rulebook() -> Rulebook:
    """The rules for the modules that are loaded now."""
    global _made
    if _made is None or _made[0] != len(sys.modules):
        _made = (len(sys.modules), Rulebook())
    return _made[1]
