"""Two networks of which one judges what the other makes. Pure; standard library only."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from probe.diagnose.code.computed.computation import computation_of
from probe.diagnose.code.computed.value import Value, bare, number, origins, same
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Finders, Remark
from probe.diagnose.code.syntax import short
from probe.diagnose.code.traits.arithmetic import addends, product, rectified
from probe.diagnose.code.traits.basic import losses, squared

FINDERS = Finders()


class _Wish(NamedTuple):
    """What a term of a loss wants of a judge: that its answer falls (1) or rises (-1), or a label of unknown value;
    the networks that the gradient of the term reaches, and those that it is cut off from; whether the term is
    the square of the answer alone."""

    judge: int
    wanted: int | Value
    through: set[int]
    cut: set[int]
    term: Value
    answer: Value
    square: bool


@FINDERS.add("adversaries-agree")
def _adversaries_agree(program: Program) -> Iterator[Remark]:
    """The generator wants the answer of the judge that the judge learns to give for generated samples."""
    computation = computation_of(program)
    wishes = [wish for _, loss in losses(computation) for wish in wishes_of(loss)]
    for maker in wishes:
        for judge in wishes:
            made = judge.cut & maker.through
            other = any(one.judge == judge.judge and not made & (one.cut | one.through) and not agree(one.wanted, judge.wanted) for one in wishes)
            if maker.judge == judge.judge and made and not maker.cut and other and agree(maker.wanted, judge.wanted):
                yield Remark(maker.term.node, f"{short(maker.term.node)} wants of generated samples what line {judge.term.line} wants, where the judge learns to recognize them")


def wishes_of(loss: Value) -> Iterator[_Wish]:
    """What the terms of a loss want of judges. The square of an answer that another term has a wish for keeps it small,
    and is no wish of its own."""
    found = [wish for term, sign in _terms(loss) if (wish := _wish(term, sign)) is not None]
    for wish in found:
        if not wish.square or not any(not one.square and same(one.answer, wish.answer) for one in found):
            yield wish


def agree(one: int | Value, other: int | Value) -> bool:
    """Whether two terms want the same answer."""
    if isinstance(one, int) or isinstance(other, int):
        return one is other or (isinstance(one, int) and isinstance(other, int) and one == other)
    return same(one, other)


def _terms(loss: Value) -> Iterator[tuple[Value, int]]:
    """The terms of a loss, with their signs, without positive factors."""
    for term, sign in addends(loss):
        factors = product(term)
        others = [one for one in factors.above if number(one) is None]
        numbers = [found for one in factors.above if (found := number(one)) is not None]
        if len(others) == 1 and (numbers or others[0] is not term) and not factors.below:
            negative = sum(found < 0 for found in numbers) % 2 == 1
            yield from addends(others[0], sign * factors.sign * (-1 if negative else 1))
        else:
            yield term, sign


def _wish(term: Value, sign: int) -> _Wish | None:
    """What a term wants of the network whose answer it is made of."""
    answer, wanted = term, sign
    label: Value | None = None
    plain = False
    if term.op in ("binary_cross_entropy_with_logits", "binary_cross_entropy", "mse_loss") and len(term.args) > 1:
        answer, label = term.args[0], bare(term.args[1])
    elif (square := squared(term)) is not None:  # (answer - label) ** 2
        found = list(addends(square))
        answers, labels = [one for one, _ in found if number(one) is None], [number(one) for one, _ in found if number(one) is not None]
        if len(answers) != 1 or len(labels) > 1 or sign < 0:
            return None
        plain = not labels
        answer, wanted = answers[0], -1 if labels and abs(labels[0] or 0) > 0.5 else 1
    elif (inner := rectified(term)) is not None:
        found = [(one, by) for one, by in addends(inner, sign) if number(one) is None]
        if len(found) != 1:
            return None
        answer, wanted = found[0]
    answer = bare(answer, "sigmoid")
    if answer.op != "run":
        return None
    known = _label(label) if label is not None else wanted
    if known is None:
        return None
    reached = [one for one in origins(answer, stop=("detach", "item")) if one.op == "run" and not one.where.no_grad]
    through = {id(one.args[0]) for one in reached}
    every = {id(one.args[0]) for one in origins(answer) if one.op == "run"}
    return _Wish(id(answer.args[0]), known, through, every - through, term, answer, plain)


def _label(value: Value) -> int | Value | None:
    """-1 for the label 1, 1 for the label 0, and a label of unknown value as it is."""
    if value.op in ("ones_like", "ones", "new_ones"):
        return -1
    if value.op in ("zeros_like", "zeros", "new_zeros"):
        return 1
    if value.op in ("full_like", "full") and len(value.args) > 1:
        known = number(value.args[1])
        return value.args[1] if known is None else -1 if known > 0.5 else 1
    return None
