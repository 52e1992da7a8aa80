"""What the guard knows of a value in a snippet, and which rule an object of the job falls under.

Standard library only.
"""

from __future__ import annotations

import functools
import sys
import types
from enum import Enum
from typing import Any, NamedTuple

from probe.job.snippets.guard import lookup
from probe.job.snippets.guard.rules import COLLECTIVE_CLASSES, GROUPS, REFUSED, Group


class Kind(Enum):
    """Values of which only the origin is known."""

    NEW = "made by the snippet: a number, a text, a tensor"
    OWN = "a container that the snippet made; what is in it is out of sight"
    ENDLESS = "an iterator without an end"
    FUNCTION = "a function of the snippet; its body is judged where it is written"
    WRAPPER = "gives back what it is called with"
    DATA = "out of sight: of a library's class, or one of the objects that `Operations.hide` was given"
    CONTAINER = "a list, set or dictionary of the job that is out of sight, as all that is in it"
    ANY = "anything"
    NOTED = "anything, from what is a finding already; or nothing, because it raises"


class Known:
    """An object that is there now: the job's, a module, a constant."""

    __slots__ = ("_key", "thing")

    def __init__(self, thing: Any) -> None:
        self.thing = thing
        plain = type(thing) in lookup.IMMUTABLE and type(thing) is not slice
        self._key: object = (type(thing), thing) if plain else id(thing)
        if type(thing) is types.MethodType:  # made anew each time it is looked up
            self._key = (id(thing.__self__), id(thing.__func__))

    def __eq__(self, other: object) -> bool:
        return type(other) is Known and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)


class Finding(NamedTuple):
    """One thing in a snippet that makes it more than reading."""

    kind: str
    line: int
    what: str
    """Its source text, cut."""
    why: str


class Method(NamedTuple):
    """A method of an object of the job."""

    receiver: Known
    name: str


class Absent(NamedTuple):
    """Something in a module that is not loaded yet."""

    dotted: str


Value = Known | Kind | Method | Absent
MINE = (Kind.NEW, Kind.OWN)
"""What the snippet may change: nobody else has it."""


class Arguments(NamedTuple):
    """The arguments of a call."""

    positional: tuple[Value, ...] = ()
    keywords: tuple[tuple[str, Value], ...] = ()
    unnamed: bool = False
    """Whether there are others, from `*` or `**`, which are out of sight."""

    @property
    def everything(self) -> tuple[Value, ...]:
        """All of them."""
        hidden = (Kind.DATA,) if self.unnamed else ()
        return (*self.positional, *(value for _, value in self.keywords), *hidden)

    def get(self, name: str, place: int = 99) -> Value | None:
        """The argument of that name, or at that place; None when it is not given."""
        found = dict(self.keywords).get(name)
        if found is None and place < len(self.positional):
            found = self.positional[place]
        return Kind.DATA if found is None and self.unnamed else found


UNSEEN = Arguments(unnamed=True)


def is_constant(value: Value | None) -> bool:
    """Whether it is a number, text or the like, which nothing changes."""
    return isinstance(value, Known) and type(value.thing) in (*lookup.IMMUTABLE, tuple, frozenset)


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
        names = ("torch.nn.Module", "torch.utils.data.DataLoader", "torch.Tensor")
        one_of = (lookup.by_name(name) for name in names)
        self.module, self.loader, self.tensor = (() if cls is None else (cls,) for cls in one_of)

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
        """Modules and constants are not called; a function that the job put there is not the library's."""
        if thing is None or lookup.is_module(thing) or type(thing) in lookup.IMMUTABLE:
            return
        if group.kind == REFUSED or type(thing) is not types.FunctionType or lookup.library_function(thing):
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
        return next((one for table in tables if (one := table.get(name) or table.get("*"))), None)


@functools.lru_cache(maxsize=1)
def _made(_modules: int) -> Rulebook:
    return Rulebook()


def rulebook() -> Rulebook:
    """The rules for the modules that are loaded now."""
    return _made(len(sys.modules))
