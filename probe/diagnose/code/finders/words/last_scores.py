"""Scores of batches of which an object or a dict keeps the last one. Pure; standard library only."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from probe.diagnose.code.computed.computation import Computation, computation_of
from probe.diagnose.code.computed.value import Instance, Many, Table, Value, constant, origins
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Finders, Remark
from probe.diagnose.code.syntax import short
from probe.diagnose.code.traits.tallies import is_mean_of_batch

FINDERS = Finders()
_TELLS = ("print", "text", "append", "lt", "gt", "le", "ge", "round", "format", "update", "info")


@FINDERS.add("last-batch-alone")
def _last_is_kept(program: Program) -> Iterator[Remark]:
    """Each batch of an evaluation puts its score in one place of a dict or an object, and what follows the loop reads it."""
    computation = computation_of(program)
    gathered = _gathered(computation)
    for kept in computation.of("set_item", "set_attribute"):
        home, score = kept.args[0], kept.args[-1]
        loop = kept.where.loops[-1] if kept.where.loops else None
        if not isinstance(loop, ast.For) or not kept.where.no_grad or kept.where.maybe or id(score) in gathered or id(home) in gathered or not _is_score(score, loop):
            continue
        if kept.op == "set_item" and (not isinstance(home, Table) or not isinstance(constant(kept.args[1]), str)):
            continue
        if kept.op == "set_attribute" and not isinstance(home, Instance):
            continue
        if any(isinstance(one, (ast.Break, ast.Return, ast.Yield, ast.While)) for one in ast.walk(loop)):
            continue
        places = [one for one in computation.of(kept.op) if one.args[0] is home and (one.data == kept.data if kept.op == "set_attribute" else constant(one.args[1]) == constant(kept.args[1]))]
        read = next((one for one in _told(computation, kept) if one.number > kept.number and loop not in one.where.loops), None)
        within = any(loop in one.where.loops and one.number > kept.number for one in _told(computation, kept))
        if read is not None and not within and len({one.node for one in places if loop in one.where.loops}) == 1:
            yield Remark(kept.node, f"{short(score.node)} (line {score.line}) is kept anew for each batch of the loop of line {loop.lineno}: {short(read.node)} (line {read.line}) tells that of the last batch alone")
            return


def _is_score(score: Value, loop: ast.AST) -> bool:
    """Whether a value is the mean of one batch that a loop reads."""
    if isinstance(score.node, ast.AugAssign):
        return False
    while score.op in ("float", "builtins.float", "item", "round", "detach", "cpu") and score.args:
        score = score.args[0]
    if not is_mean_of_batch(score) or loop not in score.where.loops:
        return False
    found = list(origins(score))
    return any(one.op in ("rows", "element") and (loop in one.where.loops or _is_generated(one)) for one in found) and any(one.op == "run" and loop in one.where.loops for one in found) and not any(isinstance(one, Many) and one.grown for one in found if one.number and loop in one.where.loops)


def _is_generated(value: Value) -> bool:
    """Whether a value is one of those that a generator of the program goes over, to give one batch in each turn."""
    return any(isinstance(one, ast.Yield) for one in ast.walk(value.where.loops[-1])) if value.where.loops else False


def _told(computation: Computation, kept: Value) -> Iterator[Value]:
    """What tells a value that was kept, or the dict that keeps it."""
    for held in (kept.args[-1], *([kept.args[0]] if kept.op == "set_item" else [])):
        for user in computation.users(held):
            if user.op in _TELLS or user.op.endswith((".log", "add_scalar", "log_metrics")):
                yield user


def _gathered(computation: Computation) -> set[int]:
    """What is among the things that a list gets in a loop."""
    waiting: list[Value] = [one for one in computation.values if (isinstance(one, Many) and one.grown) or one.op in ("append", "extend", "add", "sum_of")]
    found: set[int] = set()
    while waiting:
        one = waiting.pop()
        for part in one.made_of() if not isinstance(one, Instance) else one.attributes.values():
            if id(part) not in found and (isinstance(part, (Many, Table)) or one.op != "add"):
                found.add(id(part))
                if isinstance(part, (Many, Table)):
                    waiting.append(part)
            elif one.op == "add":
                found.add(id(part))
    return found


@FINDERS.add("last-batch-alone")
def _list_unread(program: Program) -> Iterator[Remark]:
    """The scores of all batches of an evaluation are put into a list or a sum that nothing reads, and what follows the loop tells
    the last one."""
    computation = computation_of(program)
    learned = {loop for one in computation.of("backward") for loop in one.where.loops}
    for kept in computation.of("append", "add"):
        loop = kept.where.loops[-1] if kept.where.loops else None
        score = kept.args[1] if len(kept.args) == 2 else None
        if not isinstance(loop, ast.For) or loop in learned or score is None or not kept.where.no_grad or kept.where.maybe or not _is_score(score, loop):
            continue
        if any(isinstance(one, (ast.Break, ast.Return, ast.Yield)) for one in ast.walk(loop)) or _is_read(computation, kept, loop):
            continue
        told = [one for one in computation.users(score) if one.op in _TELLS and one.op not in ("append", "update") and one.number > kept.number]
        outside = next((one for one in told if loop not in one.where.loops), None)
        if outside is not None and not any(loop in one.where.loops for one in told):
            yield Remark(outside.node, f"{short(outside.node)} tells {short(score.node)} (line {score.line}) of the last batch alone, and nothing reads {short(kept.node)} (line {kept.line}), which holds those of all")
            return


def _is_read(computation: Computation, kept: Value, loop: ast.AST) -> bool:
    """Whether anything reads the list or the sum that a loop puts scores into."""
    home = kept.args[0] if kept.op == "append" else kept
    users = [*computation.users(home), *(user for one in computation.users(home) if one.op in ("tuple", "either") for user in computation.users(one))]
    if isinstance(kept.node, ast.AugAssign) and not isinstance(kept.node.target, ast.Name):
        return True
    if kept.op == "add" and not isinstance(kept.node, ast.AugAssign):
        return True
    return not isinstance(home, (Many, Value)) or any(one is not kept and one.op not in ("tuple", "append", "list", "either") and (loop not in one.where.loops or one.op != "append") for one in users) or any(isinstance(one, Instance) for one in computation.of("set_attribute") if one.args[-1] is home)
