"""Reads the syntax tree of a snippet, once, from top to bottom.

Standard library only.
"""

from __future__ import annotations

import ast
import builtins
import operator
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from probe.base.isolation import capture
from probe.job.introspection.snippet_names import names_used
from probe.job.snippets.guard import lookup, rules
from probe.job.snippets.guard.kinds import MINE, Absent, Arguments, Finding, Kind, Known, Value, is_constant
from probe.job.snippets.guard.special import Special

_ARITHMETIC: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod, ast.Pow: operator.pow, ast.LShift: operator.lshift, ast.RShift: operator.rshift,
}
_MADE: dict[type[ast.AST], Kind] = {
    ast.List: Kind.OWN, ast.Tuple: Kind.OWN, ast.Set: Kind.OWN, ast.Dict: Kind.OWN, ast.JoinedStr: Kind.NEW,
    ast.FormattedValue: Kind.NEW, ast.UnaryOp: Kind.NEW, ast.Compare: Kind.NEW,
}
"""What expressions give that need no treatment of their own; others give something that is out of sight."""
_UNDERSTOOD = (
    *_MADE, ast.BoolOp, ast.IfExp, ast.Slice, ast.Yield, ast.Return, ast.Assert, ast.If, ast.While, ast.Try,
    ast.ExceptHandler, ast.Match, ast.match_case, ast.pattern, ast.Pass, ast.Break, ast.Continue, ast.Global,
    ast.Nonlocal, ast.expr_context, ast.boolop, getattr(ast, "TryStar", ast.Try),
)


