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
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from probe.base.isolation import capture
from probe.job.snippets.guard import lookup
from probe.job.snippets.guard.attributes import Finding
from probe.job.snippets.guard.calls import Arguments
from probe.job.snippets.guard.expressions import Expressions, bound_by, names_in
from probe.job.snippets.guard.rules import BLOCKING, CHANGING, COLLECTIVE, READING, REFUSED, SETTLED, SEVERITY
from probe.job.snippets.guard.tracked import OWN, Kind, Known, Value

__all__ = (
    "BLOCKING",
    "CHANGING",
    "COLLECTIVE",
    "READING",
    "REFUSED",
    "SETTLED",
    "Finding",
    "Judgement",
    "classify",
)
_MOST_ROUNDS = 6


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


class _Reader(Expressions):
    """Reads a tree from top to bottom."""

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
        self.bind(
            node.target, Kind.DATA if part is Kind.FRESH and names_in(node.target) & set(self.names) else part
        )
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
                bound = getattr(part, "name", None)
                if bound is not None:
                    self.assign(bound, self.unseen(subject, node.subject), node.subject)
            self._If(ast.If(case.guard or ast.Constant(True), case.body, []))

    def _FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        value: Value = Kind.FUNCTION
        for decorator in reversed(node.decorator_list):
            by = self.value(decorator)
            value = value if by is Kind.WRAPPER else self.call(by, Arguments((value,)), decorator)
        self.assign(node.name, value, node)
        self._function(node)

    _AsyncFunctionDef = _FunctionDef

    def _ClassDef(self, node: ast.ClassDef) -> None:
        self.note(node, "makes a class")
        self.block([*node.bases, *node.keywords, *node.decorator_list, *node.body])

    def code(self, text: str) -> None:
        tree, error = capture(lambda: ast.parse(text))
        if error is None:
            for part in ast.walk(tree):
                self._bound.update({name: 1 for name in bound_by(part) if name not in self._bound})
            self.block(tree.body)


_ONLY_PARTS = (
    ast.Pass,
    ast.Break,
    ast.Continue,
    ast.Global,
    ast.Nonlocal,
    ast.Expr,
    ast.keyword,
    ast.expr_context,
    ast.operator,
)
