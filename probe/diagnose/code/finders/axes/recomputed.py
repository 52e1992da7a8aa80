"""Layers that are computed anew in the backward pass, and whether a gradient reaches them. Pure; standard library only."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from probe.diagnose.code.computed.computation import computation_of
from probe.diagnose.code.computed.value import Value, constant
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Remark
from probe.diagnose.code.syntax import short
from probe.diagnose.code.traits.backwards import flows, is_learned, layers_of
from probe.diagnose.code.traits.updates import plain

_CHECKPOINTS = ("torch.utils.checkpoint.checkpoint", "torch.utils.checkpoint.checkpoint_sequential")


def recomputed_without_gradient(program: Program) -> Iterator[Remark]:
    """A reentrant checkpoint is given inputs of which none has a gradient: data, or what frozen layers give."""
    computation = computation_of(program)
    frozen = {id(plain(layer)) for one in computation.of("requires_grad_") if len(one.args) > 1 and constant(one.args[1]) is False for layer in (one.args[0], *layers_of(plain(one.args[0])))}
    said: set[ast.AST] = set()

    def may_start(one: Value) -> bool:
        """Whether a gradient may begin at a value."""
        told = one.op == "requires_grad_" or "requires_grad" in one.named
        return told or (is_learned(one) and not (one.op in ("run", "weight", "bias") and id(plain(one.args[0])) in frozen))

    for value in computation.of(*_CHECKPOINTS):
        given = value.args[2 if value.op.endswith("sequential") else 1 :]
        if value.node in said or not given or value.where.no_grad or constant(value.named.get("use_reentrant")) is not True:
            continue
        if not any(flows(one, may_start) for one in given):
            said.add(value.node)
            yield Remark(value.node, f"{short(value.node)} is reentrant, and {short(given[0].node)} has no gradient: the layers inside get none either, whatever comes after them")
