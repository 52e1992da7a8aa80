"""A share of random actions that each episode begins anew. Pure; standard library only."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from probe.diagnose.code.computed.computation import computation_of
from probe.diagnose.code.computed.value import constant, number
from probe.diagnose.code.finders.training.explorations import chances
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Remark
from probe.diagnose.code.syntax import Loop, is_method, is_name, names_read, names_set, short

_MANY = 0.5


def exploration_begins_again(program: Program) -> Iterator[Remark]:
    """The share of random actions, which falls from step to step of an episode, is set to its first value where the episode
    begins."""
    computation = computation_of(program)
    found = list(chances(computation))
    given = {id(one.share) for one in found}
    written = {one.written.id for one in found if isinstance(one.written, ast.Name)}
    for target, values in computation.stored.items() if found else ():
        known = [number(one) for one in values]
        first = program.parent.get(target)
        if not isinstance(first, ast.Assign) or len(values) != 1 or known[0] is None or known[0] < _MANY or known[0] > 1 or isinstance(constant(values[0]), bool):
            continue
        loop = _innermost(program, first)
        if loop is None or not (id(values[0]) in given or target.id in written) or not _begins_an_episode(program, loop, first):
            continue
        lower = next((one for one in ast.walk(loop) if isinstance(one, (ast.Assign, ast.AugAssign)) and one is not first and _lowers(one, target.id) and _innermost(program, one) is not loop), None)
        if lower is not None:
            yield Remark(first, f"{short(first)} stands in the loop over episodes, and {short(lower)} (line {lower.lineno}) makes it smaller from step to step: each episode begins with it again")
            return


def _innermost(program: Program, node: ast.AST) -> Loop | None:
    """The loop that a node runs in."""
    return next((one for one in program.parents(node) if isinstance(one, (ast.For, ast.While))), None)


def _lowers(node: ast.Assign | ast.AugAssign, name: str) -> bool:
    """Whether a statement makes a number of itself: `e *= 0.99`, `e = max(low, e - 1e-4)`."""
    if isinstance(node, ast.AugAssign):
        return is_name(node.target, name) and isinstance(node.op, (ast.Mult, ast.Sub))
    return name in names_set(node) and name in names_read(node.value) and any(isinstance(one, (ast.Mult, ast.Sub, ast.Div)) for one in ast.walk(node.value))


def _begins_an_episode(program: Program, loop: Loop, first: ast.AST) -> bool:
    """Whether each turn of a loop resets an environment, makes no network, and steps in a loop of its own."""
    resets = [one for one in ast.walk(loop) if is_method(one, "reset") and _innermost(program, one) is loop]
    steps = [one for one in ast.walk(loop) if is_method(one, "step") and len(one.args) == 1 and _innermost(program, one) is not loop]
    makes = any(isinstance(one, ast.Call) and any(word in program.called(one) for word in ("torch.optim.", "torch.nn.")) for one in ast.walk(loop) if _innermost(program, one) is loop)
    return bool(resets) and bool(steps) and not makes
