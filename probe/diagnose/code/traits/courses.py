"""How a number goes on in a training: what it is first, later, and in the end. Pure; standard library only."""

from __future__ import annotations

import ast
import math
from collections.abc import Iterator, Mapping
from types import MappingProxyType

from probe.diagnose.code.computed.computation import Computation
from probe.diagnose.code.computed.value import Value, alternatives, bare, number, origins
from probe.diagnose.code.syntax import last_word

STEPS = ("index", "count", "@input")
"""Operations of what may be the number of a step."""
_FIRST, _LAST = 1.0, 1e12
_DRAWN = ("random", "rand", "uniform")
LARGER, SMALLER = ("max", "maximum"), ("min", "minimum")
_CLAMPED = ("min", "max")
_BITS = 700.0
"""The largest exponent of e that is a number."""


def is_uniform_draw(value: Value) -> bool:
    """Whether a value is drawn evenly between 0 and 1."""
    value = bare(value)
    while value.op == "part" and value.args:
        value = bare(value.args[0])
    if value.op == "uniform":
        ends = [number(one) for one in value.args if number(one) is not None]
        return ends in ([], [0.0, 1.0]) and not value.named.keys() - {"size"} and len(value.args) - len(ends) <= 1
    return value.op in _DRAWN and "from" not in value.named


def number_at(value: Value, step: float, depth: int = 20, given: Mapping[int, float] = MappingProxyType({})) -> float | None:
    """The number that a value is where the one unknown number that it is made of is `step`. `given`: the numbers that
    values are, by id, whatever they were computed of."""
    if id(value) in given:
        return given[id(value)]
    known = number(value)
    if known is not None or depth == 0:
        return known
    if value.op in STEPS:
        return step
    inside = bare(value, "builtins.float", "builtins.int")
    if inside is not value:
        return number_at(inside, step, depth - 1, given)
    if value.op == "clamp":
        bounds = [None if one is None else number_at(one, step, depth - 1, given) for one in (value.argument(name, place) for place, name in enumerate(_CLAMPED, 1))]
        inner = number_at(value.args[0], step, depth - 1, given)
        if inner is None or bounds == [None, None]:
            return None
        low, high = bounds
        return min(inner if low is None else max(inner, low), math.inf if high is None else high)
    if value.named or not value.args or value.op == "either":
        return None
    parts = [number_at(one, step, depth - 1, given) for one in value.args]
    plain = [one for one in parts if one is not None]
    return _computed(value.op, plain) if len(plain) == len(parts) else None


def _computed(op: str, parts: list[float]) -> float | None:
    """The result of an operation on numbers; None where there is none."""
    if op in LARGER or op in SMALLER:
        return (max if op in LARGER else min)(parts) if len(parts) > 1 else None
    if len(parts) == 1:
        one = parts[0]
        return -one if op == "neg" else math.exp(max(one, -_BITS)) if op == "exp" and one < _BITS else math.sqrt(one) if op == "sqrt" and one >= 0 else None
    if len(parts) != 2:
        return None
    left, right = parts
    if op in ("div", "floordiv"):
        return None if right == 0 else left / right
    if op == "pow":
        return left**right if 0 < left <= 1 else None
    return left + right if op == "add" else left - right if op == "sub" else left * right if op == "mul" else None


def course_by_steps(value: Value) -> tuple[float, float] | None:
    """The number that a value is at the first step, and after very many; None if it depends on no steps, or on more
    than one unknown number."""
    unknown = {id(one) for one in origins(value) if one.op in STEPS}
    if len(unknown) != 1:
        return None
    first, last = number_at(value, _FIRST), number_at(value, _LAST)
    return None if first is None or last is None else (first, last)


def other_values(computation: Computation, value: Value) -> Iterator[Value]:
    """What the names and attributes that have been given a value are given at other places."""
    for target, given in computation.stored.items():
        if any(one is value for one in given):
            scope = computation.program.scope(target)
            for other, values in computation.stored.items():
                if other is not target and other.id == target.id and computation.program.scope(other) is scope:
                    yield from values
    holders = [(one.data, id(one.args[0])) for one in computation.of("set_attribute") if one.args[1] is value]
    for one in computation.of("set_attribute") if holders else ():
        if (one.data, id(one.args[0])) in holders and one.args[1] is not value:
            yield one.args[1]


def falls(computation: Computation, value: Value) -> bool | None:
    """Whether a number becomes smaller in the training; False if it becomes larger, None where neither is known. What
    is written out is there before what is computed."""
    found: set[bool] = set()
    for one in alternatives(value):
        course = course_by_steps(one)
        if course is not None:
            if course[0] != course[1] and all(0 <= each <= 1 for each in course):
                found.add(course[1] < course[0])
            else:
                return None
            continue
        now, written = number_at(one, _FIRST), isinstance(one.node, ast.Constant)
        for other in (each for given in other_values(computation, one) for each in alternatives(given)):
            then = number_at(other, _FIRST) if course_by_steps(other) is None else None
            if written != isinstance(other.node, ast.Constant) and None not in (now, then) and then != now:
                found.add((then < now) == written)  # type: ignore[operator]
    return found.pop() if len(found) == 1 else None


def is_fixed(computation: Computation, value: Value) -> bool:
    """Whether nothing in the program changes a number that is written out in an assignment."""
    program = computation.program
    statement = program.parent.get(value.node)
    if number(value) is None or not isinstance(value.node, ast.Constant) or not isinstance(statement, (ast.Assign, ast.AnnAssign)):
        return False
    targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
    if len(targets) != 1 or not isinstance(targets[0], (ast.Name, ast.Attribute)):
        return False
    target = targets[0]
    word = target.id if isinstance(target, ast.Name) else target.attr
    for one in program.everywhere(ast.Name, ast.Attribute):
        if last_word(one) == word and one is not target and not isinstance(one.ctx, ast.Load):  # type: ignore[attr-defined]
            return False
    if any(isinstance(call.func, ast.Name) and call.func.id == "setattr" for call in program.calls()):
        return False
    of = program.parent.get(statement)
    return not isinstance(of, ast.ClassDef) or not any(
        any(one.arg == word for one in call.keywords) or (last_word(call.func) == of.name and (call.args or call.keywords)) for call in program.calls()
    )
