"""Sums beside means. Pure; standard library only."""

from __future__ import annotations

from collections.abc import Iterator

from probe.diagnose.code.computed.computation import computation_of
from probe.diagnose.code.computed.value import Many, Value, bare, number, origins, same
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Finders, Remark
from probe.diagnose.code.syntax import short
from probe.diagnose.code.traits.arithmetic import Product, addends, linear, product
from probe.diagnose.code.traits.basic import LOSSES, losses, reduction_of, squared, terms
from probe.diagnose.code.traits.extents import last, rank

FINDERS = Finders()
_ELEMENTWISE = ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy", "binary_cross_entropy_with_logits")


def _pairs(program: Program) -> Iterator[tuple[Value, Value, str, float, Value, str, float]]:
    """Each sum of a divergence and of another loss: the sum, and of both how they are reduced and weighed."""
    seen: set[tuple[int, int]] = set()
    for whole in computation_of(program).of("add", "sub", "mean"):
        inner = whole.args[0] if whole.op == "mean" and whole.args else whole
        found = [(one, factor) for one, factor in terms(inner) if factor is not None]
        for divergence, factor in found:
            kind = _reduction(divergence)
            if kind is None or not is_divergence(divergence):
                continue
            others = [(one, weight, _reduction(one)) for one, weight in found if one is not divergence]
            if len(others) == 1 and others[0][2] is not None and factor and others[0][1] and (id(divergence), id(others[0][0])) not in seen:
                seen.add((id(divergence), id(others[0][0])))
                yield whole, divergence, kind, factor, others[0][0], others[0][2], others[0][1]


def _reduction(value: Value) -> str | None:
    """What a loss is: the "sum" of all samples, the "mean" of all elements, or the sum of each "sample"; None for others."""
    value = bare(value)
    if value.op in LOSSES:
        how = reduction_of(value)
        return how if how in ("mean", "sum") else None
    if value.op == "mul":
        inner = [one for one in value.args if number(one) is None]
        return _reduction(inner[0]) if len(inner) == 1 else None
    if value.op == "neg":
        return _reduction(value.args[0])
    if value.op == "div" and len(value.args) == 2 and _is_batch_size(value.args[1]):
        return "sample" if _reduction(value.args[0]) == "sum" else None
    if value.op not in ("sum", "mean") or not value.args or isinstance(bare(value.args[0]), Many):
        return None
    over = value.argument("dim", 1)
    of = bare(value.args[0])
    while of.op in ("mul", "div", "neg") and (number(of.args[-1]) is not None or of.op == "neg" or number(of.args[0]) is not None):
        of = bare(of.args[1] if of.op == "mul" and number(of.args[0]) is not None else of.args[0])
    by_sample = (of.op in ("sum", "sum_of") and "dim" in of.named) or (of.op == "sum" and len(of.args) > 1) or _is_of_samples(of)
    if value.op == "sum" and over is None and _is_mean_of_samples(of):
        return "sample"
    if value.op == "sum":
        return "sum" if over is None and (rank(of) is None or (rank(of) or 0) > 0) else "sample" if over is not None and not isinstance(over, Many) and number(over) != 0 else None
    if by_sample:
        return "sample" if over is None or number(over) == 0 else None
    if value.op == "mean" and of.op == "mean" and of.args and (over is None or number(over) == 0) and number(of.argument("dim", 1)) in (1, -1):
        return "mean"
    return "mean" if over is None and (of.op not in ("sum", "mean") or len(of.args) > 1) else None


def _is_mean_of_samples(value: Value) -> bool:
    """Whether a value has the mean over the samples of each dimension of a code, also bounded from below (free bits)."""
    for _ in range(6):
        value = bare(value)
        inner = [one for one in value.args if number(one) is None]
        if value.op in ("clamp", "clamp_min", "clip", "maximum", "max", "relu", "mul", "div", "neg", "sub", "add", "either") and inner:
            value = inner[0]
    over = value.argument("dim", 1)
    first = over.parts[0] if isinstance(over, Many) and over.parts else over
    return value.op == "mean" and number(first) == 0


def _is_batch_size(value: Value) -> bool:
    value = bare(value)
    return (value.op == "size" and len(value.args) == 2 and number(value.args[1]) == 0) or (value.op == "part" and value.args[0].op == "shape" and number(value.args[1]) == 0)


def _is_of_samples(value: Value) -> bool:
    """Whether a divergence of distributions has one number for each sample."""
    return value.op.endswith("kl_divergence") and any(one.op.endswith((".Independent", ".MultivariateNormal")) for one in value.args)


