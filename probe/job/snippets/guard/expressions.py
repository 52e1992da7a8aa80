"""What an expression of a snippet may be, and what in it is more than reading.

Part of the guard: see `guard.py`. Standard library only.
"""

from __future__ import annotations

import ast
import builtins
import math
import operator
from collections.abc import Callable
from typing import Any

from probe.job.snippets.guard import lookup
from probe.job.snippets.guard.attributes import attribute, data, elements
from probe.job.snippets.guard.calls import Arguments
from probe.job.snippets.guard.rules import LARGEST_RESULT, READING, SPECIAL_METHODS
from probe.job.snippets.guard.special import Special
from probe.job.snippets.guard.tracked import (
    NOTED,
    NOTHING,
    NUMBERS,
    OPAQUE,
    PURE,
    Absent,
    Attribute,
    Class,
    Function,
    Known,
    Own,
    Some,
    Value,
    Values,
    known,
)

_ARITHMETIC: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod, ast.Pow: operator.pow, ast.LShift: operator.lshift, ast.RShift: operator.rshift,
}
_SEQUENCES = (ast.List, ast.Tuple, ast.ListComp)
_OPERATORS = SPECIAL_METHODS & frozenset(
    ("add", "radd", "sub", "rsub", "mul", "rmul", "matmul", "rmatmul", "truediv", "rtruediv", "floordiv",
     "rfloordiv", "mod", "rmod", "pow", "rpow", "lshift", "rlshift", "rshift", "rrshift", "and", "rand", "or",
     "ror", "xor", "rxor", "neg", "pos", "invert", "iadd", "torch_function", "array_ufunc")
)
_COMPARISONS = frozenset({"eq", "ne", "lt", "le", "gt", "ge", "contains", "hash", "torch_function"})
_TRUTH = frozenset({"bool", "len"})
_KEYS = frozenset({"hash", "eq", "index"})


