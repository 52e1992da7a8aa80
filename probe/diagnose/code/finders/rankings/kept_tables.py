"""Tables of places that are kept for the next call. Pure; standard library only."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Remark
from probe.diagnose.code.syntax import Function, last_word, names_read, pairs_of, parameters, returned, short

_RANGES = ("arange", "range")


def table_of_another_start(program: Program) -> Iterator[Remark]:
    """A table of places is kept under its length, and the next call asks for as many places from another start on."""
    for test in program.everywhere(ast.If):
        function = program.function_of(test)
        if function is None:
            continue
        given = {one.arg for one in parameters(function)} - {"self"}
        made, before = _assigned(function, ()), _assigned(function, test.body)
        for target, value in (pair for one in test.body if isinstance(one, ast.Assign) for pair in pairs_of(one)):
            asked = _asked(test.test, target, before)
            if asked is None or not _is_given_back(function, test, target):
                continue
            starts = _starts(program, [value], made)
            for name in sorted(starts.keys() & (given - _names(asked, before))):
                if _cuts_by(function, test, name) or not _varies(program, function, name):
                    continue
                yield Remark(value, f"{short(value)} is computed from the place {name} on ({short(starts[name])}, line {starts[name].lineno}), and {short(test.test)} (line {test.lineno}) does not ask for it: a call with another {name} is given the table of the first one")
                return


def _assigned(function: Function, without: Sequence[ast.stmt]) -> dict[str, list[ast.expr]]:
    """What the names of a function are given, outside of some statements."""
    found: dict[str, list[ast.expr]] = {}
    outside = {one for statement in without for one in ast.walk(statement)}
    for one in ast.walk(function):
        for target, value in pairs_of(one) if isinstance(one, ast.Assign) and one not in outside else ():
            if isinstance(target, ast.Name):
                found.setdefault(target.id, []).append(value)
    return found


def _closure(nodes: list[ast.expr], made: dict[str, list[ast.expr]]) -> Iterator[ast.AST]:
    """All that expressions hold, and what the names in them are given."""
    waiting, seen = list(nodes), set[str]()
    while waiting:
        for one in ast.walk(waiting.pop()):
            yield one
            if isinstance(one, ast.Name) and one.id not in seen:
                seen.add(one.id)
                waiting += made.get(one.id, [])


def _names(nodes: list[ast.expr], made: dict[str, list[ast.expr]]) -> set[str]:
    return {one.id for one in _closure(nodes, made) if isinstance(one, ast.Name)}


def _asked(test: ast.expr, target: ast.expr, made: dict[str, list[ast.expr]]) -> list[ast.expr] | None:
    """What decides whether a kept table is made anew: the key that it is kept under, and the test; None where nothing is kept."""
    if isinstance(target, ast.Subscript):
        home = ast.unparse(target.value)
        if any(isinstance(one, (ast.Attribute, ast.Name)) and ast.unparse(one) == home for one in _closure([test], made)):
            return [test, target.slice]
    elif isinstance(target, ast.Attribute) and any(isinstance(one, ast.Attribute) and ast.unparse(one) == ast.unparse(target) for one in ast.walk(test)):
        return [test]
    return None


def _is_given_back(function: Function, test: ast.If, target: ast.expr) -> bool:
    """Whether what was kept is read behind the test."""
    text = ast.unparse(target)
    inside = set(ast.walk(test))
    read = any(isinstance(one, (ast.Subscript, ast.Attribute)) and isinstance(one.ctx, ast.Load) and one not in inside and ast.unparse(one) == text for one in ast.walk(function))
    return read or (isinstance(target, ast.Subscript) and any(isinstance(one, ast.Attribute) and one.attr == "get" and ast.unparse(one.value) == ast.unparse(target.value) for one in ast.walk(function)))


def _starts(program: Program, values: list[ast.expr], made: dict[str, list[ast.expr]], depth: int = 2) -> dict[str, ast.expr]:
    """The names that say where the places of a table begin: `arange(start, start + n)`, `arange(n) + start`."""
    found: dict[str, ast.expr] = {}
    for one in _closure(values, made):
        if isinstance(one, ast.Call) and last_word(one.func) in _RANGES and len(one.args) > 1:
            found |= dict.fromkeys(names_read(one.args[0]), one)
        elif isinstance(one, ast.Call) and depth and (helper := program.local_function(one)) is not None:
            inner = _starts(program, [each for each in returned(helper) if each is not None], _assigned(helper, ()), depth - 1)
            given = program.arguments(helper, one)
            found |= {name: inner[each] for each in inner.keys() & given.keys() for name in names_read(given[each])}
        elif isinstance(one, ast.BinOp) and isinstance(one.op, ast.Add):
            for side, other in ((one.left, one.right), (one.right, one.left)):
                if isinstance(side, ast.Call) and last_word(side.func) in _RANGES:
                    found |= dict.fromkeys(names_read(other), one)
    return found


def _cuts_by(function: Function, test: ast.If, name: str) -> bool:
    """Whether the places are counted from a start again behind the test."""
    inside = set(ast.walk(test))
    return any(isinstance(one, ast.Subscript) and one not in inside and name in names_read(one.slice) for one in ast.walk(function))


def _varies(program: Program, function: Function, name: str) -> bool:
    """Whether calls ask for more than one start."""
    if function.name in ("forward", "__call__"):
        return True
    given = [value for call in program.calls() if last_word(call.func) == function.name and (value := program.arguments(function, call).get(name)) is not None]
    return any(not isinstance(one, ast.Constant) for one in given) or len({ast.unparse(one) for one in given}) > 1
