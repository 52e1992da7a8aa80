"""What a node of a syntax tree is, by itself: calls, names, constants, and their text. Pure.

A function that ends in a TypeGuard tells the type checker what it has found.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator
from functools import lru_cache
from typing import TypeGuard, TypeVar

Function = ast.FunctionDef | ast.AsyncFunctionDef
Scope = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
Loop = ast.For | ast.While
Node = TypeVar("Node", bound=ast.AST)
LONGEST_CONSTANT = 12
"""Characters of a constant that a remark may show."""
ORDERS = (ast.Lt, ast.LtE, ast.Gt, ast.GtE)
"""The comparisons that ask which of two is larger."""
_WRAPPERS = frozenset({"enumerate", "tqdm", "trange", "islice", "track", "iter", "list", "notebook_tqdm"})


class MethodCall(ast.Call):
    """A call of an attribute: `x.f()`."""

    func: ast.Attribute


class PlainCall(ast.Call):
    """A call of a name: `f()`."""

    func: ast.Name


class String(ast.Constant):
    """A str that is written out."""

    value: str


@lru_cache(maxsize=1 << 14)
def walk(node: ast.AST) -> tuple[ast.AST, ...]:
    """A node and all below it, as `ast.walk` gives them. Rules ask for the same nodes again and again."""
    return tuple(ast.walk(node))


# Calls and their arguments --------------------------------------------------


def is_method(node: object, *names: str) -> TypeGuard[MethodCall]:
    """Whether a node calls a method, or a function of a module, of one of these names (none: of any)."""
    return isinstance(node, ast.Call) and is_attribute(node.func, *names)


def is_call(node: object, *names: str) -> TypeGuard[PlainCall]:
    """Whether a node calls a function by one of these names alone."""
    return isinstance(node, ast.Call) and is_name(node.func, *names)


def argument(call: ast.Call, name: str, place: int | None = None) -> ast.expr | None:
    """An argument of a call, by its name or its place; None where none is given or a star hides it."""
    for one in call.keywords:
        if one.arg == name:
            return one.value
    if place is None or place >= len(call.args):
        return None
    return None if any(isinstance(one, ast.Starred) for one in call.args[: place + 1]) else call.args[place]


def parameters(function: Function | ast.Lambda) -> list[ast.arg]:
    """The parameters of a function, without those that take all the rest."""
    return [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]


def entry_of(node: object, key: str) -> ast.expr | None:
    """The value of one key of a dict that is written out, with braces or by dict()."""
    if is_call(node, "dict"):
        return argument(node, key)
    found = zip(node.keys, node.values, strict=True) if isinstance(node, ast.Dict) else ()
    return next((value for one, value in found if is_string(one) and one.value == key), None)


# Names and attributes -------------------------------------------------------


def is_name(node: object, *names: str) -> TypeGuard[ast.Name]:
    """Whether a node is one of these names (any name: none given)."""
    return isinstance(node, ast.Name) and (not names or node.id in names)


def is_read(node: object, *names: str) -> TypeGuard[ast.Name]:
    """Whether a node reads a variable (of one of these names)."""
    return is_name(node, *names) and isinstance(node.ctx, ast.Load)


def is_set(node: object, *names: str) -> TypeGuard[ast.Name]:
    """Whether a node gives a variable (of one of these names) a value."""
    return is_name(node, *names) and isinstance(node.ctx, ast.Store)


def is_attribute(node: object, *names: str) -> TypeGuard[ast.Attribute]:
    """Whether a node is an attribute of one of these names (of any: none given)."""
    return isinstance(node, ast.Attribute) and (not names or node.attr in names)


def is_self(node: object) -> bool:
    """Whether an expression is the object that a method is called on."""
    return is_name(node, "self")


def is_own(node: object) -> TypeGuard[ast.Attribute]:
    """Whether an expression is an attribute of self."""
    return isinstance(node, ast.Attribute) and is_self(node.value)


def last_word(node: object) -> str:
    """The name of a variable, or of an attribute of whatever object; empty for all else."""
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def names_of(node: ast.AST | None) -> set[str]:
    """The names of variables in an expression or statement."""
    return {one.id for one in walk(node) if isinstance(one, ast.Name)} if node is not None else set()


def names_read(node: ast.AST) -> set[str]:
    """The names that an expression or statement reads."""
    return {one.id for one in walk(node) if is_read(one)}


def names_set(node: ast.AST) -> set[str]:
    """The names that a statement gives a value."""
    return {one.id for one in walk(node) if is_set(one)}


def mentions(node: ast.AST, *names: str) -> bool:
    """Whether an attribute of one of these names stands anywhere in a node."""
    return any(is_attribute(one, *names) for one in walk(node))


def without_data(node: ast.AST) -> ast.AST:
    """`x` of `x.data`."""
    while is_attribute(node, "data"):
        node = node.value
    return node


# Constants and operators ----------------------------------------------------


def is_true(node: object) -> bool:
    """Whether a node is the constant True."""
    return isinstance(node, ast.Constant) and node.value is True


def is_false(node: object) -> bool:
    """Whether a node is the constant False."""
    return isinstance(node, ast.Constant) and node.value is False


def is_nothing(node: object) -> bool:
    """Whether a node is the constant None."""
    return isinstance(node, ast.Constant) and node.value is None


def is_string(node: object) -> TypeGuard[String]:
    """Whether a node is a str that is written out."""
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def number_in(node: object) -> float | None:
    """The number that a constant is."""
    if isinstance(node, ast.Constant) and isinstance(node.value, (int, float)):
        return None if isinstance(node.value, bool) else node.value
    return None


def is_binary(node: object, *operators: type[ast.operator]) -> TypeGuard[ast.BinOp]:
    """Whether a node joins two values by one of these operators."""
    return isinstance(node, ast.BinOp) and isinstance(node.op, operators)


def is_negative(node: object) -> TypeGuard[ast.UnaryOp]:
    """Whether a node is `-x`."""
    return isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub)


def compares(node: object, *operators: type[ast.cmpop]) -> TypeGuard[ast.Compare]:
    """Whether a node compares two values by one of these operators."""
    return isinstance(node, ast.Compare) and len(node.ops) == 1 and isinstance(node.ops[0], operators)


# Text -----------------------------------------------------------------------


class _Shortened(ast.NodeTransformer):
    """Replaces constants that are longer than a few characters."""

    def visit_Constant(self, node: ast.Constant) -> ast.Constant:
        if not _is_long(node):
            return node
        return ast.Constant("…" if isinstance(node.value, str) else ...)


def _is_long(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and len(repr(node.value)) > LONGEST_CONSTANT


def text_of(node: ast.AST) -> str:
    """An expression as the program writes it, on one line. Its long constants may be secrets: left out."""
    if any(map(_is_long, walk(node))):
        node = _Shortened().visit(copy.deepcopy(node))
    return ast.unparse(node)


def short(node: ast.AST, longest: int = 60) -> str:
    """An expression as the program writes it, cut where it is too long for a sentence."""
    text = text_of(node.target if isinstance(node, (ast.For, ast.AsyncFor)) else node).partition("\n")[0]
    return text if len(text) <= longest else f"{text[: longest - 3]}..."


# Statements -----------------------------------------------------------------


@lru_cache(maxsize=1 << 14)
def own_nodes(scope: ast.AST) -> tuple[ast.AST, ...]:
    """The nodes of a function or module without those of functions and classes inside it, in order of the
    text."""
    waiting = list(ast.iter_child_nodes(scope))[::-1]
    found = []
    while waiting:
        node = waiting.pop()
        found.append(node)
        if not isinstance(node, Scope):
            waiting += list(ast.iter_child_nodes(node))[::-1]
    return tuple(found)


def own(scope: ast.AST, *types: type[Node]) -> Iterator[Node]:
    """The nodes of these types that are a scope's own."""
    return (node for node in own_nodes(scope) if isinstance(node, types))


