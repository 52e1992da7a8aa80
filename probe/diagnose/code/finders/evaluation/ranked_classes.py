"""Measures that rank scores, and are given classes. Pure; standard library only."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from probe.diagnose.code.computed.computation import computation_of
from probe.diagnose.code.computed.value import Many, Value, bare, constant, number, same
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Finders, Remark
from probe.diagnose.code.syntax import short

FINDERS = Finders()
_DECISIONS = ("ge", "gt", "round", "argmax")
_RANKINGS = ("argsort", "sort", "sorted", "unique", "scipy.stats.rankdata", "rankdata", "lexsort")
_CURVE = re.compile(r"(^|_)(auc|auroc|roc|auprc|average_precision|gini)(_|$)", re.I)
_COMPARED = ("searchsorted", "gt", "lt", "ge", "le")


@FINDERS.add("metric-of-wrong-arguments")
def _classes_compared_by_rank(program: Program) -> Iterator[Remark]:
    """The scores of the positive samples are compared with those of the negative ones, each with each, and they are classes."""
    for value in computation_of(program).of(*_COMPARED):
        if len(value.args) < 2:
            continue
        one, other = (_some_rows(side) for side in value.args[:2])
        if one is None or other is None or not same(one[0], other[0]) or not _are_opposite(one[1], other[1]):
            continue
        classes = bare(one[0])
        decided = classes.op in ("round", "argmax") or (classes.op in _DECISIONS and len(classes.args) == 2 and number(classes.args[1]) is not None)
        if decided:
            yield Remark(value.node, f"{short(value.node)} ranks classes ({short(classes.node)}, line {classes.line}) where it has to rank scores: its curve has one point")
            return


@FINDERS.add("metric-of-wrong-arguments")
def _other_class_ranked(program: Program) -> Iterator[Remark]:
    """Of two classes, the probability of the first is ranked where the labels are 1 for the second."""
    computation = computation_of(program)
    for value in computation.of("gt", "ge", "sklearn.metrics.roc_auc_score", "sklearn.metrics.average_precision_score", "sklearn.metrics.roc_curve", "sklearn.metrics.precision_recall_curve"):
        if len(value.args) < 2:
            continue
        scores = value.args[1]
        if value.op in ("gt", "ge"):
            one, other = (_some_rows(side) for side in value.args[:2])
            if one is None or other is None or not same(one[0], other[0]) or one[1].op != "eq" or other[1].op != "eq" or (number(one[1].args[1]), number(other[1].args[1])) != (1, 0):
                continue
            scores = one[0]
        elif bare(value.args[0]).op in ("sub", "eq", "ne", "invert", "not") or "pos_label" in value.named:
            continue
        given = bare(scores, "cat", "concatenate")
        if isinstance(given, Many) and len(given.parts) == 1:
            given = bare(given.parts[0])
        index = given.args[1] if given.op == "part" and len(given.args) == 2 else given
        shares = bare(given.args[0], "cat", "concatenate") if index is not given else given
        if isinstance(shares, Many) and len(shares.parts) == 1:
            shares = bare(shares.parts[0])
        if shares.op == "softmax" and isinstance(index, Many) and len(index.parts) == 2 and index.parts[0].op == "slice" and constant(index.parts[1]) == 0:
            yield Remark(value.node, f"{short(value.node)} ranks {short(given.node)} (line {given.line}), the probability of class 0, and the labels say where class 1 is")
            return


@FINDERS.add("metric-of-wrong-arguments")
def _classes_ranked(program: Program) -> Iterator[Remark]:
    """What is put in order for an area under a curve are classes that a network has decided for."""
    for value in computation_of(program).of(*_RANKINGS):
        named = next((one.name for one in value.where.functions if isinstance(one, (ast.FunctionDef, ast.AsyncFunctionDef)) and _CURVE.search(one.name)), None)
        given = bare(value.args[0], "neg", "cat") if value.args else None
        if named is None or given is None:
            continue
        if isinstance(given, Many) and len(given.parts) == 1:
            given = bare(given.parts[0])
        picked = given.op == "argmax" or (given.op in ("indices", "part") and bool(given.args) and given.args[0].op == "max" and (len(given.args[0].args) > 1 or "dim" in given.args[0].named) and (given.op == "indices" or number(given.args[1]) == 1))
        limit = given.op in ("ge", "gt") and len(given.args) == 2 and number(given.args[1]) is not None
        if picked or limit or given.op == "round":
            yield Remark(value.node, f"{named}() ranks classes ({short(given.node)}, line {given.line}) where it has to rank scores: its curve has one point")
            return


def _some_rows(value: Value) -> tuple[Value, Value] | None:
    """What a value is some rows of, and the mask that says which; None if it is another thing."""
    value = bare(value, "sort")
    while value.op == "part" and len(value.args) == 2 and value.args[1].op in ("tuple", "slice", "@constant"):
        value = bare(value.args[0], "sort")
    return (bare(value.args[0]), bare(value.args[1])) if value.op == "part" and len(value.args) == 2 else None


def _are_opposite(one: Value, other: Value) -> bool:
    """Whether two masks share no row: the one is the other's opposite, or both ask the same labels for two numbers."""
    for mask, opposite in ((one, other), (other, one)):
        if opposite.op in ("invert", "not", "logical_not") and opposite.args and same(bare(opposite.args[0]), mask):
            return True
    if one.op in ("eq", "ne") and other.op in ("eq", "ne") and len(one.args) == len(other.args) == 2 and same(bare(one.args[0]), bare(other.args[0])):
        numbers = number(one.args[1]), number(other.args[1])
        return None not in numbers and (numbers[0] != numbers[1]) == (one.op == other.op)
    return False


def each_class_by_itself(program: Program) -> Iterator[Remark]:
    """A loss lets the classes share one probability, and a decision asks for each of them by itself."""
    computation = computation_of(program)
    learned = {id(bare(loss.args[0]).args[0]): loss for loss in computation.of("cross_entropy") if len(loss.args) > 1 and bare(loss.args[0]).op == "run"}
    others = {id(bare(loss.args[0]).args[0]) for loss in computation.of("binary_cross_entropy_with_logits", "multilabel_soft_margin_loss") if loss.args and bare(loss.args[0]).args}
    for value in computation.of("gt", "ge"):
        squashed = bare(value.args[0]) if len(value.args) == 2 and number(value.args[1]) is not None else value
        given = bare(squashed.args[0]) if squashed.op == "sigmoid" and squashed.args else squashed
        loss = learned.get(id(given.args[0])) if given.op == "run" else None
        if loss is not None and id(given.args[0]) not in others:
            yield Remark(loss.node, f"{short(loss.node)} lets all classes share one probability, and {short(value.node)} (line {value.line}) asks for each of them by itself")
            return
