"""Errors that weigh more on one side than on the other. Pure; standard library only."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from probe.diagnose.code.computed.computation import Computation, computation_of
from probe.diagnose.code.computed.value import Value, bare, number, same
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Finders, Remark
from probe.diagnose.code.syntax import short
from probe.diagnose.code.traits.arithmetic import complement_of, networks, trained

FINDERS = Finders()
_TESTS = {"lt": -1, "le": -1, "gt": 1, "ge": 1}


@FINDERS.add("quantile-reversed")
def _chosen_by_side(program: Program) -> Iterator[Remark]:
    """An error is multiplied by q where the prediction is above the target, and by 1 - q where it is below."""
    computation = computation_of(program)
    known = networks(computation)
    for value in computation.of("where", "abs"):
        found = _by_choice(value) if value.op == "where" else _by_difference(value)
        if found is None or not _weighs(computation, value):
            continue
        larger, smaller, test = found
        if trained(larger, known) and not trained(smaller, known):
            yield Remark(value.node, f"{short(value.node)} gives errors the weight q where the prediction is above the target, and 1 - q where it is below: {short(test.node)} says where that is")
            return


def _sides(test: Value) -> tuple[Value, Value] | None:
    """What is larger and what is smaller where a test is true: of `a - b > 0` and `a > b`, a and b."""
    if test.op not in _TESTS or len(test.args) != 2:
        return None
    left, right = test.args
    if number(right) == 0:
        gap = bare(left)
        if gap.op != "sub" or len(gap.args) != 2:
            return None
        left, right = gap.args
    return (left, right) if _TESTS[test.op] > 0 else (right, left)


def _by_choice(value: Value) -> tuple[Value, Value, Value] | None:
    """Of `where(test, q, 1 - q)`: what is larger and what is smaller where q counts, and the test."""
    if len(value.args) != 3:
        return None
    test, (first, second) = bare(value.args[0]), value.args[1:]
    sides = _sides(test)
    if sides is None:
        return None
    if _is_rest(second, first):
        return (*sides, test)
    return (sides[1], sides[0], test) if _is_rest(first, second) else None


def _by_difference(value: Value) -> tuple[Value, Value, Value] | None:
    """Of `abs(q - test)`: what is larger and what is smaller where q counts, which is where the test is false."""
    inner = bare(value.args[0]) if value.args else value
    if inner.op != "sub" or len(inner.args) != 2:
        return None
    for one in inner.args:
        test = bare(one)
        sides = _sides(test)
        if sides is not None:
            return sides[1], sides[0], test
    return None


def _is_rest(one: Value, other: Value) -> bool:
    """Whether a weight is 1 less another one, also where both are known numbers."""
    inner = complement_of(one)
    if inner is not None:
        return same(bare(inner), bare(other))
    known, rest = number(one), number(other)
    written = isinstance(one.node, ast.BinOp) and isinstance(one.node.op, ast.Sub) and isinstance(one.node.left, ast.Constant)
    return written and known is not None and rest is not None and abs(known + rest - 1) < 1e-9


def _weighs(computation: Computation, value: Value) -> bool:
    """Whether a value is a factor of what a mean or sum is taken of."""
    return any(user.op == "mul" for at in (value, *(one for one in computation.users(value) if bare(one) is bare(value))) for user in computation.users(at))
