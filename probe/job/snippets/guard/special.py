"""Calls whose arguments say what they do: getattr, open, next, map, and their like.

Part of the guard: see `guard.py`; each method here is named in `rules.py`. Standard library only.
"""

from __future__ import annotations

import ast
import string

from probe.base.isolation import capture
from probe.job.snippets.guard import lookup
from probe.job.snippets.guard.attributes import attribute, data, is_settled, may_be_torchs
from probe.job.snippets.guard.calls import ANYTHING, Arguments, Calls, blocking, load
from probe.job.snippets.guard.rules import CHANGING, COLLECTIVE, LOOKS_AT_GRADIENTS, REFUSED, SETTLED, Group
from probe.job.snippets.guard.tracked import (
    NOTED,
    NOTHING,
    NUMBERS,
    OPAQUE,
    PURE,
    Function,
    Known,
    Own,
    Some,
    Values,
    known,
)

_COPIED = (*lookup.CONTAINERS, *lookup.MAPPINGS)
"""What a copy of is a container of its own."""


class Special(Calls):
    """The special treatments that `rules.py` names."""

    def _gives_attribute(self, name: str, _group: Group, given: Arguments, node: ast.AST) -> Values:
        if len(given.positional) < 2:
            self.note(node, "reads attributes that are not known here")
            return NOTED
        found = NOTHING.union(*given.positional[2:])
        for wanted in given.positional[1]:
            if not isinstance(wanted, Known) or type(wanted.thing) is not str:
                self._any_attribute(given.positional[0], node)
                found |= OPAQUE
                continue
            for value in given.positional[0]:
                found |= attribute(self, value, wanted.thing, node)
        return NUMBERS if name == "hasattr" else found

    def _any_attribute(self, values: Values, node: ast.AST) -> None:
        """Reading an attribute whose name is not known."""
        for value in values:
            if may_be_torchs(value):
                self.note(node, LOOKS_AT_GRADIENTS, SETTLED)
            if isinstance(value, Known):
                own = [base for base in lookup.mro(type(value.thing)) if not lookup.library_class(base)]
                entries = [entry for base in own for entry in tuple(lookup.class_dict(base).values())]
                computed = any(type(entry) is property for entry in entries)
                if computed or lookup.own_special(type(value.thing), frozenset({"getattr", "getattribute"})):
                    self.note(node, "reads attributes whose names are not known here, and some run code")
            elif value is Some.OPAQUE:
                self.note(node, "reads attributes of something that is not known here")

    def _gives_formatted(self, _name: str, _group: Group, given: Arguments, node: ast.AST) -> Values:
        """`"{0.grad}".format(p)` looks up attributes: those that the text names."""
        texts, *filled = given.positional or (NOTHING,)
        arguments = NOTHING.union(*filled, *(values for _, values in given.keywords), given.others)
        for text in texts:
            whole = text.thing if isinstance(text, Known) and type(text.thing) is str else None
            if whole is None:
                self._any_attribute(arguments, node)
                continue
            for name in _named_in(whole):
                if is_settled(name):  # of what is in an argument, perhaps
                    self.note(node, LOOKS_AT_GRADIENTS, SETTLED)
                for value in arguments:
                    attribute(self, value, name, node)
        self.shown(arguments, node)
        return NUMBERS

    def _gives_kind(self, _name: str, _group: Group, given: Arguments, node: ast.AST) -> Values:
        if len(given.positional) != 1 or given.others:
            self.note(node, "makes a class")
            return NOTED
        return frozenset(
            Known(type(value.thing)) if isinstance(value,
                Known) else Some.PURE for value in given.positional[0]
        )

    def _gives_variables(self, _name: str, _group: Group, given: Arguments, node: ast.AST) -> Values:
        if not given.positional:
            return OPAQUE
        found: set[Values] = set()
        for value in given.positional[0]:
            found.add(attribute(self, value, "__dict__", node))
        return NOTHING.union(*found)

    def _gives_wrapper(self, _name: str, _group: Group, given: Arguments, node: ast.AST) -> Values:
        return frozenset({self.made(node, kind="wrapper")}) | given.everything()

    def _gives_getter(self, _name: str, _group: Group, _given: Arguments, node: ast.AST) -> Values:
        return frozenset({self.made(node, kind="getter")})

    def _gives_record(self, _name: str, _group: Group, given: Arguments, node: ast.AST) -> Values:
        return frozenset({self.made(node, given.everything())})

    def _gives_anything(self, _name: str, _group: Group, _given: Arguments, node: ast.AST) -> Values:
        return frozenset({self.made(node, OPAQUE)})

    def _gives_load(self, _name: str, _group: Group, given: Arguments, node: ast.AST) -> Values:
        dotted = self.constant(given.positional[0]) if given.positional else None
        if type(dotted) is not str:
            self.note(node, "imports a module whose name is not known here")
            return NOTED
        whole = load(self, dotted, node)
        return load(self, dotted.partition(".")[0], node) if _name == "__import__" else whole

    def _gives_modules(self, name: str, _group: Group, given: Arguments, node: ast.AST) -> Values:
        found = NOTHING
        for value in given.positional[0] if given.positional else NOTHING:
            if not isinstance(value, Known):
                found |= PURE
            elif name in ("modules", "named_modules", "get_submodule"):
                found |= _one_of_each(lookup.modules_within(value.thing))
            else:
                found |= _one_of_each(lookup.children(value.thing))
        if name in ("named_modules", "named_children", "items"):
            found = frozenset({self.made(node, found | NUMBERS, level=1)})
        if name in ("__getitem__", "get_submodule"):
            return found
        return frozenset({self.made(node, NUMBERS if name == "keys" else found)})

    def _gives_named(self, _name: str, _group: Group, _given: Arguments, node: ast.AST) -> Values:
        pair = self.made(node, PURE | NUMBERS, level=1)
        return frozenset({self.made(node, frozenset({pair}))})

    def _gives_state(self, _name: str, _group: Group, given: Arguments, node: ast.AST) -> Values:
        for value in given.positional[0] if given.positional else NOTHING:
            parts = lookup.modules_within(value.thing) if isinstance(value, Known) else []
            for part in parts:
                if any("fsdp" in lookup.module_name(base) for base in lookup.mro(type(part))):
                    self.note(node, "the state of a sharded model waits for the other ranks", COLLECTIVE)
                    break
                if lookup.own_special(type(part), frozenset({"getstate"})):
                    break
                if self.rules.method(type(part), "state_dict") is None:
                    self.note(node, f"`{lookup.class_name(type(part))}.state_dict` is not known to be pure")
        return frozenset({self.made(node, kind="fresh")})

    def _gives_endless(self, name: str, _group: Group, given: Arguments, node: ast.AST) -> Values:
        ends = name == "repeat" and (len(given.positional) > 1 or given.named("times") is not None)
        inside = given.everything()
        if name == "cycle":
            inside = self.iterate(inside, node)
        return frozenset({self.made(node, inside | NUMBERS, "container" if ends else "endless")})

    def _gives_joined(self, _name: str, _group: Group, given: Arguments, node: ast.AST) -> Values:
        self.iterate(NOTHING.union(*given.positional[1:]), node)
        return NUMBERS

    def _gives_address(self, _name: str, group: Group, given: Arguments, node: ast.AST) -> Values:
        addresses = [self.constant(values) for values in given.positional[:2]]
        low = any(type(address) is int and address < 4096 for address in addresses[:1])
        self.note(node, group.why, REFUSED if low else CHANGING)
        return NOTED

    def _gives_copy(self, _name: str, _group: Group, given: Arguments, node: ast.AST) -> Values:
        self.check(given, node)
        inside = shared = NOTHING
        for value in given.everything():
            copied = isinstance(value, Known) and type(value.thing) in _COPIED
            if isinstance(value, Known) and not copied and not lookup.plain(value.thing):
                self.note(node, "copies an object in ways of its own")
            elif copied or isinstance(value, Own):
                inside |= self.opened(self._members(value, node), node)
            else:
                inside |= PURE
                shared = PURE
        return frozenset({self.made(node, inside)}) | shared

    def _gives_code(self, _name: str, group: Group, given: Arguments, node: ast.AST) -> Values:
        for values in given.positional[:1]:
            for value in values:
                if isinstance(value, Known) and type(value.thing) is str:
                    self.code(value.thing, node)
        return OPAQUE

    def _gives_special(self, name: str, _group: Group, given: Arguments, node: ast.AST) -> Values:
        return {
            "next": self._next, "iter": self._iter, "map": self._map, "pow": self._pow, "range": self._range,
            "open": self._open, "partial": self._partial, "reduce": self._reduce,
        }.get(name, self._default_dictionary)(given, node)

    def _next(self, given: Arguments, node: ast.AST) -> Values:
        found = NOTHING.union(*given.positional[1:])
        for value in given.positional[0] if given.positional else given.others:
            for one in data(self, value):
                if isinstance(one, Own):
                    found |= self.inside(one)
                elif one is Some.NOTED:
                    found |= NOTED
                elif one is not Some.PURE or isinstance(value, Known):
                    self.note(node, "takes from an iterator of the job")
                    found |= NOTED
                else:
                    self.note(node, "takes from an iterator that may be the job's")
                    found |= NOTED
        return found

    def _iter(self, given: Arguments, node: ast.AST) -> Values:
        if len(given.positional) == 2:
            for value in given.positional[0]:
                self.call(value, Arguments(), node)
            python = any(isinstance(value, Function) for value in given.positional[0])
            return frozenset({self.made(node, PURE, "container" if python else "endless")})
        found = self.iterate(given.everything(), node, in_c=False)
        endless = any(isinstance(one, Own) and one.kind == "endless" for one in given.everything())
        return frozenset({self.made(node, found, "endless" if endless else "container")})

    def _map(self, given: Arguments, node: ast.AST) -> Values:
        members = tuple(self.iterate(values, node, in_c=False) for values in given.positional[1:])
        results = NOTHING
        for value in given.positional[0] if given.positional else NOTHING:
            results |= self.call(value, Arguments(members, others=given.others), node)
        endless = len(members) == 1 and any(
            isinstance(one, Own) and one.kind == "endless" for one in given.positional[1]
        )
        return frozenset({self.made(node, results, "endless" if endless else "container")})

    def _reduce(self, given: Arguments, node: ast.AST) -> Values:
        for value in given.positional[0] if given.positional else NOTHING:
            self.call(value, ANYTHING, node)
        return NOTHING.union(*(self.iterate(values, node) for values in given.positional[1:])) | PURE

    def _partial(self, given: Arguments, node: ast.AST) -> Values:
        self.may_call(given.everything(), node, strict=False)
        inside = given.positional[0] if given.positional else OPAQUE
        if all(isinstance(value, Function) for value in inside):
            for value in inside:
                self.call(value, ANYTHING, node)
            return inside
        return frozenset({self.made(node, kind="wrapper")})

    def _pow(self, given: Arguments, node: ast.AST) -> Values:
        constants = [self.constant(values) for values in given.positional]
        if len(constants) == 2 and type(constants[0]) is int and type(constants[1]) is int:
            self.too_large(abs(constants[0]).bit_length() * constants[1] if abs(constants[0]) > 1 else 0,
                node)
        self.check(given, node)
        return NUMBERS

    def _range(self, given: Arguments, node: ast.AST) -> Values:
        limits = [self.constant(values) for values in given.positional]
        numbers = all(type(limit) is int for limit in limits)
        if numbers and 1 <= len(limits) <= 3 and 0 not in limits[2:]:
            return known(range(*limits))  # type: ignore[call-overload]
        return frozenset({self.made(node, NUMBERS)})

    def _open(self, given: Arguments, node: ast.AST) -> Values:
        modes = given.named("mode") or (given.positional[1] if len(given.positional) > 1 else known("r"))
        mode = self.constant(modes)
        if type(mode) is not str or set(mode) & set("wax+") or given.others:
            self.note(node, "opens a file for writing")
        else:
            blocking(self, node, "reads a file")
        return frozenset({self.made(node, kind="fresh")})

    def _default_dictionary(self, given: Arguments, node: ast.AST) -> Values:
        inside = NOTHING
        for value in given.positional[0] if given.positional else NOTHING:
            inside |= self.call(value, Arguments(), node)
        for value in NOTHING.union(*given.positional[1:], given.others):
            inside |= self.opened(self._members(value, node), node)
        inside = inside.union(*(values for _, values in given.keywords))
        return frozenset({self.made(node, inside)})


def _named_in(text: str) -> list[str]:
    """Attributes that the fields of a format name."""
    fields, error = capture(lambda: [field for _, field, _, _ in string.Formatter().parse(text) if field])
    if error is not None or not isinstance(fields, list):
        return []  # `format` will say so itself
    return [part.partition("[")[0] for field in fields for part in field.split(".")[1:]]


def _one_of_each(modules: list[object]) -> Values:
    """Modules; of very many one for each class."""
    if len(modules) <= 400:
        return frozenset(Known(module) for module in modules)
    first: dict[int, object] = {}
    for module in modules:
        first.setdefault(id(type(module)), module)
    return frozenset(Known(module) for module in first.values())


