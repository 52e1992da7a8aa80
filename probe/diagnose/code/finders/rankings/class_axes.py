"""Which axis of a tensor, and of a table of counts, stands for the classes. Pure; standard library only."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from probe.diagnose.code.computed.computation import Computation, computation_of
from probe.diagnose.code.computed.value import Many, Value, bare, number, origins
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Finders, Remark
from probe.diagnose.code.syntax import last_word, short
from probe.diagnose.code.traits.basic import without_small

FINDERS = Finders()
_BESIDE = ("mul", "sub", "mse_loss", "l1_loss", "smooth_l1_loss", "minimum", "binary_cross_entropy")
_SHAPES = ("view", "reshape", "flatten", "ravel", "contiguous", "float", "to", "double", "type_as", "detach", "cpu", "numpy", "clone")
_OF_PICTURES = re.compile(r"Conv(Transpose)?[23]d|Upsample|interpolate")
_RECALL = re.compile(r"^(recalls?|sensitivity|tpr|(per_)?class_recalls?|recall_per_class)$", re.I)
_PRECISION = re.compile(r"^(precisions?|ppv|(per_)?class_precisions?|precision_per_class)$", re.I)


@FINDERS.add("view-mixes-axes")
def _classes_on_another_axis(program: Program) -> Iterator[Remark]:
    """The probabilities of pixels have their classes on axis 1, and what `one_hot` makes of the mask has them last: both are made one
    row of numbers as they are, and compared number by number."""
    for value in computation_of(program).of(*_BESIDE):
        for one, other in (value.args[:2], value.args[1::-1]) if len(value.args) > 1 else ():
            made, truth = _on_axis_1(one), _last_axis(other)
            if made is not None and truth is not None:
                yield Remark(value.node, f"{short(value.node)} puts {short(made.node)} (line {made.line}), whose classes are axis 1, beside {short(truth.node)} (line {truth.line}), whose classes are the last axis: nothing has moved them before both were flattened")
                return


def _unshaped(value: Value) -> tuple[Value, bool]:
    """A value before it was given another shape, and whether it was."""
    shaped = False
    while value.op in _SHAPES and value.args:
        shaped = shaped or value.op in ("view", "reshape", "flatten", "ravel")
        value = value.args[0]
    return value, shaped


def _on_axis_1(value: Value) -> Value | None:
    """The probabilities of pixels that a value is, flattened."""
    whole, shaped = _unshaped(value)
    if not shaped or whole.op not in ("softmax", "sigmoid") or not whole.args or (whole.op == "softmax" and number(whole.argument("dim", 1)) != 1):
        return None
    inner = whole.args[0]
    while inner.op in ("div", "clamp", *_SHAPES) and inner.args:
        if inner.op in ("view", "reshape", "flatten", "ravel"):
            return None
        inner = inner.args[0]
    layer = inner.args[0].op if inner.op == "run" and inner.args else inner.op
    return whole if _OF_PICTURES.search(layer) else None


def _last_axis(value: Value) -> Value | None:
    """What `one_hot` makes of a mask that a value is, flattened."""
    whole, shaped = _unshaped(value)
    if not shaped:
        return None
    if whole.op == "one_hot":
        return whole
    return whole if whole.op == "scatter" and len(whole.args) > 1 and number(whole.args[1]) == -1 and whole.args[0].op in ("zeros", "zeros_like") else None


@FINDERS.add("precision-for-recall")
def _along_another_axis(program: Program) -> Iterator[Remark]:
    """What is called recall divides the diagonal of a table by its sums over the true classes, or what is called precision by those
    over the predicted ones."""
    computation = computation_of(program)
    for value in computation.of("div"):
        below = value.args[1] if len(value.args) == 2 else value
        rest = bare(below.args[0]) if below.op in ("clamp", "maximum") and below.args else without_small(below)
        own = bare(value.args[0])
        axis = number(rest.argument("dim", 1)) if rest.op == "sum" and rest.args else None
        if own.op not in ("diag", "diagonal") or not own.args or axis not in (0, 1, -1) or bare(own.args[0]) is not bare(rest.args[0]):
            continue
        name = _name_of(program, value.node)
        true_axis = _true_axis(computation, bare(own.args[0]))
        if true_axis is None or not (_RECALL.match(name) or _PRECISION.match(name)):
            continue
        over_true = (axis == 0) == (true_axis[0] == 0)
        if over_true and _RECALL.match(name):
            yield Remark(value.node, f"{name} divides by {short(rest.node)}, how often each class was predicted: the true classes are axis {true_axis[0]} ({short(true_axis[1].node)}, line {true_axis[1].line}), so it is the precision")
            return
        if not over_true and _PRECISION.match(name):
            yield Remark(value.node, f"{name} divides by {short(rest.node)}, how often each class was there: the true classes are axis {true_axis[0]} ({short(true_axis[1].node)}, line {true_axis[1].line}), so it is the recall")
            return


def _name_of(program: Program, node: ast.AST) -> str:
    """The name that an expression is given."""
    statement = program.statement(node)
    return last_word(statement.targets[0]) if isinstance(statement, ast.Assign) and statement.value is node and len(statement.targets) == 1 else ""


def _true_axis(computation: Computation, table: Value) -> tuple[int, Value] | None:
    """The axis of the true classes in a table of counts, and where that is seen: how it is written, or how the two are joined to one number."""
    parts = {id(one) for one in origins(table)}
    for one in computation.of("set_item", "numpy.add.at", "index_put", "index_put_"):
        index = one.args[1] if len(one.args) > 2 else one
        if (id(one) in parts or id(one.args[0]) in parts) and isinstance(index, Many) and len(index.parts) == 2:
            found = _order(index.parts[0], index.parts[1])
            if found is not None:
                return found, index
    for one in origins(table):
        joined = bare(one.args[0]) if one.op == "bincount" and one.args else one
        if joined.op != "add" or len(joined.args) != 2:
            continue
        for product, rest in (joined.args, joined.args[::-1]):
            inner = bare(product)
            first = next((side for side in inner.args if number(side) is None), None) if inner.op == "mul" and sum(number(side) is not None for side in inner.args) == 1 else None
            found = _order(first, rest) if first is not None else None
            if found is not None:
                return found, joined
    return None


def _order(first: Value, second: Value) -> int | None:
    """0 where the second of two numbers is a prediction and the first is none, 1 the other way round."""
    is_made = [any(part.op == "run" for part in origins(one)) for one in (first, second)]
    return None if is_made[0] == is_made[1] else 0 if is_made[1] else 1
