"""Layers that are computed anew in the backward pass, and whether a gradient reaches them. Pure; standard library only."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from probe.diagnose.code.computed.computation import Computation, computation_of
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
    changes = sorted(_freezes(computation), key=lambda one: one[0].number)
    said: set[ast.AST] = set()
    for value in computation.of(*_CHECKPOINTS):
        given = value.args[2 if value.op.endswith("sequential") else 1 :]
        if value.node in said or not given or value.where.no_grad or constant(value.named.get("use_reentrant")) is not True:
            continue
        frozen = _frozen(changes, value.number)

        def may_start(one: Value, frozen: set[int] = frozen) -> bool:
            """Whether a gradient may begin at a value."""
            told = one.op == "requires_grad_" or "requires_grad" in one.named
            return told or (is_learned(one) and not (one.op in ("run", "weight", "bias") and id(plain(one.args[0])) in frozen))

        if not any(flows(one, may_start) for one in given):
            said.add(value.node)
            yield Remark(value.node, f"{short(value.node)} is reentrant, and {short(given[0].node)} has no gradient: the layers inside get none either, whatever comes after them")


def _frozen(changes: list[tuple[Value, Value, bool]], before: int) -> set[int]:
    """The layers that are frozen at some time."""
    found: set[int] = set()
    for one, network, learns in changes:
        layers = {id(plain(layer)) for layer in (network, *layers_of(plain(network))) if plain(layer).number < one.number}
        if one.number < before:
            found = found - layers if learns else found | layers
    return found


def _freezes(computation: Computation) -> Iterator[tuple[Value, Value, bool]]:
    """Where a network, or each of its parameters, is frozen or set free: it, the network, and whether it learns from there."""
    for one in computation.of("requires_grad_", "set_attribute"):
        if one.op == "set_attribute" and (one.data != "requires_grad" or len(one.args) < 2):
            continue
        network = one.args[0]
        while network.op in ("element", "part", "parameters", "named_parameters") and network.args:
            network = network.args[0]
        yield one, network, len(one.args) < 2 or constant(one.args[1]) is not False