def prior_first(program: Program) -> Iterator[Remark]:
    """The divergence that is minimized is that of a fixed distribution from the one that a network gives, from which a code is
    drawn."""
    computation = computation_of(program)
    for _, loss in losses(computation):
        for value in origins(loss, stop=("run",)):
            if not value.op.endswith(".kl_divergence") or len(value.args) != 2:
                continue
            fixed, given = value.args
            drawn = any(one.op in ("rsample", "sample") and one.args[0] is given for one in computation.of("rsample", "sample"))
            if drawn and _is_standard(fixed) and any(one.op == "run" for one in origins(given)):
                yield Remark(value.node, f"{short(value.node)} is the divergence of the fixed {short(fixed.node)} (line {fixed.line}) from {short(given.node)} (line {given.line}), which the code is drawn from: the two stand the other way round in the bound")
                return


def _is_standard(value: Value) -> bool:
    """Whether a distribution is a normal one of fixed numbers."""
    if value.op.endswith(".Independent") and value.args:
        value = value.args[0]
    given = [bare(one) for one in value.made_of()]
    return value.op.endswith(".Normal") and len(given) >= 2 and all(one.op in ("zeros", "ones", "zeros_like", "ones_like") or number(one) is not None for one in given[:2])


def is_divergence(value: Value) -> bool:
    """Whether a value is the divergence of a code that a network gives from a standard normal distribution."""
    inner = bare(value)
    for _ in range(8):
        if inner.op in ("sum", "mean", "neg") and inner.args:
            inner = bare(inner.args[0])
        elif inner.op in ("mul", "div") and len(inner.args) == 2 and any(number(one) is not None for one in inner.args):
            inner = bare(next(one for one in inner.args if number(one) is None))
        elif inner.op == "div" and len(inner.args) == 2 and _is_batch_size(inner.args[1]):
            inner = bare(inner.args[0])
    if not any(one.op == "run" for one in origins(inner)):
        return False
    if inner.op.endswith("kl_divergence"):
        return True
    parts = [(bare(one), sign) for one, sign in addends(inner)]
    squares = [sign for one, sign in parts if one.op in ("pow", "square") or (one.op == "mul" and same(one.args[0], one.args[1]))]
    return any(
        _is_logarithm_of(small, large) and sign == -other and other in squares
        for small, sign in parts for large, other in parts if small is not large
    )


def _is_logarithm_of(small: Value, large: Value) -> bool:
    """Whether one value is the logarithm of another one, or a multiple of it."""
    while small.op == "mul" and any(number(one) is not None for one in small.args):
        small = bare(next(one for one in small.args if number(one) is None))
    if large.op == "exp":
        inner = bare(large.args[0])
        while inner.op == "mul" and any(number(one) is not None for one in inner.args):
            inner = bare(next(one for one in inner.args if number(one) is None))
        return same(inner, small)
    if small.op == "log" and small.args:
        inner = bare(small.args[0])
        base = bare(large.args[0]) if large.op in ("pow", "square", "mul") and large.args else large
        return same(inner, large) or same(inner, base)
    return False


def _is_near(one: float, other: float, least: float = 0.2) -> bool:
    """Whether two weights are alike: neither makes up for the other's reduction."""
    return least <= abs(one) / abs(other) * 1.0001 and abs(one) / abs(other) <= 3


def _least(divergence: Value) -> float:
    """The smallest weight of a sum over a batch that is no share of one sample; the half of a closed form is a part of it."""
    return 0.2 if bare(divergence).op.endswith("kl_divergence") else 0.1


@FINDERS.add("sum-beside-a-mean")
def _sum_beside_a_mean(program: Program) -> Iterator[Remark]:
    """A divergence is summed over the samples of a batch, and added to a mean over them."""
    for whole, divergence, kind, factor, other, reduction, weight in _pairs(program):
        if kind == "sum" and reduction in ("mean", "sample") and _is_near(factor, weight, _least(bare(divergence.args[0]) if divergence.args else divergence)):
            yield Remark(whole.node, f"{short(whole.node)}: {short(divergence.node)} (line {divergence.line}) adds up all samples of the batch, and {short(other.node)} (line {other.line}) is their mean")


@FINDERS.add("sum-beside-a-mean-over-elements")
def _sum_beside_a_mean_over_elements(program: Program) -> Iterator[Remark]:
    """A divergence is summed over the code of a sample, and added to the mean over the elements of the same sample."""
    for whole, divergence, kind, factor, other, reduction, weight in _pairs(program):
        if kind == "sample" and reduction == "mean" and _is_near(factor, weight) and _is_rebuilt(other, divergence):
            yield Remark(whole.node, f"{short(whole.node)}: {short(divergence.node)} (line {divergence.line}) adds up the code of a sample, and {short(other.node)} (line {other.line}) is a mean over all elements of a sample")


