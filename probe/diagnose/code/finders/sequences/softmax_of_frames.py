"""Softmaxes over another axis than the one in which a loss looks for the classes. Pure; standard library only."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from probe.diagnose.code.computed.computation import computation_of
from probe.diagnose.code.computed.value import KEPT, Many, Value, bare, number
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Remark
from probe.diagnose.code.syntax import short
from probe.diagnose.code.traits.extents import rank, view_sizes

_SOFTMAXES = ("softmax", "log_softmax")
_NUMBERED = ("log", "clamp", "contiguous", "mul", "add", "nan_to_num")
_JOINED = ("rows", "stack", "list", "tuple", "either", "tensor")


def over_the_frames(program: Program) -> Iterator[Remark]:
    """A softmax of sequences runs over the frames or the batch, and the loss looks for the classes in another axis."""
    said: set[ast.AST] = set()
    for loss in computation_of(program).of("ctc_loss", "nll_loss"):
        if not loss.args or loss.node in said:
            continue
        given = loss.args[0]
        axes = 3 if loss.op == "ctc_loss" else rank(given)
        if loss.op == "ctc_loss" and rank(given) == 2:
            continue
        found = _softmax(given, 2 if loss.op == "ctc_loss" else 1, axes)
        if found is None:
            continue
        value, axis, axes = found
        over = number(value.argument("dim", 1))
        over = over + axes if over is not None and over < 0 and axes is not None else over
        if over is None or over < 0 or over == axis or (rank(value.args[0]) or axes) != axes:
            continue
        said.add(loss.node)
        yield Remark(value.node, f"{short(value.node)} runs over axis {over:g} of {short(bare(value.args[0]).node)}, and {short(loss.node)} (line {loss.line}) looks for the classes in what is axis {axis} there")


def _softmax(value: Value, axis: int, axes: int | None) -> tuple[Value, int, int | None] | None:
    """The softmax that a value is, turned since; what an axis of the value was there, and how many there were."""
    turned = False
    for _ in range(30):
        if value.op in _SOFTMAXES and value.args:
            return (value, axis, axes) if turned or (axes == 3 and axis == 2) else None
        if not value.args:
            return None
        if value.op == "transpose" and len(value.args) == 3:
            both = [number(one) for one in value.args[1:]]
            if None in both or (axes is None and min(one for one in both if one is not None) < 0):
                return None
            one, other = (int(each) + (axes or 0) if each is not None and each < 0 else int(each or 0) for each in both)
            axis = other if axis == one else one if axis == other else axis
        elif value.op == "permute":
            order = [number(one) for one in view_sizes(value)]
            if None in order or axis >= len(order):
                return None
            axes = len(order)
            axis = int(order[axis] or 0) % axes
        elif value.op in ("view", "reshape") and not turned:
            sizes = view_sizes(value)
            whole = rank(value.args[0])
            if len(sizes) != 2 or axis != 1 or number(sizes[0]) != -1 or whole is None or whole < 3:
                return None
            axis, axes = whole - 1, whole
        elif not (value.op in _NUMBERED or (value.op in KEPT and value.op not in _JOINED)) or isinstance(value, Many):
            return None
        turned = turned or value.op in ("transpose", "permute", "view", "reshape")
        value = value.args[0]
    return None
