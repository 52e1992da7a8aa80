"""Whether the best score that is kept is the best one: by what the score is made of, whatever it is called. Pure; standard
library only."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from probe.diagnose.code.computed.computation import computation_of
from probe.diagnose.code.computed.value import Instance, Many, Value, bare, constant, number, origins
from probe.diagnose.code.finders.objects.folds import is_start
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Finders, Remark
from probe.diagnose.code.syntax import Function, short, text_of
from probe.diagnose.code.traits.basic import LOSSES

FINDERS = Finders()
_COUNTED = ("len", "count", "@constant", "numel", "size", "shape", "part")
_THROUGH = ("item", "float", "builtins.float", "detach", "cpu", "round", "mean", "sum", "sum_of", "stack", "tensor", "array", "double", "sqrt", "numpy", "int", "nanmean")
_LARGER = (ast.Gt, ast.GtE)


def direction(value: Value) -> bool | None:
    """Whether a score falls as a model improves (a loss, an error), or rises (a share of what is right); None where that is not
    known."""
    for _ in range(30):
        value = bare(value)
        if isinstance(value, Many):
            if len(value.parts) != 1:
                return None
            value = value.parts[0]
        elif value.op in LOSSES:
            return True if any(one.op == "run" for one in origins(value)) else None
        elif value.op in ("eq", "ne") and len(value.args) == 2:
            guessed = any(one.op in ("argmax", "max", "topk", "gt", "ge", "round", "where", "sigmoid") for side in value.args for one in origins(side))
            return (value.op == "ne") if guessed else None
        elif value.op in ("abs", "square", "pow") and value.args:
            error = bare(value.args[0])
            return True if error.op == "sub" and any(one.op == "run" for one in origins(error)) else None
        elif value.op in ("div", "mul") and len(value.args) == 2:
            weight = bare(value.args[1])
            if weight.op not in _COUNTED and not (weight.op == "add" and any(one.op in _COUNTED for one in origins(weight))):
                return None
            if (number(weight) or 1) < 0:
                return None
            value = value.args[0]
        elif value.op == "add" and len(value.args) == 2:
            sides = [one for one in value.args if one.op not in ("count", "carried") and number(one) is None]
            if len(sides) != 1:
                return None
            value = sides[0]
        elif value.op in _THROUGH and value.args:
            value = value.args[0]
        else:
            return None
    return None


def _told(falls: bool) -> str:
    return "a loss, and better is lower" if falls else "a share of what is right, and better is higher"


@FINDERS.add("wrong-way-round")
def _chosen_in_an_expression(program: Program) -> Iterator[Remark]:
    """`best = score if score < best else best`, for a score of which more is better."""
    computation = computation_of(program)
    choices = list(program.everywhere(ast.IfExp))
    for test in computation.of("lt", "le", "gt", "ge") if choices else ():
        choice = next((one for one in choices if one.test is test.node), None)
        if choice is None or len(test.args) != 2 or not test.where.loops or not isinstance(test.node, ast.Compare):
            continue
        for score, best, rising, written in ((*test.args, test.op[0] == "g", test.node.left), (*test.args[::-1], test.op[0] == "l", test.node.comparators[0])):
            falls = direction(score)
            taken = {text_of(one) for one in ast.walk(choice.body) if isinstance(one, ast.expr)} - {text_of(one) for one in ast.walk(choice.orelse) if isinstance(one, ast.expr)}
            if falls is None or falls is not rising or not is_start(best) or text_of(written) not in taken:
                continue
            yield Remark(test.node, f"{short(written)} is {_told(falls)}: {short(test.node)} keeps the worst one")
            return


@FINDERS.add("stopped-the-wrong-way")
def _kept_by_an_object(program: Program) -> Iterator[Remark]:
    """An object keeps the best of the scores that it is given by one direction, and the scores are of the other one."""
    computation = computation_of(program)
    for kept in computation.of("set_attribute"):
        home, score = kept.args
        falls = direction(score) if isinstance(home, Instance) and home.of is not None else None
        if falls is None or not isinstance(home, Instance) or home.of is None or not isinstance(kept.data, str):
            continue
        found = list(_compared(program, home, kept.data))
        if found and all(rising is falls for _, rising in found):
            test = found[0][0]
            yield Remark(test, f"{short(test)} takes the worst score for the best one: what it is given is {_told(falls)} ({short(bare(score).node)}, line {score.line})")
            return


def _compared(program: Program, home: Instance, name: str) -> Iterator[tuple[ast.Compare, bool]]:
    """Where the class of an object compares what a method is given with an attribute, as the object was set up, and whether it is
    larger scores that it takes for better ones."""
    assert home.of is not None
    for method in (one for one in home.of.body if isinstance(one, Function)):
        given = {one.arg for one in method.args.args[1:]}
        for test in (one for one in ast.walk(method) if isinstance(one, ast.Compare) and len(one.ops) == 1 and isinstance(one.ops[0], (ast.Lt, ast.Gt, ast.LtE, ast.GtE))):
            sides = [(test.left, test.comparators[0], isinstance(test.ops[0], _LARGER)), (test.comparators[0], test.left, not isinstance(test.ops[0], _LARGER))]
            rising = next((larger for one, best, larger in sides if isinstance(one, ast.Name) and one.id in given and any(text_of(part) == f"self.{name}" for part in ast.walk(best))), None)
            way = _way_of(program, method, test, name) if rising is not None and _is_reached(program, home, method, test) else None
            if rising is not None and way is not None:
                yield test, rising is way


def _way_of(program: Program, method: Function, test: ast.Compare, name: str) -> bool | None:
    """Whether the attribute is set, or the method says yes, where a test holds (True) or where it does not."""
    inner: ast.AST = test
    for around in program.parents(test):
        if isinstance(around, ast.UnaryOp):
            return None
        if isinstance(around, ast.Return):
            return True
        if isinstance(around, ast.If) and inner is around.test:
            sets = [any(isinstance(one, ast.Attribute) and isinstance(one.ctx, ast.Store) and text_of(one) == f"self.{name}" for part in block for one in ast.walk(part)) for block in (around.body, around.orelse)]
            return None if sets[0] is sets[1] else sets[0]
        if around is method:
            return None
        inner = around
    return None


def _is_reached(program: Program, home: Instance, method: Function, test: ast.AST) -> bool:
    """Whether an object reaches a test, as far as it asks how it was set up; not where it asks in a way that is not known."""
    inner: ast.AST = test
    for around in program.parents(test):
        if around is method:
            break
        if isinstance(around, (ast.If, ast.IfExp)) and inner is not around.test:
            holds = _asked(home, around.test)
            body = around.body if isinstance(around.body, list) else [around.body]
            if holds is not None and holds is not any(inner is one for one in body):
                return False
        inner = around
    for before in method.body:  # what returns before
        if isinstance(before, ast.If) and getattr(before, "end_lineno", 0) < getattr(test, "lineno", 0) and isinstance(before.body[-1], ast.Return) and _asked(home, before.test):
            return False
    return True


def _asked(home: Instance, test: ast.expr) -> bool | None:
    """What an object's test of a setting gives: `self.mode == "max"`, `self.maximize`."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        inner = _asked(home, test.operand)
        return None if inner is None else not inner
    if isinstance(test, ast.Attribute) and isinstance(test.value, ast.Name) and test.value.id == "self":
        found = constant(home.attributes.get(test.attr))
        return found if isinstance(found, bool) else None
    if isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], (ast.Eq, ast.NotEq)) and isinstance(test.left, ast.Attribute) and isinstance(test.comparators[0], ast.Constant):
        found = constant(home.attributes.get(test.left.attr))
        return None if found is None else (found == test.comparators[0].value) is isinstance(test.ops[0], ast.Eq)
    return None