class Reader(Special):
    """Reads statements and expressions, and keeps what the variables of a snippet are.

    A variable that is bound in one place is what it is bound to. What any other is given is out of sight."""

    def __init__(self, tree: ast.Module, names: Mapping[str, Any]) -> None:
        super().__init__(names)
        self._values: dict[str, Value] = {}
        self._bound: set[str] = set()
        self._exact: set[str] = set()
        self._foreign: set[str] = set()
        self._changed: dict[str, list[ast.AST]] = {}
        self._in_class = False
        self._survey(tree)

    def _survey(self, tree: ast.Module) -> None:
        """Which variables are bound in one place, and never mean something of the job."""
        times = Counter(name for node in ast.walk(tree) for name in _bound_by(node))
        mentioned: set[str] = set()
        replaced: set[str] = set()
        for statement in tree.body:
            nodes = list(ast.walk(statement))
            bound = {name for node in nodes for name in _bound_by(node)}
            read = names_used(statement)
            replaced |= _bound_for_sure(statement) - mentioned - read
            mentioned |= bound | read
        elsewhere = {*self.names, *vars(builtins)} - replaced
        self._bound |= set(times)
        self._exact |= {name for name, count in times.items() if count == 1} - elsewhere
        self._foreign |= elsewhere & self._bound
        for name in self._foreign:
            self.keep(Known(self.names.get(name, vars(builtins).get(name))))
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef) and not node.decorator_list and node.name in self._exact:
                self._values[node.name] = Kind.FUNCTION

    def read(self, body: Iterable[ast.AST]) -> dict[Finding, None]:
        """Read statements; what is found."""
        self._read_all(body)
        return self.found

    def _read_all(self, nodes: Iterable[ast.AST | None]) -> None:
        for node in nodes:
            if node is not None:
                self.value(node)

    def value(self, node: ast.AST) -> Value:
        """What an expression is; statements are nothing.

        Without a treatment of their own, the parts of a node are used, and are out of sight afterwards."""
        handler: Callable[[Any], Value | None] | None = getattr(self, "_" + type(node).__name__, None)
        if handler is not None:
            return handler(node) or Kind.NOTED
        if not isinstance(node, _UNDERSTOOD):
            self.note(node, f"`{type(node).__name__}` is not understood")
        for name in _bound_by(node):
            self.assign(name, Kind.DATA, node)
            if isinstance(node, ast.pattern):
                self.note(node, "takes what a pattern finds, which is not followed here")
        for child in ast.iter_child_nodes(node):
            found = self.value(child)
            if isinstance(child, ast.expr):
                self.use(found, rules.SPECIAL_METHODS, child)
                self.hide(found, child)
        return _MADE.get(type(node), Kind.DATA)

    def code(self, text: str) -> None:
        """Read text that the snippet executes."""
        tree, error = capture(lambda: ast.parse(text))
        if error is None:
            self._survey(tree)
            self._read_all(tree.body)

    # -- variables ---------------------------------------------------------------------------

    def _Name(self, node: ast.Name) -> Value:
        name = node.id
        if name in self._values:
            return self._values[name]
        if name in self._bound:
            return Kind.ANY if name in self._exact else Kind.DATA
        if name in self.names:
            return Known(self.names[name])
        if name in vars(builtins) or name == "__builtins__":
            return Known(vars(builtins).get(name, builtins))
        return Kind.NEW if name in ("__name__", "__file__", "__doc__") else Kind.NOTED

    def assign(self, name: str, value: Value, node: ast.AST) -> None:
        """A variable is given a value."""
        if name in self._exact:
            self._values[name] = value
        if name not in self._exact or self._in_class:
            self.hide(value, node)
            if value not in MINE and not is_constant(value):
                self._foreign.add(name)
                for change in self._changed.pop(name, ()):
                    self.note(change, "may change something of the job in place")

    def _to_change(self, node: ast.expr) -> Value:
        """An expression whose value is about to be changed in place."""
        if isinstance(node, ast.Name) and node.id in self._bound - self._exact - self._foreign:
            self._changed.setdefault(node.id, []).append(node)
            return Kind.OWN
        return self.value(node)

    def bind(self, target: ast.expr, value: Value) -> None:
        """Assign to a target; notes what changes something of the job."""
        if isinstance(target, ast.Name):
            self.assign(target.id, value, target)
        elif isinstance(target, ast.Tuple | ast.List):
            inside = self.iterate(value, True, target)
            for part in target.elts:
                self.bind(part, inside)
        elif isinstance(target, ast.Starred):
            self.hide(value, target)
            self.bind(target.value, Kind.OWN)
        elif isinstance(target, ast.Attribute | ast.Subscript):
            item = isinstance(target, ast.Subscript)
            base = self._to_change(target.value) if item else self.value(target.value)
            index = self.value(target.slice) if isinstance(target, ast.Subscript) else value
            self.use(index, rules.SPECIAL_METHODS, target)
            if isinstance(target, ast.Subscript) and isinstance(target.slice, ast.Slice):
                self.iterate(value, True, target)
            self.put(base, index, target)
            self.put(base, value, target)
            if base is not Kind.NOTED and not (item and base in MINE):
                self.note(target, "is assigned to, and may be the job's")

    def _NamedExpr(self, node: ast.NamedExpr) -> Value:
        value = self.value(node.value)
        self.assign(node.target.id, value, node)
        return value

    def _Assign(self, node: ast.Assign) -> None:
        value = self.value(node.value)
        for target in node.targets:
            self.bind(target, value)

    def _AnnAssign(self, node: ast.AnnAssign) -> None:
        self.value(node.annotation)
        if node.value is not None:
            self.bind(node.target, self.value(node.value))

    def _AugAssign(self, node: ast.AugAssign) -> None:
        now = self._to_change(node.target)
        added = self.value(node.value)
        result = self.fold(node.op, now, added, node)
        if now is Kind.OWN:
            self.iterate(added, True, node)
        if now not in MINE and now is not Kind.NOTED and not is_constant(now):
            self.note(node, "may change something of the job in place")
        self.bind(node.target, result)

    def _Delete(self, node: ast.Delete) -> None:
        for target in ast.walk(node):
            if isinstance(target, ast.Attribute | ast.Subscript) and isinstance(target.ctx, ast.Del):
                self.bind(target, Kind.NEW)

    # -- statements --------------------------------------------------------------------------

    def _Expr(self, node: ast.Expr) -> None:
        value = self.value(node.value)
        self.use(value, rules.SPECIAL_METHODS, node)  # the last is shown

    def _Raise(self, node: ast.Raise) -> None:
        for part in (node.exc, node.cause):
            value = self.value(part) if part is not None else Kind.NOTED
            self.hide(value, node)
            cls = value.thing if isinstance(value, Known) else None
            known = lookup.is_class(cls) and lookup.library_class(cls)  # type: ignore[arg-type]
            if not known and value not in (*MINE, Kind.NOTED):
                self.note(node, "raises something that is not known here")

    def _Import(self, node: ast.Import) -> None:
        for alias in node.names:
            whole, top = self.load(alias.name, node), alias.name.partition(".")[0]
            self.assign(alias.asname or top, whole if alias.asname else self.load(top, node), node)

    def _ImportFrom(self, node: ast.ImportFrom) -> None:
        module = self.load(str(node.module), node)
        for alias in node.names:
            if node.level or alias.name == "*":
                self.note(node, "imports names that are not seen here")
            value = self.attribute(module, alias.name, node)
            dotted = f"{node.module}.{alias.name}"
            if isinstance(value, Absent) and dotted in sys.modules:
                value = Known(sys.modules[dotted])
            self.assign(alias.asname or alias.name, value, node)

    def _For(self, node: ast.For) -> None:
        self.bind(node.target, self.iterate(self.value(node.iter), False, node.iter))
        self._read_all([*node.body, *node.orelse])

    def _With(self, node: ast.With) -> None:
        for item in node.items:
            value = self.value(item.context_expr)
            if value not in (*MINE, Kind.WRAPPER, Kind.NOTED):
                self.note(item.context_expr, "enters a context that is the job's, or not known here")
            if item.optional_vars is not None:
                self.bind(item.optional_vars, Kind.DATA)
        self._read_all(node.body)

    def _asynchronous(self, node: ast.AsyncFor | ast.AsyncWith | ast.Await) -> None:
        self.note(node, "waits for something that is not known here")
        read: Any = {ast.AsyncFor: self._For, ast.AsyncWith: self._With}.get(type(node))
        self._read_all(ast.iter_child_nodes(node)) if read is None else read(node)

    _AsyncFor = _AsyncWith = _Await = _asynchronous

    def _MatchClass(self, node: ast.MatchClass) -> None:
        if node.patterns:
            self.any_attribute(Kind.ANY, node)
        for name in node.kwd_attrs:
            self.hide(self.attribute(Kind.DATA, name, node), node)
        self._read_all(ast.iter_child_nodes(node))

    def _MatchSequence(self, node: ast.MatchSequence | ast.MatchMapping) -> None:
        self.iterate(Kind.DATA, True, node)
        self._read_all(node.patterns)
        for name in _bound_by(node):
            self.assign(name, Kind.DATA, node)

    _MatchMapping = _MatchSequence

    def _FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self._parameters(node.args)
        self._read_all([node.returns, *node.body])
        self._decorated(node, Kind.FUNCTION)

    _AsyncFunctionDef = _FunctionDef

    def _parameters(self, parameters: ast.arguments) -> None:
        """Whatever a function is called with is out of sight."""
        for part in (*parameters.defaults, *parameters.kw_defaults):
            self.hide(self.value(part) if part is not None else None, part or parameters)
        for one in ast.walk(parameters):
            if isinstance(one, ast.arg):
                self.assign(one.arg, Kind.DATA, one)
                self._read_all([one.annotation])

    def _decorated(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef, value: Value) -> None:
        for decorator in reversed(node.decorator_list):
            value = self.call(self.value(decorator), Arguments((value,)), decorator)
        self.assign(node.name, value, node)

    def _ClassDef(self, node: ast.ClassDef) -> None:
        self.note(node, "makes a class, whose methods are called in ways that are not followed here")
        for part in (*node.bases, *(keyword.value for keyword in node.keywords)):
            self.hide(self.value(part), part)
        outside, self._in_class = self._in_class, True
        self._read_all(node.body)
        self._in_class = outside
        self._decorated(node, Kind.NOTED)

    # -- expressions -------------------------------------------------------------------------

    def _Constant(self, node: ast.Constant) -> Value:
        return Known(node.value)

    def _Attribute(self, node: ast.Attribute) -> Value:
        return self.attribute(self.value(node.value), node.attr, node)

    def _Subscript(self, node: ast.Subscript) -> Value:
        base, index = self.value(node.value), self.value(node.slice)
        self.use(index, rules.SPECIAL_METHODS, node)
        found = self.item(base, index, node)
        return base if base is Kind.OWN and isinstance(node.slice, ast.Slice) else found

    def _Starred(self, node: ast.Starred) -> Value:
        return self.iterate(self.value(node.value), True, node)

    def _YieldFrom(self, node: ast.YieldFrom) -> Value:
        self.hide(self.iterate(self.value(node.value), False, node), node)
        return Kind.DATA

    def _Dict(self, node: ast.Dict) -> Value:
        for key, part in zip(node.keys, node.values, strict=True):
            value = self.value(part)
            self.hide(value if key is not None else self.iterate(value, True, node), part)
            if key is not None:
                named = self.value(key)
                self.use(named, rules.SPECIAL_METHODS, key)
                self.hide(named, key)
        return Kind.OWN

    def _FormattedValue(self, node: ast.FormattedValue) -> Value:
        self.use(self.value(node.value), rules.SPECIAL_METHODS, node.value)
        for part in ast.walk(node.format_spec) if node.format_spec is not None else ():
            if isinstance(part, ast.FormattedValue | ast.Constant):
                width = part.value if isinstance(part, ast.FormattedValue) else part
                self._width(self.value(width), node.value)
        return Kind.NEW

    def _width(self, value: Value, node: ast.AST) -> None:
        if isinstance(value, Known) and is_constant(value):
            self.formatted(str(value.thing), node)
        elif value is Kind.DATA:
            self.unseen(self._width, node)

    def _Lambda(self, node: ast.Lambda) -> Value:
        self._parameters(node.args)
        self.hide(self.value(node.body), node)
        return Kind.FUNCTION

    def _comprehension(self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp) -> Value:
        for one in node.generators:
            self.bind(one.target, self.iterate(self.value(one.iter), False, one.iter))
            for condition in one.ifs:
                self.use(self.value(condition), rules.SPECIAL_METHODS, condition)
        for part in (node.key, node.value) if isinstance(node, ast.DictComp) else (node.elt,):
            value = self.value(part)
            if not isinstance(node, ast.ListComp | ast.GeneratorExp):
                self.use(value, rules.SPECIAL_METHODS, part)
            self.hide(value, part)
        return Kind.OWN

    _ListComp = _SetComp = _GeneratorExp = _DictComp = _comprehension

    def _Compare(self, node: ast.Compare) -> Value:
        values = [self.value(part) for part in (node.left, *node.comparators)]
        for op, left, right in zip(node.ops, values, values[1:], strict=False):
            if isinstance(op, ast.In | ast.NotIn):
                self.iterate(right, True, node)
            for value in (left, right) if not isinstance(op, ast.Is | ast.IsNot) else ():
                self.use(value, rules.SPECIAL_METHODS, node)
        return Kind.NEW

    def _UnaryOp(self, node: ast.UnaryOp) -> Value:
        value = self.value(node.operand)
        self.use(value, rules.SPECIAL_METHODS, node)
        if isinstance(node.op, ast.USub) and isinstance(value, Known) and type(value.thing) in (int, float):
            return Known(-value.thing)
        self.hide(value, node)
        return Kind.DATA if isinstance(node.op, ast.UAdd) else Kind.NEW

    def _BinOp(self, node: ast.BinOp) -> Value:
        return self.fold(node.op, self.value(node.left), self.value(node.right), node)

    def fold(self, op: ast.operator, left: Value, right: Value, node: ast.AST) -> Value:
        """What an operator gives: the constant, where it is one, else something new."""
        for one in (left, right):
            self.use(one, rules.SPECIAL_METHODS, node)
        if Kind.DATA in (left, right) or Kind.NOTED in (left, right):
            self.unseen(self._folded_with, op, left, right, node)
        if isinstance(left, Known) and type(left.thing) is str and isinstance(op, ast.Mod):
            self.formatted(left.thing, node)
        first, second = (one.thing if isinstance(one, Known) else one for one in (left, right))
        for one, times in ((first, second), (second, first)) if isinstance(op, ast.Mult) else ():
            sequence = type(one) in (str, bytes, list, tuple) or one in (Kind.OWN, Kind.CONTAINER)
            if type(times) is int and sequence:
                self.too_large(times * (len(one) if isinstance(one, str | bytes) else 1.0), node)
        if type(first) is int and type(second) is int:
            return self._folded(op, first, second, node)
        return Kind.NEW if all(one is Kind.NEW or is_constant(one) for one in (left, right)) else Kind.OWN

    def _folded_with(
        self, hidden: Value, op: ast.operator, left: Value, right: Value, node: ast.AST
    ) -> Value | None:
        """The same with a large number, or a list, that is out of sight."""
        plain = isinstance(hidden, Known) and type(hidden.thing) in (int, str, bytes)
        if plain or hidden is Kind.CONTAINER:
            one, other = (hidden if value in (Kind.DATA, Kind.NOTED) else value for value in (left, right))
            return self.fold(op, one, other, node)
        return None

    def _folded(self, op: ast.operator, first: int, second: int, node: ast.AST) -> Value:
        size = float(first.bit_length())
        if isinstance(op, ast.Pow) and abs(first) > 1:
            size = (first.bit_length() - 0.9) * float(min(max(second, 0), 2**60))
        elif isinstance(op, ast.LShift | ast.Mult):
            size += min(second, 2**60) if isinstance(op, ast.LShift) else second.bit_length()
        if self.too_large(size, node) or type(op) not in _ARITHMETIC or size > 10_000:
            return Kind.NEW
        found, error = capture(lambda: _ARITHMETIC[type(op)](first, second))
        return Known(found) if error is None else Kind.NEW

    # -- calls -------------------------------------------------------------------------------

    def _Call(self, node: ast.Call) -> Value:
        if isinstance(node.func, ast.Attribute):
            name = node.func.attr
            changes = name in rules.OWN_METHODS - rules.PURE_METHODS or name.endswith("_")
            receiver = self._to_change(node.func.value) if changes else self.value(node.func.value)
            return self.method(receiver, name, self._arguments(node), node)
        return self.call(self.value(node.func), self._arguments(node), node)

    def _arguments(self, node: ast.Call) -> Arguments:
        positional: list[Value] = []
        unnamed = False
        for part in node.args:
            value = self.value(part)
            unnamed = unnamed or isinstance(part, ast.Starred)
            self.hide(value if unnamed else None, part)
            positional += [] if unnamed else [value]
        keywords: list[tuple[str, Value]] = []
        for keyword in node.keywords:
            value = self.value(keyword.value)
            if keyword.arg is not None:
                keywords.append((keyword.arg, value))
            else:
                unnamed = True
                self.use(value, rules.SPECIAL_METHODS, keyword.value)
                self.hide(self.iterate(value, True, keyword.value), keyword.value)
        return Arguments(tuple(positional), tuple(keywords), unnamed)


def _bound_by(node: ast.AST) -> list[str]:
    """Names that a node itself binds."""
    if isinstance(node, ast.Name):
        return [node.id] if isinstance(node.ctx, ast.Store) else []
    if isinstance(node, ast.alias):
        return [(node.asname or node.name).partition(".")[0]]
    named = (getattr(node, field, None) for field in ("name", "rest", "arg"))
    return [] if isinstance(node, ast.keyword) else [name for name in named if isinstance(name, str)]


def _bound_for_sure(statement: ast.stmt) -> set[str]:
    """Names that a statement binds whatever happens."""
    if isinstance(statement, ast.Import | ast.ImportFrom):
        return {name for alias in statement.names for name in _bound_by(alias)}
    if isinstance(statement, ast.FunctionDef | ast.ClassDef):
        return {statement.name}
    targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
    known = isinstance(statement, ast.Assign) or (isinstance(statement, ast.AnnAssign) and statement.value)
    return {name for one in targets if known and one for part in ast.walk(one) for name in _bound_by(part)}
