"""Calls whose arguments say what they do: getattr, open, next, format and their like.

Each method here is called by the name of the function. Standard library only.
"""

from __future__ import annotations

import ast
import math
import re
import sys
from typing import Any

from probe.job.snippets.guard import rules
from probe.job.snippets.guard.calls import Arguments, Calls
from probe.job.snippets.guard.rules import BLOCKING, CHANGING, REFUSED, SETTLED
from probe.job.snippets.guard.tracked import OWN, Absent, Kind, Known, Value

_LONGEST_CODE = 10_000


class Special(Calls):
    """Judges them."""

    def _call_getattr(self, given: Arguments, node: ast.AST) -> Value:
        if len(given.positional) < 2 or given.named:
            self.note(node, rules.LOOKS_AT_GRADIENTS, SETTLED)
            return self.note(node, "reads attributes that are not known here")
        name = given.positional[1]
        if not isinstance(name, Known) or type(name.thing) is not str:
            self.note(node, rules.LOOKS_AT_GRADIENTS, SETTLED)
            return self.note(node, "reads attributes whose names are not known here")
        found = self.attribute(given.positional[0], name.thing, node)
        if found is Kind.NOTED and len(given.positional) > 2:
            return self.unseen(given.positional[2], node)
        return found

    def _call_hasattr(self, given: Arguments, node: ast.AST) -> Value:
        self._call_getattr(given, node)
        return Kind.FRESH

    def _call_type(self, given: Arguments, node: ast.AST) -> Value:
        if len(given.everything()) != 1:
            return self.note(node, "makes a class")
        value = given.everything()[0]
        return Known(type(value.thing)) if isinstance(value, Known) else Kind.DATA

    def _call_vars(self, given: Arguments, node: ast.AST) -> Value:
        return self.attribute(given.positional[0], "__dict__", node) if given.positional else Kind.OPAQUE

    def _call_import(self, given: Arguments, node: ast.AST) -> Value:
        name = given.positional[0] if given.positional else None
        if not isinstance(name, Known) or type(name.thing) is not str:
            return self.note(node, "imports a module whose name is not known here")
        self.load(name.thing, node)
        return self.load(name.thing.partition(".")[0], node)

    def _call_import_module(self, given: Arguments, node: ast.AST) -> Value:
        self._call_import(given, node)
        name = given.positional[0] if given.positional else None
        return self.load(str(name.thing), node) if isinstance(name, Known) else Kind.NOTED

    def load(self, dotted: str, node: ast.AST) -> Value:
        """What importing a module gives; notes an import of what is not loaded."""
        if dotted in sys.modules:
            return Known(sys.modules[dotted])
        if dotted.partition(".")[0] not in sys.stdlib_module_names:
            self.note(node, f"imports {dotted}, which the job has not loaded", BLOCKING)
        return Absent(dotted)

    def _call_next(self, given: Arguments, node: ast.AST) -> Value:
        if not given.positional or given.positional[0] not in OWN:
            return self.note(node, "takes from an iterator that may be the job's")
        return self.parts(given.positional[0], node, in_c=False)

    def _call_iter(self, given: Arguments, node: ast.AST) -> Value:
        if len(given.positional) != 1:
            return self.note(node, "calls a function until it gives a value")
        found = self.parts(given.positional[0], node, in_c=False)
        return (
            Kind.ENDLESS
            if given.positional[0] is Kind.ENDLESS
            else (Kind.HOLDER_OF_MODULES if found is Kind.MODULE else Kind.HOLDER)
        )

    def _call_count(self, _given: Arguments, _node: ast.AST) -> Value:
        return Kind.ENDLESS

    def _call_range(self, given: Arguments, node: ast.AST) -> Value:
        limits = [one.thing for one in given.positional if isinstance(one, Known) and type(one.thing) is int]
        if len(limits) == len(given.positional) and 1 <= len(limits) <= 3 and 0 not in limits[2:]:
            return Known(range(*limits))
        self._checked("range", given, node)
        return Kind.FRESH

    def _call_pow(self, given: Arguments, node: ast.AST) -> Value:
        self._checked("pow", given, node)
        base, power = (*given.positional, None, None)[:2]
        if isinstance(base, Known) and isinstance(power, Known):
            self.folded(ast.Pow(), base.thing, power.thing, node)
        return Kind.FRESH

    def folded(self, op: ast.operator, left: Any, right: Any, node: ast.AST) -> Value:
        """The result of an operator on two constants."""
        raise NotImplementedError

    def digits(self, text: str, node: ast.AST) -> None:
        """The widths that a format names."""
        for number in re.findall(r"\d+", text):
            self.limited(int(number) if len(number) < 20 else math.inf, node)

    def limited(self, size: float, node: ast.AST) -> bool:
        """Whether a size is absurd; notes it."""
        if size > rules.LARGEST_RESULT:
            self.note(node, f"would make more than {rules.LARGEST_RESULT:,} bits or elements", REFUSED)
        return size > rules.LARGEST_RESULT

    def _call_open(self, given: Arguments, node: ast.AST) -> Value:
        mode = dict(given.named).get("mode", (*given.positional, Known("r"), Known("r"))[1])
        opened = isinstance(node, ast.Call) and any(
            isinstance(one, ast.Starred) or getattr(one, "arg", "") is None
            for one in (*node.args, *node.keywords)
        )
        reads = (
            not opened
            and isinstance(mode, Known)
            and type(mode.thing) is str
            and not set(mode.thing) & set("wax+")
        )
        self._checked("open", given, node)
        self.note(
            node, "reads a file" if reads else "opens a file for writing", BLOCKING if reads else CHANGING
        )
        return Kind.FRESH

    def _call_format(self, given: Arguments, node: ast.AST) -> Value:
        """`"{0.grad}".format(p)` looks up attributes."""
        text = given.positional[0] if given.positional else None
        if isinstance(text, Known):
            self.digits(str(text.thing), node)
        fields = (
            re.findall(r"\.(\w+)", text.thing)
            if isinstance(text, Known) and type(text.thing) is str
            else ["?"]
        )
        for name in fields:
            for value in given.everything()[1:]:
                self.attribute(
                    Kind.DATA if isinstance(value, Known) and "[" in str(text) else value, name, node
                )
        for value in given.everything():
            self.shown(value, node)
        return Kind.FRESH

    _call_format_map = _call_format

    def _call_exec(self, given: Arguments, node: ast.AST) -> Value:
        text = given.positional[0] if given.positional else None
        if isinstance(text, Known) and type(text.thing) is str and len(text.thing) < _LONGEST_CODE:
            self.code(text.thing)
        return Kind.NOTED

    _call_eval = _call_compile = _call_exec

    def code(self, text: str) -> None:
        """Judge text that the snippet executes."""
        raise NotImplementedError
