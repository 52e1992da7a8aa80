"""Advantages of all groups or episodes that are scaled by the mean and the deviation of the first. Pure; standard library only."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from probe.diagnose.code.computed.computation import computation_of
from probe.diagnose.code.computed.value import Many, Value, bare, number, origins, same
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Remark
from probe.diagnose.code.syntax import short
from probe.diagnose.code.traits.basic import losses, without_small
from probe.diagnose.code.traits.likelihoods import is_likelihood


def statistics_of_the_first(program: Program) -> Iterator[Remark]:
    """What the log probabilities of a policy are weighted by is scaled by the mean and the deviation of its first row, or of the
    first of the episodes that a loop goes over."""
    computation = computation_of(program)
    weighted: set[int] | None = None
    for value in computation.of("div"):
        found = _scaled(value)
        if found is None:
            continue
        whole, mean, spread = found
        first = _first_row(mean, whole)
        asked = _in_the_first_pass(program, value) if first is None else None
        if first is None and asked is None:
            continue
        weighted = _weights(list(computation.of("mul")), [loss for _, loss in losses(computation)]) if weighted is None else weighted
        if id(value) not in weighted:
            continue
        if first is not None and same(first, bare(spread.args[0])):
            yield Remark(value.node, f"{short(value.node)} scales all rows of {short(whole.node)} by the mean and the deviation of {short(first.node)} (line {first.line}), one of them")
            return
        if asked is not None:
            yield Remark(value.node, f"{short(value.node)} scales each by what {short(asked)} (line {asked.lineno}) lets be set in the first pass alone: the mean and the deviation are those of the first")
            return


def _scaled(value: Value) -> tuple[Value, Value, Value] | None:
    """What is scaled, its mean and its deviation, of (x - mean) / (deviation + a little)."""
    top, spread = bare(value.args[0]), without_small(value.args[1]) if len(value.args) == 2 else value
    if top.op != "sub" or len(top.args) != 2 or spread.op != "std" or not spread.args:
        return None
    mean = bare(top.args[1])
    return (bare(top.args[0], shapes=False), mean, spread) if mean.op == "mean" and mean.args and len(mean.args) == 1 and not mean.named else None


def _first_row(mean: Value, whole: Value) -> Value | None:
    """The row of a tensor that a mean is of: the first, or another one."""
    row = bare(mean.args[0])
    if row.op != "part" or len(row.args) != 2 or number(row.args[1]) is None or isinstance(row.args[0], Many):
        return None
    return row if row.args[0] is whole or same(bare(row.args[0]), bare(whole)) else None


def _in_the_first_pass(program: Program, value: Value) -> ast.If | None:
    """The question by which a loop sets the mean, and the deviation, in its first pass alone: `if mean is None`."""
    node = value.node
    names = {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}
    loop = next((one for one in program.parents(node) if isinstance(one, ast.For)), None)
    if loop is None or isinstance(loop.iter, (ast.Tuple, ast.List, ast.Dict)) or any(isinstance(one, ast.Attribute) and one.attr == "items" for one in ast.walk(loop.iter)):
        return None
    for one in loop.body:
        test = one.test if isinstance(one, ast.If) else None
        if not isinstance(one, ast.If) or not isinstance(test, ast.Compare) or not isinstance(test.ops[0], ast.Is) or not isinstance(test.left, ast.Name) or test.left.id not in names:
            continue
        name = test.left.id
        stores = [each for each in ast.walk(program.frame(loop)) if isinstance(each, ast.Name) and each.id == name and isinstance(each.ctx, ast.Store)]
        here, inside = [each for each in stores if each in set(ast.walk(one))], set(ast.walk(loop))
        if here and all(each in here or each not in inside for each in stores) and not one.orelse:
            return one
    return None


def _weights(products: list[Value], trained: list[Value]) -> set[int]:
    """All that log probabilities, or ratios of probabilities, are multiplied by in what is minimized."""
    inside = {id(one) for loss in trained for one in origins(loss)}
    found: set[int] = set()
    for value in products:
        for one, other in (value.args, value.args[::-1]) if id(value) in inside and len(value.args) == 2 else ():
            likely = bare(one, "clamp", "neg")
            if is_likelihood(likely) or (likely.op == "exp" and any(part.op == "run" for part in origins(likely))):
                found |= {id(part) for part in origins(other, ("run",))}
    return found

