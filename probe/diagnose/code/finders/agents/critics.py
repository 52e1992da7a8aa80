"""What critics are learned towards: means over actions, shares of atoms, bounds, weights of draws. Pure; standard library only."""

from __future__ import annotations

from collections.abc import Iterator

from probe.diagnose.code.computed.computation import Computation, computation_of
from probe.diagnose.code.computed.value import Value, bare, constant, number, origins, same
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Remark
from probe.diagnose.code.syntax import short
from probe.diagnose.code.traits.arithmetic import addends, product, sides
from probe.diagnose.code.traits.basic import losses, squared, terms
from probe.diagnose.code.traits.uses import made_from

_PASSED = frozenset({"squeeze", "unsqueeze", "view", "reshape", "to", "float", "detach", "either", "sub", "add"})


def centred_over_the_batch(program: Program) -> Iterator[Remark]:
    """Of advantages that are added to a value, the mean over the actions of all samples is taken away."""
    computation = computation_of(program)
    said: set[int] = set()
    for value in computation.of("sub", "add"):
        found = list(_summands(value))
        for mean, sign in found:
            if mean.op != "mean" or sign != -1 or id(mean.node) in said or not mean.args or not _over_batch(mean):
                continue
            centred = bare(mean.args[0], shapes=False)
            width = _width(centred)
            values = [one for one, other in found if other == 1 and one is not centred and _width(bare(one, shapes=False)) == 1]
            if any(one is centred and other == 1 for one, other in found) and values and width != 1 and _takes_an_action(computation, value):
                said.add(id(mean.node))
                yield Remark(mean.node, f"{short(mean.node)} is the mean over the whole batch: what is added to the value of a state (line {values[0].line}) depends on the states beside it, and not on its own actions alone")


def _summands(value: Value, sign: int = 1) -> Iterator[tuple[Value, int]]:
    """What a value is the sum of, each with its sign; means are left as they are."""
    value = bare(value, shapes=False)
    if value.op in ("add", "sub") and len(value.args) == 2:
        yield from _summands(value.args[0], sign)
        yield from _summands(value.args[1], sign if value.op == "add" else -sign)
    else:
        yield value, sign


def _over_batch(mean: Value) -> bool:
    along = mean.argument("dim", 1)
    return along is None or constant(along) == 0


def _width(value: Value) -> float | None:
    """How many numbers a layer gives for each sample."""
    if value.op == "run" and value.args[0].op == "torch.nn.Linear":
        return number(value.args[0].argument("out_features", 1)) or 0
    return None


def _takes_an_action(computation: Computation, value: Value) -> bool:
    """Whether something chooses along the second axis of a value, so that the first is that of the samples."""
    return any(
        (one.op == "gather" and number(one.argument("dim", 1)) == 1) or (one.op in ("max", "argmax") and number(one.argument("dim", 1)) == 1)
        for one in made_from(computation, value, _PASSED, 40)
    )


def mass_lost_between(program: Program) -> Iterator[Remark]:
    """A share is given to the places below and above a number by its distances from them: at a whole number both are 0."""
    computation = computation_of(program)
    compared = [part for one in computation.of("eq", "ne", "isclose", "lt", "gt", "is") for part in origins(one) if part.op in ("floor", "ceil")]
    for above in computation.of("sub"):
        upper = bare(above.args[0]) if len(above.args) == 2 else above
        if upper.op != "ceil" or bare(upper.args[0]) is not bare(above.args[1]):
            continue
        place = bare(above.args[1])
        below = next((one for one in computation.of("sub") if len(one.args) == 2 and bare(one.args[0]) is place and bare(one.args[1]).op == "floor" and bare(bare(one.args[1]).args[0]) is place), None)
        if below is None or any(bare(one.args[0]) is place for one in compared):
            continue
        if any(len(one.args) == 2 and bare(one.args[0]).op == "ceil" and bare(one.args[1]).op == "floor" for one in computation.of("sub")):
            continue
        shares = [_multiplied(computation, one) for one in (above, below)]
        if all(shares) and not any(part is place for one in (above, below) for test, _ in one.where.under for part in origins(test)):
            yield Remark(above.node, f"{short(above.node)} and {short(below.node)} (line {below.line}) are both 0 where {short(place.node)} is a whole number: what is multiplied by them is lost there")
            return


def _multiplied(computation: Computation, value: Value) -> bool:
    return any(one.op == "mul" for one in made_from(computation, value, frozenset({"unsqueeze", "view", "to", "float", "part"}), 12))


