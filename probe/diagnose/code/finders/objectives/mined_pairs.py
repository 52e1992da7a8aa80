"""The hardest pairs of a batch that a loss looks for. Pure; standard library only."""

from __future__ import annotations

from collections.abc import Iterator

from probe.diagnose.code.computed.computation import computation_of
from probe.diagnose.code.computed.value import Value, bare, constant, number, origins
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Finders, Remark
from probe.diagnose.code.syntax import names_of, short
from probe.diagnose.code.traits.arithmetic import addends, is_distance, product, rectified

FINDERS = Finders()
_PRODUCTS = ("matmul", "cosine_similarity", "einsum")
_ENDS = {"max": "min", "min": "max"}


def negatives_of_the_same_class(program: Program) -> Iterator[Remark]:
    """The hardest partner is looked for in the same class, and the hardest opponent among all other samples."""
    for value in computation_of(program).of("sub"):
        found = [_hardest(one) for one in value.args] if len(value.args) == 2 else []
        for partner, opponent in (found, found[::-1]) if len(found) == 2 else ():
            if partner is None or opponent is None or _ENDS[partner.op] != opponent.op:
                continue
            if _asks_labels(partner) and not _asks_labels(opponent) and any(one.op in ("eye", "fill_diagonal_") for one in origins(opponent, stop=("run",))):
                yield Remark(opponent.node, f"{short(opponent.node)} leaves out each sample itself only, and the labels that {short(partner.node)} (line {partner.line}) asks are not asked: the hardest opponent is mostly of the same class")
                return


def _hardest(value: Value) -> Value | None:
    """The largest or smallest number of each row that a value is, or some rows of it."""
    for one in origins(value, stop=("run", "matmul", "max", "min")):
        if one.op in _ENDS and one.args and any(part.op in ("masked_fill", "where") for part in origins(one.args[0], stop=("run", "matmul"))):
            return one
        if one is not value and bare(value).op not in ("part", "max", "min", "mul", "neg", "clamp", "add"):
            return None
    return None


def _asks_labels(hardest: Value) -> bool:
    """Whether samples are chosen by whether their labels are equal."""
    return any(one.op in ("eq", "ne") for one in origins(hardest, stop=("run",)))


@FINDERS.add("easiest-mined")
def _easiest_opponents(program: Program) -> Iterator[Remark]:
    """Of all pairs that a loss with a margin pushes apart, it takes those that are the farthest apart already."""
    for hinge in computation_of(program).of("relu", "softplus", "clamp", "max", "maximum", "margin_ranking_loss"):
        pulled, pushed = _pulled_and_pushed(hinge)
        if pulled is None or pushed is None:
            continue
        near = _closeness(pulled[1])
        if bare(pulled[1]) is not bare(pushed[1]) or near is None:
            continue
        (opponent, _, mask), easy, word = (pushed, "max", "largest distance") if near < 0 else (pulled, "min", "smallest similarity")
        asked = list(origins(mask, stop=("run",)))
        if opponent.op == easy and any(one.op in ("eq", "ne") for one in asked) and not any(one is bare(pulled[1]) for one in asked):
            yield Remark(opponent.node, f"{short(opponent.node)} is the {word} of each row, and {short(hinge.node)} (line {hinge.line}) pushes those pairs apart: they are the farthest from each other already")
            return


@FINDERS.add("easiest-mined")
def _easiest_partners(program: Program) -> Iterator[Remark]:
    """What is called hard takes, of all pairs that a loss with a margin pulls together, those that are the nearest already."""
    for hinge in computation_of(program).of("relu", "softplus", "clamp", "max", "maximum", "margin_ranking_loss"):
        up, down = _pulled_and_pushed(hinge)
        near = _closeness(up[1]) if up is not None else None
        if up is None or down is None or near is None or bare(up[1]) is not bare(down[1]):
            continue
        (partner, _, mask), easy, word = (up, "min", "smallest distance") if near < 0 else (down, "max", "largest similarity")
        named = any("hard" in getattr(one, "name", "").lower() for one in partner.where.functions) or any("hard" in name.lower() for name in names_of(hinge.node))
        asked = list(origins(mask, stop=("run",)))
        if named and partner.op == easy and any(one.op in ("eq", "ne") for one in asked) and not any(one is bare(up[1]) for one in asked):
            yield Remark(partner.node, f"{short(partner.node)} is the {word} of each row, and {short(hinge.node)} (line {hinge.line}) pulls those pairs together: they are the nearest to each other already")
            return


_Extreme = tuple[Value, Value, Value]
"""The largest or smallest of each row, of which numbers, and by which mask they are chosen."""


def _pulled_and_pushed(hinge: Value) -> tuple[_Extreme | None, _Extreme | None]:
    """Of relu(a - b + margin): a and b, where they are extremes of rows."""
    if hinge.op == "margin_ranking_loss":
        if len(hinge.args) < 3 or not (number(hinge.args[2]) == 1 or bare(hinge.args[2]).op in ("ones", "ones_like", "new_ones")):
            return None, None
        return _extreme(hinge.args[1]), _extreme(hinge.args[0])
    inner = rectified(hinge)
    terms = [(found, sign) for one, sign in addends(inner) if (found := _extreme(one)) is not None] if inner is not None else []
    up, down = [one for one, sign in terms if sign > 0], [one for one, sign in terms if sign < 0]
    return (up[0], down[0]) if len(up) == len(down) == 1 else (None, None)


def _extreme(value: Value) -> _Extreme | None:
    """The largest or smallest number of each row of a matrix that a mask leaves."""
    value = bare(value)
    if value.op == "part" and constant(value.args[1]) == 0:
        value = value.args[0]
    if value.op not in _ENDS or not value.args or (len(value.args) < 2 and "dim" not in value.named):
        return None
    over = bare(value.args[0])
    if over.op == "masked_fill" and len(over.args) == 3 and number(bare(over.args[2])) != 0:
        return value, over.args[0], over.args[1]
    if over.op == "where" and len(over.args) == 3:
        kept = over.args[1] if number(over.args[2]) is not None or bare(over.args[2]).op in ("full_like", "zeros_like", "neg", "float") else over.args[2]
        return value, kept, over.args[0]
    if over.op in ("add", "sub", "mul") and len(over.args) == 2:
        for kept, mask in (over.args, over.args[::-1]):
            chosen = any(one.op in ("eq", "ne") for one in origins(mask, stop=("run", "matmul")))
            if chosen and not any(one.op in ("eq", "ne") for one in origins(kept, stop=("run", "matmul"))) and (over.op == "mul" or any(number(one) is not None for one in product(mask).above)):
                return value, kept, mask
    return None


def _closeness(value: Value) -> int | None:
    """1 for a similarity of pairs, -1 for a distance, None where it is neither."""
    if is_distance(value):
        return -1
    signs: set[int] = set()
    for one, sign in addends(bare(value, "clamp")):
        factors = product(one)
        if any(bare(part).op in _PRODUCTS for part in factors.above):
            for known in (number(part) for part in factors.above):
                sign = -sign if known is not None and known < 0 else sign
            signs.add(sign * factors.sign)
    return signs.pop() if len(signs) == 1 else None
