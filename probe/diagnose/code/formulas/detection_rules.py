"""Losses of detectors. Pure."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from probe.diagnose.code.flow import flow_of
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Remark, Rules
from probe.diagnose.code.syntax import (
    Function,
    argument,
    is_name,
    mentions,
    number_in,
    own,
    pairs_of,
    parameters,
    short,
)
from probe.diagnose.code.torch_losses import loss_name

RULES = Rules("loop")
_DISTANCES = ("smooth_l1_loss", "l1_loss", "mse_loss", "huber_loss", "SmoothL1Loss", "L1Loss", "MSELoss", "HuberLoss")
_PRESENCE = ("binary_cross_entropy_with_logits", "BCEWithLogitsLoss", "binary_cross_entropy", "BCELoss")


@RULES.add("background-in-the-box-loss", "most cells hold no object: the boxes are pulled to the zeros that stand there", "take the loss of the cells with an object: box_loss(pred[obj > 0], box[obj > 0])")
def _background(program: Program) -> Iterator[Remark]:
    """A regression over all cells of a grid, with targets that are 0 wherever there is no object."""
    names = {loss_name(program, call) for call in program.calls()}
    if not names & set(_DISTANCES) or not names & set(_PRESENCE):
        return
    sparse = [found for scope in program.scopes() for found in _set_together(program, scope)]
    for function in program.scopes() if sparse else ():
        if not isinstance(function, Function):
            continue
        given = {one.arg for one in parameters(function)}
        losses = [(loss_name(program, call), call) for call in own(function, ast.Call) if len(call.args) > 1]
        presence = {call.args[1].id for name, call in losses if name in _PRESENCE and isinstance(call.args[1], ast.Name)}
        for name, call in losses:
            wanted = call.args[1]
            if name not in _DISTANCES or not isinstance(wanted, ast.Name) or argument(call, "reduction") is not None:
                continue
            marks = [mark for mark, value in sparse if value == wanted.id and mark in presence and {mark, value} <= given]
            plain = isinstance(call.args[0], ast.Name) and len(flow_of(program).bindings(call.args[0])) == 1
            if marks and plain and not mentions(function, "masked_select", "nonzero", "where"):
                yield Remark(call, f"{short(call)} runs over all cells, and {wanted.id} is 0 where {marks[0]} is 0")


def _set_together(program: Program, scope: ast.AST) -> Iterator[tuple[str, str]]:
    """Two tensors of zeros of which the one is set to 1 where the other gets its values."""
    zeros = {
        target.id for node in own(scope, ast.Assign) for target, value in pairs_of(node)
        if isinstance(target, ast.Name) and program.called(value) in ("torch.zeros", "numpy.zeros")
    }
    set_at = [
        (node.targets[0].value.id, ast.unparse(node.targets[0].slice), node.value) for node in own(scope, ast.Assign)
        if isinstance(node.targets[0], ast.Subscript) and is_name(node.targets[0].value, *zeros) and zeros
    ]
    for mark, where, value in set_at:
        for other, there, _ in set_at if number_in(value) == 1 else ():
            if other != mark and there.startswith(where):
                yield mark, other
