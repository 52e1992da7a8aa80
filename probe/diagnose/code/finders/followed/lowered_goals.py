"""Returns that a policy is told to reach, and the rewards that it has had. Pure; standard library only."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from probe.diagnose.code.computed.computation import Computation, computation_of
from probe.diagnose.code.computed.value import Many, Value, bare, number, origins
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Remark
from probe.diagnose.code.syntax import is_method, names_of, names_set, own, short
from probe.diagnose.code.traits.basic import losses


def goal_never_lowered(program: Program) -> Iterator[Remark]:
    """A policy is trained with what rewards are still to come, and is told, in each step of an episode, the return of the whole
    episode."""
    computation = computation_of(program)
    layers: dict[int, tuple[Value, Value]] = {}
    if not any(_is_to_come(computation, one) for one in computation.of("cumsum")):
        return
    for _, loss in losses(computation):
        for run in origins(loss):
            told = next((one for one in origins(run.args[1]) if one.op == "cumsum" and _is_to_come(computation, one)), None) if run.op == "run" and len(run.args) > 1 else None
            if told is not None and not any(one.op == "run" for one in origins(run.args[1])):
                layers.setdefault(id(run.args[0]), (run, told))
    for run in computation.of("run") if layers else ():
        if id(run.args[0]) not in layers or not run.where.no_grad or len(run.args) < 2:
            continue
        loop = next((one for one in reversed(run.where.loops) if any(is_method(call, "step") for call in own(one, ast.Call))), None)
        goals = [one for one in _pieces(run.args[1]) if _is_fixed(one)]
        known = {id(one) for goal in goals for one in origins(goal)} | {id(one.node) for goal in goals for one in origins(goal)}
        changed = {name for target in _given(loop) for name in names_set(target)} if loop is not None else set()
        if loop is None or not goals or any(changed & names_of(one.node) for goal in goals for one in origins(goal)):
            continue
        if any(id(part) in known or id(part.node) in known for value in computation.of("sub") if loop in value.where.loops for part in origins(value.args[0])):
            continue
        _, told = layers[id(run.args[0])]
        yield Remark(run.node, f"{short(run.node)} is told {short(goals[0].node)} (line {goals[0].line}) in each step of an episode, and it was trained with the rewards that are still to come ({short(told.node)}, line {told.line}): what it has had is not taken away")
        return


def _given(loop: ast.AST) -> Iterator[ast.expr]:
    """What a loop sets."""
    for one in own(loop, ast.Assign):
        yield from one.targets
    yield from (one.target for one in own(loop, ast.AugAssign))


def _is_to_come(computation: Computation, total: Value) -> bool:
    """Whether a sum runs from the last reward to the first: it is turned round, of what was turned round."""
    return any(one.op in ("flip", "flipud") or (one.op == "part" and one.args[0] is total and one.args[1].op == "slice" and number(one.args[1].args[2]) == -1) for one in computation.users(total))


def _pieces(value: Value) -> Iterator[Value]:
    """What a value is, or joins."""
    value = bare(value)
    if value.op in ("cat", "concatenate") and value.args and isinstance(value.args[0], Many):
        for one in value.args[0].parts:
            yield from _pieces(one)
    else:
        yield value


def _is_fixed(value: Value) -> bool:
    """Whether a value is made of numbers alone."""
    return all(one.op in ("@constant", "div", "mul", "neg", "list", "tuple", "tensor", "full", "slice", "part", "either") for one in origins(value)) and any(number(one) is not None for one in origins(value))

