"""Rewards that are kept beside another step, and values that were computed before a step and stand for what follows it. Pure;
standard library only."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from probe.diagnose.code.computed.computation import computation_of
from probe.diagnose.code.computed.value import Value, bare, number, origins
from probe.diagnose.code.finders.losses.bootstraps import backups
from probe.diagnose.code.finders.training.stored_transitions import part_of_step
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Finders, Remark
from probe.diagnose.code.syntax import short

FINDERS = Finders()
_STORES = ("append", "add", "push", "store", "put", "remember", "insert")


@FINDERS.add("target-of-the-same-state")
def _judged_before_the_step(program: Program) -> Iterator[Remark]:
    """The reward of a step gets the discounted value that a network has given before the step was taken."""
    for one in backups(computation_of(program)):
        reward, future = bare(one.reward), bare(one.future)
        told = part_of_step(one.reward)
        begun = told[0].number if told is not None else reward.number if _is_of_a_step(reward) and not _is_of_a_step(one.whole) else 0
        inside = [part for part in origins(reward) if _is_of_a_step(part) and part.number and part.op != "@constant"] if told is None and begun else []
        begun = min([begun, *(part.number for part in inside)])
        if future.op == "run" and future.where.loops and future.where.loops == one.whole.where.loops and number(reward) is None and 0 < future.number < begun:
            yield Remark(one.whole.node, f"{short(one.whole.node)} adds the value {short(one.future.node)} (line {one.future.line}) of the state before the step: the reward is that of a step that was taken later, and what it led to is judged nowhere")
            return


def _is_of_a_step(value: Value) -> bool:
    """Whether a value is computed in a function of the program by which an environment takes a step."""
    return any("step" in getattr(function, "name", "") for function in value.where.functions)


@FINDERS.add("state-out-of-step")
def _reward_of_the_step_before(program: Program) -> Iterator[Remark]:
    """What is kept of a step has the reward of the one before it: it is kept before the step, or has a copy that was made before."""
    learned = bool(backups(computation_of(program)))
    for loop in program.everywhere(ast.For, ast.While):
        inside = [one for one in ast.walk(loop) if one is not loop]
        steps = [one for one in inside if isinstance(one, ast.Assign) and _told(one) is not None]
        stores = [one for one in inside if isinstance(one, ast.Call) and isinstance(one.func, ast.Attribute) and one.func.attr in _STORES]
        if len(steps) != 1 or any(isinstance(one, (ast.For, ast.While)) and steps[0] in set(ast.walk(one)) for one in inside):
            continue
        step = steps[0]
        names = _told(step)
        assert names is not None and isinstance(step.value, ast.Call)
        following, reward = names
        actions = {one.id for one in step.value.args if isinstance(one, ast.Name)} | {one.id for arg in step.value.args for one in ast.walk(arg) if isinstance(one, ast.Name) and one.id != following and not isinstance(arg, ast.Name)}
        copies = _copies(inside, reward, step.lineno)
        for store in stores:
            kept = _entries(store)
            if len(kept) < 3 or not actions & set(kept):
                continue
            if learned and store.lineno < step.lineno and reward in kept and not _is_set_between(inside, reward, loop.lineno, store.lineno):
                yield Remark(store, f"{short(store)} keeps {reward} before {short(step.value)} (line {step.lineno}) gives that of this step: each action stands beside the reward of the one before it")
                return
            late = next((one for one in copies if one in kept), None)
            reads = {one.id for arg in store.args for one in ast.walk(arg) if isinstance(one, ast.Name)}
            if store.lineno > step.lineno and late is not None and reward not in reads and following in kept:
                yield Remark(store, f"{short(store)} keeps {late}, which is what {reward} was before {short(step.value)} (line {step.lineno}): each action stands beside the reward of the one before it")
                return


def _told(node: ast.Assign) -> tuple[str, str] | None:
    """The names that the next state and the reward of a step are given."""
    target, call = node.targets[0], node.value
    name = call.func.attr if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) else call.func.id if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) else ""
    if not isinstance(call, ast.Call) or not (name == "step" or name.endswith("_step")) or not call.args or not isinstance(target, ast.Tuple) or len(target.elts) not in (3, 4, 5):
        return None
    first, second = target.elts[:2]
    return (first.id, second.id) if isinstance(first, ast.Name) and isinstance(second, ast.Name) else None


def _entries(store: ast.Call) -> list[str]:
    """The names that a call keeps together."""
    parts = store.args[-1].elts if store.args and isinstance(store.args[-1], (ast.Tuple, ast.List)) else [*store.args, *(one.value for one in store.keywords)]
    return [one.id for one in parts if isinstance(one, ast.Name)]


def _copies(inside: list[ast.AST], reward: str, line: int) -> list[str]:
    """The names that are given the reward before a step."""
    return [
        one.targets[0].id for one in inside
        if isinstance(one, ast.Assign) and one.lineno < line and isinstance(one.targets[0], ast.Name) and isinstance(one.value, ast.Name) and one.value.id == reward
    ]


def _is_set_between(inside: list[ast.AST], name: str, first: int, last: int) -> bool:
    return any(isinstance(one, ast.Name) and one.id == name and isinstance(one.ctx, ast.Store) and first <= one.lineno < last for one in inside)
