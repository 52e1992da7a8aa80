"""Precision, recall and hits along a ranking: in which order samples are gone through. Pure; standard library only."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from probe.diagnose.code.computed.computation import Computation, computation_of
from probe.diagnose.code.computed.value import (
    KEPT,
    SHAPED,
    Many,
    Value,
    bare,
    constant,
    number,
    origins,
    same,
)
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Finders, Remark
from probe.diagnose.code.syntax import short
from probe.diagnose.code.traits.arithmetic import complement_of, sides
from probe.diagnose.code.traits.uses import made_from

FINDERS = Finders()
_ORDERS = ("argsort", "sort", "sorted", "builtins.sorted", "topk", "lexsort", "sort_values", "argpartition", "randperm", "heapq.nlargest")
_ALONG = frozenset({"cat", "part", "squeeze", "eq", "gt", "ge", *(KEPT - {"either"}), *SHAPED})
_ENDS = ("rows", "element", "randint", "integers", "load", "zip", "stack", "list")
_REPORTED = frozenset({"add", "mul", "sub", "div", "sum", "mean", "cat", "flip", "maximum", "max", "trapz", "trapezoid", "part", "list", "tuple", "float", "item", "clamp", "where", "element", "index", "sum_of", "diff", "auc"})


def precision_out_of_order(program: Program) -> Iterator[Remark]:
    """Hits are added up sample by sample, as the samples lie, and made a precision or a curve; no score says which comes first."""
    computation = computation_of(program)
    said: set[ast.AST] = set()
    for value, labels in _running_hits(computation):
        if value.node in said or not _is_data(labels) or any(one.op in _ORDERS for one in origins(labels)) or not _is_scored(computation, value):
            continue
        said.add(value.node)
        yield Remark(value.node, f"{short(value.node)} adds {short(value.args[0].node)} up in the order in which the samples lie, which no score has a part in")


@FINDERS.add("gains-from-the-worst")
def _precision_from_the_worst(program: Program) -> Iterator[Remark]:
    """Hits are added up along rising scores: the samples that are least likely to be hits come first."""
    computation = computation_of(program)
    for value, labels in _running_hits(computation):
        order = _rising(labels)
        if order is not None:
            yield Remark(value.node, f"{short(value.node)} adds up the hits from the first place on, and {short(order.node)} (line {order.line}) sorts from small to large: the lowest score comes first")
            return


def _running_hits(computation: Computation) -> Iterator[tuple[Value, Value]]:
    """Running sums of labels that a precision or a curve is made of: of the labels and of the others, or divided by the place
    and taken where a label is."""
    sums = [value for value in computation.of("cumsum") if value.args]
    for value in sums:
        labels = bare(value.args[0])
        for other in sums:
            rest = complement_of(other.args[0])
            if rest is not None and same(bare(rest), labels):
                yield value, labels
                break
        else:
            for user in computation.users(value):
                if user.op != "div" or len(user.args) != 2 or bare(user.args[0]) is not value or not _is_places(user.args[1]):
                    continue
                if any(one.op == "mul" and any(same(bare(other), labels) for mine, other in sides(one) if bare(mine) is user) for one in computation.users(user)):
                    yield value, labels
                    break


def _is_places(value: Value) -> bool:
    """Whether a value counts the places of a ranking from 1."""
    value = bare(value)
    if value.op == "add" and len(value.args) == 2 and any(number(one) == 1 for one in value.args):
        return any(bare(one).op == "arange" for one in value.args)
    return value.op == "arange" and len(value.args) > 1 and number(value.args[0]) == 1


def _is_data(labels: Value) -> bool:
    """Whether a value is labels as they came with the samples."""
    for _ in range(40):
        if isinstance(labels, Many):
            if not labels.parts:
                return False
            labels = labels.parts[0]
        elif labels.op in _ENDS:
            return not any(one.op in ("run", "@input", "unknown") for one in origins(labels))
        elif labels.op in ("lt", "rand", "random", "bernoulli", "multinomial") or not labels.args:
            return labels.op in ("lt", "rand", "random", "bernoulli", "multinomial") and not any(one.op in ("run", "@input", "unknown") for one in origins(labels))
        elif labels.op in _ALONG:
            labels = labels.args[0]
        else:
            return False
    return False


def _is_scored(computation: Computation, value: Value) -> bool:
    """Whether what is made of a running sum is reported, in a function that is given what a network says, or beside it."""
    if not any(one.op in ("div", "trapz", "trapezoid") for one in made_from(computation, value, _REPORTED)):
        return False
    inside = value.where.functions[-1:] if value.where.functions else ()
    return bool(inside) and any(one.op == "run" and one.where.no_grad for one in computation.values)


def _rising(labels: Value) -> Value | None:
    """What sorts the scores by which labels are taken, where it does so from small to large."""
    at = bare(labels)
    if at.op not in ("part", "gather", "index_select", "take") or len(at.args) < 2:
        return None
    order = bare(at.args[-1].parts[0] if isinstance(at.args[-1], Many) and at.args[-1].parts else at.args[-1])
    if order.op == "part" and len(order.args) == 2 and constant(order.args[1]) == 1 and bare(order.args[0]).op == "sort":
        order = bare(order.args[0])
    if order.op not in ("argsort", "sort") or not order.args:
        return None
    given = order.argument("descending", 2)
    key = list(origins(order.args[0], stop=("run",)))
    turned = any(one.op in ("neg", "sub", "cdist", "norm", "mse_loss", "reciprocal", "div") or (one.op == "mul" and any((number(each) or 0) < 0 for each in one.args)) for one in key)
    sure = any(one.op in ("sigmoid", "softmax", "log_softmax", "cosine_similarity") for one in origins(order.args[0]))  # else it may be a distance
    scored = sure and any(one.op == "run" for one in key) and not turned
    return order if scored and (given is None or constant(given) is False) else None
