"""Words that a small model proposes, and a large one accepts or draws anew. Pure; standard library only."""

from __future__ import annotations

from collections.abc import Iterator

from probe.diagnose.code.computed.computation import computation_of
from probe.diagnose.code.computed.value import Value, bare, origins, same
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Remark
from probe.diagnose.code.syntax import short

_COMPARED = ("lt", "le", "gt", "ge")
_DRAWN = ("rand", "random", "uniform", "rand_like")


def drawn_anew_from_all(program: Program) -> Iterator[Remark]:
    """A proposed word is accepted with the ratio of two probabilities, and where it is not, a word is drawn by the first of them as it is."""
    computation = computation_of(program)
    tests = [(test, *found) for test in computation.of(*_COMPARED) if (found := _accepts(test)) is not None]
    for draw in computation.of("multinomial", "choice", "sample") if tests else ():
        weights = _weights(draw)
        for test, ratio, target in tests:
            refused = any(asked is test or any(one is test for one in origins(asked, stop=("run",))) for asked, _ in draw.where.under)
            if refused and weights is not None and _is_same(weights, target):
                yield Remark(draw.node, f"{short(draw.node)} draws by the whole distribution that {short(ratio.args[0].node)} is of, where {short(test.node)} (line {test.line}) has refused a word: what was accepted with {short(ratio.node)} is a part of it already")
                return


def _accepts(test: Value) -> tuple[Value, Value] | None:
    """The ratio of two networks' probabilities of one word that a random number is compared with, and the distribution above."""
    sides = [bare(one) for one in test.args[:2]]
    if len(sides) != 2 or not any(one.op in _DRAWN for one in sides):
        return None
    for side in sides:
        for one in origins(side, stop=("run",)):
            if one.op == "div" and len(one.args) == 2:
                above, below = (bare(each) for each in one.args)
                if above.op == below.op and above.op in ("part", "gather") and (above.args[-1] is below.args[-1] or same(bare(above.args[-1]), bare(below.args[-1]))) and _networks(above) and _networks(above).isdisjoint(_networks(below)):
                    return one, above.args[0]
    return None


def _networks(value: Value) -> set[int]:
    """The layers whose outputs a probability is a softmax of."""
    return {id(one.args[0]) for each in origins(value.args[0], stop=("softmax", "run")) if each.op == "softmax" for one in origins(each.args[0], stop=("run",)) if one.op == "run"}


def _weights(draw: Value) -> Value | None:
    """What a word is drawn by."""
    if draw.op == "sample":
        made = draw.args[0] if draw.args else draw
        return made.argument("probs", 0) if made.op.endswith("Categorical") else None
    if draw.op == "choice":
        return draw.named.get("p")
    return draw.args[0] if draw.args else None


def _is_same(weights: Value, target: Value) -> bool:
    """Whether a draw goes by a distribution as it is, or divided by its own sum."""
    weights, target = _whole(weights), _whole(target)
    return weights is target or same(weights, target)


def _whole(value: Value) -> Value:
    value = bare(value, "builtins.float")
    while value.op == "div" and len(value.args) == 2 and bare(value.args[1]).op in ("sum", "sum_of"):
        value = bare(value.args[0])
    return value
