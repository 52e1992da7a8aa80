"""Classifies a snippet: does it only read, wait for something outside, change the job, or must it not run?

The syntax tree is read from top to bottom against the lists of `rules`; anything not on them counts as
changing. For each variable and container the guard keeps every value it is ever given. If a value turns up
after the variable was read (in a loop, in a function), the tree is read once more. No code of the snippet or
the job runs: names stand for the objects they refer to now, attributes are looked up in dictionaries
(`lookup`).

The guard protects from mistakes. It is not a sandbox: anyone who may send a snippet may run code as the user
of the job. Runs on the agent's thread, while the training continues. Standard library only.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from probe.base.isolation import capture
from probe.job.snippets.guard import lookup
from probe.job.snippets.guard.attributes import Finding
from probe.job.snippets.guard.calls import ANYTHING, Arguments
from probe.job.snippets.guard.expressions import Expressions
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
    Value,
    Values,
    known,
)
from probe.job.snippets.guard.rules import BLOCKING, CHANGING, COLLECTIVE, READING, REFUSED, SETTLED, SEVERITY

__all__ = (
    "BLOCKING", "CHANGING", "COLLECTIVE", "READING", "REFUSED", "SETTLED", "Finding", "Judgement", "classify",
)
_MOST_ROUNDS = 12
_FOLLOWED = ("__enter__", "__exit__", "__repr__", "__str__", "__del__")
"""Special methods of the snippet's classes whose results the guard can follow."""


class Judgement(NamedTuple):
    """The class of a snippet, and why it is not a milder one."""

    kind: str
    findings: tuple[Finding, ...]
    """The parts that make it more than reading, the worst first."""

    @property
    def only_looks(self) -> bool:
        """Whether it changes nothing and waits for nothing, wherever it has to run."""
        return self.kind in (READING, SETTLED)


def classify(tree: ast.Module, names: Mapping[str, Any]) -> Judgement:
    """The class of a snippet (see `rules`); never raises, and runs nothing.

    `names`: the objects that the names in it refer to; it must then run with these very objects."""
    judged, error = capture(lambda: _Guard(tree, names).judge(tree))
    if error is None and isinstance(judged, Judgement):
        return judged
    why = f"could not be judged ({type(error).__name__})"
    return Judgement(CHANGING, (Finding(CHANGING, 1, "the snippet", why),))


