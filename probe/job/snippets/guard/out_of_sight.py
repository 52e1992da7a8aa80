"""What a snippet puts out of sight: one pool, in which everything that is done to one thing is done to each.

Standard library only.
"""

from __future__ import annotations

import ast
import functools
import types
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from probe.job.snippets.guard import lookup, rules
from probe.job.snippets.guard.kinds import (
    UNSEEN,
    Absent,
    Arguments,
    Finding,
    Kind,
    Known,
    Method,
    Value,
    rulebook,
)

_FUNCTIONS = (types.FunctionType, types.MethodType, functools.partial, *lookup.C_CALLABLES)
_WATCHED = (Kind.ENDLESS, Kind.ANY)
_BUILT_IN = (list, tuple, set, frozenset, dict)
_LONGEST_SOURCE = 60
_MOST_OF_ONE_CLASS = 64
"""So many objects of one class that are out of sight stand for all of it."""
_LARGE = 10_000
"""A number from here on may make another absurdly large."""


class OutOfSight:
    """Findings, and the pool of what is out of sight.

    All that a snippet puts out of sight, into a container, a function or a variable with several values, is
    in one place. What it does to one thing there is judged as if it did it to each, also to what gets there
    later."""

    def __init__(self, names: Mapping[str, Any]) -> None:
        self.names = names
        self.rules = rulebook()
        self.found: dict[Finding, None] = {}
        self._hidden: dict[Value, None] = {}
        self._classes: Counter[type] = Counter()
        self._looked_into: dict[int, Any] = {}
        self._uses: dict[tuple[Any, ...], None] = {}
        self._waiting: list[tuple[tuple[Any, ...], Value]] = []
        self._busy = False

    def note(self, node: ast.AST, why: str, kind: str = rules.CHANGING) -> Kind:
        """A finding at `node`."""
        what = " ".join(ast.unparse(node).split())
        if len(what) > _LONGEST_SOURCE:
            what = what[: _LONGEST_SOURCE - 1] + "…"
        self.found[Finding(kind, getattr(node, "lineno", 1), what, why)] = None
        return Kind.NOTED

    def call(self, callee: Value, given: Arguments, node: ast.AST) -> Value:
        """What a call gives; in `operations.py`."""
        raise NotImplementedError

    def hide(self, value: Value | None, node: ast.AST) -> None:
        """A value goes out of sight at `node`. A function counts as called there: nobody sees when it is."""
        if isinstance(value, Method | Absent) or (isinstance(value, Known) and self._is_called(value.thing)):
            self.call(value, UNSEEN, node)
        elif value is Kind.OWN or (isinstance(value, Known) and type(value.thing) in _BUILT_IN):
            self.hide_all_in(value, node)
            self.keep(Kind.CONTAINER)
        elif value in _WATCHED or (isinstance(value, Known) and not self._is_plain(value.thing)):
            self.keep(value)

    def keep(self, value: Value) -> None:
        """Among what is out of sight is this."""
        kind = type(value.thing) if isinstance(value, Known) else type(value)
        if value not in self._hidden and self._classes[kind] < _MOST_OF_ONE_CLASS:
            self._classes[kind] += 1
            self._hidden[value] = None
            self._repeat([(use, value) for use in self._uses])

    def hide_all_in(self, value: Value, node: ast.AST) -> None:
        """What is in a container of the job goes out of sight."""
        thing = value.thing if isinstance(value, Known) else None
        if id(thing) not in self._looked_into:
            self._looked_into[id(thing)] = thing
            for one in lookup.elements(thing):
                if not self._is_plain(one):
                    self.hide(Known(one), node)

    def unseen(self, use: Callable[..., Value | None], *arguments: Any) -> Kind:
        """`use(value, *arguments)`, the last of them a node, is done to something that is out of sight."""
        key = (use, *arguments)
        if key not in self._uses:
            self._uses[key] = None
            self._repeat([(key, value) for value in self._hidden])
        return Kind.DATA

    def _repeat(self, uses: list[tuple[tuple[Any, ...], Value]]) -> None:
        self._waiting.extend(uses)
        if self._busy:
            return
        self._busy = True
        while self._waiting:
            (use, *arguments), value = self._waiting.pop()
            self.hide(use(value, *arguments), arguments[-1])
        self._busy = False

    def _is_called(self, thing: Any) -> bool:
        group = self.rules.of(thing)
        refused = group is not None and group.kind != rules.READING
        return refused or type(thing) in _FUNCTIONS or thing is SystemExit

    def _is_plain(self, thing: Any) -> bool:
        """Whether it is enough to know that it is data."""
        kind = type(thing)
        if kind in (int, range, str, bytes):
            size = thing if kind is int else thing.stop - thing.start if kind is range else len(thing)
            return bool(-_LARGE < size < _LARGE)
        tensor = lookup.library_class(kind) and lookup.derives(kind, self.rules.tensor)
        return tensor or kind in lookup.IMMUTABLE
