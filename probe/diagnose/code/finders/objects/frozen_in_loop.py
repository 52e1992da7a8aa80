"""Networks that are frozen within a training and never thawed, and derivatives that are taken for nothing. Pure; standard library
only."""

from __future__ import annotations

from collections.abc import Iterator

from probe.diagnose.code.computed.computation import computation_of
from probe.diagnose.code.computed.value import (
    DRAWN,
    Instance,
    Many,
    Value,
    bare,
    comes_from,
    constant,
    origins,
)
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Finders, Remark
from probe.diagnose.code.syntax import short
from probe.diagnose.code.traits.basic import losses
from probe.diagnose.code.traits.held import apart, is_unsteady
from probe.diagnose.code.traits.sides import draws_of
from probe.diagnose.code.traits.updates import backwards, modules, optimizer_of, plain, runs

FINDERS = Finders()


def frozen_in_the_loop(program: Program) -> Iterator[Remark]:
    """Within the loop that an optimizer steps a network in, the network is frozen, and nothing ever thaws it."""
    computation = computation_of(program)
    asked = [(one, on, holds) for one in computation.of("requires_grad_", "set_attribute") if (found := _asks(one)) is not None for on, holds in (found,)]
    for frozen, network, holds in asked:
        if holds or not frozen.where.loops or frozen.where.under or network.where.loops:
            continue
        if any(more is not False and not apart(on, network, computation) and not _is_data(on) for _, on, more in asked):
            continue
        for step in computation.of("step"):
            optimizer = optimizer_of(step)
            held = modules(optimizer) if optimizer is not None else []
            if held and all(one is network for one in held) and runs(step) == runs(frozen) and step.where.loops[:1] == frozen.where.loops[:1] and not (optimizer is not None and optimizer.where.loops):
                yield Remark(frozen.node, f"{short(frozen.node)} freezes the network that {short(step.node)} (line {step.line}) steps in the same loop, and nothing thaws it: after the first pass it never changes")
                return


def _is_data(value: Value) -> bool:
    """Whether a value is drawn, or of a batch, and no part of a network."""
    return not isinstance(value, Instance) and not value.op.startswith("torch.nn.") and (bool(draws_of(value)) or any(one.op == "rows" for one in origins(value)))


def _asks(value: Value) -> tuple[Value, bool | None] | None:
    """The network that a value freezes (False) or thaws (True), or whose parameters it does so with; None as the second where
    that is unknown."""
    if value.op == "requires_grad_" and value.args:
        given = value.argument("requires_grad", 1)
        holds = True if given is None else constant(given)
    elif value.op == "set_attribute" and value.data == "requires_grad" and len(value.args) > 1:
        holds = constant(value.args[1])
    else:
        return None
    of = bare(value.args[0])
    whole = next((one for one in origins(of) if one.op in ("parameters", "named_parameters") and one.args), None) if of.op in ("element", "part") else None
    return plain(whole.args[0] if whole is not None else of), holds if isinstance(holds, bool) else None


@FINDERS.add("loss-never-added")
def _derivative_for_nothing(program: Program) -> Iterator[Remark]:
    """A derivative is taken with a graph of its own, in a pass that goes back from a loss, and no loss is made of it."""
    computation = computation_of(program)
    found = list(backwards(computation))
    for taken in computation.of("torch.autograd.grad"):
        if constant(taken.named.get("create_graph")) is not True or taken.where.no_grad or not taken.where.loops:
            continue
        beside = [value for value, _ in found if value.where.functions == taken.where.functions and value.where.loops == taken.where.loops and value.number > taken.number]
        used = any(comes_from(loss, taken) for _, loss in found) or any(one is not taken and comes_from(one, taken) for one in computation.of("torch.autograd.grad", "backward", "step"))
        if beside and not used:
            yield Remark(taken.node, f"{short(taken.node)} keeps a graph to be learned from, and {short(beside[0].node)} (line {beside[0].line}) goes back from a loss without it, as do all others")
            return


@FINDERS.add("one-view-twice")
def _one_view_twice(program: Program) -> Iterator[Remark]:
    """Two views that are compared with each other are one and the same draw."""
    computation = computation_of(program)
    for back, loss in losses(computation):
        inside = list(origins(loss))
        for joined in inside:
            parts = joined.args[0].parts if joined.op in ("cat", "stack") and joined.args and isinstance(joined.args[0], Many) else []
            if len(parts) != 2 or parts[0] is not parts[1] or not draws_of(parts[0]) or any(one.op == "run" for one in origins(parts[0])):
                continue
            products = [one for one in inside if one.op in ("matmul", "mm") and len(one.args) == 2 and bare(one.args[1]).op in ("t", "T", "transpose", "mT") and bare(bare(one.args[1]).args[0]) is bare(one.args[0])]
            layers = [one.args[0] for one in inside if one.op == "run" and comes_from(one, joined)]
            dropped = any(is_unsteady(one) and "Norm" not in one.op for one in layers) or any(one.op == "dropout" for one in inside)
            # What is drawn after it may make two views of the one, as masks for both halves do.
            drawn_later = any(one.op in DRAWN and one.number > joined.number for one in inside)
            asked = bare(parts[0]).op in ("lt", "le", "gt", "ge", "eq", "ne", "invert", "isin")
            if any(comes_from(one, joined) for one in products) and layers and not dropped and not drawn_later and not asked:
                yield Remark(joined.node, f"{short(joined.node)} puts {short(parts[0].node)} (line {parts[0].line}) twice, one draw, and {short(back.node)} (line {back.line}) compares the two as two views")
                return
