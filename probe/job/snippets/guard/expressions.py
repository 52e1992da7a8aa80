"""What an expression of a snippet is, and what in it is more than reading. Standard library only."""

from __future__ import annotations

import ast
import builtins
import contextlib
import math
import operator
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from probe.base.isolation import capture
from probe.job.snippets.guard import lookup
from probe.job.snippets.guard.calls import Arguments
from probe.job.snippets.guard.rules import READING
from probe.job.snippets.guard.special import Special
from probe.job.snippets.guard.tracked import OWN, Kind, Known, Value

_ARITHMETIC: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
    ast.LShift: operator.lshift,
    ast.RShift: operator.rshift,
}
_MINE_FIRST = (Kind.FRESH, Kind.HOLDER, Kind.DATA, Kind.MODULE)


class Expressions(Special):
    """Judges expressions, and keeps what the names in a snippet are."""

    def __init__(self, tree: ast.Module, names: Mapping[str, Any]) -> None:
        super().__init__(names)
        self._tree = tree
        self._bound = Counter(name for node in ast.walk(tree) for name in bound_by(node))
        self._values: dict[str, Value] = {}
        self._maybe = 0
        """Statements around this place that may not run, or not now."""
        self._unsure = False
        """A name was used for more than it is, or before it was bound: all is to be read again."""

    @contextlib.contextmanager
    def scope(self, names: Sequence[str]) -> Iterator[None]:
        """Names that mean something else within."""
        before = {name: self._values.pop(name) for name in names if name in self._values}
        yield
        for name in names:
            self._values.pop(name, None)
        self._values.update(before)

    # -- names -----------------------------------------------------------------------------------

    def _Name(self, node: ast.Name) -> Value:
        if node.id in self._values:
            return self._values[node.id]
        if node.id in self.names:
            return Known(self.names[node.id])
        if node.id in vars(builtins) or node.id == "__builtins__":
            return Known(vars(builtins).get(node.id, builtins))
        self._unsure = self._unsure or node.id in self._bound
        return Kind.FRESH if node.id in ("__name__", "__file__", "__doc__") else Kind.NOTED

    def assign(self, name: str, value: Value, node: ast.AST) -> None:
        """A name is bound. One that is bound once is what it is bound to; others only of one kind."""
        elsewhere = name in self.names or name in vars(builtins)
        same = isinstance(value, Known) and value.thing is self.names.get(name, self)
        if self._bound[name] == 1 and (same or not elsewhere or not self._maybe):
            self._values[name] = value
            return
        kind = self.unseen(value, node)
        before = self._values.get(name, self.names.get(name, kind))
        if not isinstance(before, Kind):
            before = self.unseen(Known(before), node)
        if name in vars(builtins) and name not in self.names:
            self.note(node, "takes the name of a function of Python's")
        self._values[name] = self.merged(before, kind, node)
        self._unsure = self._unsure or self._values[name] is not before

    def merged(self, one: Kind, other: Kind, node: ast.AST) -> Kind:
        """Something that is of one kind or of the other."""
        kinds = {one, other} - {Kind.NOTED}
        if len(kinds) < 2:
            return next(iter(kinds), Kind.NOTED)
        if Kind.HOLDER_OF_MODULES in kinds:
            return Kind.HOLDER_OF_MODULES if kinds & {Kind.FRESH, Kind.HOLDER} else Kind.MODULE
        if not kinds <= set(_MINE_FIRST):
            return self.note(node, "is one of several things that have nothing in common")
        return max(kinds, key=_MINE_FIRST.index)

    def bind(self, target: ast.expr, value: Value) -> None:
        """Assign to a target; notes what changes something of the job."""
        if isinstance(target, ast.Name):
            self.assign(target.id, value, target)
        elif isinstance(target, ast.Tuple | ast.List):
            inside = self.parts(value, target)
            for part in target.elts:
                self.bind(part, inside)
        elif isinstance(target, ast.Starred):
            held = Kind.HOLDER_OF_MODULES if value is Kind.MODULE else Kind.HOLDER
            self.bind(target.value, held)
        elif isinstance(target, ast.Subscript):
            base = self.value(target.value)
            kinds = [self.unseen(self.value(target.slice), target), self.unseen(value, target)]
            if base in OWN:
                self.stored(base, kinds, target)
            elif base is not Kind.NOTED:
                self.note(target, "is assigned to, and may be the job's")
        elif isinstance(target, ast.Attribute):
            self.value(target.value)
            self.note(target, "is assigned to, and may be the job's")

    def block(self, body: Sequence[ast.AST]) -> None:
        """Statements, one after the other."""
        raise NotImplementedError

    def maybe(self, body: Sequence[ast.AST]) -> None:
        """Statements that may not run, or not now."""
        raise NotImplementedError

    # -- expressions -----------------------------------------------------------------------------

    def value(self, node: ast.expr) -> Value:
        """What an expression is."""
        handler: Callable[[Any], Value] | None = getattr(self, "_" + type(node).__name__, None)
        if handler is not None:
            return handler(node)
        self.block(list(ast.iter_child_nodes(node)))
        return self.note(node, f"`{type(node).__name__}` is not understood")

    def _Constant(self, node: ast.Constant) -> Value:
        return Known(node.value)

    def _NamedExpr(self, node: ast.NamedExpr) -> Value:
        value = self.value(node.value)
        self.bind(node.target, value)
        return value

    def _Attribute(self, node: ast.Attribute) -> Value:
        return self.attribute(self.value(node.value), node.attr, node)

    def _Call(self, node: ast.Call) -> Value:
        callee: Value | None = None
        receiver = Kind.NOTED
        if isinstance(node.func, ast.Attribute):
            value = self.value(node.func.value)
            if isinstance(value, Kind) and value is not Kind.FUNCTION:
                receiver = value
            else:
                callee = self.attribute(value, node.func.attr, node.func)
        else:
            callee = self.value(node.func)
        positional = [self.value(one) for one in node.args]
        named = [(one.arg, self.value(one.value)) for one in node.keywords if one.arg is not None]
        opened = [self.parts(self.value(one.value), node) for one in node.keywords if one.arg is None]
        named_here = callee is Kind.FUNCTION or (isinstance(callee, Known) and callee.thing is dict)
        if opened and not named_here:
            self.note(node, "is called with arguments whose names are not seen here")
        given = Arguments((*positional, *opened), tuple(named))
        if callee is None and isinstance(node.func, ast.Attribute):
            return self.method(receiver, node.func.attr, given, node)
        return self.call(callee or Kind.NOTED, given, node)

    def _Starred(self, node: ast.Starred) -> Value:
        return self.parts(self.value(node.value), node)

    def _display(self, node: ast.List | ast.Tuple | ast.Set) -> Value:
        return self._holding([self.unseen(self.value(part), part) for part in node.elts])

    _List = _Tuple = _Set = _display

    def _Dict(self, node: ast.Dict) -> Value:
        kinds = [self.unseen(self.value(key), key) for key in node.keys if key is not None]
        for key, part in zip(node.keys, node.values, strict=True):
            value = self.value(part)
            kinds.append(self.unseen(value, part) if key is not None else self.parts(value, part))
        return self._holding(kinds)

    @staticmethod
    def _holding(kinds: Sequence[Value]) -> Kind:
        modules = Kind.MODULE in kinds or Kind.HOLDER_OF_MODULES in kinds
        return Kind.HOLDER_OF_MODULES if modules else Kind.HOLDER

    def _comprehension(self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp) -> Value:
        parts = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
        with self.scope([name for one in node.generators for name in names_in(one.target)]):
            for one in node.generators:
                found = self.parts(self.value(one.iter), one.iter, in_c=False)
                if any(isinstance(part, ast.Attribute | ast.Subscript) for part in ast.walk(one.target)):
                    self.note(one.target, "is assigned to, and may be the job's")
                self._values.update(dict.fromkeys(names_in(one.target), found))
                for condition in one.ifs:
                    self.touched(self.value(condition), condition)
            return self._holding([self.unseen(self.value(part), part) for part in parts])

    _ListComp = _SetComp = _GeneratorExp = _DictComp = _comprehension

    def _Lambda(self, node: ast.Lambda) -> Value:
        self._function(node)
        return Kind.FUNCTION

    def _JoinedStr(self, node: ast.JoinedStr) -> Value:
        self.block(node.values)
        return Kind.FRESH

    def _FormattedValue(self, node: ast.FormattedValue) -> Value:
        self.shown(self.value(node.value), node.value)
        for part in ast.walk(node.format_spec) if node.format_spec is not None else ():
            if isinstance(part, ast.FormattedValue | ast.Constant):
                inner = self.value(part.value) if isinstance(part, ast.FormattedValue) else Known(part.value)
                self.digits(str(inner.thing) if isinstance(inner, Known) else "", node.value)
        self.block([node.format_spec] if node.format_spec is not None else [])
        return Kind.FRESH

    def _BinOp(self, node: ast.BinOp) -> Value:
        left, right = self.value(node.left), self.value(node.right)
        if isinstance(left, Known) and isinstance(right, Known):
            found = self.folded(node.op, left.thing, right.thing, node)
            if found is not Kind.NOTED:
                return found
        return self._operated(node, left, right)

    def _operated(self, node: ast.BinOp | ast.AugAssign, left: Value, right: Value) -> Kind:
        """What an operator gives: something new, which may hold what is in containers."""
        plain = True
        for one, other in ((left, right), (right, left)):
            self.touched(one, node)
            tensor = isinstance(one, Known) and lookup.is_tensor_like(one.thing)
            plain = plain and (tensor or self.unseen(one, node) is Kind.FRESH)
            times = other.thing if isinstance(other, Known) and isinstance(node.op, ast.Mult) else None
            if type(times) is int and (
                one in OWN or (isinstance(one, Known) and type(one.thing) in (list, tuple))
            ):
                self.limited(times, node)
        if isinstance(node.op, ast.Mod):
            self.shown(right, node)
            if isinstance(left, Known) and type(left.thing) is str:
                self.digits(left.thing, node)
        return Kind.FRESH if plain else self._holding([left, right])

    def folded(self, op: ast.operator, left: Any, right: Any, node: ast.AST) -> Value:
        """The constant that an operator gives for two constants, NOTED where none is known."""
        if isinstance(op, ast.Mult) and type(left) is int and type(right) in (str, bytes):
            left, right = right, left
        if type(left) in (str, bytes) and type(right) is int and isinstance(op, ast.Mult):
            return (
                Kind.FRESH
                if self.limited(len(left) * right, node) or len(left) * right > 1000
                else Known(left * right)
            )
        if type(left) is str and type(right) is str and isinstance(op, ast.Add):
            return Known(left + right) if len(left) + len(right) < 1000 else Kind.FRESH
        if type(left) is not int or type(right) is not int or type(op) not in _ARITHMETIC:
            return Kind.NOTED
        size = 0.0
        if isinstance(op, ast.Pow) and abs(left) > 1:
            size = math.log2(abs(left)) * right if right < 2**60 else math.inf
        elif isinstance(op, ast.LShift) and left:
            size = left.bit_length() + right if right < 2**60 else math.inf
        elif isinstance(op, ast.Mult):
            size = left.bit_length() + right.bit_length()
        if self.limited(size, node) or size > 10_000:
            return Kind.FRESH
        found, error = capture(lambda: _ARITHMETIC[type(op)](left, right))
        return Kind.FRESH if error is not None else Known(found)

    def _UnaryOp(self, node: ast.UnaryOp) -> Value:
        value = self.value(node.operand)
        self.touched(value, node)
        if isinstance(node.op, ast.USub) and isinstance(value, Known) and type(value.thing) in (int, float):
            return Known(-value.thing)
        return self.unseen(value, node) if isinstance(node.op, ast.UAdd) else Kind.FRESH

    def _BoolOp(self, node: ast.BoolOp) -> Value:
        found = Kind.NOTED
        for part in node.values:
            value = self.value(part)
            self.touched(value, part)
            found = self.merged(found, self.unseen(value, part), part)
        return found

    def _IfExp(self, node: ast.IfExp) -> Value:
        self.touched(self.value(node.test), node.test)
        either = [self.unseen(self.value(part), part) for part in (node.body, node.orelse)]
        return self.merged(either[0], either[1], node)

    def _Compare(self, node: ast.Compare) -> Value:
        values = [self.value(part) for part in (node.left, *node.comparators)]
        for place, op in enumerate(node.ops):
            if isinstance(op, ast.In | ast.NotIn):
                self.parts(values[place + 1], node)
            if not isinstance(op, ast.Is | ast.IsNot):
                self.touched(values[place], node)
                self.touched(values[place + 1], node)
        return Kind.FRESH

    def _Slice(self, node: ast.Slice) -> Value:
        for part in (node.lower, node.upper, node.step):
            if part is not None:
                self.touched(self.value(part), part)
        return Kind.FRESH

    def _Subscript(self, node: ast.Subscript) -> Value:
        base, index = self.value(node.value), self.value(node.slice)
        self.touched(index, node)
        if not isinstance(base, Known):
            return self.parts(base, node) if base is not Kind.ENDLESS else Kind.NOTED
        thing, key = base.thing, index.thing if isinstance(index, Known) else None
        if lookup.is_class(thing):
            return Kind.FRESH
        rule = self.rules.method(type(thing), "__getitem__")
        if rule is None or rule.kind != READING:
            return self.note(
                node, f"looks into a `{lookup.class_name(type(thing))}`, which is not known to be pure"
            )
        if lookup.derives(type(thing), (dict,)) and lookup.find(type(thing), "__missing__") is not None:
            return self.note(node, "adds the key when it is missing; `.get` does not")
        inside = lookup.children(thing) if lookup.is_torch_module(thing) else thing
        if type(inside) in (list, tuple) and type(key) is int and -len(inside) <= key < len(inside):
            return Known(inside[key])
        if type(inside) is dict and type(key) is str and key in inside:
            return Known(inside[key])
        return self.kind(thing, node)

    def _given_back(self, node: ast.Return | ast.Yield | ast.YieldFrom) -> Value:
        kind = self.unseen(self.value(node.value), node) if node.value is not None else Kind.FRESH
        if isinstance(node, ast.YieldFrom):
            kind = self.parts(kind, node)
        if kind in (Kind.MODULE, Kind.HOLDER_OF_MODULES, Kind.ENDLESS):
            self.note(node, "gives back a module of the job, or something without an end")
        return (
            Kind.NOTED
            if isinstance(node, ast.Return)
            else self.note(node, "is sent something")
            if (self._is_sent(node))
            else Kind.FRESH
        )

    _Return = _Yield = _YieldFrom = _given_back

    def _is_sent(self, node: ast.AST) -> bool:
        alone = (one.value for one in ast.walk(self._tree) if isinstance(one, ast.Expr))
        return not any(one is node for one in alone)

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) -> None:
        for default in (*node.args.defaults, *node.args.kw_defaults):
            if default is not None and self.unseen(self.value(default), default) is Kind.MODULE:
                self.note(default, "is a module of the job that a function gets")
        arguments = [one for one in ast.walk(node.args) if isinstance(one, ast.arg)]
        self.block([one.annotation for one in arguments if one.annotation is not None])
        with self.scope([one.arg for one in arguments]):
            self._values.update({one.arg: Kind.DATA for one in arguments})
            if isinstance(node, ast.Lambda):
                self._given_back(ast.copy_location(ast.Return(node.body), node))
            else:
                self.maybe([*([node.returns] if node.returns is not None else []), *node.body])


def names_in(target: ast.expr) -> set[str]:
    """Names that a target binds."""
    return {part.id for part in ast.walk(target) if isinstance(part, ast.Name)}


def bound_by(node: ast.AST) -> list[str]:
    """Names that a part of the tree binds by itself."""
    if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
        return [node.id]
    if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
        return [node.target.id]
    if isinstance(node, ast.alias):
        return [node.asname or node.name.partition(".")[0]]
    name = getattr(node, "name", None) or getattr(node, "rest", None)
    return [name] if isinstance(name, str) else []