def smaller_error_taken(program: Program) -> Iterator[Remark]:
    """Of the errors of a value and of the value that is kept near an old one, the smaller is learned from."""
    computation = computation_of(program)
    for value in computation.of("min", "minimum"):
        if len(value.args) != 2:
            continue
        errors = [_error(one) for one in value.args]
        for one, other in (errors, errors[::-1]):
            if one is None or other is None or not same(one[1], other[1]):
                continue
            near = _kept_near(other[0], one[0])
            if near is not None and any(any(part is value for part in origins(loss, ("run",))) for _, loss in losses(computation)):
                yield Remark(value.node, f"{short(value.node)} takes the smaller of the errors of a value and of the value that {short(near.node)} (line {near.line}) keeps near the old one: a value that has gone further towards its target is still pulled on, and one that has gone away from it is not pulled back")
                return


def _error(value: Value) -> tuple[Value, Value] | None:
    """A prediction and its target, of a squared or absolute error of each sample."""
    value = bare(value)
    inner = squared(value)
    inner = bare(inner) if inner is not None else bare(value.args[0]) if value.op == "abs" else None
    if inner is not None and inner.op == "sub" and len(inner.args) == 2:
        return bare(inner.args[0]), bare(inner.args[1])
    if value.op in ("mse_loss", "smooth_l1_loss", "huber_loss", "l1_loss") and constant(value.named.get("reduction")) == "none":
        return bare(value.args[0]), bare(value.args[1])
    return None


def _kept_near(value: Value, of: Value) -> Value | None:
    """The clamp by which a value is another one that is kept near an old one: old + clamp(new - old), or clamp(new, old - e, old + e)."""
    if value.op == "clamp" and bare(value.args[0]) is of:
        low = value.argument("min", 1)
        return value if low is not None and low.op in ("sub", "add") else None
    for old, change in sides(value) if value.op == "add" else ():
        change = bare(change)
        moved = bare(change.args[0]) if change.op == "clamp" else None
        if moved is not None and moved.op == "sub" and bare(moved.args[0]) is of and same(bare(moved.args[1]), bare(old)):
            return change
    return None


def importance_upside_down(program: Program) -> Iterator[Remark]:
    """What was drawn by its probability is weighted by a power of that probability that is above 0."""
    computation = computation_of(program)
    drawn = [(one, given) for one in computation.of("choice", "multinomial", "choices") if (given := one.argument("p") or one.argument("weights") or (one.args[0] if one.op == "multinomial" and one.args else None)) is not None]
    for weight in computation.of("pow") if drawn else ():
        if len(weight.args) != 2 or not _above_zero(weight.args[1]) or (number(weight.args[1]) or 0) >= 1.5:
            continue
        above = [bare(one) for one in product(weight.args[0]).above]
        taken = next(((one, draw) for one in above if one.op == "part" for draw, given in drawn if bare(one.args[1]) is bare(draw) and bare(one.args[0]) is bare(given)), None)
        if taken is None or any(one.op == "div" and any(bare(one.args[1]) is each for each in _alike(computation, weight)) for one in made_from(computation, weight, None, 60)):
            continue
        if any(one.op == "neg" for one in computation.users(weight)):
            continue
        reached = {id(one) for each in _alike(computation, weight) for one in (each, *made_from(computation, each, None))}
        if any(id(loss) in reached for _, loss in losses(computation)):
            yield Remark(weight.node, f"{short(weight.node)} grows with the probability by which {short(taken[1].node)} (line {taken[1].line}) draws: what is drawn most often also counts most")
            return


def _alike(computation: Computation, weight: Value) -> list[Value]:
    """A weight, and what it is after a type or a division by its largest."""
    return [weight, *(one for one in computation.users(weight) if one.op in ("to", "float", "astype", "from_numpy", "tensor", "as_tensor"))]


def _above_zero(value: Value, depth: int = 12) -> bool:
    """Whether a power is known to be above 0."""
    known = number(value)
    if known is not None:
        return known > 0
    if value.op in ("min", "max", "add", "mul", "div", "clamp", "either", "float", "minimum") and value.args and depth:
        return all(_above_zero(one, depth - 1) for one in value.args)
    return value.op in ("index", "count", "len")


def conservative_the_wrong_way(program: Program) -> Iterator[Remark]:
    """A loss falls as the values of actions of the data fall against those of all others, which it should hold down."""
    computation = computation_of(program)
    for _, loss in losses(computation):
        found = [(bare(one), sign if factor is None or factor > 0 else -sign) for term, factor in terms(loss) for one, sign in addends(term)]
        learned = [bare(one) for value, _ in found if value.op in ("mse_loss", "smooth_l1_loss", "huber_loss") for one in value.args[:1]]
        for value, sign in found:
            if value.op != "logsumexp" or sign != -1:
                continue
            of = bare(value.args[0])
            chosen = next((one for one, other in found if other == 1 and one.op == "gather" and bare(one.args[0]) is of), None)
            if chosen is not None and any(one is chosen for one in learned):
                yield Remark(value.node, f"{short(chosen.node)} (line {chosen.line}) less {short(value.node)} is added to the loss: the values of the actions in the data are pushed down, and those of all others up")
                return