def _is_rebuilt(loss: Value, divergence: Value) -> bool:
    """Whether a loss compares, element by element, what was encoded with what a decoder gives."""
    loss = bare(loss)
    compared = loss.args[:2] if loss.op in _ELEMENTWISE else ()
    encoded = {id(bare(one)) for one in origins(divergence)}
    return any(id(bare(one)) in encoded for one in compared) and not any(last(one) == 1 for one in compared)


@FINDERS.add("mean-beside-a-sum")
def _mean_beside_a_sum(program: Program) -> Iterator[Remark]:
    """A divergence is the mean over samples and code, and is added to a sum over all elements of the batch or of a sample."""
    for whole, divergence, kind, factor, other, reduction, weight in _pairs(program):
        if kind == "mean" and reduction == "sum" and _is_near(factor, weight):
            yield Remark(whole.node, f"{short(whole.node)}: {short(other.node)} (line {other.line}) adds up all elements of the batch, and {short(divergence.node)} (line {divergence.line}) is their mean")
        elif kind == "mean" and reduction == "sample" and _is_near(factor, weight) and _adds_up_elements(other):
            yield Remark(whole.node, f"{short(whole.node)}: {short(other.node)} (line {other.line}) adds up the elements of a sample, and {short(divergence.node)} (line {divergence.line}) is a mean over the code")


def _adds_up_elements(loss: Value) -> bool:
    """Whether a loss adds up what is compared element by element of a sample that has several."""
    of = bare(loss)
    while of.op in ("mean", "sum", "div", "mul", "neg") and of.args:
        of = bare(next((one for one in of.args if number(one) is None), of.args[0]))
    return of.op in _ELEMENTWISE and not any(last(one) == 1 for one in of.args[:2])


# A spread and its logarithm ------------------------------------------------------------


@FINDERS.add("weight-of-the-wrong-sign")
def _spread_rewarded_twice(program: Program) -> Iterator[Remark]:
    """The logarithm of a variance is subtracted from the squared error over the same variance: both fall as it grows."""
    for _, loss in losses(computation_of(program)):
        for whole in linear(loss):
            parts = list(addends(whole)) if whole.op in ("add", "sub") else []
            for spread, sign in parts:
                inner = product(spread)
                log = next((one for one in inner.above if one.op == "log" and one.args), None)
                if log is None or sign * inner.sign > 0 or inner.below:
                    continue
                for other, positive in parts:
                    by = product(other)
                    if positive * by.sign > 0 and any(squared(one) is not None for one in by.above) and any(bare(one) is bare(log.args[0]) for one in by.below):
                        yield Remark(whole.node, f"{short(whole.node)} falls without end as {short(log.args[0].node)} grows: its logarithm is subtracted, and the error is divided by it")
                        return


@FINDERS.add("deviation-as-variance")
def _variance_squared(program: Program) -> Iterator[Remark]:
    """A squared error is divided by the square of what the whole logarithm of stands beside it, or by a spread whose
    logarithm counts twice: one of the two takes a variance for a deviation."""
    for _, loss in losses(computation_of(program)):
        for whole in linear(loss):
            parts = [(product(one), sign) for one, sign in addends(whole)] if whole.op == "add" else []
            logs = [(one, log) for one, sign in parts for log in one.above if log.op == "log" and log.args and sign * one.sign > 0 and not one.below]
            for one, log in logs:
                for other, sign in parts if any(each.op == "run" for each in origins(log)) else ():
                    power = _power_below(other.below, bare(log.args[0]))
                    weights = [_weight_of(each) for each in (one, other)]
                    if sign * other.sign > 0 and power in (1, 2) and any(squared(each) is not None for each in other.above) and None not in weights and weights[1]:
                        share = (weights[0] or 0) / (weights[1] or 1)
                        if share == (1 if power == 2 else 2):
                            yield Remark(whole.node, f"{short(whole.node)} divides the squared error by {short(log.args[0].node)}{' squared' if power == 2 else ''}, and counts its logarithm {'once' if power == 2 else 'twice'}: no normal density has both")
                            return


def _power_below(below: list[Value], spread: Value) -> int:
    """The power of a spread that something is divided by."""
    return sum(1 if bare(one) is spread else 2 if (inner := squared(one)) is not None and bare(inner) is spread else 0 for one in below)


def _weight_of(factors: Product) -> float | None:
    """The number that a product is multiplied by, if that is all that is known of it but logarithms and squares."""
    known = 1.0
    for one in factors.above:
        if (given := number(one)) is not None:
            known *= given
        elif one.op != "log" and squared(one) is None:
            return None
    for one in factors.below:
        known /= number(one) or 1.0
    return known
