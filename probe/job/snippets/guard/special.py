"""Calls that need a treatment of their own: getattr, open, next, named_modules and their like.

Each method here is named in the table of `rules`. Standard library only.
"""

from __future__ import annotations

import ast
import string
import sys

from probe.job.snippets.guard import lookup, rules
from probe.job.snippets.guard.kinds import MINE, Absent, Arguments, Kind, Known, Value
from probe.job.snippets.guard.operations import Operations


class Special(Operations):
    """The special treatments."""

    def code(self, text: str) -> None:
        """Read text that the snippet executes; in `reading.py`."""
        raise NotImplementedError

    def fold(self, op: ast.operator, left: Value, right: Value, node: ast.AST) -> Value:
        """What an operator gives; in `reading.py`."""
        raise NotImplementedError

    def load(self, dotted: str, node: ast.AST) -> Value:
        """What importing a module gives; notes an import of what is not loaded."""
        if dotted in sys.modules:
            return Known(sys.modules[dotted])
        if dotted.partition(".")[0] not in sys.stdlib_module_names:
            self.note(node, f"imports {dotted}, which the job has not loaded", rules.BLOCKING)
        return Absent(dotted)

    def formatted(self, form: str, node: ast.AST) -> None:
        """A width or precision in the form of a text."""
        digits = "".join(sign if sign.isdecimal() else " " for sign in form).split()
        self.too_large(max([float(number[:30]) for number in digits], default=0.0), node)

    def _gives_getattr(self, name: str, given: Arguments, node: ast.AST) -> Value:
        thing, wanted = given.get("", 0), given.get("", 1)
        if thing is None or wanted is None:
            return self.note(node, "reads attributes that are not known here")
        self.hide_each(given._replace(positional=given.positional[2:]), node)
        if isinstance(wanted, Known) and type(wanted.thing) is str:
            found = self.attribute(thing, wanted.thing, node)
        else:
            found = self.any_attribute(thing, node)
        missing = found is Kind.NOTED and len(given.positional) > 2
        return Kind.NEW if name == "hasattr" else Kind.DATA if missing else found

    def _gives_format(self, _name: str, given: Arguments, node: ast.AST) -> Value:
        """`"{0.grad}".format(p)` looks up attributes: those that the text names."""
        text, *others = given.everything
        self.hide_each(given, node)
        for value in others:
            self.use(value, rules.SPECIAL_METHODS, node)
        if not isinstance(text, Known):
            self.any_attribute(Kind.DATA, node)
        try:
            fields = list(string.Formatter().parse(text.thing if isinstance(text, Known) else ""))
        except ValueError:  # `format` will say so itself
            fields = []
        for _, field, form, _ in fields:
            self.formatted(form or "", node)
            found: Value = Kind.DATA
            for name in (field or "").split(".")[1:]:
                found = self.attribute(found, name.partition("[")[0], node)
        return Kind.NEW

    def _gives_type(self, _name: str, given: Arguments, node: ast.AST) -> Value:
        if len(given.positional) != 1 or given.unnamed:
            self.hide_each(given, node)
            return self.note(node, "makes a class")
        (value,) = given.positional
        return Known(type(value.thing)) if isinstance(value, Known) else Kind.DATA

    def _gives_vars(self, _name: str, given: Arguments, node: ast.AST) -> Value:
        return self.attribute(given.positional[0], "__dict__", node) if given.positional else Kind.ANY

    def _gives_wrapper(self, _name: str, given: Arguments, node: ast.AST) -> Value:
        self.hide_each(given, node)
        return Kind.FUNCTION if Kind.FUNCTION in given.positional else Kind.WRAPPER

    def _gives_locals(self, _name: str, _given: Arguments, _node: ast.AST) -> Value:
        return Kind.ANY

    def _gives_get_referrers(self, _name: str, _given: Arguments, node: ast.AST) -> Value:
        self.hide(Kind.ANY, node)
        return Kind.OWN

    def _gives_defaultdict(self, _name: str, given: Arguments, node: ast.AST) -> Value:
        for factory in given.positional[:1]:
            self.hide(self.call(factory, Arguments(), node) if factory != Known(None) else None, node)
        self.hide_each(given, node)
        return Kind.OWN

    def _gives_import_module(self, name: str, given: Arguments, node: ast.AST) -> Value:
        dotted = given.get("name", 0)
        if not isinstance(dotted, Known) or type(dotted.thing) is not str:
            return self.note(node, "imports a module whose name is not known here")
        whole = self.load(dotted.thing, node)
        return self.load(dotted.thing.partition(".")[0], node) if name == "__import__" else whole

    def _gives_modules(self, name: str, given: Arguments, node: ast.AST) -> Value:
        for receiver in given.positional[:1]:
            for part in lookup.modules_within(receiver.thing) if isinstance(receiver, Known) else ():
                self.hide(Known(part), node)
        self.hide_each(given, node)
        return Kind.DATA if name in ("__getitem__", "get_submodule") else Kind.OWN

    def _gives_state(self, _name: str, given: Arguments, node: ast.AST) -> Value:
        receiver = given.get("", 0)
        for part in lookup.modules_within(receiver.thing) if isinstance(receiver, Known) else ():
            kind = type(part)
            if any("fsdp" in lookup.module_name(base) for base in lookup.mro(kind)):
                self.note(node, "the state of a sharded model waits for the ranks", rules.COLLECTIVE)
            elif self.rules.method(kind, "state_dict") is None:
                self.note(node, f"`{lookup.class_name(kind)}.state_dict` is not known to be pure")
        return Kind.OWN

    def _gives_endless(self, name: str, given: Arguments, node: ast.AST) -> Value:
        self.hide_each(given, node)
        self.use_all(given, node, Kind.NEW, lazily=name != "cycle")
        ends = name == "repeat" and given.get("times", 1) is not None
        return Kind.OWN if ends else Kind.ENDLESS

    def _gives_cast(self, _name: str, given: Arguments, node: ast.AST) -> Value:
        address = given.get("", 0)
        low = isinstance(address, Known) and type(address.thing) is int and address.thing < 4096
        why = "uses memory at an address that it is given"
        return self.note(node, why, rules.REFUSED if low else rules.CHANGING)

    def _gives_exec(self, _name: str, given: Arguments, _node: ast.AST) -> Value:
        text = given.get("", 0)
        if isinstance(text, Known) and type(text.thing) is str:
            self.code(text.thing)
        return Kind.NOTED

    def _gives_next(self, _name: str, given: Arguments, node: ast.AST) -> Value:
        self.hide_each(given, node)
        if given.get("", 0) in (*MINE, Kind.ENDLESS, Kind.NOTED):
            return Kind.DATA
        return self.note(node, "takes from an iterator of the job")

    def _gives_iter(self, _name: str, given: Arguments, node: ast.AST) -> Value:
        callee = given.get("", 0)
        if callee is None or len(given.positional) < 2:
            self.use_all(given, node, Kind.NEW, lazily=True)
            return callee if callee is Kind.ENDLESS else Kind.OWN
        self.hide(self.call(callee, Arguments(), node), node)
        return Kind.OWN if callee is Kind.FUNCTION else Kind.ENDLESS

    def _gives_pow(self, _name: str, given: Arguments, node: ast.AST) -> Value:
        self.use_all(given, node, Kind.NEW)
        return self.fold(ast.Pow(), *given.positional, node) if len(given.positional) == 2 else Kind.NEW

    def _gives_range(self, _name: str, given: Arguments, node: ast.AST) -> Value:
        self.use_all(given, node, Kind.NEW)
        limits = [value.thing for value in given.everything if isinstance(value, Known)]
        if len(limits) < len(given.everything):
            return self.unseen(self._range, node)
        known = 1 <= len(limits) <= 3 and all(type(limit) is int for limit in limits) and 0 not in limits[2:]
        return Known(range(*limits)) if known else Kind.NEW

    def _range(self, hidden: Value, _node: ast.AST) -> Value | None:
        """The range up to a large number that is out of sight."""
        large = isinstance(hidden, Known) and type(hidden.thing) is int
        return Known(range(hidden.thing)) if large and isinstance(hidden, Known) else None

    def _gives_open(self, _name: str, given: Arguments, node: ast.AST) -> Value:
        mode = given.get("mode", 1) or Known("r")
        if not isinstance(mode, Known) or type(mode.thing) is not str or set(mode.thing) & set("wax+"):
            self.note(node, "opens a file for writing")
        else:
            self.note(node, "reads a file", rules.BLOCKING)
        return Kind.NEW

    _gives_hasattr = _gives_getattr
    _gives_globals = _gives_getattr_static = _gives_locals
    _gives_get_referents = _gives_get_referrers
    _gives_import = _gives_import_module
    _gives_format_map = _gives_format
    _gives_eval = _gives_compile = _gives_exec
    _gives_string_at = _gives_wstring_at = _gives_memmove = _gives_memset = _gives_cast
