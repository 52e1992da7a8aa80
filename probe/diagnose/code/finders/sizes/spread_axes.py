"""Sums over an axis along which what is carried on is only repeated, and weights that stand for their logarithms. Pure; standard
library only."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from probe.diagnose.code.computed.computation import Computation, computation_of
from probe.diagnose.code.computed.value import Value, bare, number, origins
from probe.diagnose.code.finders.objects.pairwise_ranks import along_an_axis
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Remark
from probe.diagnose.code.syntax import short
from probe.diagnose.code.traits.basic import losses
from probe.diagnose.code.traits.sides import mixed

_LAST = (2, 98, -1)
"""The last of three axes, however it is counted."""


def summed_over_the_next(program: Program) -> Iterator[Remark]:
    """A pass of a loop adds scores of steps from one state to another to what is carried on, and sums over the states that are
    stepped to: what is carried on is the same for all of them."""
    computation = computation_of(program)
    for value in computation.of("logsumexp"):
        over = value.argument("dim", 1)
        at = number(over) if over is not None else None
        if at is None or not value.where.loops or not value.args:
            continue
        parts = list(_added(value.args[0]))
        spread = [(one, found) for one in parts if (found := along_an_axis(one)) is not None and any(part.op in ("logsumexp", "add", "run", "either", "carried", "part") for part in origins(found[0]))]
        for one, (carried, place) in spread:
            alike = place == at or (place in _LAST and at in _LAST)
            table = any(part is not one and any(each.op == "torch.nn.Parameter" for each in origins(part, ("run",))) and (along_an_axis(part) or (part, 0))[1] == 0 for part in parts)
            if alike and table and _is_carried(program, value, one):
                yield Remark(value.node, f"{short(value.node)} sums over the axis along which {short(one.node)} (line {one.line}) is the same everywhere: over the states that are stepped to, and not over those that {short(carried.node)} is of")
                return


def _added(value: Value, depth: int = 8) -> Iterator[Value]:
    inner = value
    if inner.op == "add" and len(inner.args) == 2 and depth:
        for one in inner.args:
            yield from _added(one, depth - 1)
    else:
        yield inner


def _is_carried(program: Program, value: Value, spread: Value) -> bool:
    """Whether the statement around a sum sets the name that is given another axis."""
    around = next((one for one in program.parents(value.node) if isinstance(one, ast.Assign)), None)
    names = {one.id for one in ast.walk(spread.node) if isinstance(one, ast.Name)}
    return around is not None and any(isinstance(one, ast.Name) and one.id in names for one in around.targets)


def weight_for_its_logarithm(program: Program) -> Iterator[Remark]:
    """The probability of each part of a mixture, and not its logarithm, is added to the log density of the part, and the exponentials
    of these sums are summed."""
    computation = computation_of(program)
    trained = {id(one) for _, loss in losses(computation) for one in origins(loss)}
    for value in computation.of("add"):
        for one, other in (value.args, value.args[::-1]) if len(value.args) == 2 and id(value) in trained else ():
            weights = bare(one)
            if weights.op != "softmax" or not any(part.op in ("log_prob", "log", "pow", "square") for part in origins(other, ("run",))):
                continue
            summed = _exponentials_summed(computation, value)
            if summed is not None:
                yield Remark(value.node, f"{short(value.node)} adds the probabilities {short(weights.node)} (line {weights.line}) to log densities, and {short(summed.node)} (line {summed.line}) sums their exponentials: the weight of a part lies between 1 and e")
                return


def weights_without_their_sum(program: Program) -> Iterator[Remark]:
    """What a layer gives for the weights of a mixture is added to log densities as it is, and nothing divides by the sum of its
    exponentials."""
    computation = computation_of(program)
    trained = {id(one) for _, loss in losses(computation) for one in origins(loss)}
    normalized = {id(bare(one.args[0])) for one in computation.of("logsumexp", "softmax", "log_softmax", "exp", "sigmoid", "logsigmoid") if one.args}
    for value in computation.of("add"):
        for one, other in (value.args, value.args[::-1]) if len(value.args) == 2 and id(value) in trained else ():
            logits = bare(one)
            if logits.op != "run" or logits.args[0].op != "torch.nn.Linear" or id(logits) in normalized or not _is_log_density(other):
                continue
            summed = next((user for user in computation.users(value) if user.op == "logsumexp"), None)
            if summed is not None and any(user.op in ("neg", "mean") for user in computation.users(summed)):
                yield Remark(value.node, f"{short(value.node)} adds {short(one.node)} to log densities, and {short(summed.node)} (line {summed.line}) is taken for the log density of the mixture: nothing brings the weights to a sum of 1")
                return


def _is_log_density(value: Value) -> bool:
    """Whether a value is the log density that a network gives the data: of a distribution of torch, or a square over a spread and the
    logarithm of that."""
    inner = bare(value)
    inner = bare(inner.args[0]) if inner.op == "sum" and inner.args else inner
    if inner.op == "log_prob":
        return any(one.op == "run" for one in origins(inner.args[0]))
    parts = list(_terms(inner))
    return any(any(each.op in ("pow", "square") for each in origins(one, ("run",))) for one in parts) and any(bare(one).op in ("run", "log", "clamp") for one in parts) and len(parts) > 1


def _terms(value: Value, depth: int = 6) -> Iterator[Value]:
    inner = bare(value)
    if inner.op in ("add", "sub") and len(inner.args) == 2 and depth:
        for one in inner.args:
            yield from _terms(one, depth - 1)
    else:
        yield inner


def _exponentials_summed(computation: Computation, value: Value) -> Value | None:
    """Where the exponentials of a value are summed over one axis, also after its largest number was taken away."""
    for user in computation.users(value):
        if user.op == "logsumexp" or (user.op == "exp" and any(one.op == "sum" for one in computation.users(user))):
            return user
        if user.op == "sub" and user.args[0] is value:
            found = next((one for one in computation.users(user) if one.op == "exp"), None)
            if found is not None and any(one.op == "sum" for one in computation.users(found)):
                return found
    return None


def decayed_value_of_this_step(program: Program) -> Iterator[Remark]:
    """Where a measurement is missing, a share of the measurement itself is put in, which is 0 there."""
    computation = computation_of(program)
    for value in computation.of("add", "where"):
        if value.op == "where" and len(value.args) == 3:
            mask, seen, filled = value.args
        elif (found := mixed(value)) is not None:
            mask, seen, filled = found
        else:
            continue
        inner = mixed(bare(filled))
        if inner is None or bare(inner[1]) is not bare(seen) or bare(inner[2]) is bare(seen):
            continue
        if not any(one.op in ("exp", "sigmoid") for one in origins(inner[0])):
            continue
        zeroed = _root(seen)
        at = _zeroed_by(zeroed)
        if at is not None and any(one.op in ("run", "torch.nn.Parameter") for one in origins(inner[0])):
            yield Remark(value.node, f"{short(value.node)} puts in {short(filled.node)} (line {filled.line}) where {short(mask.node)} says that nothing was measured, and that decays the value of this step, which {short(at.node)} (line {at.line}) has set to 0 there, and not the last one that was measured")
            return


def _root(value: Value) -> Value:
    """The table that a value is a part of."""
    for _ in range(12):
        value = bare(value, "part", "rows", "element")
    return value


def _zeroed_by(table: Value) -> Value | None:
    """Where a table of measurements was set to 0 at those that are missing."""
    if table.op == "mul" and len(table.args) == 2 and any(_asks(one) for one in table.args):
        return table
    if table.op in ("where", "masked_fill") and len(table.args) == 3 and number(table.args[2]) == 0:
        return table
    return table if table.op in ("nan_to_num", "fillna") else None


def _asks(mask: Value) -> bool:
    """Whether a value is a mask: a question, also with some places set by hand."""
    mask = bare(mask)
    while mask.op in ("set_item", "invert") and mask.args:
        mask = bare(mask.args[0])
    return mask.op in ("lt", "gt", "le", "ge", "ne", "eq", "isnan", "bernoulli", "isfinite")
