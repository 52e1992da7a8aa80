"""Where the value of a variable comes from: the assignment that is read, constants, terms of a sum. Pure.

Straight-line only: where two assignments may reach a use, the answer is None.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from probe.diagnose.code.program import Program
from probe.diagnose.code.syntax import (
    Function,
    Loop,
    argument,
    is_attribute,
    is_binary,
    is_method,
    is_name,
    is_negative,
    is_own,
    is_read,
    is_self,
    is_string,
    text_of,
)

DEPTH = 12
"""How many assignments a value is followed through."""


class Given(NamedTuple):
    """One assignment of a variable: `place` is that within a tuple that `value` gives, or None for all of
    it; `changed` says that the statement reads the old value too (+=)."""

    at: ast.AST
    value: ast.AST | None
    place: int | None
    changed: bool


class Trace:
    """The assignments of a program by scope and name. Make it with `trace`."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self._given: dict[tuple[ast.AST, str], list[Given]] = {}
        self._attributes: dict[tuple[ast.AST, str], list[Given]] = {}
        for node in program.everywhere(
            ast.Assign,
            ast.AnnAssign,
            ast.AugAssign,
            ast.For,
            ast.AsyncFor,
            ast.withitem,
            ast.NamedExpr,
            ast.comprehension,
        ):
            if isinstance(node, ast.Assign):
                for target in node.targets:
                    self._keep(target, node, node.value, None, changed=False)
            elif isinstance(node, (ast.AnnAssign, ast.AugAssign, ast.NamedExpr)):
                if node.value is not None:
                    self._keep(node.target, node, node.value, None, changed=isinstance(node, ast.AugAssign))
            elif isinstance(node, ast.withitem):
                if node.optional_vars is not None:
                    self._keep(node.optional_vars, node, None, None, changed=False)
            elif isinstance(node, (ast.For, ast.AsyncFor, ast.comprehension)):
                self._keep(node.target, node, None, None, changed=False)

    def _keep(
        self, target: ast.AST, at: ast.AST, value: ast.AST | None, index: int | None, *, changed: bool
    ) -> None:
        if isinstance(target, (ast.Tuple, ast.List)):
            together = (
                value
                if isinstance(value, (ast.Tuple, ast.List)) and len(value.elts) == len(target.elts)
                else None
            )
            starred = any(isinstance(one, ast.Starred) for one in target.elts)
            for number, one in enumerate(target.elts):
                if together is not None and not starred and index is None:
                    self._keep(one, at, together.elts[number], None, changed=changed)
                else:
                    known = value is not None and not starred and index is None
                    self._keep(one, at, value if known else None, number if known else None, changed=changed)
        elif isinstance(target, ast.Name):
            self._given.setdefault((self.program.scope(target), target.id), []).append(
                Given(at, value, index, changed)
            )
        elif is_own(target):
            of = self.program.class_of(target)
            if of is not None:
                self._attributes.setdefault((of, target.attr), []).append(Given(at, value, index, changed))

    def all(self, scope: ast.AST, name: str) -> list[Given]:
        """All assignments of a name in a scope."""
        return self._given.get((scope, name), [])

    def given(self, use: ast.AST) -> Given | None:
        """The one assignment that a use of a variable (or of an attribute of self that is set once) reads."""
        if isinstance(use, ast.Attribute):
            of = self.program.class_of(use)
            if of is None or not (is_self(use.value)):
                return None
            found = self._attributes.get((of, use.attr), [])
            return found[0] if len(found) == 1 else None
        if not isinstance(use, ast.Name):
            return None
        scope: ast.AST = self.program.scope(use)
        found = self._given.get((scope, use.id), [])
        if not found:
            return self._outer(scope, use.id)
        around = [use, *self.program.parents(use)]
        for one in found:
            if isinstance(one.at, ast.comprehension) and self.program.parent.get(one.at) in around:
                return one
        before = [one for one in found if _place(one.at) < _place(use) and one.at not in around]
        if not before:
            return None
        last = max(before, key=lambda one: _place(one.at))
        statement = (
            last.at if isinstance(last.at, ast.stmt) else next(iter(self.program.parents(last.at)), last.at)
        )
        block = self.program.parent.get(statement)
        while isinstance(block, (ast.With, ast.AsyncWith)) and block not in around:
            statement, block = block, self.program.parent.get(block)
        if block not in around or last.changed or not _same_list(block, statement, around):
            return None
        for loop in around:
            if loop is block:
                break
            if isinstance(loop, Loop) and any(_inside(self.program, one.at, loop) for one in found):
                return None
        return last

    def _outer(self, scope: ast.AST, name: str) -> Given | None:
        """A name that the function only reads: one of the script's, where it is assigned once."""
        if isinstance(scope, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            arguments = scope.args
            if any(
                one.arg == name for one in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
            ):
                return None
        at = scope
        while at in self.program.parent:
            at = self.program.scope(at)
            found = self._given.get((at, name), []) if not isinstance(at, ast.ClassDef) else []
            if found:
                return found[0] if len(found) == 1 else None
        return None

    def value(self, node: ast.AST, depth: int = DEPTH) -> ast.AST:
        """An expression, or what the variable that it is was last given."""
        while depth and isinstance(node, (ast.Name, ast.Attribute)):
            found = self.given(node)
            if found is None or found.value is None or found.place is not None or found.changed:
                break
            node, depth = found.value, depth - 1
        return node

    def origins(self, node: ast.AST, depth: int = DEPTH) -> Iterator[ast.AST]:
        """An expression's nodes, and those of the values that its variables were given."""
        waiting, seen = [(node, depth)], {node}
        while waiting:
            at, left = waiting.pop()
            yield at
            following: list[ast.AST] = list(ast.iter_child_nodes(at))
            if left and is_read(at):
                found = self.given(at)
                if found is not None and found.value is not None:
                    following.append(found.value)
                    left -= 1
            for one in following:
                if one not in seen and not isinstance(one, (ast.expr_context, ast.operator)):
                    seen.add(one)
                    waiting.append((one, left))

    def number(self, node: ast.AST | None, depth: int = DEPTH) -> float | None:
        """The number that an expression is: a literal, a constant of the script, the default of a parameter
        or of a command line option; None where that is not known."""
        if node is None or not depth:
            return None
        if (
            isinstance(node, ast.Constant)
            and isinstance(node.value, (int, float))
            and not isinstance(node.value, bool)
        ):
            return float(node.value)
        if is_negative(node):
            found = self.number(node.operand, depth - 1)
            return None if found is None else -found
        if isinstance(node, ast.BinOp):
            left, right = self.number(node.left, depth - 1), self.number(node.right, depth - 1)
            return None if left is None or right is None else _computed(node.op, left, right)
        if isinstance(node, ast.Call) and text_of(node.func) == "float" and len(node.args) == 1:
            inner = node.args[0]
            if is_string(inner):
                return _infinite(inner.value)
        if is_attribute(node, "inf") and self.program.dotted(node) in ("torch.inf", "math.inf", "numpy.inf"):
            return float("inf")
        if isinstance(node, (ast.Name, ast.Attribute)):
            given = self.given(node)
            if given is not None and given.value is not None and given.place is None and not given.changed:
                return self.number(given.value, depth - 1)
            if given is None:
                return self._default(node, depth - 1)
        return None

    def _default(self, node: ast.Name | ast.Attribute, depth: int) -> float | None:
        if isinstance(node, ast.Attribute):
            if is_name(node.value, "args", "opt", "flags", "config", "cfg", "hparams"):
                return self.number(_options(self.program).get(node.attr), depth)
            return None
        function = self.program.scope(node)
        if isinstance(function, Function) and not self.all(function, node.id):
            return self.number(default_of(function, node.id), depth)
        return None

    def terms(self, node: ast.AST, sign: int = 1, depth: int = DEPTH) -> Iterator[tuple[int, ast.AST]]:
        """What an expression adds up, with signs: through sums, factors that are known, means, and variables;
        a term whose sign is not known has the sign 0."""
        if is_binary(node, ast.Add, ast.Sub):
            yield from self.terms(node.left, sign, depth)
            yield from self.terms(node.right, -sign if isinstance(node.op, ast.Sub) else sign, depth)
        elif is_negative(node):
            yield from self.terms(node.operand, -sign, depth)
        elif is_binary(node, ast.Mult, ast.Div):
            yield from self._scaled(node, sign, depth)
        elif isinstance(node, ast.Call) and (inside := mean_of(self.program, node)) is not None:
            yield from self.terms(inside, sign, depth)
        elif depth and isinstance(node, ast.Name):
            yield from self._of_name(node, sign, depth)
        else:
            yield sign, node

    def _scaled(self, node: ast.BinOp, sign: int, depth: int) -> Iterator[tuple[int, ast.AST]]:
        factor, rest = (node.left, node.right) if self._positive(node.left) else (node.right, node.left)
        known = self._positive(factor)
        if not known or (isinstance(node.op, ast.Div) and factor is node.left):
            yield sign, node
            return
        yield from self.terms(rest, sign * known, depth)

    def _of_name(self, node: ast.Name, sign: int, depth: int) -> Iterator[tuple[int, ast.AST]]:
        found = self.given(node)
        if found is not None and found.value is not None and found.place is None and not found.changed:
            yield from self.terms(found.value, sign, depth - 1)
            return
        yield sign, node
        block = [one for one in self.all(self.program.scope(node), node.id) if _place(one.at) < _place(node)]
        for one in block:  # a sum that is built by += and -=
            if (
                one.changed
                and isinstance(one.at, ast.AugAssign)
                and isinstance(one.at.op, (ast.Add, ast.Sub))
                and one.value is not None
            ):
                yield from self.terms(one.value, -sign if isinstance(one.at.op, ast.Sub) else sign, depth - 1)
            elif not one.changed and one.value is not None and one.place is None and one is block[0]:
                yield from self.terms(one.value, sign, depth - 1)

    def _positive(self, node: ast.AST) -> int:
        """1 or -1: the sign of a factor; 0 where it is not a plain number."""
        found = self.number(node)
        if found is not None:
            return 1 if found > 0 else -1 if found < 0 else 0
        if is_negative(node):
            return -self._positive(node.operand)
        if isinstance(node, ast.Call) and text_of(node.func) == "len":
            return 1
        if is_method(node, "size", "numel"):
            return 1
        if isinstance(node, ast.Subscript) and is_attribute(node.value, "shape"):
            return 1
        name = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
        plain = any(
            word in name.lower()
            for word in ("coef", "weight", "beta", "alpha", "lambda", "lambd", "scale", "batch_size")
        )
        return 1 if plain and self.program.family(node) not in ("tensor", "module") else 0


def mean_of(program: Program, call: ast.Call) -> ast.AST | None:
    """What a mean or sum is taken of: `x.mean()`, `torch.sum(x, 1)`."""
    if is_method(call, "mean", "sum", "squeeze", "unsqueeze", "float", "div"):
        name = program.dotted(call.func)
        if name in ("torch.mean", "torch.sum", "numpy.mean", "numpy.sum"):
            return call.args[0] if call.args else None
        return call.func.value if name is None else None
    return None


def default_of(function: Function, name: str) -> ast.AST | None:
    """The default of a parameter."""
    arguments = function.args
    plain = [*arguments.posonlyargs, *arguments.args]
    for one, default in zip(reversed(plain), reversed(arguments.defaults), strict=False):
        if one.arg == name:
            return default
    for one, value in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=False):
        if one.arg == name:
            return value
    return None


