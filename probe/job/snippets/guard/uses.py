"""What using a value does when nothing is called by name: going through it, making a text of it.

Part of the guard: see `guard.py`. Standard library only.
"""

from __future__ import annotations

import ast

from probe.job.snippets.guard import lookup
from probe.job.snippets.guard.attributes import State, data, elements
from probe.job.snippets.guard.rules import LARGEST_RESULT, LONGEST_RANGE, REFUSED
from probe.job.snippets.guard.tracked import (
    NOTED,
    NOTHING,
    PURE,
    Absent,
    Attribute,
    Known,
    Method,
    Own,
    Some,
    Value,
    Values,
)


class Uses(State):
    """Judges uses of values."""

    def touch(self, values: Values, node: ast.AST, names: frozenset[str] | None = None) -> None:
        """Somebody's own special methods, run by an operator or a function."""
        for value in values:
            if isinstance(value, Known):
                kind = type(value.thing)
                own = lookup.own_special(kind) if names is None else lookup.own_special(kind, names)
                if own is not None:
                    self.note(node, f"runs `{own}`, which is not known to be pure")
            elif value is Some.OPAQUE:
                self.note(node, "uses something that is not known here")

    def iterate(self, values: Values, node: ast.AST, *, in_c: bool = True) -> Values:
        """What going through values gives. `in_c`: no Python runs between two of them."""
        if in_c:
            self._runs_through(values, node)
        return NOTHING.union(*(self._iterate_one(value, node) for value in values))

    def _runs_through(self, values: Values, node: ast.AST) -> None:
        for value in values:
            if isinstance(value, Own) and value.kind == "endless":
                self.note(node, "goes through something endless in C, where nothing can stop it", REFUSED)
            elif isinstance(value, Known) and type(value.thing) is range:
                first, last, step = value.thing.start, value.thing.stop, value.thing.step
                if abs(last - first) // abs(step) > LONGEST_RANGE:
                    self.note(node, f"goes through more than {LONGEST_RANGE:,} numbers in C", REFUSED)

    def _iterate_one(self, value: Value, node: ast.AST) -> Values:
        if isinstance(value, Known):
            kind = type(value.thing)
            if self.rules.method(kind, "__iter__") is not None or kind is range:
                return elements(self, value.thing)
            if lookup.derives(kind, self.rules.loader):
                self.note(node, "takes batches from a loader: starts its workers and draws random numbers")
            elif lookup.find(kind, "__next__") is not None:
                self.note(node, "takes from an iterator of the job")
            elif lookup.find(kind, "__iter__") is not None or lookup.find(kind, "__getitem__") is not None:
                self.note(node, f"goes through a `{lookup.class_name(kind)}`, which is not known to be pure")
            else:
                return NOTHING
            return NOTED
        if isinstance(value, Own):
            return self.inside(value)
        if isinstance(value, Method | Attribute):
            return NOTHING.union(*(self._iterate_one(one, node) for one in data(self, value) - {value}))
        if value is Some.OPAQUE:
            self.note(node, "goes through something that is not known here")
            return NOTED
        if value is Some.NOTED:
            return NOTED
        return PURE if isinstance(value, Absent | Some) else NOTHING

    def shown(self, values: Values, node: ast.AST) -> None:
        """A text is made of values."""
        seen: set[Value] = set()
        waiting = list(values)
        while waiting:
            value = waiting.pop()
            if value in seen:
                continue
            seen.add(value)
            if isinstance(value, Known):
                own = lookup.own_text(value.thing)
                if own is not None:
                    self.note(node, f"makes a text with `{own}`, which is not known to be pure")
            elif isinstance(value, Own) and value.site:
                waiting.extend(self.contents.get((value.site, value.level), ()))
            elif value is Some.OPAQUE:
                self.note(node, "makes a text of something that is not known here")

    def constant(self, values: Values) -> object:
        """The one constant that a value can be; None when there is none or more than one."""
        if len(values) != 1:
            return None
        value = next(iter(values))
        return value.thing if isinstance(value, Known) and type(value.thing) in lookup.IMMUTABLE else None

    def too_large(self, size: object, node: ast.AST) -> None:
        """A size that a constant gives."""
        if type(size) in (int, float) and size > LARGEST_RESULT:  # type: ignore[operator]
            self.note(node, f"would make more than {LARGEST_RESULT:,} bits or elements", REFUSED)
