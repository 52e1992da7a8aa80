"""Scores that count the padding among the answers. Pure; standard library only."""

from __future__ import annotations

from collections.abc import Iterator

from probe.diagnose.code.computed.computation import Computation, computation_of
from probe.diagnose.code.computed.value import KEPT, SHAPED, Value, bare, constant, number, origins
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Finders, Remark
from probe.diagnose.code.syntax import short
from probe.diagnose.code.traits.numberings import filled_up

FINDERS = Finders()
_SUMS = ("sum", "mean", "item")


@FINDERS.add("metric-over-ignored")
def _over_ignored(program: Program) -> Iterator[Remark]:
    """The loss leaves padded places out, and a score is divided by the number of all places."""
    computation = computation_of(program)
    if not _leaves_out(computation):
        return
    for value in computation.of("div"):
        if len(value.args) != 2:
            continue
        places = next((one for one in origins(value.args[1]) if one.op == "numel" and one.args), None)
        counted = None if places is None else _counted(computation, value.args[0], bare(places.args[0]))
        if places is not None and counted is not None:
            yield Remark(value.node, f"{short(value.node)}: {short(places.node)} (line {places.line}) counts all places, also those of the padding, and {short(counted.node)} (line {counted.line}) is added up over them")
            return
    for value in computation.of("mean"):
        compared = bare(value.args[0]) if value.args and len(value.args) == 1 and not value.named else value
        if compared.op == "eq" and len(compared.args) == 2 and _is_answer(compared) and not all(map(_is_picked, compared.args)) and any(filled_up(computation, one) is not None for one in compared.args):
            yield Remark(value.node, f"{short(value.node)} counts all places, also those of the padding, which the loss leaves out")
            return


def _is_picked(side: Value) -> bool:
    """Whether only the places that a mask is true at are compared."""
    return side.op == "part" and len(side.args) == 2 and bare(side.args[1]).op in ("ne", "eq", "gt", "ge", "lt", "le", "bool", "invert", "and")


def _leaves_out(computation: Computation) -> bool:
    """Whether a loss that a network learns from leaves padded places out: by the number of its padding, or by a mask."""
    for loss in computation.of("cross_entropy", "nll_loss"):
        if len(loss.args) < 2 or loss.where.no_grad:
            continue
        ignored = number(loss.argument("ignore_index"))
        found = filled_up(computation, loss.args[1])
        if found is None:
            continue
        if ignored is not None and found[0] == ignored:
            return True
        if constant(loss.named.get("reduction")) == "none" and any(user.op == "mul" for user in _users(computation, loss)):
            return True
    return False


def _users(computation: Computation, value: Value) -> Iterator[Value]:
    """What uses a value, also in another shape, and whether any of several guesses is right."""
    for user in computation.users(value):
        yield user
        if user.op in SHAPED or user.op in KEPT or user.op == "any":
            yield from _users(computation, user)


def _counted(computation: Computation, total: Value, target: Value) -> Value | None:
    """What a total adds up of all places of a padded target: right answers, or a loss."""
    if filled_up(computation, target) is None:
        return None
    for one in origins(total, stop=("run", "eq", "cross_entropy", "nll_loss")):
        if one.op == "eq" and len(one.args) == 2 and _is_answer(one) and any(bare(part) is target for part in one.args):
            return one if any(user.op in _SUMS for user in _users(computation, one)) and not _is_masked(computation, one) else None
        if one.op in ("cross_entropy", "nll_loss") and len(one.args) > 1 and bare(one.args[1]) is target and constant(one.named.get("reduction")) == "sum":
            return one if number(one.argument("ignore_index")) is not None else None
    return None


def _is_answer(compared: Value) -> bool:
    """Whether predicted classes are compared with the right ones."""
    return any(one.op == "argmax" or (one.op == "part" and one.args[0].op in ("max", "topk")) for part in compared.args for one in origins(part, stop=("run",)))


def _is_masked(computation: Computation, compared: Value) -> bool:
    """Whether some places of a comparison are left out before it is added up."""
    return any(user.op in ("mul", "and", "part", "masked_select", "where", "masked_fill") for user in _users(computation, compared))
