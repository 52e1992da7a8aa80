"""Guard: whether a snippet only reads, waits for something outside, changes the job, or must not run.

A small abstract interpreter over the syntax tree. It runs nothing of the snippet's and nothing of the
job's: names mean the objects that they are now, attributes are looked up in dictionaries (`looking`),
and whatever is not on the lists of `rules` counts as changing. It guards against mistakes; it is no
sandbox, and whoever may send a snippet may run code as the user of the job anyway.

A snippet is gone through again until nothing new turns up about its variables. Runs on the thread
of the request, while the training runs on. Standard library only.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from probe.base.isolation import capture
from probe.job.snippets.guard import lookup
from probe.job.snippets.guard.attributes import Finding, attribute
from probe.job.snippets.guard.calls import Arguments, load
from probe.job.snippets.guard.expressions import Expressions
from probe.job.snippets.guard.rules import BLOCKING, CHANGING, COLLECTIVE, READING, REFUSED, SETTLED
from probe.job.snippets.guard.scopes import annotated, assigned, defaults, has_method, parameters_of
from probe.job.snippets.guard.tracked import (
    NOTED,
    NOTHING,
    NUMBER,
    NUMBERS,
    OPAQUE,
    PURE,
    Absent,
    Class,
    Function,
    Known,
    Own,
    Some,
    Value,
    Values,
    known,
)

__all__ = (
    "BLOCKING", "CHANGING", "COLLECTIVE", "READING", "REFUSED", "SETTLED", "Finding", "Judgement", "classify",
)
_MOST_ROUNDS = 12
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


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
    judged, error = capture(lambda: _judge(tree, names))
    if error is None and isinstance(judged, Judgement):
        return judged
    why = f"could not be judged ({type(error).__name__})"
    return Judgement(CHANGING, (Finding(CHANGING, 1, "the snippet", why),))


def _judge(tree: ast.Module, names: Mapping[str, Any]) -> Judgement:
    guard = _Guard(tree, names)
    for _ in range(_MOST_ROUNDS):
        guard.round()
        if not guard.grew:
            break
    else:
        guard.note(tree.body[0], "could not be followed to its end")
    findings = guard.findings()
    return Judgement(findings[0].kind if findings else READING, findings)


class _Guard(Expressions):
    """Judges statements."""

    def __init__(self, tree: ast.Module, names: Mapping[str, Any]) -> None:
        super().__init__(names)
        self._tree = tree
        self._parameters: dict[ast.AST, dict[str, set[Value]]] = {}
        self._results: dict[ast.AST, set[Value]] = {}
        self._functions: list[ast.AST] = []
        self._depth = 0
        for node in ast.walk(tree):
            if isinstance(node, ast.Global | ast.Nonlocal):
                self.loose.update(node.names)

    def round(self) -> None:
        """Go through the snippet once, knowing what the rounds before have found."""
        self.found.clear()
        self.env = {}
        self.grew = False
        *body, last = self._tree.body or [ast.Pass()]
        self.block(body)
        if isinstance(last, ast.Expr):
            self.shown(self.value(last.value), last)
        else:
            self.block([last])

    def block(self, body: Sequence[ast.stmt]) -> None:
        """Statements, one after the other."""
        for node in body:
            handler = getattr(self, "_" + type(node).__name__, None)
            if handler is not None:
                handler(node)
            elif not isinstance(node, ast.Pass | ast.Break | ast.Continue | ast.Global | ast.Nonlocal):
                self.note(node, f"`{type(node).__name__}` is not understood")

    # -- simple statements -------------------------------------------------------------------

    def _Expr(self, node: ast.Expr) -> None:
        self.value(node.value)

    def _Assign(self, node: ast.Assign) -> None:
        found = self.value(node.value)
        for target in node.targets:
            self.bind(target, found)

    def _AnnAssign(self, node: ast.AnnAssign) -> None:
        self.value(node.annotation)
        if node.value is not None:
            self.bind(node.target, self.value(node.value))

    def _AugAssign(self, node: ast.AugAssign) -> None:
        target = node.target
        now = self.used(target)
        for value in now:
            if not self._is_snippets(value):
                self.note(node, "may change something of the job in place")
        result = self.binary(node.op, now, self.used(node.value), node)
        own = frozenset(value for value in now if isinstance(value, Own) and value.kind != "fresh")
        for value in own:
            if isinstance(value, Own):
                self.put(value, self.iterate(self.used(node.value), node))
        self.bind(target, result | own)

    @staticmethod
    def _is_snippets(value: Value) -> bool:
        if isinstance(value, Known):
            return type(value.thing) in lookup.IMMUTABLE or type(value.thing) in (tuple, frozenset)
        return isinstance(value, Own | Function | Class) or value is Some.NOTED

    def _Delete(self, node: ast.Delete) -> None:
        for target in node.targets:
            for part in target.elts if isinstance(target, ast.Tuple | ast.List) else [target]:
                if isinstance(part, ast.Name):
                    self.env[part.id] = NOTHING
                elif isinstance(part, ast.Attribute | ast.Subscript):
                    self.store(part, NOTHING)

    def _Return(self, node: ast.Return) -> None:
        self.given_back(self.value(node.value) if node.value is not None else known(None))

    def given_back(self, values: Values) -> None:
        """What the function at hand returns or yields."""
        if self._functions:
            self.add(self._results.setdefault(self._functions[-1], set()), values)

    def _Raise(self, node: ast.Raise) -> None:
        for part in (node.exc, node.cause):
            for value in self.used(part):
                if isinstance(value, Known):
                    thing = value.thing
                    cls = thing if lookup.is_class(thing) else type(thing)
                    if lookup.derives(cls, (SystemExit,)):
                        self.note(node, "ends the process", REFUSED)
                    elif not lookup.library_class(cls):
                        self.note(node, f"makes a `{lookup.class_name(cls)}`, which is not known to be pure")
                elif value is Some.OPAQUE:
                    self.note(node, "raises something that is not known here")

    def _Assert(self, node: ast.Assert) -> None:
        self.test(node.test)
        if node.msg is not None:
            self.shown(self.value(node.msg), node)

    def _Import(self, node: ast.Import) -> None:
        for alias in node.names:
            whole = load(self, alias.name, node)
            top = alias.name.partition(".")[0]
            if alias.asname is not None:
                self.assign(alias.asname, whole)
            else:
                self.assign(top, load(self, top, node) if top != alias.name else whole)

    def _ImportFrom(self, node: ast.ImportFrom) -> None:
        module = "." * node.level + (node.module or "")
        if node.level:
            self.note(node, "imports relative to nothing")
            return
        for value in load(self, module, node):
            for alias in node.names:
                if alias.name == "*":
                    self._import_all(value, node)
                else:
                    found = self._part_of(value, module, alias.name, node)
                    self.assign(alias.asname or alias.name, found)

    def _part_of(self, module: Value, dotted: str, name: str, node: ast.AST) -> Values:
        if isinstance(module, Known):
            entries = lookup.module_dict(module.thing) if lookup.is_module(module.thing) else {}
            if name in entries:
                return frozenset({Known(entries[name])})
            found = sys.modules.get(f"{dotted}.{name}")
            return frozenset({Known(found) if found is not None else Absent(f"{dotted}.{name}")})
        return frozenset({Absent(f"{dotted}.{name}")})

    def _import_all(self, module: Value, node: ast.AST) -> None:
        if not isinstance(module, Known) or not lookup.is_module(module.thing):
            self.note(node, "imports names that are not known here")
            return
        entries = dict(lookup.module_dict(module.thing))
        exported: Any = entries.get("__all__")
        public = [name for name in entries if type(name) is str and name[:1] != "_"]
        for name in exported if type(exported) in (list, tuple) else public:
            if type(name) is str and name in entries:
                self.assign(name, frozenset({Known(entries[name])}))

    # -- compound statements -----------------------------------------------------------------

    def _If(self, node: ast.If) -> None:
        self.test(node.test)
        self._either([node.body, node.orelse])

    def _either(self, bodies: Sequence[Sequence[ast.stmt]]) -> None:
        """One of several blocks runs."""
        before = self.env
        after: list[dict[str, Values]] = []
        for body in bodies:
            self.env = dict(before)
            self.block(body)
            after.append(self.env)
        self.env = before
        self._join(after)

    def _join(self, after: Sequence[dict[str, Values]]) -> None:
        joined: dict[str, Values] = {}
        for name in {name for env in after for name in env}:
            joined[name] = NOTHING.union(
                *(env[name] if name in env else self._outside(name, env) for env in after)
            )
        self.env = joined

    def _outside(self, name: str, env: dict[str, Values]) -> Values:
        """What a name is where a block did not assign it."""
        kept, self.env = self.env, env
        found = self.variable(name)
        self.env = kept
        return found

    def _widen(self, body: Sequence[ast.AST]) -> None:
        """From here on, what is assigned in `body` may have been assigned, or not."""
        for name in sorted({name for node in body for name in assigned(node)}):
            self.env[name] = self.variable(name) | frozenset(self.ever.get(name, ()))

    def _repeated_block(self, node: ast.For | ast.AsyncFor | ast.While) -> None:
        self.repeats += 1
        self._widen([node])
        if isinstance(node, ast.While):
            self.test(node.test)
        else:
            self.bind(node.target, self.iterate(self.used(node.iter), node.iter, in_c=False))
        self.block(node.body)
        self._widen([node])
        self.repeats -= 1
        self.block(node.orelse)

    _For = _AsyncFor = _While = _repeated_block

    def _With(self, node: ast.With | ast.AsyncWith) -> None:
        for item in node.items:
            entered = NOTHING
            for value in self.used(item.context_expr):
                entered |= self._enter(value, item.context_expr)
            if item.optional_vars is not None:
                self.bind(item.optional_vars, entered)
        self.block(node.body)
        self._widen(node.body)

    _AsyncWith = _With

    def _enter(self, value: Value, node: ast.AST) -> Values:
        if isinstance(value, Own):
            inside = self.inside(value)
            for one in inside:
                if isinstance(one, Function) and getattr(one.node, "name", "") in ("__enter__", "__exit__"):
                    inside |= self.run(one, Arguments(others=OPAQUE), node, frozenset({value}))
            return inside | {value}
        if isinstance(value, Some | Known | Absent) and value is not Some.NOTED:
            self.note(node, "enters a context that is the job's, or not known here")
        return NOTED if isinstance(value, Some) else PURE

    def _Try(self, node: ast.Try) -> None:
        self.block(node.body)
        self._widen(node.body)
        before = self.env
        after = []
        for handler in node.handlers:
            self.env = dict(before)
            if handler.type is not None:
                self.value(handler.type)
            if handler.name is not None:
                self.assign(handler.name, PURE)
            self.block(handler.body)
            after.append(self.env)
        self.env = dict(before)
        self.block(node.orelse)
        self._join([*after, self.env])
        self._widen([*node.handlers, *node.orelse])
        self.block(node.finalbody)

    _TryStar = _Try

    def _Match(self, node: ast.Match) -> None:
        subject = self.used(node.subject)
        self.touch(subject, node.subject)
        for case in node.cases:
            for part in ast.walk(case.pattern):
                if isinstance(part, ast.MatchClass):
                    self._match_class(part, subject)
                elif isinstance(part, ast.MatchValue):
                    self.touch(self.value(part.value), part)
                elif isinstance(part, ast.MatchSequence):
                    self.iterate(subject - known("", None), part)
                name = getattr(part, "name", None) or getattr(part, "rest", None)
                if type(name) is str:
                    self.assign(name, self._within(subject))
        before = self.env
        after = [before]
        for case in node.cases:
            self.env = dict(before)
            if case.guard is not None:
                self.test(case.guard)
            self.block(case.body)
            after.append(self.env)
        self._join(after)

    def _within(self, subject: Values) -> Values:
        """What a name in a pattern may be bound to."""
        if all(self._is_snippets(value) or value is Some.PURE for value in subject):
            return subject | NUMBERS | PURE
        return subject | OPAQUE

    def _match_class(self, part: ast.MatchClass, subject: Values) -> None:
        self.value(part.cls)
        for name in part.kwd_attrs:
            for value in subject:
                attribute(self, value, name, part)
        if part.patterns and any(value != NUMBER for value in subject):
            self._any_attribute(subject, part)

    # -- functions and classes ---------------------------------------------------------------

    def _FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        found: Values = frozenset({Function(node)})
        self.define(node)
        for decorator in reversed(node.decorator_list):
            given = Arguments((found,))
            found = NOTHING.union(*(self.call(value, given, decorator) for value in self.value(decorator)))
        self.assign(node.name, found)

    _AsyncFunctionDef = _FunctionDef

    def define(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) -> None:
        """Judge the body of a function, with whatever it was called with so far."""
        taken = self._parameters.setdefault(node, {})
        for argument, default in defaults(node.args):
            self.add(taken.setdefault(argument, set()), self.value(default))
        if not isinstance(node, ast.Lambda):
            for annotation in annotated(node):
                self.value(annotation)
        outer, self.env = self.env, {}
        self._functions.append(node)
        self.inner = True
        self.repeats += 1
        for argument in parameters_of(node.args):
            self.assign(argument, frozenset(taken.get(argument, ())))
        if isinstance(node, ast.Lambda):
            self.given_back(self.value(node.body))
        else:
            self.block(node.body)
        self.repeats -= 1
        self._functions.pop()
        self.inner = bool(self._functions)
        self.env = outer

    def run(self, function: Function | Class, given: Arguments, node: ast.AST,
        self_: Values = NOTHING) -> Values:
        """Call a function or class of the snippet: its arguments get to its parameters."""
        if isinstance(function, Class):
            return self._make(function, given, node)
        code = function.node
        taken = self._parameters.setdefault(code, {})
        positional = ((self_,) if self_ else ()) + given.positional
        plain = [argument.arg for argument in (*code.args.posonlyargs, *code.args.args)]
        for name, values in (*zip(plain, positional, strict=False), *given.keywords):
            self.add(taken.setdefault(name, set()), values)
        rest = NOTHING.union(*positional[len(plain) :], given.others)
        for argument in (code.args.vararg, code.args.kwarg):
            if argument is not None:
                named = NOTHING.union(*(values for _, values in given.keywords))
                packed = self.made(argument, rest | named | NUMBERS)
                self.add(taken.setdefault(argument.arg, set()), frozenset({packed}))
        if given.others:
            for name in plain:
                self.add(taken.setdefault(name, set()), given.others)
        results = frozenset(self._results.get(code, ()))
        if any(isinstance(part, ast.Yield | ast.YieldFrom) for part in ast.walk(code)):
            return frozenset({self.made(code, results)})
        return results | known(None) if not isinstance(code, ast.Lambda) else results

    def _make(self, cls: Class, given: Arguments, node: ast.AST) -> Values:
        instance = Own(id(cls.node), 0, "instance")
        if not has_method(cls.node, "__init__"):
            self.put(instance, given.everything())
            self.put(Own(id(cls.node), -1, "instance"), given.everything())
        for one in cls.node.body:
            if isinstance(one, ast.FunctionDef) and one.name in ("__init__", "__new__"):
                self.run(Function(one), given, node, frozenset({instance}))
        return frozenset({instance})

    def _ClassDef(self, node: ast.ClassDef) -> None:
        for base in (*node.bases, *(keyword.value for keyword in node.keywords)):
            for value in self.used(base):
                if isinstance(value, Known) and lookup.is_class(value.thing):
                    if lookup.library_class(value.thing):
                        continue
                elif isinstance(value, Class):
                    self.put(Own(id(node), 0, "instance"), self.inside(Own(id(value.node), 0, "instance")))
                    continue
                self.note(base, "is a base whose making of classes is not known to be pure")
        outer, self.env = self.env, dict(self.env)
        instance = Own(id(node), 0, "instance")
        self.block(node.body)
        mine = {name for part in node.body for name in assigned(part)}
        for name in mine:
            self.put(instance, self.env.get(name, NOTHING))
            self.add(self.fields.setdefault((instance.site, name), set()), self.env.get(name, NOTHING))
        for part in node.body:
            if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef):
                special = part.name.startswith("__") and part.name not in ("__init__", "__call__")
                self.run(Function(part), Arguments(others=OPAQUE if special else NOTHING), part,
                    frozenset({instance}))
        self.env = outer
        found: Values = frozenset({Class(node)})
        for decorator in reversed(node.decorator_list):
            found = NOTHING.union(
                *(self.call(value, Arguments((found,)), decorator) for value in self.value(decorator))
            )
        self.assign(node.name, found)

    def code(self, text: str, node: ast.AST) -> None:
        """Judge text that the snippet executes."""
        tree, error = capture(lambda: ast.parse(text))
        if error is None and self._depth < 3:
            self._depth += 1
            self.block(tree.body)
            self._depth -= 1
