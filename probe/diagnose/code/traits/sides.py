"""What a loss is computed of: what a model is given, and what its output is compared with. Pure; standard library only."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from probe.diagnose.code.computed.computation import Computation
from probe.diagnose.code.computed.value import KEPT, SHAPED, Many, Table, Value, bare, number, origins, same
from probe.diagnose.code.traits.basic import losses

DRAWS = frozenset({
    "rand", "randn", "randint", "randperm", "rand_like", "randint_like", "bernoulli", "multinomial", "random", "permutation", "choice", "randrange", "integers",
    "sample", "uniform", "beta", "betavariate", "normal", "randn_like",
})
"""Operations that draw at random."""

_NUMBERS = ("rand", "randn", "rand_like", "randn_like", "normal", "standard_normal", "uniform")
"""Draws of numbers, and not of places."""
_SIZES = ("shape", "size", "len", "numel")
"""Operations that say how many numbers there are, and not which."""


def is_model(value: Value) -> bool:
    """Whether a value is the output of a layer of torch, or of a model of another library."""
    return (value.op == "run" and bool(value.args) and value.args[0].op.startswith(("torch.nn.", "transformers.", "torchvision.models."))) or (
        value.op == "run" and bool(value.args) and value.args[0].op == "to" and is_model(Value("run", value.args[0].args, node=value.node, where=value.where))
    )


class Sides:
    """A loss that a backward is called on: the identities of what models are given (`given`), and of what stands beside
    their outputs (`beside`)."""

    def __init__(self, loss: Value) -> None:
        self.loss = loss
        self.beside: dict[int, Value] = {}
        self.given: dict[int, Value] = {}
        self.runs: list[Value] = []
        waiting = [loss]
        while waiting:
            at = waiting.pop()
            if id(at) in self.beside:
                continue
            self.beside[id(at)] = at
            if at.op in _SIZES:
                continue
            if not is_model(at):
                waiting.extend(at.made_of())
                continue
            self.runs.append(at)
            labels = labels_of(at)
            if labels is not None:
                waiting.append(labels)
            for one in (*at.args[1:], *(value for name, value in at.named.items() if name != "labels")):
                if isinstance(one, Table):
                    self._give(value for name, value in one.entries.items() if name != "labels")
                elif not (one is at.named.get("**") and labels is not None):
                    self._give([one])
                else:
                    self._give([kept for kept in [kept_under(one, "input_ids")] if kept is not None])

    def _give(self, values: Iterable[Value]) -> None:
        for one in values:
            self.given |= {id(at): at for at in origins(one)}


def labels_of(run: Value) -> Value | None:
    """The labels that a model which computes its loss itself is given."""
    given = run.named.get("labels")
    return given if given is not None or "**" not in run.named else kept_under(run.named["**"], "labels")


def kept_under(table: Value, name: str) -> Value | None:
    """What a dict, or what a tokenizer returned, holds under a key that the program has set."""
    at: Value | None = table
    while at is not None:
        if isinstance(at, Table):
            return at.entries.get(name)
        if at.op == "set_item" and at.args[1].data == name:
            return at.args[2]
        at = at.args[0] if at.op in ("set_item", "to", "rows", "cuda") and at.args else None
    return None


@lru_cache(maxsize=1)
def sides_of(computation: Computation) -> tuple[Sides, ...]:
    """The sides of each loss that a backward is called on."""
    found = {id(loss): loss for _, loss in losses(computation)}
    return tuple(Sides(loss) for loss in found.values())


def draws_of(value: Value) -> set[int]:
    """The random draws that a value is made of: not those that say how much, or of what shape, is drawn."""
    return {id(one) for one in origins(value, stop=DRAWS) if one.op in DRAWS}


def is_simulated_beside(value: Value) -> bool:
    """Whether a value is computed in the function that draws the data it is made of: it belongs to the simulation of them."""
    around = value.where.functions
    return bool(around) and any(one.op in _NUMBERS and one.where.functions == around for one in origins(value))


def mixed(value: Value) -> tuple[Value, Value, Value] | None:
    """Share, first and second of `share * first + (1 - share) * second`, also by lerp; None for all else."""
    if value.op == "lerp" and len(value.args) > 2:
        return value.args[2], value.args[1], value.args[0]
    if value.op != "add" or len(value.args) != 2:
        return None
    left, right = (bare(one) for one in value.args)
    if left.op != "mul" or right.op != "mul":
        return None
    for one, other in ((left, right), (right, left)):
        for share, first in (one.args, one.args[::-1]):
            for rest, second in (other.args, other.args[::-1]):
                rest = bare(rest)
                if rest.op == "sub" and number(rest.args[0]) == 1 and same(bare(rest.args[1]), bare(share)):
                    return share, first, second
    return None


def unshaped(value: Value, *more: str) -> Value:
    """A value without batches, shapes, types and slices of rows."""
    while value.args and (value.op in KEPT or value.op in SHAPED or value.op in ("rows", *more)):
        value = value.args[0]
        if isinstance(value, Many) and len(value.parts) == 1:
            value = value.parts[0]
    return value
