"""Stores that are written in a circle, many rows at a time. Pure; standard library only."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Remark
from probe.diagnose.code.syntax import (
    argument,
    is_binary,
    is_call,
    is_method,
    is_name,
    number_in,
    own,
    short,
    text_of,
)

_PLAIN = ("item", "int", "long", "tolist", "clone", "cpu")


def moved_by_one(program: Program) -> Iterator[Remark]:
    """Many rows are written into a store from a place on, in a circle, and the place moves on by one."""
    for scope in program.scopes():
        moves = [found for one in own(scope, ast.Assign, ast.AugAssign) if (found := _moved(program, one)) is not None]
        for move, place, turns in moves:
            begun = [(node, width) for node, width in _written(program, scope, place) if _runs_with(program, node, move)]
            if begun and (turns or _turns_back(program, scope, place, [node for node, _ in begun])) and not _moves_on(scope, place, move):
                node, width = begun[0]
                yield Remark(move, f"{short(move)} moves the place on by 1, and {short(node)} (line {node.lineno}) writes {width} rows from there: the next batch is written over all of them but the first")
                return


def _place(program: Program, node: ast.AST) -> str:
    """The variable that an expression is, without what makes a number of it, and through one other name."""
    for _ in range(6):
        if isinstance(node, ast.Call) and is_call(node, "int", "float") and node.args:
            node = node.args[0]
        elif is_method(node, *_PLAIN) and not node.args:
            node = node.func.value
        elif isinstance(node, ast.Subscript) and number_in(node.slice) == 0:
            node = node.value
        elif isinstance(node, ast.Name):
            given = [one for one in own(program.frame(node), ast.Assign) if len(one.targets) == 1 and is_name(one.targets[0], node.id)]
            if len(given) != 1 or given[0].lineno > node.lineno or not isinstance(given[0].value, ast.Call | ast.Attribute | ast.Subscript) or not _is_place(given[0].value):
                break
            node = given[0].value
        else:
            break
    return text_of(node)


def _is_place(node: ast.AST) -> bool:
    """Whether an expression is a variable that is kept, or the number in it."""
    if isinstance(node, ast.Call) and is_call(node, "int") and node.args:
        return _is_place(node.args[0])
    if is_method(node, *_PLAIN) and not node.args:
        return _is_place(node.func.value)
    return isinstance(node, ast.Attribute | ast.Subscript) and not any(isinstance(one, ast.Call) or (isinstance(one, ast.Attribute) and one.attr in ("shape", "size")) for one in ast.walk(node))


def _moved(program: Program, node: ast.stmt) -> tuple[ast.stmt, str, bool] | None:
    """Where a place is moved on by 1: the statement, the place, and whether it begins again at the end of the store."""
    if isinstance(node, ast.AugAssign):
        return (node, _place(program, node.target), False) if isinstance(node.op, ast.Add) and number_in(node.value) == 1 else None
    if not isinstance(node, ast.Assign):
        return None
    value, turns = node.value, False
    if is_binary(value, ast.Mod):
        value, turns = value.left, True
    if len(node.targets) != 1 or not is_binary(value, ast.Add):
        return None
    target = node.targets[0]
    place = text_of(target.value if isinstance(target, ast.Subscript) and number_in(target.slice) == 0 else target)
    sides = [(value.left, value.right), (value.right, value.left)]
    return (node, place, turns) if any(number_in(one) == 1 and place in (_place(program, other), text_of(other)) for other, one in sides) else None


def _written(program: Program, scope: ast.AST, place: str) -> Iterator[tuple[ast.stmt, str]]:
    """Where several rows are written from a place on: the statement, and how many they are."""
    for node in own(scope, ast.Subscript):
        statement = program.statement(node)
        stored = isinstance(node.ctx, ast.Store) and isinstance(statement, ast.Assign)
        copied = isinstance(statement, ast.Expr) and is_method(statement.value, "copy_") and statement.value.func.value is node
        if not isinstance(statement, ast.stmt) or not (stored or copied):
            continue
        for one in node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]:
            width = _width(program, scope, one, place)
            if width is not None and number_in(width) != 1:
                yield statement, text_of(width)


def _width(program: Program, scope: ast.AST, index: ast.expr, place: str) -> ast.expr | None:
    """How many rows an index takes from a place on: `p:p + n`, `(arange(n) + p) % size`, `arange(p, p + n)`."""
    if isinstance(index, ast.Name):
        given = [one.value for one in own(scope, ast.Assign) if len(one.targets) == 1 and is_name(one.targets[0], index.id)]
        index = given[0] if len(given) == 1 else index
    if isinstance(index, ast.Slice):
        return _behind(program, index.lower, index.upper, place)
    if is_binary(index, ast.Mod):
        index = index.left
    if is_binary(index, ast.Add):
        for one, other in ((index.left, index.right), (index.right, index.left)):
            if _place(program, other) == place and _is_range(one) and isinstance(one, ast.Call) and len(one.args) == 1:
                return one.args[0]
    if _is_range(index) and isinstance(index, ast.Call) and len(index.args) == 2:
        return _behind(program, index.args[0], index.args[1], place)
    return None


def _is_range(node: ast.AST) -> bool:
    return is_method(node, "arange") or is_call(node, "arange", "range")


def _behind(program: Program, lower: ast.expr | None, upper: ast.expr | None, place: str) -> ast.expr | None:
    """n of the bounds p and p + n."""
    if lower is None or upper is None or _place(program, lower) != place:
        return None
    if isinstance(upper, ast.Name):
        given = [one.value for one in own(program.frame(upper), ast.Assign) if len(one.targets) == 1 and is_name(one.targets[0], upper.id)]
        upper = given[0] if len(given) == 1 else upper
    if not is_binary(upper, ast.Add):
        return None
    return next((one for other, one in ((upper.left, upper.right), (upper.right, upper.left)) if _place(program, other) == place), None)


def _runs_with(program: Program, node: ast.stmt, move: ast.stmt) -> bool:
    """Whether a place is moved once for each time that rows are written: in the same loops."""
    around = program.loops(node)
    return all(any(one is other for other in around) for one in program.loops(move))


def _turns_back(program: Program, scope: ast.AST, place: str, written: list[ast.stmt]) -> bool:
    """Whether a place begins again at 0, or the rows that are written are counted in a circle."""
    for one in own(scope, ast.Assign):
        if number_in(one.value) == 0 and any(_place(program, target) == place for target in one.targets):
            return True
    for call in own(scope, ast.Call):
        if is_method(call, "zero_", "fill_") and _place(program, call.func.value) == place and (not call.args or number_in(argument(call, "value", 0)) == 0):
            return True
    names = {name.id for one in written for name in ast.walk(one) if isinstance(name, ast.Name)}
    indices = [*written, *(one for one in own(scope, ast.Assign) if any(is_name(target, *names) for target in one.targets))] if names else written
    return any(is_binary(node, ast.Mod) and any(_place(program, part) == place for part in ast.walk(node) if isinstance(part, ast.expr)) for one in indices for node in ast.walk(one))


def _moves_on(scope: ast.AST, place: str, move: ast.AST) -> bool:
    """Whether a scope also moves a place by more than 1."""
    for one in own(scope, ast.AugAssign):
        if one is not move and text_of(one.target).removesuffix("[0]") == place:
            return True
    for each in own(scope, ast.Assign):
        if each is not move and text_of(each.targets[0]).removesuffix("[0]") == place and any(is_binary(node, ast.Add) for node in ast.walk(each.value)):
            return True
    return False
