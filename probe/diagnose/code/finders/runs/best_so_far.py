"""Scores that are compared with the best one so far, and what a schedule is given. Pure; standard library only."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from probe.diagnose.code.computed.computation import computation_of
from probe.diagnose.code.computed.value import Value, number, origins
from probe.diagnose.code.finders.objects.folds import is_start, takes_the_score
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Finders, Remark
from probe.diagnose.code.syntax import short
from probe.diagnose.code.traits.basic import LOSSES
from probe.diagnose.code.traits.updates import conditions, optimizer_of, runs

FINDERS = Finders()
_BELOW, _ABOVE = ("lt", "le"), ("gt", "ge")


@FINDERS.add("best-never-raised")
def _begins_in_each_pass(program: Program) -> Iterator[Remark]:
    """The best score is set to where it begins in the same pass that compares with it."""
    computation = computation_of(program)
    steps = [one for one in computation.of("step") if optimizer_of(one) is not None]
    for test in computation.of(*_BELOW, *_ABOVE):
        if len(test.args) != 2 or not test.where.loops:
            continue
        loop = test.where.loops[-1]
        for score, best in (test.args, test.args[::-1]):
            if not is_start(best) or number(score) is not None or best.node not in ast.walk(loop) or best.node in ast.walk(test.node) or not takes_the_score(computation, test, score, best):
                continue
            trained = any(one.where.loops[: len(test.where.loops)] == test.where.loops and runs(one) == runs(test) for one in steps)
            kept = any(one.op in ("save", "state_dict", "deepcopy") and (id(test), True) in conditions(one) for one in computation.of("save", "state_dict", "deepcopy"))
            if trained and kept:
                yield Remark(test.node, f"{short(best.node)} (line {best.line}) is set in each pass of the loop of line {getattr(loop, 'lineno', 0)}: {short(test.node)} never sees the score of another pass")
                return


@FINDERS.add("patience-never-reset")
def _best_pass_never_set(program: Program) -> Iterator[Remark]:
    """The training ends some passes after the best one, and the number of the best one stays what it began with."""
    computation = computation_of(program)
    for test in computation.of(*_ABOVE):
        passed = test.args[0] if len(test.args) == 2 else test
        if passed.op != "sub" or len(passed.args) != 2 or passed.args[0].op != "index" or number(passed.args[1]) is None or not isinstance(passed.node, ast.BinOp):
            continue
        name = passed.node.right
        branch = next((one for one in program.parents(test.node) if isinstance(one, ast.If)), None)
        ends = branch is not None and any(isinstance(one, (ast.Break, ast.Return)) for part in branch.body for one in ast.walk(part))
        if not isinstance(name, (ast.Name, ast.Attribute)) or not ends:
            continue
        text = ast.unparse(name)
        stores = [one for one in program.everywhere(type(name)) if isinstance(one.ctx, ast.Store) and ast.unparse(one) == text]
        better = [one for one in computation.of(*_BELOW, *_ABOVE) if one is not test and one.where.loops == test.where.loops and any(is_start(each) and takes_the_score(computation, one, other, each) for each, other in (one.args, one.args[::-1]) if len(one.args) == 2)]
        if len(stores) == 1 and not program.loops(stores[0]) and better:
            yield Remark(test.node, f"{text} stays what it is set to in line {stores[0].lineno}: {short(better[0].node)} (line {better[0].line}) does not set it, and {short(test.node)} ends the training although it still improves")
            return


def margin_the_wrong_way(program: Program) -> Iterator[Remark]:
    """A score counts as better though it is worse than the best one, as long as it is so by less than a margin."""
    computation = computation_of(program)
    for test in computation.of(*_BELOW, *_ABOVE):
        if len(test.args) != 2:
            continue
        for score, bound, falls in ((test.args[0], test.args[1], test.op in _BELOW), (test.args[1], test.args[0], test.op in _ABOVE)):
            if bound.op not in ("add", "sub") or len(bound.args) != 2:
                continue
            best, by = bound.args
            margin = number(by)
            wrong = margin is not None and margin != 0 and ((margin > 0) == (bound.op == "add")) == falls
            if wrong and is_start(best) and number(score) is None and takes_the_score(computation, test, score, best):
                yield Remark(test.node, f"{short(test.node)} also holds where the score is worse than the best one by less than {short(by.node)}, and then takes it for the best")
                return


@FINDERS.add("last-batch-alone")
def _schedule_of_one_batch(program: Program) -> Iterator[Remark]:
    """A schedule that waits for progress is given the loss of the last batch of a loop."""
    for step in computation_of(program).of("step"):
        if len(step.args) < 2 or not step.args[0].op.endswith("ReduceLROnPlateau"):
            continue
        score = step.args[1]
        while score.op in ("item", "detach", "float", "cpu") and score.args:
            score = score.args[0]
        inner, outer = score.where.loops, step.where.loops
        if score.op in LOSSES and len(inner) == len(outer) + 1 and inner[:-1] == outer and runs(score) == runs(step) and isinstance(inner[-1], ast.For):
            yield Remark(step.node, f"{short(step.node)} is given {short(score.node)} (line {score.line}) of the last batch of the loop of line {inner[-1].lineno}, and not the mean of all")
            return


def rate_begins_anew(program: Program) -> Iterator[Remark]:
    """The rate is set by the number of the batch within its epoch: it begins at its start again in each epoch."""
    for value in computation_of(program).of("set_item"):
        loops = value.where.loops
        if len(value.args) != 3 or getattr(value.args[1], "data", None) != "lr" or len(loops) < 2:
            continue
        found = list(_numbers(value.args[2]))
        batch = [one for one in found if one.op == "index" and one.where.loops]
        if not batch or any(one.op in ("count", "cos", "sin", "param_groups", "step", "@input", "part", "mod", "get_last_lr") for one in found):
            continue
        own = batch[0].where.loops
        around = [one for one in loops[: len(own) - 1] if isinstance(one, ast.For)]
        if any(one.where.loops != own for one in batch) or len(own) < 2 or not around or loops[: len(own)] != own or any(one.op == "index" for test, _ in value.where.under for one in _numbers(test)):
            continue
        made = [one.args[0] for one in origins(value.args[0]) if one.op == "param_groups" and one.args]
        if any(around[-1] in one.where.loops for one in made):
            continue  # each pass of the outer loop is a training of its own
        if any(optimizer_of(one) is not None and one.where.loops[: len(own)] == own for one in computation_of(program).of("step")):
            yield Remark(value.node, f"{short(value.node)} is made of what the loop of line {getattr(own[-1], 'lineno', 0)} counts, which begins again in each pass of the loop of line {around[-1].lineno}: so does the rate")
            return


def _numbers(value: Value) -> Iterator[Value]:
    """What a number is computed from."""
    waiting, seen = [value], {id(value)}
    while waiting:
        one = waiting.pop()
        yield one
        if one.op in ("index", "len"):
            continue
        for part in one.made_of():
            if id(part) not in seen:
                seen.add(id(part))
                waiting.append(part)
