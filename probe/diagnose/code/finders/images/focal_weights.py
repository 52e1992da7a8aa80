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
_BATCHES = ("torch.utils.data.DataLoader", "split", "chunk", "view", "reshape", "list", "@input", "tensor_split", "array_split")
"""What a loop goes over where it gives a batch each time."""
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


@FINDERS.add("focal-weight")
def _weight_of_the_batch(program: Program) -> Iterator[Remark]:
    """The loss of a whole batch is multiplied by a power of the rest of its own exp(-loss), one number for all samples."""
    said: set[int] = set()
    for value in computation_of(program).of("mul"):
        factors = [bare(one) for one in product(value).above] if value.line not in said else []
        for one in factors:
            rest = complement_of(bare(one.args[0], "clamp", "abs")) if one.op == "pow" and len(one.args) == 2 else None
            sure = None if rest is None else bare(rest, "clamp")
            if sure is None:
                continue
            exponent = product(sure.args[0]) if sure.op == "exp" and sure.args else None
            own = exponent.above[0] if exponent is not None and exponent.sign < 0 and len(exponent.above) == 1 and not exponent.below else None
            loss = next((each for each in factors if each is own), None)
            of = None if loss is None else _of_all(loss)
            if loss is None or of is None or _is_of_one_sample(of):
                continue
            said.add(value.line)
            total = "the sum" if "sum" in (loss.op, constant(of.named.get("reduction"))) else "a mean"
            yield Remark(value.node, f"{short(value.node)}: {short(one.node)} (line {one.line}) is one number for the batch, because {short(loss.node)} (line {loss.line}) is {total} of all samples: no sample gets a weight of its own, as with reduction='none'")
            break


def _of_all(value: Value) -> Value | None:
    """The loss of which a value is the mean or the sum over a batch."""
    loss = bare(value.args[0]) if value.op in ("mean", "sum") and len(value.args) == 1 and not value.named else value
    if loss.op not in _LOSSES or len(loss.args) < 2 or any(name in loss.named for name in ("reduce", "size_average")):
        return None
    reduction = loss.named.get("reduction")
    known = "mean" if reduction is None else constant(reduction)
    return loss if known in (("none",) if loss is not value else ("mean", "sum")) else None


def _is_of_one_sample(loss: Value) -> bool:
    """Whether a loss is that of one sample, or of one row of several: its target has an axis put before it, is what a loop over
    rows gives, or stands at one place of others."""
    target = bare(loss.args[1], shapes=False)
    if any(one.op in ("unsqueeze", "tensor", "full", "vmap") for one in (loss.args[1], target)):
        return True
    plain = bare(target)
    if plain.op == "element":
        return bool(plain.args) and plain.args[0].op not in _BATCHES
    index = plain.args[1] if plain.op == "part" and len(plain.args) == 2 else None
    first = index.parts[0] if isinstance(index, Many) and index.op == "tuple" and index.parts else index
    if first is None or is_none(first):
        return first is not None
    if first.op == "slice" and len(first.args) == 3:
        end = first.args[1]
        return end.op == "add" and len(end.args) == 2 and number(end.args[1]) == 1
    if first.op == "@constant" and plain.args[0].op in ("element", "next", "rows", "@input"):
        return False  # the targets of a batch
    return first.op in ("index", "@constant") or (first.op == "element" and bool(first.args) and first.args[0].op in ("tolist", "range", "list", "choices"))


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