class _Guard(Expressions):
    """Judges statements."""

    def judge(self, tree: ast.Module) -> Judgement:
        """Read the tree until nothing new turns up."""
        *body, last = tree.body or [ast.Pass()]
        for _ in range(_MOST_ROUNDS):
            self.again = False
            self.rebound.clear()
            self.block(body)
            if isinstance(last, ast.Expr):
                self.shown(self.value(last.value), last)
            else:
                self.block([last])
            if not self.again:
                break
        else:
            self.note(last, "could not be followed to its end")
        findings = tuple(sorted(self.found, key=lambda one: (-SEVERITY[one.kind], one.line)))
        return Judgement(findings[0].kind if findings else READING, findings)

    def block(self, body: Sequence[ast.stmt]) -> None:
        """Judge statements, one after the other."""
        for node in body:
            handler = getattr(self, "_" + type(node).__name__, None)
            if handler is not None:
                handler(node)
            elif not isinstance(node, ast.Pass | ast.Break | ast.Continue | ast.Global | ast.Nonlocal):
                self.note(node, f"`{type(node).__name__}` is not understood")

    def perhaps(self, *bodies: Sequence[ast.stmt]) -> None:
        """Judge statements that may run later, or not at all."""
        self.depth += 1
        for body in bodies:
            self.block(body)
        self.depth -= 1

    def code(self, text: str) -> None:
        """Judge text that the snippet executes."""
        tree, error = capture(lambda: ast.parse(text))
        if error is None:
            self.perhaps(tree.body)

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
        now, added = self.value(node.target), self.value(node.value)
        if not all(isinstance(one, Own | Code) or one is Some.NOTED or self.is_constant(one) for one in now):
            self.note(node, "may change something of the job in place")
        own = frozenset(one for one in now if isinstance(one, Own) and one.kind != "fresh")
        for one in own:
            self.put(one, self.iterate(added, node))
        self.bind(node.target, self.binary(node, now, added) | own)

    def _Delete(self, node: ast.Delete) -> None:
        for target in node.targets:
            for part in target.elts if isinstance(target, ast.Tuple | ast.List) else [target]:
                if isinstance(part, ast.Attribute | ast.Subscript):
                    self.bind(part, NOTHING)

    def _Return(self, node: ast.Return) -> None:
        if node.value is not None:
            self._returned(self.value(node.value))

    def _returned(self, values: Values) -> None:
        """Add values that the current function returns or yields."""
        if self.functions:
            self.put(Code(self.functions[-1]), values)

    def _Yield(self, node: ast.Yield) -> Values:
        self._returned(self.value(node.value) if node.value is not None else NUMBERS)
        return ANY

    def _YieldFrom(self, node: ast.YieldFrom) -> Values:
        self._returned(self.iterate(self.value(node.value), node, in_c=False))
        return ANY

    def _Raise(self, node: ast.Raise) -> None:
        for part in (node.exc, node.cause):
            for value in self.value(part) if part is not None else ():
                if isinstance(value, Known):
                    cls = value.thing if lookup.is_class(value.thing) else type(value.thing)
                    if lookup.derives(cls, (SystemExit,)):
                        self.note(node, "ends the process", REFUSED)
                    elif not lookup.library_class(cls):
                        self.note(node, f"makes a `{lookup.class_name(cls)}`, which is not known to be pure")
                elif not isinstance(value, Own) and value is not Some.NOTED:
                    self.note(node, "raises something that is not known here")

    def _Assert(self, node: ast.Assert) -> None:
        self.test(node.test)
        if node.msg is not None:
            self.shown(self.value(node.msg), node)

    def _Import(self, node: ast.Import) -> None:
        for alias in node.names:
            whole, top = self.load(alias.name, node), alias.name.partition(".")[0]
            self.assign(alias.asname or top, whole if alias.asname else self.load(top, node))

    def _ImportFrom(self, node: ast.ImportFrom) -> None:
        if node.level or any(alias.name == "*" for alias in node.names):
            self.note(node, "imports names that are not seen here")
            return
        module = str(node.module)
        for alias in node.names:
            dotted = f"{module}.{alias.name}"
            found = NOTHING.union(*(self.attribute(one, alias.name, node) for one in self.load(module, node)))
            if not found:
                found = known(sys.modules[dotted]) if dotted in sys.modules else frozenset({Absent(dotted)})
            self.assign(alias.asname or alias.name, found)

    # -- compound statements -----------------------------------------------------------------

    def _If(self, node: ast.If | ast.While) -> None:
        self.test(node.test)
        self.perhaps(node.body, node.orelse)

    _While = _If

    def _For(self, node: ast.For | ast.AsyncFor) -> None:
        found = self.iterate(self.value(node.iter), node.iter, in_c=False)
        self.depth += 1
        self.bind(node.target, found)
        self.depth -= 1
        self.perhaps(node.body, node.orelse)

    _AsyncFor = _For

    def _With(self, node: ast.With | ast.AsyncWith) -> None:
        for item in node.items:
            context = item.context_expr
            entered = NOTHING.union(*(self._enter(one, context) for one in self.value(context)))
            if item.optional_vars is not None:
                self.bind(item.optional_vars, entered)
        self.perhaps(node.body)

    _AsyncWith = _With

    def _enter(self, value: Value, node: ast.AST) -> Values:
        if value is Some.NOTED:
            return NOTED
        if not isinstance(value, Own):
            return self.note(node, "enters a context that is the job's, or not known here")
        if value.kind == "instance":
            for name in ("__enter__", "__exit__"):
                self.call_method(value, name, ANYTHING, node)
        return self.inside(value) | {value}

    def _Try(self, node: ast.Try) -> None:
        self.perhaps(node.body, *([ast.Expr(one.type)] for one in node.handlers if one.type is not None))
        for handler in node.handlers:
            if handler.name is not None:
                self.put(handler.name, DATA)
            self.perhaps(handler.body)
        self.perhaps(node.orelse, node.finalbody)

    _TryStar = _Try

    def _Match(self, node: ast.Match) -> None:
        subject = self.value(node.subject)
        self.touch(subject, node.subject)
        for case in node.cases:
            for part in ast.walk(case.pattern):
                self._pattern(part, subject)
            if case.guard is not None:
                self.test(case.guard)
            self.perhaps(case.body)

    def _pattern(self, part: ast.AST, subject: Values) -> None:
        if isinstance(part, ast.MatchValue):
            self.touch(self.value(part.value), part)
        elif isinstance(part, ast.MatchClass):
            self.touch(self.value(part.cls), part)
            for name in part.kwd_attrs:
                for one in subject:
                    self.attribute(one, name, part)
            if part.patterns:
                self.any_attribute(subject, part)
        elif isinstance(part, ast.MatchSequence | ast.MatchMapping):
            self.iterate(subject, part)
        bound = getattr(part, "name", None) or getattr(part, "rest", None)
        if isinstance(bound, str):
            self.put(bound, subject | ANY)

    # -- functions and classes ---------------------------------------------------------------

    def _FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self.define(node)
        if node.returns is not None:
            self.value(node.returns)
        self.functions.append(node)
        with self.inner(node.args):
            self.block(node.body)
        self.functions.pop()
        self._decorated(node)

    _AsyncFunctionDef = _FunctionDef

    def _decorated(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> None:
        found: Values = frozenset({Code(node)})
        for decorator in reversed(node.decorator_list):
            by, given = self.value(decorator), Arguments((found,))
            found = NOTHING.union(*(self.call(one, given, decorator) for one in by))
        self.assign(node.name, found)

    def _ClassDef(self, node: ast.ClassDef) -> None:
        for base in (*node.bases, *(keyword.value for keyword in node.keywords)):
            for value in self.value(base):
                cls: Any = value.thing if isinstance(value, Known) else None
                if not lookup.is_class(cls) or not lookup.library_class(cls):
                    self.note(base, "is a base class that is not known to be pure when it is derived from")
        instance = Own(node, "instance")
        self.perhaps(node.body)
        for part in node.body:
            if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef):
                special = part.name.startswith("__") and part.name not in ("__init__", "__call__")
                if part.decorator_list or (special and part.name not in _FOLLOWED):
                    self.note(part, "is a method that is called in ways that are not followed here")
                given = ANYTHING if special else Arguments()
                self.run(Code(part), given, part, frozenset({instance}))
                continue
            for one in ast.walk(part):
                if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store):
                    self.put(instance, self.get(one.id))
                    self.may_call(self.get(one.id), part, strict=one.id.startswith("__"))
        self._decorated(node)
