"""Where values come from, and what loops, loaders and predictions are: what the rules on data share.

Flow is read by lines: a name has the value that the last line before gave it, unless that line stands in a
branch that the reader is not in; then it is unknown. Pure; standard library only.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from probe.diagnose.code.program import Program
from probe.diagnose.code.syntax import (
    Function,
    argument,
    is_attribute,
    is_method,
    is_negative,
    is_own,
    is_read,
    is_self,
)

Key = tuple[ast.AST, str]
DEEPEST = 12
"""How many names a value is followed through."""
SHAPES = frozenset(
    {
        "squeeze",
        "unsqueeze",
        "view",
        "reshape",
        "flatten",
        "detach",
        "cpu",
        "cuda",
        "to",
        "float",
        "double",
        "contiguous",
        "clone",
        "numpy",
        "tolist",
        "ravel",
        "view_as",
        "type_as",
        "requires_grad_",
        "long",
        "int",
    }
)
"""Methods that leave the values of a tensor as they are, but for its shape, type or place."""
_WRAPPERS = frozenset({"enumerate", "tqdm", "trange", "islice", "track", "iter", "list", "notebook_tqdm"})
_OF_MODELS = frozenset({"parameters", "eval", "train", "named_parameters"})
LOADER = "torch.utils.data.DataLoader"


class Binding(NamedTuple):
    """One place that gives a name its value: `value` is None where it is no expression of the program,
    `place` counts the element of a tuple that the name takes."""

    node: ast.AST
    line: int
    value: ast.expr | None
    place: int | None
    how: str


class Known:
    """What names stand for in one program."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.bound: dict[Key, list[Binding]] = {}
        self.uses: dict[Key, list[ast.AST]] = {}
        self.calls_of: dict[Function, list[ast.Call]] = {}
        self.models: set[str] = set()
        for source in program.sources:
            for node in ast.walk(source.tree):
                self._read(node)
        for found in self.bound.values():
            found.sort(key=lambda one: one.line)
        for call in program.calls():
            local = program.local_function(call)
            if local is None and (name := program.dotted(call.func)) in program.classes:
                local = program.method(program.classes[str(name)][0], "__init__")
            if local is not None:
                self.calls_of.setdefault(local, []).append(call)

    def _read(self, node: ast.AST) -> None:
        if isinstance(node, ast.Assign):
            for target in node.targets:
                self._bind(target, node, node.value, None, "assign")
        elif (isinstance(node, ast.AnnAssign) and node.value is not None) or isinstance(node, ast.NamedExpr):
            self._bind(node.target, node, node.value, None, "assign")
        elif isinstance(node, ast.AugAssign):
            self._bind(node.target, node, None, None, "add")
        elif isinstance(node, (ast.For, ast.AsyncFor)):
            self._bind(node.target, node, node.iter, None, "for")
        elif isinstance(node, ast.comprehension):
            self._bind(node.target, node.iter, node.iter, None, "for")
        elif isinstance(node, ast.withitem) and node.optional_vars is not None:
            self._bind(node.optional_vars, node.context_expr, None, None, "with")
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            for one in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs):
                self.bound.setdefault((node, one.arg), []).append(
                    Binding(one, node.lineno, None, None, "parameter")
                )
        elif is_read(node):
            self.uses.setdefault((self.program.scope(node), node.id), []).append(node)
        elif isinstance(node, ast.Call) and not node.args and is_method(node, *_OF_MODELS):
            self.models.add(ast.unparse(node.func.value))

    def _bind(
        self, target: ast.AST, node: ast.AST, value: ast.expr | None, place: int | None, how: str
    ) -> None:
        if isinstance(target, (ast.Tuple, ast.List)):
            for number, one in enumerate(target.elts):
                direct = (
                    value.elts[number]
                    if isinstance(value, ast.Tuple) and len(value.elts) == len(target.elts)
                    else None
                )
                if how == "assign" and direct is not None:
                    self._bind(one, node, direct, None, how)
                else:
                    self._bind(one, node, value, number if place is None else None, how)
        elif (key := self.key(target)) is not None:
            self.bound.setdefault(key, []).append(
                Binding(node, getattr(node, "lineno", 0), value, place, how)
            )

    def key(self, node: ast.AST) -> Key | None:
        """What a name or an attribute of self is kept under: the scope that binds it, and its text."""
        if is_own(node):
            of = self.program.class_of(node)
            return None if of is None else (of, f"self.{node.attr}")
        if not isinstance(node, ast.Name):
            return None
        at: ast.AST = self.program.scope(node)
        if isinstance(node.ctx, ast.Store):
            return at, node.id
        first = at
        while True:
            if (at, node.id) in self.bound and (at is first or not isinstance(at, ast.ClassDef)):
                return at, node.id
            if isinstance(at, ast.Module):
                return None
            at = self.program.scope(at)

    def last(self, node: ast.AST) -> Binding | None:
        """The binding that a use of a name reads; None where more than one may be it."""
        key = self.key(node)
        if key is None:
            return None
        found = self.bound.get(key, [])
        if isinstance(key[0], ast.ClassDef) or key[0] is not self.program.scope(node):
            return found[0] if len(found) == 1 else None
        line = getattr(node, "lineno", 0)
        around = {node, *self.program.parents(node)}
        before = [
            one
            for one in found
            if one.line <= line and not (one.node in around and one.how in ("assign", "add"))
        ]
        if not before:
            return found[0] if len(found) == 1 else None
        one = before[-1]
        for outer in self.program.parents(one.node):
            if outer is key[0]:
                break
            if isinstance(outer, (ast.If, ast.Try, ast.IfExp)) and outer not in around:
                return None
        return one

    def value(self, node: ast.AST | None) -> ast.expr | None:
        """The expression that a name stands for, followed through names and parameters of functions that are
        called once; the node itself where it is no name; None where it is unknown."""
        at = node
        for _ in range(DEEPEST):
            if not isinstance(at, ast.expr):
                return None
            if not (isinstance(at, ast.Name) or self.key(at) is not None):
                return at
            one = self.last(at)
            if one is None:
                return at if isinstance(at, ast.Attribute) else None
            if one.how == "parameter":
                given = self.given(one.node)
                at = given[0] if len(given) == 1 else None
            elif one.how == "assign" and one.place is None:
                at = one.value
            else:
                return None
        return None

    def given(self, parameter: ast.AST) -> list[ast.expr]:
        """What the calls of a function give to one of its parameters."""
        function = self.program.parent.get(self.program.parent.get(parameter, parameter))
        if not isinstance(function, Function) or not isinstance(parameter, ast.arg):
            return []
        names = [one.arg for one in (*function.args.posonlyargs, *function.args.args)]
        if isinstance(self.program.parent.get(function), ast.ClassDef):
            names = names[1:]
        found: list[ast.expr] = []
        for call in self.calls_of.get(function, []):
            value = argument(call, parameter.arg)
            if value is None and parameter.arg in names and names.index(parameter.arg) < len(call.args):
                value = call.args[names.index(parameter.arg)]
            if value is None or isinstance(value, ast.Starred):
                continue
            found.append(value)
        return found

    def values(self, node: ast.AST | None, deep: int = 4) -> list[ast.expr]:
        """All expressions that a name may stand for, over all calls of the function around it."""
        if not isinstance(node, ast.expr):
            return []
        if self.key(node) is None:
            return [node]
        one = self.last(node)
        if one is None or deep == 0:
            return []
        if one.how == "parameter":
            return [value for given in self.given(one.node) for value in self.values(given, deep - 1)]
        return self.values(one.value, deep - 1) if one.how == "assign" and one.place is None else []

    def number(self, node: ast.AST | None) -> float | None:
        """A number that is written in the program, through names."""
        value = self.value(node)
        if is_negative(value):
            inner = self.number(value.operand)
            return None if inner is None else -inner
        if (
            isinstance(value, ast.Constant)
            and isinstance(value.value, (int, float))
            and not isinstance(value.value, bool)
        ):
            return value.value
        return None

    def called(self, node: ast.AST | None) -> str:
        """The full name of what a call runs; empty for anything else."""
        return self.program.called(node) if isinstance(node, ast.Call) else ""

    # Models, outputs, loops ----------------------------------------------------

    def is_model(self, node: ast.AST) -> bool:
        """Whether an expression is a network: by its kind, or as its parameters or mode are asked for."""
        if is_self(node):
            of = self.program.class_of(node)
            return of is not None and self.program.is_module_class(of)
        family = self.program.family(node)
        return family == "module" or (
            family is None
            and isinstance(node, (ast.Name, ast.Attribute))
            and ast.unparse(node) in self.models
        )

    def output(self, node: ast.AST | None) -> ast.Call | None:
        """The call of a network that an expression is the result of, but for its shape, type and place."""
        at = node
        for _ in range(DEEPEST):
            while is_method(at, *SHAPES):
                at = _inside(self.program, at)
            if is_attribute(at, "data"):
                at = at.value
                continue
            if isinstance(at, ast.Call):
                if (
                    not self.is_model(at.func)
                    or self.program.family(at.func) == "loss"
                    or _is_activation(self, at.func)
                ):
                    return None
                return at
            if not isinstance(at, ast.expr) or self.key(at) is None:
                return None
            one = self.last(at)
            if one is None or one.how != "assign" or one.place is not None:
                return None
            at = one.value
        return None

    def steps_to(self, node: ast.AST | None) -> list[ast.expr]:
        """The expressions that a value passes, from the use back to where it is made."""
        passed: list[ast.expr] = []
        at = node
        for _ in range(3 * DEEPEST):
            if not isinstance(at, ast.expr):
                break
            passed.append(at)
            if is_method(at, *SHAPES):
                at = _inside(self.program, at)
            elif is_attribute(at, "data"):
                at = at.value
            elif (
                self.key(at) is not None
                and (one := self.last(at)) is not None
                and one.how == "assign"
                and one.place is None
            ):
                at = one.value
            else:
                break
        return passed

    def iterated(self, loop: ast.For | ast.AsyncFor) -> ast.expr:
        """What a loop goes over, without enumerate, tqdm and the like."""
        at = loop.iter
        while isinstance(at, ast.Call) and at.args:
            func = at.func
            name = (
                func.id
                if isinstance(func, ast.Name)
                else func.attr
                if isinstance(func, ast.Attribute)
                else ""
            )
            if name not in _WRAPPERS:
                break
            at = at.args[0]
        return at

    def loaders(self, node: ast.AST | None) -> list[ast.Call]:
        """The DataLoaders that an expression may be."""
        found = self.values(node)
        return [one for one in found if isinstance(one, ast.Call) and self.called(one) == LOADER]

    def is_loader(self, node: ast.AST) -> bool:
        """Whether an expression is a DataLoader."""
        return self.program.family(node) == "loader" or bool(self.loaders(node))

    def loader_loops(self) -> Iterator[ast.For]:
        """All loops over a DataLoader."""
        for node in self.program.everywhere(ast.For):
            assert isinstance(node, ast.For)
            if self.is_loader(self.iterated(node)):
                yield node

    def trains(self, node: ast.AST, deep: int = 2) -> bool:
        """Whether a backward runs inside a node, or in a function of the program that it calls."""
        for one in ast.walk(node):
            if is_method(one, "backward", "manual_backward"):
                return True
            if deep and isinstance(one, ast.Call):
                local = self.program.local_function(one)
                if local is not None and self.trains(local, deep - 1):
                    return True
        return False


def _inside(program: Program, call: ast.Call) -> ast.expr | None:
    """What a method or function of a tensor is applied to."""
    if program.dotted(call.func) is not None and call.args:
        return call.args[0]
    return call.func.value if is_method(call) else None


def _is_activation(known: Known, func: ast.AST) -> bool:
    kind = known.program.kind(func)
    return kind is not None and kind.name.rpartition(".")[2] in ("Sigmoid", "Softmax", "LogSoftmax", "Tanh")


@lru_cache(maxsize=1)
def known(program: Program) -> Known:
    """What names stand for in a program, read once for all rules."""
    return Known(program)


def scopes(program: Program) -> Iterator[ast.AST]:
    """All modules and functions."""
    yield from program.everywhere(ast.Module, ast.FunctionDef, ast.AsyncFunctionDef)
