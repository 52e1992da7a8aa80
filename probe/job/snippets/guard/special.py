"""Special calls: those with a treatment of their own, such as getattr, open, next, named_modules.

Each method here is named in the table of `rules`. Standard library only.
"""

from __future__ import annotations

import ast
import string
import sys
from typing import Any

from probe.job.snippets.guard import lookup, rules
from probe.job.snippets.guard.attributes import is_settled, may_be_torchs
from probe.job.snippets.guard.calls import Arguments, Calls
from probe.job.snippets.guard.kinds import (
    ANY,
    DATA,
    NOTED,
    NOTHING,
    NUMBERS,
    Absent,
    Code,
    Known,
    Own,
    Some,
    Values,
    known,
)


class Special(Calls):
    """The special treatments."""

    def _gives_getattr(self, name: str, given: Arguments, node: ast.AST) -> Values:
        if len(given.positional) < 2:
            return self.note(node, "reads attributes that are not known here")
        found = NOTHING.union(*given.positional[2:])
        for wanted in given.positional[1]:
            if isinstance(wanted, Known) and type(wanted.thing) is str:
                found = found.union(*(self.attribute(one, wanted.thing, node) for one in given.positional[0]))
            else:
                self.any_attribute(given.positional[0], node)
                found |= ANY
        return NUMBERS if name == "hasattr" else found

    def any_attribute(self, values: Values, node: ast.AST) -> None:
        """Judge reading an attribute whose name is not known."""
        for value in values:
            if may_be_torchs(value):
                self.note(node, rules.LOOKS_AT_GRADIENTS, rules.SETTLED)
            if isinstance(value, Known):
                own = [base for base in lookup.mro(type(value.thing)) if not lookup.library_class(base)]
                entries = [entry for base in own for entry in tuple(lookup.class_dict(base).values())]
                hooks = lookup.own_special(type(value.thing), frozenset({"getattr", "getattribute"}))
                if hooks or any(type(entry) is property for entry in entries):
                    self.note(node, "reads attributes whose names are not known here, and some run code")
            elif value is Some.ANY:
                self.note(node, "reads attributes of something that is not known here")

    def _gives_format(self, _name: str, given: Arguments, node: ast.AST) -> Values:
        """`"{0.grad}".format(p)` reads the attributes that the text names."""
        arguments = given._replace(positional=given.positional[1:]).everything()
        within = frozenset(self._all_in(arguments))
        for text in given.first():
            whole = text.thing if isinstance(text, Known) and type(text.thing) is str else None
            if whole is None:
                self.any_attribute(within, node)
            for field, form in _fields(whole or ""):
                self.formatted(form, node)
                found = within
                for name in (part.partition("[")[0] for part in field.split(".")[1:]):
                    if is_settled(name):  # perhaps of an item in an argument
                        self.note(node, rules.LOOKS_AT_GRADIENTS, rules.SETTLED)
                    found = NOTHING.union(*(self.attribute(value, name, node) for value in found))
                self.shown(found, node)
        self.shown(arguments, node)
        return NUMBERS

    def formatted(self, form: str, node: ast.AST) -> None:
        """Note an absurd width or precision in a format specification."""
        digits = "".join(sign if sign.isdecimal() else " " for sign in form).split()
        self.too_large(max([float(number[:30]) for number in digits], default=0.0), node)

    def _gives_type(self, _name: str, given: Arguments, node: ast.AST) -> Values:
        if len(given.positional) != 1 or given.others:
            return self.note(node, "makes a class")
        return frozenset(
            Known(type(one.thing)) if isinstance(one, Known) else Some.DATA for one in given.positional[0]
        )

    def names_seen(self) -> Values:
        """The result of `globals()`: the names of the job that the snippet sees; in `expressions.py`."""
        raise NotImplementedError

    def _gives_globals(self, _name: str, _given: Arguments, _node: ast.AST) -> Values:
        return self.names_seen()

    def _gives_vars(self, _name: str, given: Arguments, node: ast.AST) -> Values:
        if not given.positional:
            return self.names_seen()
        return NOTHING.union(*(self.attribute(one, "__dict__", node) for one in given.positional[0]))

    def _gives_wrapper(self, _name: str, given: Arguments, node: ast.AST) -> Values:
        return self.made(node, kind="wrapper") | (given.everything() - known(None))

    def _gives_getter(self, _name: str, _given: Arguments, node: ast.AST) -> Values:
        return self.made(node, kind="wrapper")

    def _gives_anything(self, _name: str, _given: Arguments, node: ast.AST) -> Values:
        return self.made(node, ANY)

    def load(self, dotted: str, node: ast.AST) -> Values:
        """The result of importing a module; notes the import of one that is not loaded."""
        self.imported.add(dotted)
        module = sys.modules.get(dotted)
        if module is not None:
            return frozenset({Known(module)})
        if dotted.partition(".")[0] not in sys.stdlib_module_names:
            self.note(node, f"imports {dotted}, which the job has not loaded", rules.BLOCKING)
        return frozenset({Absent(dotted)})

    def _gives_import_module(self, name: str, given: Arguments, node: ast.AST) -> Values:
        dotted = self.constant(given.first())
        if type(dotted) is not str:
            return self.note(node, "imports a module whose name is not known here")
        whole = self.load(dotted, node)
        return self.load(dotted.partition(".")[0], node) if name == "__import__" else whole

    def _gives_modules(self, name: str, given: Arguments, node: ast.AST) -> Values:
        found = NOTHING
        for value in given.first():
            if not isinstance(value, Known):
                found |= DATA
            elif name in ("modules", "named_modules", "get_submodule"):
                found |= _one_of_each(lookup.modules_within(value.thing))
            else:
                found |= _one_of_each(lookup.children(value.thing))
        if name in ("__getitem__", "get_submodule"):
            return found
        if name in ("named_modules", "named_children", "items"):
            found = self.made(node, found | NUMBERS, level=1)
        return self.made(node, NUMBERS if name == "keys" else found)

    def _gives_named(self, _name: str, _given: Arguments, node: ast.AST) -> Values:
        return self.made(node, self.made(node, DATA | NUMBERS, level=1))

    def _gives_state(self, _name: str, given: Arguments, node: ast.AST) -> Values:
        for value in given.first():
            for part in lookup.modules_within(value.thing) if isinstance(value, Known) else ():
                kind = type(part)
                if any("fsdp" in lookup.module_name(base) for base in lookup.mro(kind)):
                    self.note(node, "the state of a sharded model waits for the ranks", rules.COLLECTIVE)
                elif self.rules.method(kind, "state_dict") is None:
                    self.note(node, f"`{lookup.class_name(kind)}.state_dict` is not known to be pure")
        return self.made(node, kind="fresh")

    def _gives_endless(self, name: str, given: Arguments, node: ast.AST) -> Values:
        ends = name == "repeat" and (len(given.positional) > 1 or given.named("times"))
        inside = given.everything()
        inside = self.iterate(inside, node) if name == "cycle" else inside | NUMBERS
        return self.made(node, inside, "container" if ends else "endless")

    def _gives_cast(self, _name: str, given: Arguments, node: ast.AST) -> Values:
        address = self.constant(given.first())
        kind = rules.REFUSED if type(address) is int and address < 4096 else rules.CHANGING
        return self.note(node, "uses memory at an address that it is given", kind)

    def _gives_exec(self, _name: str, given: Arguments, _node: ast.AST) -> Values:
        for value in given.first():
            if isinstance(value, Known) and type(value.thing) is str:
                self.code(value.thing)
        return ANY

    def _gives_next(self, _name: str, given: Arguments, node: ast.AST) -> Values:
        found = NOTHING.union(*given.positional[1:])
        for one in given.first():
            if isinstance(one, Own):
                found |= self.inside(one)
            else:
                found |= NOTED if one is Some.NOTED else self.note(node, "takes from an iterator of the job")
        return found

    def _gives_iter(self, _name: str, given: Arguments, node: ast.AST) -> Values:
        if len(given.positional) < 2:
            return self._gathered("iter", rules.GATHER, given, node)
        self.may_call(given.first(), node, strict=True, given=Arguments())
        python = any(isinstance(one, Code) for one in given.first())
        return self.made(node, DATA, "container" if python else "endless")

    def _gives_pow(self, _name: str, given: Arguments, node: ast.AST) -> Values:
        constants = [self.constant(values) for values in given.positional]
        base, exponent = (*constants, None, None)[:2]
        if type(base) is int and type(exponent) is int and len(constants) == 2 and abs(base) > 1:
            self.too_large(base.bit_length() * float(exponent), node)
        self._check(given, node)
        return NUMBERS

    def _gives_range(self, _name: str, given: Arguments, node: ast.AST) -> Values:
        limits: list[Any] = [self.constant(values) for values in given.positional]
        if all(type(limit) is int for limit in limits) and 1 <= len(limits) <= 3 and 0 not in limits[2:]:
            return known(range(*limits))
        self._check(given, node)
        return self.made(node, NUMBERS)

    def _gives_open(self, _name: str, given: Arguments, node: ast.AST) -> Values:
        modes = given.named("mode") or (given.positional[1] if len(given.positional) > 1 else known("r"))
        mode = self.constant(modes)
        writes = type(mode) is not str or set(mode) & set("wax+") or given.others
        if writes:
            self.note(node, "opens a file for writing")
        else:
            self.note(node, "reads a file", rules.BLOCKING)
        return self.made(node, kind="fresh")

    _gives_hasattr = _gives_getattr
    _gives_locals = _gives_globals
    _gives_import = _gives_import_module
    _gives_format_map = _gives_format
    _gives_eval = _gives_compile = _gives_exec
    _gives_string_at = _gives_wstring_at = _gives_memmove = _gives_memset = _gives_cast


def _fields(text: str) -> list[tuple[str, str]]:
    """The names in the fields of a format, and their format specifications."""
    try:
        return [(field or "", form or "") for _, field, form, _ in string.Formatter().parse(text)]
    except ValueError:
        return []  # `format` will raise this itself


def _one_of_each(modules: list[object]) -> Values:
    """Modules; of very many, one for each class."""
    few = modules if len(modules) <= 400 else {type(module): module for module in modules}.values()
    return frozenset(map(Known, few))