def returned(function: Function) -> list[ast.expr | None]:
    """What the return statements of a function give."""
    return [node.value for node in own(function, ast.Return)]


def blocks(scope: ast.AST) -> Iterator[list[ast.stmt]]:
    """The lists of statements that run one after the other: bodies of functions, loops, branches."""
    for node in walk(scope):
        yield from blocks_of(node)


def blocks_of(node: ast.AST | None) -> Iterator[list[ast.stmt]]:
    """The lists of statements that a node itself has."""
    for name in ("body", "orelse", "finalbody"):
        found = getattr(node, name, None)
        if isinstance(found, list) and found and isinstance(found[0], ast.stmt):
            yield found


def operands(node: ast.BinOp) -> tuple[tuple[ast.expr, ast.expr], tuple[ast.expr, ast.expr]]:
    """Both sides of an operation, each with the other one."""
    return (node.left, node.right), (node.right, node.left)


def says(node: ast.AST, *words: str) -> bool:
    """Whether one of these words stands in the text of an expression, in capitals or not."""
    text = text_of(node).lower()
    return any(word in text for word in words)


def pairs_of(node: ast.Assign) -> Iterator[tuple[ast.expr, ast.expr]]:
    """What an assignment sets, each with its value: `a, b = x, y` sets two."""
    for target in node.targets:
        values = node.value.elts if isinstance(node.value, ast.Tuple) else []
        if isinstance(target, ast.Tuple) and len(target.elts) == len(values):
            yield from zip(target.elts, values, strict=True)
        else:
            yield target, node.value


def reads(node: ast.AST, name: str) -> bool:
    """Whether a statement or expression reads a variable (an augmented assignment does)."""
    for one in walk(node):
        if is_name(one, name) and isinstance(one.ctx, (ast.Load, ast.Del)):
            return True
        if isinstance(one, ast.AugAssign) and is_name(one.target, name):
            return True
        if isinstance(one, (ast.Global, ast.Nonlocal)) and name in one.names:
            return True
    return False


def iterated(loop: ast.For | ast.AsyncFor) -> ast.expr:
    """What a loop goes over, without enumerate, tqdm and the like."""
    at = loop.iter
    while isinstance(at, ast.Call) and at.args and last_word(at.func) in _WRAPPERS:
        at = at.args[0]
    return at