@lru_cache(maxsize=1)
def trace(program: Program) -> Trace:
    """The assignments of a program."""
    return Trace(program)


@lru_cache(maxsize=1)
def _options(program: Program) -> dict[str, ast.AST]:
    """Defaults of command line options, and of fields of classes: where a name has one default."""
    found: dict[str, list[ast.AST]] = {}
    for call in program.calls():
        if is_method(call, "add_argument"):
            default = argument(call, "default")
            for one in call.args:
                if is_string(one) and default is not None:
                    found.setdefault(one.value.lstrip("-").replace("-", "_"), []).append(default)
    for node in program.everywhere(ast.AnnAssign):
        if (
            isinstance(node.target, ast.Name)
            and node.value is not None
            and isinstance(program.parent.get(node), ast.ClassDef)
        ):
            found.setdefault(node.target.id, []).append(node.value)
    return {name: values[0] for name, values in found.items() if len(values) == 1}


def _computed(operator: ast.operator, left: float, right: float) -> float | None:
    if isinstance(operator, ast.Add):
        return left + right
    if isinstance(operator, ast.Sub):
        return left - right
    if isinstance(operator, ast.Mult):
        return left * right
    if isinstance(operator, ast.Div) and right:
        return left / right
    if isinstance(operator, ast.Pow) and left > 0 and abs(right) < 100:
        return float(left**right) if abs(left) < 1000 else None
    return None


def _infinite(text: str) -> float | None:
    return {
        "inf": float("inf"),
        "-inf": float("-inf"),
        "infinity": float("inf"),
        "-infinity": float("-inf"),
    }.get(text.lower())


def _place(node: ast.AST) -> tuple[int, int]:
    if isinstance(node, ast.withitem):
        node = node.context_expr
    elif isinstance(node, ast.comprehension):
        node = node.target
    return getattr(node, "lineno", 0), getattr(node, "col_offset", 0)


def _same_list(block: ast.AST | None, statement: ast.AST, around: list[ast.AST]) -> bool:
    """Whether a statement stands in the same branch of a block as what is around the use."""
    for name in ("body", "orelse", "finalbody", "handlers"):
        found = getattr(block, name, None)
        if isinstance(found, list) and statement in found:
            return any(one in found for one in around)
    return isinstance(block, (ast.With, ast.AsyncWith))


def _inside(program: Program, node: ast.AST, outer: ast.AST) -> bool:
    return any(one is outer for one in program.parents(node))
