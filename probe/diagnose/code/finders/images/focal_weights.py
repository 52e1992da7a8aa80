"""Weights of samples by how sure a network is of them. Pure; standard library only."""

from __future__ import annotations

from collections.abc import Iterator

from probe.diagnose.code.computed.computation import computation_of
from probe.diagnose.code.computed.value import Many, Value, bare, constant, is_none, number, origins, same
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Finders, Remark
from probe.diagnose.code.syntax import short
from probe.diagnose.code.traits.arithmetic import complement_of, product, sides

FINDERS = Finders()
_OF_CLASSES = ("cross_entropy", "nll_loss")
_LOSSES = ("nll_loss", "binary_cross_entropy_with_logits", "binary_cross_entropy", "cross_entropy")


@FINDERS.add("focal-weight")
def _weight_of_the_sure(program: Program) -> Iterator[Remark]:
    """The loss of each sample is multiplied by a power of the probability of its own class, and not of the rest of it."""
    said: set[int] = set()
    if not any("focal" in source.text.lower() or "gamma" in source.text.lower() for source in program.sources):
        return  # a loss that trusts what the network is sure of may be meant
    for value in computation_of(program).of("mul"):
        factors = [bare(one) for one in product(value).above]
        loss = next((one for one in factors if one.op in _LOSSES and constant(one.named.get("reduction")) == "none"), None)
        for one in factors if loss is not None and value.line not in said else ():
            base = bare(one.args[0], "clamp") if one.op == "pow" and len(one.args) == 2 and (number(one.args[1]) is None or (number(one.args[1]) or 0) > 0) else None
            if base is None or loss is None or not (_is_inverted_loss(base, loss) or _is_of_its_class(base, loss)):
                continue
            if any(each.op == "detach" for each in origins(base, stop=("run",))):
                continue
            said.add(value.line)
            yield Remark(value.node, f"{short(value.node)}: {short(one.node)} (line {one.line}) is near 1 where the network is right and sure, and near 0 where it is wrong: easy samples weigh the most")


def _is_inverted_loss(base: Value, loss: Value) -> bool:
    """Whether a value is exp(-loss)."""
    inner = bare(base.args[0]) if base.op == "exp" and base.args else base
    return inner.op == "neg" and bare(inner.args[0]) is loss


def _is_of_its_class(base: Value, loss: Value) -> bool:
    """Whether a value is p * target + (1 - p) * (1 - target), or where(target == 1, p, 1 - p), of what the loss compares."""
    if len(loss.args) < 2:
        return False
    target = bare(loss.args[1])
    if base.op == "gather" and loss.op in _OF_CLASSES:
        shares = bare(base.args[0])
        place = bare(base.args[-1])
        place = bare(place.args[0]) if place.op == "part" and isinstance(place.args[1], Many) and any(is_none(one) for one in place.args[1].parts) else place
        return shares.op in ("softmax", "exp") and place is target
    if base.op == "where" and len(base.args) == 3:
        asked = bare(base.args[0])
        yes = asked is target or (asked.op in ("eq", "gt", "ge") and bare(asked.args[0]) is target and (number(asked.args[1]) == 1) == (asked.op == "eq"))
        rest = complement_of(base.args[2])
        return yes and rest is not None and same(bare(rest), bare(base.args[1]))
    for one, other in sides(base) if base.op == "add" else ():
        for sure, label in sides(one) if one.op == other.op == "mul" else ():
            for unsure, unlabelled in sides(other):
                complements = complement_of(unsure), complement_of(unlabelled)
                if complements[0] is not None and complements[1] is not None and bare(label) is target and same(bare(complements[0]), bare(sure)) and same(bare(complements[1]), target):
                    return True
    return False