class Expressions(Special):
    """Judges expressions; `value` is the way in."""

    inner = False
    """Whether the code at hand is in a function."""

    def value(self, node: ast.expr) -> Values:
        """What an expression may be."""
        handler: Callable[[Any], Values] | None = getattr(self, "_" + type(node).__name__, None)
        if handler is not None:
            return handler(node)
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                self.value(child)
        self.note(node, f"`{type(node).__name__}` is not understood")
        return NOTED

    def used(self, node: ast.expr | None) -> Values:
        """The same, as something that is not called."""
        if node is None:
            return NOTHING
        return NOTHING.union(*(data(self, value) for value in self.value(node)))

    # -- names and constants -----------------------------------------------------------------

    def _Constant(self, node: ast.Constant) -> Values:
        return frozenset({Known(node.value)})

    def _Name(self, node: ast.Name) -> Values:
        return self.variable(node.id)

    def variable(self, name: str) -> Values:
        """What a name may be here."""
        if name in self.env and name not in self.loose:
            return self.env[name]
        found = frozenset(self.ever.get(name, ()))
        if name in self.env or (found and self.inner and name not in self.names):
            return found | self.env.get(name, NOTHING)
        if name in self.names:
            return found | {Known(self.names[name])}
        if name in vars(builtins):
            return found | {Known(vars(builtins)[name])}
        if name == "__builtins__":
            return known(builtins)
        return found | NUMBERS if name in ("__name__", "__file__", "__doc__") else found

    def _Attribute(self, node: ast.Attribute) -> Values:
        return NOTHING.union(*(attribute(self, value, node.attr, node) for value in self.value(node.value)))

    def _NamedExpr(self, node: ast.NamedExpr) -> Values:
        found = self.value(node.value)
        self.assign(node.target.id, found)
        return found

    # -- things that are made ----------------------------------------------------------------

    def _display(self, node: ast.List | ast.Tuple | ast.Set) -> Values:
        inside = NOTHING
        for part in node.elts:
            inside |= self.iterate(self.used(part.value), part) if isinstance(part,
                ast.Starred) else self.value(part)
        if isinstance(node, ast.Set):
            self.touch(inside, node, _KEYS)
        return frozenset({self.made(node, inside)})

    _List = _Tuple = _Set = _display

    def _Dict(self, node: ast.Dict) -> Values:
        inside = NOTHING
        for key, part in zip(node.keys, node.values, strict=True):
            if key is None:
                given = self.used(part)
                self.touch(given, part)
                for value in given:
                    inside |= self.opened(self._members(value, node), node)
                continue
            named = self.used(key)
            self.touch(named, key, _KEYS)
            inside |= named | self.value(part)
        return frozenset({self.made(node, inside)})

    def _JoinedStr(self, node: ast.JoinedStr) -> Values:
        for part in node.values:
            self.value(part)
        return NUMBERS

    def _FormattedValue(self, node: ast.FormattedValue) -> Values:
        self.shown(self.value(node.value), node.value)
        if node.format_spec is not None:
            self.value(node.format_spec)
            for part in ast.walk(node.format_spec):
                if isinstance(part, ast.Constant) and isinstance(part.value, str):
                    digits = "".join(sign if sign.isdigit() else " " for sign in part.value).split()
                    for number in digits:
                        self.too_large(int(number) if len(number) < 20 else math.inf, node.value)
        return NUMBERS

    def _Lambda(self, node: ast.Lambda) -> Values:
        self.define(node)
        return frozenset({Function(node)})

    def define(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) -> None:
        """Judge the body of a function; in `guard.py`."""
        raise NotImplementedError

    def _comprehension(self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp) -> Values:
        outer = self.env
        self.env = dict(outer)
        self.repeats += 1
        for generator in node.generators:
            found = self.iterate(self.used(generator.iter), generator.iter, in_c=False)
            self.bind(generator.target, found)
            for condition in generator.ifs:
                self.test(condition)
        parts = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
        inside = NOTHING.union(*(self.value(part) for part in parts))
        self.repeats -= 1
        self.env = outer
        for part in ast.walk(node):
            if isinstance(part, ast.NamedExpr):  # it outlives the comprehension
                self.env[part.target.id] = frozenset(self.ever.get(part.target.id, ()))
        return frozenset({self.made(node, inside)})

    _ListComp = _SetComp = _GeneratorExp = _DictComp = _comprehension

    # -- operators ---------------------------------------------------------------------------

    def _BinOp(self, node: ast.BinOp) -> Values:
        left, right = self.used(node.left), self.used(node.right)
        return self.binary(node.op, left, right, node)

    def binary(self, op: ast.operator, left: Values, right: Values, node: ast.AST) -> Values:
        """The result of an operator."""
        constant = self._folded(op, left, right, node)
        if constant is not None:
            return constant
        self.touch(left | right, node, _OPERATORS)
        if isinstance(op, ast.Mod) and any(self._is_text(value) for value in left):
            self.shown(right, node)
            return NUMBERS
        inside = NOTHING
        for value in left | right:
            if isinstance(value, Own):
                inside |= self.inside(value) if value.kind != "fresh" else NOTHING
            elif isinstance(value, Known) and type(value.thing) in lookup.CONTAINERS:
                inside |= elements(self, value.thing)
            elif value is Some.PURE:
                inside |= PURE
        return frozenset({self.made(node, inside, "container" if inside else "fresh")})

    @staticmethod
    def _is_text(value: Value) -> bool:
        return isinstance(value, Known) and type(value.thing) in (str, bytes)

    def _folded(self, op: ast.operator, left: Values, right: Values, node: ast.AST) -> Values | None:
        """The constant that an operator gives for two constants; notes one that would be absurd."""
        first, second = self.constant(left), self.constant(right)
        if isinstance(op, ast.Mult):
            self._repeated(left, first, second, node)
            self._repeated(right, second, first, node)
        if type(first) is not int or type(second) is not int:
            return None
        size = 0.0
        if isinstance(op, ast.Pow) and abs(first) > 1:
            size = math.log2(abs(first)) * second if second < 2**60 else math.inf
        elif isinstance(op, ast.LShift) and first:
            size = first.bit_length() + second
        elif isinstance(op, ast.Mult):
            size = first.bit_length() + second.bit_length()
        if size > LARGEST_RESULT:
            self.too_large(size, node)
            return NUMBERS
        arithmetic = _ARITHMETIC.get(type(op))
        literal = not any(isinstance(part, ast.Name) for part in ast.walk(node))
        if arithmetic is None or size > 10_000 or (self.repeats and not literal) or not isinstance(node,
            ast.BinOp):
            return NUMBERS
        try:
            return frozenset({Known(arithmetic(first, second))})
        except (ArithmeticError, ValueError):
            return NUMBERS

    def _repeated(self, values: Values, constant: object, times: object, node: ast.AST) -> None:
        if type(times) is not int:
            return
        if type(constant) in (str, bytes):
            self.too_large(len(constant) * times, node)  # type: ignore[arg-type]
        elif (values and all(isinstance(value,
            Own) and value.kind == "container" for value in values)) or (values and all(isinstance(one,
                Known) and type(one.thing) in (list, tuple) for one in values)):
            self.too_large(times, node)

    def _UnaryOp(self, node: ast.UnaryOp) -> Values:
        if isinstance(node.op, ast.Not):
            self.test(node.operand)
            return NUMBERS
        found = self.used(node.operand)
        constant = self.constant(found)
        if isinstance(node.op, ast.USub) and type(constant) in (int, float):
            return frozenset({Known(-constant)})  # type: ignore[operator]
        self.touch(found, node, _OPERATORS)
        return found if isinstance(node.op, ast.UAdd) else frozenset({self.made(node, kind="fresh")})

    def _BoolOp(self, node: ast.BoolOp) -> Values:
        return NOTHING.union(*(self.test(part) for part in node.values))

    def _IfExp(self, node: ast.IfExp) -> Values:
        self.test(node.test)
        return self.value(node.body) | self.value(node.orelse)

    def _Compare(self, node: ast.Compare) -> Values:
        parts = [self.used(part) for part in (node.left, *node.comparators)]
        for number, op in enumerate(node.ops):
            if isinstance(op, ast.In | ast.NotIn):
                self._search(parts[number + 1], node)
            if not isinstance(op, ast.Is | ast.IsNot):
                self.touch(parts[number] | parts[number + 1], node, _COMPARISONS)
        return frozenset({self.made(node, kind="fresh")})

    def _search(self, values: Values, node: ast.AST) -> None:
        for value in values:
            method = self.rules.method(type(value.thing), "__contains__") if isinstance(value,
                Known) else None
            if method is None:
                self.iterate(frozenset({value}), node)

    def test(self, node: ast.expr) -> Values:
        """An expression whose truth is asked."""
        found = self.value(node)
        self.touch(NOTHING.union(*(data(self, value) for value in found)), node, _TRUTH)
        return found

    # -- subscripts --------------------------------------------------------------------------

    def _Subscript(self, node: ast.Subscript) -> Values:
        bases, index = self.used(node.value), self.used(node.slice)
        self.touch(index, node, _KEYS)
        return NOTHING.union(*(self._item(base, index, node) for base in bases))

    def _Slice(self, node: ast.Slice) -> Values:
        for part in (node.lower, node.upper, node.step):
            self.touch(self.used(part), node, _KEYS)
        return frozenset({Some.PURE})

    def _item(self, base: Value, index: Values, node: ast.Subscript) -> Values:
        if isinstance(base, Own):
            inside = self.inside(base)
            return frozenset({self.made(node, inside)}) if isinstance(node.slice, ast.Slice) else inside
        if base is Some.PURE or isinstance(base, Absent):
            return PURE
        if base is Some.NOTED:
            return NOTED
        if base is Some.OPAQUE:
            self.note(node, "looks into something that is not known here")
            return NOTED
        if not isinstance(base, Known):
            return NOTHING if isinstance(base, Class) else PURE
        thing = base.thing
        if lookup.is_class(thing):
            return NUMBERS
        rule = self.rules.method(type(thing), "__getitem__")
        if rule is None or rule.kind != READING:
            if lookup.find(type(thing), "__getitem__") is None:
                return NOTHING
            self.note(node, f"looks into a `{lookup.class_name(type(thing))}`, which is not known to be "
                "pure")
            return OPAQUE
        return self._item_of(thing, index, node)

    def _item_of(self, thing: Any, index: Values, node: ast.Subscript) -> Values:
        key = self.constant(index)
        if isinstance(node.slice, ast.Slice):
            copied = type(thing) in (list, tuple, str, bytes, range)
            return frozenset({self.made(node, elements(self, thing))}) if copied else PURE
        if lookup.derives(type(thing), (dict,)):
            pairs = list(dict.items(thing))
            for one, value in pairs:
                if key is not None and type(one) is type(key) and one == key:
                    return frozenset({Known(value)})
            if lookup.find(type(thing), "__missing__") is not None:
                self.note(node, "adds the key when it is missing; `.get` does not")
            return NOTHING if key is not None else known(*(value for _, value in pairs))
        if type(thing) in (list, tuple) and type(key) is int:
            length = len(thing)
            return frozenset({Known(thing[key])}) if -length <= key < length else NOTHING
        if lookup.derives(type(thing), self.rules.module):
            children = lookup.children(thing)
            if type(key) is int and -len(children) <= key < len(children):
                return frozenset({Known(children[key])})
            return known(*children)
        return elements(self, thing)

    # -- calls -------------------------------------------------------------------------------

    def _Call(self, node: ast.Call) -> Values:
        callees = self.value(node.func)
        given = self._arguments(node)
        return NOTHING.union(*(self.call(callee, given, node) for callee in callees))

    def _arguments(self, node: ast.Call) -> Arguments:
        positional: list[Values] = []
        others = NOTHING
        for part in node.args:
            if isinstance(part, ast.Starred):
                others |= self.iterate(self.used(part.value), part)
            elif others:
                others |= self.value(part)
            else:
                positional.append(self.value(part))
        named: list[tuple[str, Values]] = []
        for keyword in node.keywords:
            if keyword.arg is not None:
                named.append((keyword.arg, self.value(keyword.value)))
                continue
            given = self.used(keyword.value)
            self.touch(given, keyword.value)
            for value in given:
                others |= self._members(value, node)
        return Arguments(tuple(positional), tuple(named), others)

    def _Starred(self, node: ast.Starred) -> Values:
        return self.iterate(self.used(node.value), node)

    def _Await(self, node: ast.Await) -> Values:
        self.value(node.value)
        self.note(node, "waits for something that is not known here")
        return NOTED

    def _Yield(self, node: ast.Yield) -> Values:
        self.given_back(self.value(node.value) if node.value is not None else NUMBERS)
        return OPAQUE

    def _YieldFrom(self, node: ast.YieldFrom) -> Values:
        self.given_back(self.iterate(self.used(node.value), node, in_c=False))
        return OPAQUE

    def given_back(self, values: Values) -> None:
        """What the function at hand returns or yields; in `guard.py`."""
        raise NotImplementedError

    # -- targets -----------------------------------------------------------------------------

    def bind(self, target: ast.expr, values: Values) -> None:
        """Assign to a target; notes what changes something of the job."""
        if isinstance(target, ast.Name):
            self.assign(target.id, values)
        elif isinstance(target, ast.Tuple | ast.List):
            inside = self.iterate(NOTHING.union(*(data(self, value) for value in values)), target)
            for part in target.elts:
                self.bind(part, inside)
        elif isinstance(target, ast.Starred):
            self.bind(target.value, frozenset({self.made(target, values)}))
        elif isinstance(target, ast.Attribute | ast.Subscript):
            stored = values
            if isinstance(target, ast.Subscript):
                index = self.used(target.slice)
                self.touch(index, target, _KEYS)
                stored = values | index
            self.store(target, stored)

    def store(self, target: ast.Attribute | ast.Subscript, values: Values) -> None:
        """Assign into an object: only into what the snippet made."""
        # What is kept is what it is now: two attributes that were given each other have no end.
        now = (data(self, one) if isinstance(one, Attribute) else {one} for one in values)
        values = frozenset(one for some in now for one in some)
        for base in self.value(target.value):
            if isinstance(base, Class):
                base = Own(id(base.node), 0, "instance")
            if isinstance(base, Own):
                self.put(base, values)
                if isinstance(target, ast.Attribute):
                    self.add(self.fields.setdefault((base.site, target.attr), set()), values)
            elif not isinstance(base, Function) and base is not Some.NOTED:
                self.note(target, "is assigned to, and may be the job's")

