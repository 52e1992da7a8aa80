"""Guard: whether a snippet only reads, waits for something outside, changes the job, or must not run.

It reads the syntax tree and keeps, of each variable, whose its value is: an object that is there now,
the snippet's own, or maybe the job's. It runs nothing of the snippet's and nothing of the job's: names
mean the objects that they are now, attributes are looked up in dictionaries (`lookup`), and whatever
is not on the lists of `rules` counts as changing. It guards against mistakes; it is no sandbox, and
whoever may send a snippet may run code as the user of the job anyway.

Runs on the thread of the request, while the training runs on. Standard library only.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import math
import operator
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from probe.base.isolation import capture
from probe.job.snippets.guard import lookup
from probe.job.snippets.guard.attributes import Finding
from probe.job.snippets.guard.calls import Arguments, Calls
from probe.job.snippets.guard.rules import (
    BLOCKING,
    CHANGING,
    COLLECTIVE,
    READING,
    REFUSED,
    SETTLED,
    SEVERITY,
)
from probe.job.snippets.guard.tracked import OWN, Kind, Known, Value

__all__ = (
    "BLOCKING", "CHANGING", "COLLECTIVE", "READING", "REFUSED", "SETTLED", "Finding", "Judgement", "classify",
)
_MOST_ROUNDS = 6
_ARITHMETIC: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod, ast.Pow: operator.pow, ast.LShift: operator.lshift, ast.RShift: operator.rshift,
}
_MINE_FIRST = (Kind.FRESH, Kind.HOLDER, Kind.DATA, Kind.MODULE)


class Judgement(NamedTuple):
    """The class of a snippet, and why it is not a milder one."""

    kind: str
    findings: tuple[Finding, ...]
    """What makes it more than reading, the worst first."""

    @property
    def only_looks(self) -> bool:
        """Whether it changes nothing and waits for nothing, wherever it has to run."""
        return self.kind in (READING, SETTLED)


def classify(tree: ast.Module, names: Mapping[str, Any]) -> Judgement:
    """The class of a snippet (see `rules`); never raises, and runs nothing.

    `names`: the objects that the names in it mean; it must then run with these very objects."""
    judged, error = capture(lambda: _Reader(tree, names).judge())
    if error is None and isinstance(judged, Judgement):
        return judged
    why = f"could not be judged ({type(error).__name__})"
    return Judgement(CHANGING, (Finding(CHANGING, 1, "the snippet", why),))


class _Reader(Calls):
    """Reads a tree from top to bottom."""

    def __init__(self, tree: ast.Module, names: Mapping[str, Any]) -> None:
        super().__init__(names)
        self._tree = tree
        self._bound = Counter(name for node in ast.walk(tree) for name in _bound_by(node))
        self._values: dict[str, Value] = {}
        self._maybe = 0
        """Statements around this place that may not run, or not now."""
        self._unsure = False
        """A name was used for more than it is, or before it was bound: all is to be read again."""

    def judge(self) -> Judgement:
        """Read it; once more where a later line says that a name is less the snippet's own than it seemed."""
        for _ in range(_MOST_ROUNDS):
            before = dict(self._values)
            self._unsure = False
            *body, last = self._tree.body or [ast.Pass()]
            self.block(body)
            if isinstance(last, ast.Expr):
                self.shown(self.value(last.value), last)
            else:
                self.block([last])
            if not self._unsure or before == self._values:
                break
        else:
            self.note(self._tree.body[0], "could not be followed to its end")
        findings = tuple(sorted(self.found, key=lambda one: (-SEVERITY[one.kind], one.line)))
        return Judgement(findings[0].kind if findings else READING, findings)

    def maybe(self, body: Sequence[ast.AST]) -> None:
        """Statements that may not run, or not now."""
        self._maybe += 1
        self.block(body)
        self._maybe -= 1

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

    # -- statements ------------------------------------------------------------------------------

    def block(self, body: Sequence[ast.AST]) -> None:
        """Statements, one after the other."""
        for node in body:
            handler: Callable[[Any], None] | None = getattr(self, "_" + type(node).__name__, None)
            if handler is not None:
                handler(node)
            elif isinstance(node, ast.expr):
                self.value(node)
            else:
                if not isinstance(node, _ONLY_PARTS):
                    self.note(node, f"`{type(node).__name__}` is not understood")
                self.block(list(ast.iter_child_nodes(node)))

    def _Assign(self, node: ast.Assign) -> None:
        value = self.value(node.value)
        for target in node.targets:
            self.bind(target, value)

    def _AnnAssign(self, node: ast.AnnAssign) -> None:
        self.value(node.annotation)
        if node.value is not None:
            self.bind(node.target, self.value(node.value))

    def _AugAssign(self, node: ast.AugAssign) -> None:
        now, added = self.value(node.target), self.value(node.value)
        constant = isinstance(now, Known) and type(now.thing) in lookup.IMMUTABLE
        if not constant and now not in OWN and now is not Kind.NOTED:
            self.note(node, "may change something of the job in place")
        result = self.merged(self._operated(node, now, added), Kind.FRESH, node)
        if isinstance(node.target, ast.Name):
            self.assign(node.target.id, result, node)
        elif now in OWN or constant:
            self.bind(node.target, result)

    def _Assert(self, node: ast.Assert) -> None:
        self.touched(self.value(node.test), node.test)
        self.shown(self.value(node.msg) if node.msg is not None else Kind.NOTED, node)

    def _Delete(self, node: ast.Delete) -> None:
        for target in node.targets:
            for part in ast.walk(target):
                if isinstance(part, ast.Attribute | ast.Subscript) and isinstance(part.ctx, ast.Del):
                    self.bind(part, Kind.NOTED)

    def _given_back(self, node: ast.Return | ast.Yield | ast.YieldFrom) -> Value:
        kind = self.unseen(self.value(node.value), node) if node.value is not None else Kind.FRESH
        if isinstance(node, ast.YieldFrom):
            kind = self.parts(kind, node)
        if kind in (Kind.MODULE, Kind.HOLDER_OF_MODULES, Kind.ENDLESS):
            self.note(node, "gives back a module of the job, or something without an end")
        return Kind.NOTED if isinstance(node, ast.Return) else self.note(node, "is sent something") if (
            self._is_sent(node)) else Kind.FRESH

    _Return = _Yield = _YieldFrom = _given_back

    def _is_sent(self, node: ast.AST) -> bool:
        alone = (one.value for one in ast.walk(self._tree) if isinstance(one, ast.Expr))
        return not any(one is node for one in alone)

    def _Raise(self, node: ast.Raise) -> None:
        for part in (node.exc, node.cause):
            value = self.value(part) if part is not None else Kind.NOTED
            if isinstance(value, Known):
                cls = value.thing if lookup.is_class(value.thing) else type(value.thing)
                if lookup.derives(cls, (SystemExit,)):
                    self.note(node, "ends the process", REFUSED)
                elif not lookup.library_class(cls):
                    self.note(node, f"makes a `{lookup.class_name(cls)}`, which is not known to be pure")
            elif part is not None and value not in (Kind.HOLDER, Kind.NOTED):
                self.note(node, "raises something that is not known here")
                named = (self._Name(one) for one in ast.walk(part) if isinstance(one, ast.Name))
                if any(isinstance(one, Known) and one.thing is SystemExit for one in named):
                    self.note(node, "ends the process", REFUSED)

    def _Import(self, node: ast.Import) -> None:
        for alias in node.names:
            whole = self.load(alias.name, node)
            top = alias.name.partition(".")[0]
            self.assign(alias.asname or top, whole if alias.asname else self.load(top, node), node)

    def _ImportFrom(self, node: ast.ImportFrom) -> None:
        module = self.load(node.module or "", node)
        for alias in node.names:
            if alias.name == "*" or node.level:
                self.note(node, "imports names that are not seen here")
            else:
                self.assign(alias.asname or alias.name, self.attribute(module, alias.name, node), node)

    def _For(self, node: ast.For | ast.AsyncFor) -> None:
        part = self.parts(self.value(node.iter), node.iter, in_c=False)
        self.bind(node.target, Kind.DATA if part is Kind.FRESH and _names_in(node.target) & set(self.names) else part)
        self.maybe([*node.body, *node.orelse])
        if isinstance(node, ast.AsyncFor):
            self.note(node, "waits for something that is not known here")

    _AsyncFor = _For

    def _If(self, node: ast.If | ast.While) -> None:
        self.touched(self.value(node.test), node.test)
        self.maybe([*node.body, *node.orelse])

    _While = _If

    def _Try(self, node: ast.Try) -> None:
        self.maybe([*node.body, *node.handlers, *node.orelse])
        self.maybe(node.finalbody)

    _TryStar = _Try

    def _With(self, node: ast.With | ast.AsyncWith) -> None:
        for item in node.items:
            value = self.value(item.context_expr)
            if value not in (*OWN, Kind.WRAPPER, Kind.NOTED):
                self.note(item.context_expr, "enters a context that is the job's, or not known here")
            if item.optional_vars is not None:
                self.bind(item.optional_vars, value if value is Kind.FRESH else Kind.DATA)
        self.block(node.body)

    _AsyncWith = _With

    def _ExceptHandler(self, node: ast.ExceptHandler) -> None:
        if node.type is not None:
            self.shown(self.value(node.type), node)
        if node.name is not None:
            self.assign(node.name, Kind.DATA, node)
        self.block(node.body)

    def _Match(self, node: ast.Match) -> None:
        subject = self.value(node.subject)
        self.touched(subject, node.subject)
        for case in node.cases:
            for part in ast.walk(case.pattern):
                if isinstance(part, ast.MatchValue):
                    self.touched(self.value(part.value), part)
                elif isinstance(part, ast.MatchClass):
                    self.touched(self.value(part.cls), part)
                    for name in part.kwd_attrs:
                        self.attribute(subject, name, part.cls)
                taken = isinstance(part, ast.MatchClass) and part.patterns
                if taken or isinstance(part, ast.MatchMapping | ast.MatchSequence):
                    self.note(node.subject, "is taken apart in ways that are not followed here")
                name = getattr(part, "name", None)
                if name is not None:
                    self.assign(name, self.unseen(subject, node.subject), node.subject)
            self._If(ast.If(case.guard or ast.Constant(True), case.body, []))

    def _FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        value: Value = Kind.FUNCTION
        for decorator in reversed(node.decorator_list):
            by = self.value(decorator)
            value = value if by is Kind.WRAPPER else self.call(by, Arguments((value,)), decorator)
        self.assign(node.name, value, node)
        self._function(node)

    _AsyncFunctionDef = _FunctionDef

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

    def _ClassDef(self, node: ast.ClassDef) -> None:
        self.note(node, "makes a class")
        self.block([*node.bases, *node.keywords, *node.decorator_list, *node.body])

    def code(self, text: str) -> None:
        tree, error = capture(lambda: ast.parse(text))
        if error is None:
            for part in ast.walk(tree):
                self._bound.update({name: 1 for name in _bound_by(part) if name not in self._bound})
            self.block(tree.body)

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
        with self.scope([name for one in node.generators for name in _names_in(one.target)]):
            for one in node.generators:
                found = self.parts(self.value(one.iter), one.iter, in_c=False)
                if any(isinstance(part, ast.Attribute | ast.Subscript) for part in ast.walk(one.target)):
                    self.note(one.target, "is assigned to, and may be the job's")
                self._values.update(dict.fromkeys(_names_in(one.target), found))
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
            inner = self.value(part.value) if isinstance(part, ast.FormattedValue) else None
            if isinstance(part, ast.Constant) or isinstance(inner, Known):
                self.digits(str(part.value if inner is None else inner.thing), node.value)
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
            if type(times) is int and (one in OWN or (isinstance(one, Known) and type(one.thing) in (list, tuple))):
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
            return Kind.FRESH if self.limited(len(left) * right, node) or len(left) * right > 1000 else Known(left * right)
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
            return self.note(node, f"looks into a `{lookup.class_name(type(thing))}`, which is not known to be pure")
        if lookup.derives(type(thing), (dict,)) and lookup.find(type(thing), "__missing__") is not None:
            return self.note(node, "adds the key when it is missing; `.get` does not")
        inside = lookup.children(thing) if lookup.is_torch_module(thing) else thing
        if type(inside) in (list, tuple) and type(key) is int and -len(inside) <= key < len(inside):
            return Known(inside[key])
        if type(inside) is dict and type(key) is str and key in inside:
            return Known(inside[key])
        return self.kind(thing, node)


_ONLY_PARTS = (
    ast.Pass, ast.Break, ast.Continue, ast.Global, ast.Nonlocal, ast.Expr, ast.keyword,
    ast.expr_context, ast.operator,
)


def _names_in(target: ast.expr) -> set[str]:
    return {part.id for part in ast.walk(target) if isinstance(part, ast.Name)}


def _bound_by(node: ast.AST) -> list[str]:
    """Names that a part of the tree binds by itself."""
    if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
        return [node.id]
    if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
        return [node.target.id]
    if isinstance(node, ast.alias):
        return [node.asname or node.name.partition(".")[0]]
    name = getattr(node, "name", None) or getattr(node, "rest", None)
    return [name] if isinstance(name, str) else []
