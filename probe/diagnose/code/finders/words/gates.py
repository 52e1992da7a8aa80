"""Choices by the scores of a layer: of experts, of codes, of words, where the layer itself gets no gradient. Pure; standard library
only."""

from __future__ import annotations

from collections.abc import Iterator

from probe.diagnose.code.computed.computation import Computation, computation_of
from probe.diagnose.code.computed.value import SHAPED, Value, constant, number, origins
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Finders, Remark
from probe.diagnose.code.syntax import short
from probe.diagnose.code.traits.basic import losses
from probe.diagnose.code.traits.extents import rank
from probe.diagnose.code.traits.held import contents, optimizers, sources

FINDERS = Finders()
_THROUGH = frozenset({
    "softmax", "log_softmax", "sigmoid", "to", "float", "div", "mul", "sub", "add", "neg", "clone", "contiguous", "exp", "tanh", "clamp", "either", "dropout", *SHAPED,
})
"""Operations that pass scores on, place by place."""
_INDICES = ("argmax", "argmin", "argsort", "multinomial")
_RANKED = ("topk", "max", "sort", "min")
_SIZES = ("shape", "size", "len", "dim", "numel", "device", "dtype", "zeros_like", "ones_like", "print", "text", "format")


@FINDERS.add("cut-off-from-the-loss")
def _chosen_without_weight(program: Program) -> Iterator[Remark]:
    """The scores of a layer that an optimizer holds have no other use than to say which are the largest, and what is chosen by them
    reaches the loss."""
    computation = computation_of(program)
    learned = {id(one): one for _, loss in losses(computation) for one in origins(loss)}
    held = {
        id(each) for optimizer in optimizers(computation) for source in sources(optimizer.argument("params", 0)) or [] if not source.chosen
        for each in contents(source.of, computation)
    }
    if any(one.op == "requires_grad_" or one.data == "requires_grad" for one in computation.of("requires_grad_", "set_attribute")):
        return
    runs: dict[int, list[Value]] = {}
    for run in computation.of("run"):
        if run.args[0].op == "torch.nn.Linear" and id(run.args[0]) in held:
            runs.setdefault(id(run.args[0]), []).append(run)
    for found in runs.values():
        choices: list[Value] = []
        if all(not one.where.no_grad and _only_chooses(computation, one, choices) for one in found):
            choice = next((one for one in choices if id(one) in learned), None)
            if choice is not None:
                yield Remark(choice.node, f"{short(choice.node)} takes the places of the largest scores, which have no gradient, and nothing else is made of {short(found[0].node)} (line {found[0].line})")
                return


def _only_chooses(computation: Computation, run: Value, choices: list[Value]) -> bool:
    """Whether scores are used for nothing but the places of the largest ones; these are added to `choices`."""
    waiting, seen = [run], {id(run)}
    while waiting:
        at = waiting.pop()
        for user in computation.users(at):
            if id(user) in seen or user.op in _SIZES:
                continue
            seen.add(id(user))
            if user.op in _INDICES:
                choices.append(user)
            elif user.op in _RANKED and user.args and user.args[0] is at and (len(user.args) > 1 or user.named):
                for part in computation.users(user):
                    place = {"indices": 1, "values": 0}.get(part.op, constant(part.args[1]) if part.op == "part" else None)
                    if place not in (0, 1):
                        return False
                    if place == 1:
                        choices.append(part)
                    elif [one for one in computation.users(part) if one.op not in _SIZES]:
                        waiting.append(part)
            elif user.op in _THROUGH and all(one is at or _is_plain(one) for one in user.args):
                waiting.append(user)
            else:
                return False
    return bool(choices)


def _is_plain(value: Value) -> bool:
    """Whether a value is a number or is drawn at random: no network has made it."""
    return not any(one.op in ("run", "torch.nn.Parameter", "@input") for one in origins(value, ("shape", "size", "randn_like", "rand_like")))


def mean_of_all_shares(program: Program) -> Iterator[Remark]:
    """A term of a loss is the mean of a softmax over its own axis: one divided by how many there are, whatever the scores are."""
    computation = computation_of(program)
    for _, loss in losses(computation):
        for value in origins(loss):
            shares = value.args[0] if value.op == "mean" and value.args and not value.where.no_grad else value
            while shares is not value and shares.args and shares.op in ("to", "float", "contiguous", "clone"):
                shares = shares.args[0]
            if shares.op != "softmax" or shares is value or not _is_same_axis(value.argument("dim", 1), shares):
                continue
            yield Remark(value.node, f"{short(value.node)} is the mean of {short(shares.node)} (line {shares.line}) over the axis along which it adds up to 1: it is the same number for all scores")
            return


def _is_same_axis(over: Value | None, shares: Value) -> bool:
    """Whether an axis is that of a softmax."""
    given, along, axes = number(over), number(shares.argument("dim", 1)), rank(shares)
    if given is None or along is None:
        return False
    if (given < 0) == (along < 0):
        return given == along
    return axes is not None and given % axes == along % axes
