"""Expressions: the values that an expression of a snippet may have, and its parts that do more than read.

Standard library only.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import operator
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from probe.job.introspection.snippet_names import Names
from probe.job.snippets.guard import lookup, rules
from probe.job.snippets.guard.calls import Arguments
from probe.job.snippets.guard.kinds import (
    ANY,
    DATA,
    NOTHING,
    NUMBERS,
    Code,
    Known,
    Own,
    Some,
    Value,
    Values,
    known,
)
from probe.job.snippets.guard.special import Special

_ARITHMETIC: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod, ast.Pow: operator.pow, ast.LShift: operator.lshift, ast.RShift: operator.rshift,
}
_LATER = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.GeneratorExp, ast.ClassDef)
"""Code inside these runs later than where it is written."""
_PLAIN_STATEMENTS = (ast.Expr, ast.Assert, ast.Delete, ast.Pass)
"""Statements that give the snippet no variable of its own, except by `:=`."""


class Expressions(Special):
    """Judges expressions; `value` is the entry point."""

    def __init__(self, tree: ast.Module, names: Mapping[str, Any]) -> None:
        super().__init__(names)
        self._straight = _bound_in_line(tree)
        self._binds = not all(isinstance(node, _PLAIN_STATEMENTS) for node in tree.body) or any(
            isinstance(node, ast.NamedExpr) for node in ast.walk(tree)
        )
        self._names_seen = frozenset({Known(Names(names))})
        declared = (node.names for node in ast.walk(tree) if isinstance(node, ast.Global))
        self._global = {name for names in declared for name in names}
        self._local: list[set[str]] = []
        """Parameters of the functions, and targets of the comprehensions, around this point."""
        self._replaced: set[str] = set()
        """Variables that are bound before anything reads them, and so never mean the job's variable."""
        self.functions: list[ast.FunctionDef | ast.AsyncFunctionDef] = []
        self.rebound: set[str] = set()
        """The variables bound in line that are bound by now."""
        self.depth = 0
        """Number of functions, loops and branches around this point: code in them may run later or never."""

    def names_seen(self) -> Values:
        """The names of the job; unknown if variables of the snippet are among them, or in a function."""
        return ANY if self._binds or self._local else self._names_seen

    def value(self, node: ast.expr) -> Values:
        """The values that an expression may have."""
        handler: Callable[[Any], Values] | None = getattr(self, "_" + type(node).__name__, None)
        if handler is not None:
            return handler(node)
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                self.value(child)
        return self.note(node, f"`{type(node).__name__}` is not understood")

    # -- names and constants -----------------------------------------------------------------

    def _Constant(self, node: ast.Constant) -> Values:
        return frozenset({Known(node.value)})

    def _Name(self, node: ast.Name) -> Values:
        name = node.id
        found = self.get(name)
        if name in self._replaced or name in self.rebound or any(name in names for names in self._local):
            return found
        if name in self.names:
            return found | {Known(self.names[name])}
        if name in vars(builtins):
            return found | {Known(vars(builtins)[name])}
        if name == "__builtins__":
            return known(builtins)
        return found | NUMBERS if name in ("__name__", "__file__", "__doc__") else found

    def assign(self, name: str, values: Values) -> None:
        """Assign to a variable."""
        if self.depth == 0 and not self.was_read(name):
            self._replaced.add(name)
        if name in self._straight:
            self.rebound.add(name)
            self.replace(name, values)
        else:
            self.put(name, values)

    def _Attribute(self, node: ast.Attribute) -> Values:
        return self.each(self.value(node.value), lambda one: self.attribute(one, node.attr, node))

    def _NamedExpr(self, node: ast.NamedExpr) -> Values:
        found = self.value(node.value)
        self.put(node.target.id, found)
        return found

    # -- things that are made ----------------------------------------------------------------

    def _display(self, node: ast.List | ast.Tuple | ast.Set) -> Values:
        inside = NOTHING.union(*(self.value(part) for part in node.elts))
        if isinstance(node, ast.Set):
            self.touch(inside, node)
        return self.made(node, inside)

    _List = _Tuple = _Set = _display

    def _Dict(self, node: ast.Dict) -> Values:
        inside = NOTHING
        for key, part in zip(node.keys, node.values, strict=True):
            found = self.value(part)
            if key is None:
                self.touch(found, part)
                inside |= self.opened(self.each(found, lambda one: self._members(one, node)))
            else:
                named = self.value(key)
                self.touch(named, key)
                inside |= named | found
        return self.made(node, inside)

    def _JoinedStr(self, node: ast.JoinedStr) -> Values:
        for part in node.values:
            self.value(part)
        return NUMBERS

    def _FormattedValue(self, node: ast.FormattedValue) -> Values:
        self.shown(self.value(node.value), node.value)
        if node.format_spec is not None:
            self.value(node.format_spec)
            for part in ast.walk(node.format_spec):
                nested = part.value if isinstance(part, ast.FormattedValue) else part
                if isinstance(nested, ast.expr) and not isinstance(nested, ast.JoinedStr):
                    self.formatted(str(self.constant(self.value(nested))), node.value)
        return NUMBERS

    def _Lambda(self, node: ast.Lambda) -> Values:
        self.define(node)
        with self.inner(node.args):
            self.put(Code(node), self.value(node.body))
        return frozenset({Code(node)})

    @contextlib.contextmanager
    def inner(self, *parts: ast.AST) -> Iterator[None]:
        """Within a function with these parameters, or a comprehension with these targets."""
        nodes = [node for part in parts for node in ast.walk(part)]
        names = {node.arg for node in nodes if isinstance(node, ast.arg)} or {
            node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
        }
        self._local.append(names - self._global)
        self.depth += 1
        yield
        self.depth -= 1
        self._local.pop()

    def define(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) -> None:
        """Defaults and annotations of a function."""
        parameters = node.args
        plain = [*parameters.posonlyargs, *parameters.args]
        first = len(plain) - len(parameters.defaults)
        given = [*zip(plain[first:], parameters.defaults, strict=True),
                 *zip(parameters.kwonlyargs, parameters.kw_defaults, strict=True)]
        for one, default in given:
            if default is not None:
                self.put(one.arg, self.value(default))
        for part in ast.walk(parameters):
            if isinstance(part, ast.arg) and part.annotation is not None:
                self.value(part.annotation)

    def _comprehension(self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp) -> Values:
        first = self.value(node.generators[0].iter)  # evaluated outside the comprehension
        with self.inner(*(one.target for one in node.generators)):
            for number, one in enumerate(node.generators):
                through = self.value(one.iter) if number else first
                self.bind(one.target, self.iterate(through, one.iter, in_c=False))
                for condition in one.ifs:
                    self.test(condition)
            parts = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
            found = [self.value(part) for part in parts]
        if isinstance(node, ast.SetComp | ast.DictComp):
            self.touch(found[0], node)
        return self.made(node, NOTHING.union(*found))

    _ListComp = _SetComp = _GeneratorExp = _DictComp = _comprehension

    # -- operators ---------------------------------------------------------------------------

    def _BinOp(self, node: ast.BinOp) -> Values:
        return self.binary(node, self.value(node.left), self.value(node.right))

    def binary(self, node: ast.BinOp | ast.AugAssign, left: Values, right: Values) -> Values:
        """The result of an operator."""
        first, second = self.constant(left), self.constant(right)
        if isinstance(node.op, ast.Mult):
            self._repeated(left, second, node)
            self._repeated(right, first, node)
        if type(first) is int and type(second) is int:
            return self._folded(node, first, second)
        self.touch(left | right, node)
        if isinstance(node.op, ast.Mod) and isinstance(first, str | bytes):
            self.shown(right.union(*(self._members(one, node) for one in right & self._names_seen)), node)
            self.formatted(str(first), node)
            return NUMBERS
        inside = NOTHING
        for value in left | right:
            if isinstance(value, Own) and value.kind != "fresh":
                inside |= self.inside(value)
            elif isinstance(value, Known) and type(value.thing) in lookup.CONTAINERS:
                inside |= self.elements(value.thing)
            elif value is Some.DATA:
                inside |= DATA
        return self.made(node, inside, "container" if inside else "fresh")

    def _folded(self, node: ast.BinOp | ast.AugAssign, first: int, second: int) -> Values:
        """The constant result of an operator on two constants; notes one that would be absurdly large."""
        size = float(first.bit_length())
        if isinstance(node.op, ast.Pow) and abs(first) > 1:
            size = (first.bit_length() - 0.9) * float(min(max(second, 0), 2**60))
        elif isinstance(node.op, ast.LShift | ast.Mult):
            size += min(second, 2**60) if isinstance(node.op, ast.LShift) else second.bit_length()
        names = {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
        changes = not names <= self._straight
        arithmetic = _ARITHMETIC.get(type(node.op))
        if self.too_large(size, node) or arithmetic is None or size > 10_000 or changes:
            return NUMBERS
        try:
            return frozenset({Known(arithmetic(first, second))})
        except (ArithmeticError, ValueError):
            return NUMBERS

    def _repeated(self, values: Values, times: object, node: ast.AST) -> None:
        """Note a sequence that is repeated absurdly often."""
        for value in values if type(times) is int else ():
            thing = value.thing if isinstance(value, Known) else None
            if type(thing) in (str, bytes):  # `isinstance` could run its code
                self.too_large(float(len(thing)) * times, node)  # type: ignore[arg-type, operator]
            elif type(thing) in (list, tuple) or (isinstance(value, Own) and value.kind == "container"):
                self.too_large(float(times), node)  # type: ignore[arg-type]

    def _UnaryOp(self, node: ast.UnaryOp) -> Values:
        if isinstance(node.op, ast.Not):
            self.test(node.operand)
            return NUMBERS
        found = self.value(node.operand)
        constant = self.constant(found)
        if isinstance(node.op, ast.USub) and type(constant) in (int, float):
            return frozenset({Known(-constant)})  # type: ignore[operator]
        self.touch(found, node)
        return found if isinstance(node.op, ast.UAdd) else self.made(node, kind="fresh")

    def _BoolOp(self, node: ast.BoolOp) -> Values:
        return NOTHING.union(*(self.test(part) for part in node.values))

    def _IfExp(self, node: ast.IfExp) -> Values:
        self.test(node.test)
        return self.value(node.body) | self.value(node.orelse)

    def _Compare(self, node: ast.Compare) -> Values:
        parts = [self.value(part) for part in (node.left, *node.comparators)]
        for number, op in enumerate(node.ops):
            if isinstance(op, ast.In | ast.NotIn):
                for value in parts[number + 1]:
                    kind = type(value.thing) if isinstance(value, Known) else None
                    if kind is None or self.rules.method(kind, "__contains__") is None:
                        self.iterate(frozenset({value}), node)
            if not isinstance(op, ast.Is | ast.IsNot):
                self.touch(frozenset(self._all_in(parts[number] | parts[number + 1])), node)
        return self.made(node, kind="fresh")

    def test(self, node: ast.expr) -> Values:
        """An expression whose truth value is used."""
        found = self.value(node)
        self.touch(found, node)
        return found

    # -- subscripts --------------------------------------------------------------------------

    def _Subscript(self, node: ast.Subscript) -> Values:
        bases, index = self.value(node.value), self.value(node.slice)
        self.touch(index, node)
        return self.each(bases, lambda base: self._item(base, index, node))

    def _Slice(self, node: ast.Slice) -> Values:
        for part in (node.lower, node.upper, node.step):
            self.touch(self.value(part) if part is not None else NOTHING, node)
        return DATA

    def _item(self, base: Value, index: Values, node: ast.Subscript) -> Values:
        sliced = isinstance(node.slice, ast.Slice)
        if isinstance(base, Own):
            return self.made(node, self.inside(base)) if sliced else self.inside(base)
        if base is Some.ANY:
            return self.note(node, "looks into something that is not known here")
        if not isinstance(base, Known):
            return frozenset({base}) if isinstance(base, Some) else ANY
        thing, kind = base.thing, type(base.thing)
        if lookup.is_class(thing):
            self.touch(frozenset({base}), node)
            own = lookup.find(thing, "__class_getitem__")
            if own is not None and not lookup.library_function(own[1], own[0]):
                return self.note(node, f"runs `{lookup.class_name(own[0])}.__class_getitem__`")
            return NUMBERS
        rule = self.rules.method(kind, "__getitem__")
        if rule is None or rule.kind != rules.READING:
            if lookup.find(kind, "__getitem__") is None:
                return NOTHING
            return self.note(node, f"looks into a `{lookup.class_name(kind)}`, which is not known to be pure")
        key = self.constant(index)
        if sliced:
            copied = kind in (list, tuple, str, bytes, range)
            return self.made(node, self.elements(thing)) if copied else DATA
        if lookup.derives(kind, (dict,)):
            return self._item_of_dict(thing, key, node)
        children = lookup.children(thing) if lookup.derives(kind, self.rules.module) else ()
        sequence = thing if kind in (list, tuple) else children
        if type(key) is int and sequence:
            return known(sequence[key]) if -len(sequence) <= key < len(sequence) else NOTHING
        return self.elements(thing)

    def _item_of_dict(self, thing: dict[Any, Any], key: object, node: ast.AST) -> Values:
        pairs = list(dict.items(thing))
        for one, value in pairs:
            if key is not None and type(one) is type(key) and one == key:
                return known(value)
        if type(thing) is Names:
            return ANY
        if lookup.find(type(thing), "__missing__") is not None:
            self.note(node, "adds the key when it is missing; `.get` does not")
        return NOTHING if key is not None else known(*(value for _, value in pairs))

    # -- calls -------------------------------------------------------------------------------

    def _Call(self, node: ast.Call) -> Values:
        if isinstance(node.func, ast.Attribute):
            receivers, name = self.value(node.func.value), node.func.attr
            given = self._arguments(node)
            return self.each(receivers, lambda one: self.call_method(one, name, given, node))
        callees = self.value(node.func)
        given = self._arguments(node)
        return self.each(callees, lambda one: self.call(one, given, node))

    def _arguments(self, node: ast.Call) -> Arguments:
        positional: list[Values] = []
        others = NOTHING
        for part in node.args:
            if isinstance(part, ast.Starred) or others:
                others |= self.value(part)
            else:
                positional.append(self.value(part))
        named: list[tuple[str, Values]] = []
        for keyword in node.keywords:
            found = self.value(keyword.value)
            if keyword.arg is not None:
                named.append((keyword.arg, found))
            else:
                self.touch(found, keyword.value)
                others |= self.each(found, lambda one: self._members(one, node))
        return Arguments(tuple(positional), tuple(named), others)

    def _Starred(self, node: ast.Starred) -> Values:
        return self.iterate(self.value(node.value), node)

    def _Await(self, node: ast.Await) -> Values:
        self.value(node.value)
        return self.note(node, "waits for something that is not known here")

    # -- targets -----------------------------------------------------------------------------

    def bind(self, target: ast.expr, values: Values) -> None:
        """Assign to a target; notes a change of the job's objects."""
        if isinstance(target, ast.Name):
            self.assign(target.id, values)
        elif isinstance(target, ast.Tuple | ast.List):
            inside = self.iterate(values, target)
            for part in target.elts:
                self.bind(part, inside)
        elif isinstance(target, ast.Starred):
            self.bind(target.value, self.made(target, values))
        elif isinstance(target, ast.Subscript):
            index = self.value(target.slice)
            self.touch(index, target)
            self.store(target, values | index)
        elif isinstance(target, ast.Attribute):
            self.store(target, values)

    def store(self, target: ast.Attribute | ast.Subscript, values: Values) -> None:
        """Assign into an object; a finding unless the snippet made it."""
        if isinstance(target, ast.Attribute) and target.attr.startswith("__"):
            self.note(target, "is an attribute that Python itself uses")
        for base in self.value(target.value):
            shares = isinstance(target, ast.Attribute) and isinstance(base, Own) and base.kind == "fresh"
            if isinstance(base, Code):
                self.put(Own(base.node, "instance"), values)
            elif isinstance(base, Own) and base.site is not None and not shares:
                self.put(base, values)
            elif base is not Some.NOTED:
                self.note(target, "is assigned to, and may be the job's")


def _bound_in_line(tree: ast.Module) -> set[str]:
    """Variables that only assignments outside of blocks bind, and no function reads: at each point they have
    the value assigned last."""
    targets: list[ast.expr] = []
    for statement in tree.body:
        if isinstance(statement, ast.AnnAssign | ast.AugAssign):
            targets.append(statement.target)
        elif isinstance(statement, ast.Assign):
            targets.extend(statement.targets)
    other: set[str] = set()
    for node in ast.walk(tree):
        named = (str(getattr(node, name, "")) for name in ("name", "asname", "rest"))
        other.update(name.partition(".")[0] for name in named)
        if isinstance(node, _LATER):
            other.update(part.id for part in ast.walk(node) if isinstance(part, ast.Name))
    times = _stored(tree)
    return {name for name, direct in _stored(*targets).items() if direct == times[name]} - other


def _stored(*nodes: ast.AST) -> Counter[str]:
    names = (part for node in nodes for part in ast.walk(node) if isinstance(part, ast.Name))
    return Counter(name.id for name in names if not isinstance(name.ctx, ast.Load))
