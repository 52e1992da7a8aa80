"""The terms of a loss: divergences, noise, samples, signs and weights. Pure; standard library only."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from probe.diagnose.code.computed.computation import Computation, computation_of
from probe.diagnose.code.computed.value import (
    KEPT,
    SHAPED,
    Many,
    Value,
    bare,
    comes_from,
    constant,
    number,
    origins,
    same,
)
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Finders, Remark
from probe.diagnose.code.syntax import short
from probe.diagnose.code.traits.arithmetic import of_one_layer
from probe.diagnose.code.traits.backwards import has_gradient
from probe.diagnose.code.traits.basic import LOSSES, losses, reduction_of, squared
from probe.diagnose.code.traits.extents import rank
from probe.diagnose.code.traits.uses import made_from

FINDERS = Finders()
_KEPT = KEPT | SHAPED | {"cat"}
_NORMAL = frozenset({"randn", "randn_like", "normal", "standard_normal"})
_GAUSSIANS = ("torch.distributions.Normal", "torch.distributions.normal.Normal")
_RESHAPED = frozenset({"part", "view", "reshape", "unsqueeze", "from_numpy", "tensor", "as_tensor", "gather", "expand", "to", "float", "squeeze", "astype", "take"})


class Noised(NamedTuple):
    """A value with noise: `mean` + `scale` * `noise`."""

    value: Value
    mean: Value
    scale: Value
    noise: Value | None


def _noised(computation: Computation) -> Iterator[Noised]:
    """All sums of something and of scaled normal noise."""
    for value in computation.of("add", "addcmul", "sample", "rsample"):
        if value.op == "add" and len(value.args) == 2:
            for mean, product in (value.args, value.args[::-1]):
                factors = bare(product).args if bare(product).op == "mul" else ()
                for scale, noise in (factors, factors[::-1]) if len(factors) == 2 else ():
                    if bare(noise).op in _NORMAL and bare(scale).op not in _NORMAL:
                        yield Noised(value, mean, scale, bare(noise))
        elif value.op == "addcmul" and len(value.args) == 3:
            for scale, noise in (value.args[1:], value.args[:0:-1]):
                if bare(noise).op in _NORMAL:
                    yield Noised(value, value.args[0], scale, bare(noise))
        elif value.args and value.args[0].op in _GAUSSIANS:
            given = value.args[0]
            mean, scale = given.argument("loc", 0), given.argument("scale", 1)  # type: ignore[assignment]
            if mean is not None and scale is not None:
                yield Noised(value, mean, scale, None)


def _summands(value: Value, factor: float = 1.0, depth: int = 14) -> list[tuple[float, Value]]:
    """The terms of a sum, each with the number that it is multiplied by."""
    inner = bare(value, shapes=False) if value.op in ("to", "float", "tensor") else value
    if depth and inner.op in ("add", "sub") and len(inner.args) == 2:
        sign = 1.0 if inner.op == "add" else -1.0
        return _summands(inner.args[0], factor, depth - 1) + _summands(inner.args[1], sign * factor, depth - 1)
    if depth and inner.op == "neg":
        return _summands(inner.args[0], -factor, depth - 1)
    if depth and inner.op in ("mul", "div") and len(inner.args) == 2:
        known = [number(one) for one in inner.args]
        if known[1]:
            return _summands(inner.args[0], factor * (known[1] if inner.op == "mul" else 1 / known[1]), depth - 1)
        if known[0] is not None and inner.op == "mul":
            return _summands(inner.args[1], factor * known[0], depth - 1)
    return [(factor, value)]


class Divergence(NamedTuple):
    """A divergence from a standard normal distribution: of `log` the logarithm of the variance, and the other terms
    of its sum."""

    value: Value
    log: Value
    others: list[tuple[float, Value]]


def _divergences(computation: Computation) -> Iterator[Divergence]:
    """Sums with c * exp(s) and -c * s."""
    for value in computation.of("add", "sub"):
        if any(one.op in ("add", "sub") for one in computation.users(value)):
            continue
        terms = _summands(value)
        for factor, term in terms:
            if bare(term).op != "exp":
                continue
            log = bare(bare(term).args[0])
            times = (number(log.args[0]) or 1.0) if log.op == "mul" and len(log.args) == 2 else 1.0
            linear = next((one for one in terms if abs(one[0] + factor * times) < 1e-6 and same(bare(one[1]), log if times == 1 else bare(log.args[1]))), None)
            if linear is not None:
                yield Divergence(value, log, [one for one in terms if one[1] is not term and one is not linear and number(one[1]) is None])
                break


@FINDERS.add("logarithm-for-deviation")
def _logarithm(program: Program) -> Iterator[Remark]:
    """Noise is scaled by a value whose exponential is taken elsewhere as its deviation or variance."""
    computation = computation_of(program)
    exponents = [bare(_halved(one.args[0])) for one in computation.of("exp") if one.args]
    for noised in _noised(computation):
        scale = bare(noised.scale)
        if noised.noise is not None and scale.op not in ("exp", "@input", "@constant") and any(one is scale for one in exponents):
            yield Remark(noised.value.node, f"{short(noised.value.node)} scales the noise by {short(noised.scale.node)}, which is a logarithm: elsewhere its exponential is taken")


def _halved(value: Value) -> Value:
    """s of `0.5 * s`, `s / 2` and `2 * s`."""
    if value.op in ("mul", "div") and len(value.args) == 2:
        return value.args[0] if number(value.args[1]) is not None else value.args[1] if number(value.args[0]) is not None else value
    return value


@FINDERS.add("variance-as-deviation")
def _variance(program: Program) -> Iterator[Remark]:
    """Noise is scaled by exp(s), or a density has it for its deviation, and s is elsewhere the logarithm of the variance."""
    computation = computation_of(program)
    logs = [(one.log, one.value) for one in _divergences(computation)]
    logs += [(log, one) for one in computation.of("exp") if one.args and (log := _log_of_root(bare(one.args[0]))) is not None]
    for noised in _noised(computation):
        scale = bare(noised.scale)
        found = next((value for log, value in logs if scale.op == "exp" and bare(scale.args[0]) is log), None)
        if found is not None:
            yield Remark(noised.value.node, f"{short(noised.value.node)} scales the noise by exp({short(scale.args[0].node)}), and {short(found.node)} (line {found.line}) takes that for the variance: the deviation is its root")
    for density in computation.of("log_prob"):
        given = density.args[0].argument("scale", 1) if density.args and density.args[0].op in _GAUSSIANS else None
        scale = bare(given) if given is not None else density
        found = next((value for log, value in logs if scale.op == "exp" and of_one_layer(scale.args[0], log)), None)
        if found is not None:
            yield Remark(density.args[0].node, f"{short(density.args[0].node)} takes exp({short(scale.args[0].node)}) for the deviation, and {short(found.node)} (line {found.line}) takes that for the variance: the deviation is its root")


def _log_of_root(value: Value) -> Value | None:
    """s of 0.5 * s and s / 2."""
    for one, other in (value.args, value.args[::-1]) if value.op in ("mul", "div") and len(value.args) == 2 else ():
        if number(other) == (0.5 if value.op == "mul" else 2) and (value.op == "mul" or one is value.args[0]):
            return bare(one)
    return None


@FINDERS.add("mean-not-squared")
def _not_squared(program: Program) -> Iterator[Remark]:
    """The mean that noise is added to stands in the divergence without its square."""
    computation = computation_of(program)
    means = [bare(one.mean) for one in _noised(computation)]
    for found in _divergences(computation):
        for _, term in found.others:
            if squared(bare(term)) is None and any(one is bare(term) for one in means):
                yield Remark(found.value.node, f"{short(found.value.node)} is the divergence from a standard normal distribution, and {short(term.node)} is not squared in it")


@FINDERS.add("mean-and-variance-swapped")
def _swapped(program: Program) -> Iterator[Remark]:
    """The divergence squares what the noise takes for the logarithm, and takes the exponential of the mean."""
    computation = computation_of(program)
    for noised in _noised(computation):
        mean, log = bare(noised.mean), bare(noised.scale)
        log = bare(_halved(log.args[0])) if log.op == "exp" and log.args else log
        for found in _divergences(computation):
            squares = [bare(one) for _, term in found.others if (one := squared(bare(term))) is not None]
            if found.log is mean and mean is not log and any(one is log for one in squares):
                yield Remark(found.value.node, f"{short(found.value.node)} takes the mean of line {noised.value.line} for the logarithm of the variance, and the logarithm for the mean")


@FINDERS.add("one-noise-for-the-batch")
def _one_noise(program: Program) -> Iterator[Remark]:
    """Noise with fewer axes than what it moves, or of length 1 along the batch, is added to what a network gives for a batch."""
    computation = computation_of(program)
    for noised in _noised(computation):
        noise = noised.noise
        if noise is None or noise.op != "randn" or noised.value.where.no_grad or not _of_batch(noised.mean):
            continue
        sizes = noise.args[0].parts if len(noise.args) == 1 and isinstance(noise.args[0], Many) else list(noise.args)
        if not sizes or any(one.op in ("star", "either", "unknown") for one in sizes) or (len(sizes) == 1 and sizes[0].op in ("shape", "size", "@input")):
            continue
        whole = rank(noised.scale)
        fewer = whole is not None and len(sizes) < whole and not any(one.op in ("part", "size", "len") for one in sizes[:1])
        drawn = any(one.op == "run" for one in origins(noised.scale)) and any(one.op == "run" for one in made_from(computation, noised.value, _KEPT))
        if fewer or (drawn and (number(sizes[0]) == 1 or (len(sizes) == 1 and sizes[0].op == "@constant"))):
            yield Remark(noised.value.node, f"{short(noised.value.node)} takes noise of {short(noise.node)} (line {noise.line}), which has no axis for the samples")


def _of_batch(value: Value) -> bool:
    """Whether a value is computed from a batch: by a network, or of what a loader gives."""
    return any(one.op in ("run", "rows") or (one.op == "element" and one.where.loops) for one in origins(value, ("shape", "size", "len")))


# Diffusion ------------------------------------------------------------------


def _table(value: Value) -> Value:
    """What a coefficient is looked up in, without the index and shape."""
    while value.op in _RESHAPED and value.args:
        value = value.args[0]
    return value


def _root(value: Value) -> Value | None:
    """What a value is the root of, looked up before or after."""
    value = _table(value)
    power = number(value.args[1]) if value.op == "pow" and len(value.args) > 1 else None
    return _table(value.args[0]) if (value.op == "sqrt" or power == 0.5) and value.args else None


def _products(table: Value, computation: Computation) -> bool:
    """Whether the cumulative product of a table is computed somewhere."""
    return any(same(_table(one.args[0]), table) for one in computation.of("cumprod") if one.args)


@FINDERS.add("noise-of-one-step")
def _of_one_step(program: Program) -> Iterator[Remark]:
    """At a step that is drawn at random, what is kept is the share of one step, though its product is known."""
    computation = computation_of(program)
    for value in computation.of("add"):
        for kept, noise in (value.args, value.args[::-1]) if len(value.args) == 2 else ():
            parts = [bare(kept), bare(noise)]
            if any(one.op != "mul" or len(one.args) != 2 for one in parts) or not any(bare(one).op in _NORMAL for one in parts[1].args):
                continue
            share = next((found for one in parts[0].args if (found := _root(one)) is not None), None)
            if share is None or share.op != "sub" or number(share.args[0]) != 1 or not _products(share, computation):
                continue
            if any(one.op == "randint" for one in origins(parts[0], ("rand",))):
                yield Remark(value.node, f"{short(value.node)} keeps the root of {short(share.node)} (line {share.line}), the share that one step keeps: t steps keep its cumulative product")


# Samples --------------------------------------------------------------------


@FINDERS.add("ratio-upside-down")
def _upside_down(program: Program) -> Iterator[Remark]:
    """The clipped ratio divides the old probability, which has no gradient, by the new one."""
    for value in computation_of(program).of("clamp"):
        ratio = bare(value.args[0]) if value.args else value
        low, high = (value.argument(name, place) for name, place in (("min", 1), ("max", 2)))
        if not _around_one(low, high):
            continue
        pair = _of_exponentials(ratio)
        if pair is not None and not _learned(pair[0]) and _learned(pair[1]):
            yield Remark(ratio.node, f"{short(ratio.node)} divides the old probability by the new one: {short(pair[1].node)} is what is trained")


def _around_one(low: Value | None, high: Value | None) -> bool:
    """Whether two bounds are 1 - eps and 1 + eps."""
    known = [number(one) for one in (low, high)]
    if known[0] is not None and known[1] is not None:
        return 0.3 <= known[0] < 1 < known[1] <= 2
    return low is not None and low.op == "sub" and number(low.args[0]) == 1 and high is not None and high.op == "add"


def _of_exponentials(value: Value) -> tuple[Value, Value] | None:
    """a and b of exp(a - b) and exp(a) / exp(b)."""
    if value.op == "exp" and (inner := bare(value.args[0])).op == "sub":
        return inner.args[0], inner.args[1]
    if value.op == "div" and all(bare(one).op == "exp" for one in value.args):
        return bare(value.args[0]).args[0], bare(value.args[1]).args[0]
    return None


def _learned(value: Value) -> bool:
    """Whether a value is a log probability of a network, with a gradient."""
    return any(one.op in ("log_prob", "log_softmax") for one in origins(value)) and has_gradient(value)


@FINDERS.add("sampled-without-gradient")
def _without_gradient(program: Program) -> Iterator[Remark]:
    """A loss has a term of what a network makes of a sample, and another of the distribution that it is drawn from,
    and the sample has no gradient."""
    computation = computation_of(program)
    for value in computation.of("sample"):
        drawn = _gaussian(value.args[0]) if len(value.args) == 1 and not value.where.no_grad else None
        if drawn is None or not has_gradient(drawn):
            continue
        fed = [one for one in made_from(computation, value, frozenset({"cat", "squeeze", "unsqueeze", "tanh", "mul", "to", "add"})) if one.op == "run" and not one.where.no_grad]
        for _, loss in losses(computation) if fed and not _weighs_likelihood(computation, value) else ():
            parts = [set(map(id, origins(term))) for term in _terms(loss)]
            through = [one for one in parts if any(id(run) in one for run in fed)]
            beside = [one for one in parts if one not in through and _mentions(computation, value.args[0], one)]
            if through and beside:
                yield Remark(value.node, f"{short(value.node)} has no gradient, and {short(fed[0].node)} (line {fed[0].line}) is to train what it is drawn from")
                break


def _weighs_likelihood(computation: Computation, sample: Value) -> bool:
    """Whether the log probability of a sample is multiplied by what is no plain weight, as policy gradients do."""
    for likely in computation.users(sample):
        for product in made_from(computation, likely, frozenset({"sum", "squeeze", "unsqueeze", "view"})) if likely.op == "log_prob" else ():
            if product.op == "mul" and any(not comes_from(other, likely) and bare(other).op in ("sub", "part", "div", "rows", "run") for other in product.args):
                return True
    return False


def _gaussian(value: Value) -> Value | None:
    """A normal distribution, also one that is made independent or transformed."""
    while value.op.startswith("torch.distributions.") and value.op.endswith(("Independent", "TransformedDistribution")) and value.args:
        value = value.args[0]
    return value if value.op in _GAUSSIANS else None


def _terms(value: Value, depth: int = 12) -> list[Value]:
    """The terms of a loss, also within a mean."""
    if depth and value.op in ("add", "sub") and len(value.args) == 2:
        return [*_terms(value.args[0], depth - 1), *_terms(value.args[1], depth - 1)]
    if depth and value.op in ("mean", "sum", "neg") and value.args:
        return _terms(value.args[0], depth - 1)
    if depth and value.op in ("mul", "div") and len(value.args) == 2 and any(isinstance(constant(one), (int, float)) for one in value.args):
        return _terms(value.args[0] if number(value.args[0]) is None else value.args[1], depth - 1)
    return [value]


def _mentions(computation: Computation, distribution: Value, parts: set[int]) -> bool:
    """Whether a term is made of the density or divergence of a distribution."""
    return any(id(one) in parts for one in computation.users(distribution) if one.op in ("log_prob", "kl_divergence", "torch.distributions.kl_divergence", "entropy") or one.op.endswith("kl_divergence"))


# Signs and weights ----------------------------------------------------------


def _signed(value: Value, sign: int = 1, depth: int = 16) -> Iterator[tuple[Value, int]]:
    """The terms of a loss, each with its sign; weights that are not known count as positive."""
    op, args = value.op, value.args
    if depth and op in ("add", "sub") and len(args) == 2:
        yield from _signed(args[0], sign, depth - 1)
        yield from _signed(args[1], sign if op == "add" else -sign, depth - 1)
    elif depth and op == "neg":
        yield from _signed(args[0], -sign, depth - 1)
    elif depth and op in ("mul", "div") and len(args) == 2 and (weight := next((one for one in (args if op == "mul" else args[1:]) if _is_weight(one)), None)) is not None:
        known = number(weight)
        yield from _signed(args[1] if weight is args[0] else args[0], -sign if known is not None and known < 0 else sign, depth - 1)
    elif depth and op in ("mean", "sum_of", "to", "sum") and len(args) == 1 and not value.named and args[0].op in ("add", "sub", "neg", "sum_of"):
        yield from _signed(args[0], sign, depth - 1)
    else:
        yield value, sign


def _is_weight(value: Value) -> bool:
    """Whether a value is a number that weights a term."""
    return number(value) is not None or (value.op == "@input" and not value.where.loops)


def _is_penalty(value: Value) -> bool:
    """Whether a term is the size of weights, or of the steps between neighbours: it is never below 0."""
    while value.op in ("sum", "mean", "sum_of", "sqrt") and value.args:
        value = bare(value.args[0])
    if value.op not in ("abs", "pow", "square", "norm") or not value.args or (value.op == "pow" and squared(value) is None):
        return False
    inner = bare(value.args[0])
    return inner.op in ("torch.nn.Parameter", "weight", "diff") or (inner.op == "element" and inner.args[0].op == "parameters")


@FINDERS.add("penalty-subtracted")
def _subtracted(program: Program) -> Iterator[Remark]:
    """The size of the weights, or of the steps between neighbours, is subtracted from what is minimized."""
    for _, loss in losses(computation_of(program)):
        found = list(_signed(loss))
        for term, sign in found:
            if sign < 0 and _is_penalty(term) and any(other > 0 and one.op in LOSSES for one, other in found):
                yield Remark(term.node, f"{short(term.node)} is subtracted from what is minimized")
                break


@FINDERS.add("term-of-the-wrong-sign")
def _wrong_sign(program: Program) -> Iterator[Remark]:
    """Beside a clipped gain of a policy, the error of the critic is maximized."""
    for _, loss in losses(computation_of(program)):
        found = list(_signed(loss))
        gain = any(sign < 0 and bare(term, "mean").op in ("minimum", "min") for term, sign in found)
        for term, sign in found:
            if sign < 0 and gain and term.op in ("mse_loss", "smooth_l1_loss", "huber_loss", "l1_loss"):
                yield Remark(term.node, f"{short(term.node)} is subtracted from what is minimized: the critic's error grows")


@FINDERS.add("overlap-minimized")
def _overlap_minimized(program: Program) -> Iterator[Remark]:
    """An overlap is added to what is minimized."""
    for _, loss in losses(computation_of(program)):
        for term, sign in _signed(loss):
            ratio = bare(term, "mean", "sum")
            if sign > 0 and _is_overlap(ratio):
                yield Remark(term.node, f"{short(ratio.node)} is an overlap, which is 1 where prediction and target agree, and it is minimized")


def _is_overlap(value: Value) -> bool:
    """Whether a value is twice the sum of a product over two sums, or over their union."""
    if value.op != "div" or len(value.args) != 2:
        return False
    above, below = (_parts(one) for one in value.args)
    shared = next((bare(one) for one in above if bare(one).op == "sum" and bare(bare(one).args[0]).op == "mul"), None)
    if shared is None or len(below) < 2:
        return False
    both = bare(shared.args[0]).args
    sums = [bare(bare(one).args[0]) for one in below if bare(one).op == "sum" and bare(one).args]
    return len(both) == 2 and all(any(same(bare(one), total) for total in sums) for one in both)


def _parts(value: Value) -> list[Value]:
    """What is added up, without numbers."""
    return [term for _, term in _summands(value) if number(term) is None]


@FINDERS.add("weights-after-the-mean")
def _after_mean(program: Program) -> Iterator[Remark]:
    """A mean over all samples is multiplied by weights of each, and a mean is taken again."""
    computation = computation_of(program)
    if any(one.data == "reduction" for one in computation.of("set_attribute")):
        return
    for value in computation.of("mean", "sum"):
        product = value.args[0] if value.args else value
        if product.op != "mul" or len(product.args) != 2:
            continue
        for loss, weights in (product.args, product.args[::-1]):
            if loss.op in LOSSES and reduction_of(loss) == "mean" and weights.op not in LOSSES and bare(weights).op not in ("@constant", "@input", "@library", "unknown", "sqrt", "len", "mean", "sum"):
                yield Remark(product.node, f"{short(product.node)} weights the samples after {short(loss.node)} has taken their mean")


@FINDERS.add("margin-without-hinge")
def _no_hinge(program: Program) -> Iterator[Remark]:
    """What is minimized is the mean of a difference of two alike values and a constant."""
    for _, loss in losses(computation_of(program)):
        inner = bare(loss.args[0]) if loss.op in ("mean", "sum") and loss.args else loss
        if inner.op not in ("add", "sub"):
            continue
        terms = _summands(inner)
        free = [(factor, bare(one)) for factor, one in terms if not _is_weight(bare(one))]
        kinds = [sorted(f"{_kind(one)} {abs(factor)}" for factor, one in free if (factor > 0) is positive) for positive in (True, False)]
        if not kinds[0] or kinds[0] != kinds[1] or len(terms) != len(free) + 1 or len({id(one) for _, one in free}) < len(free):
            continue
        margin = next(one for _, one in terms if _is_weight(bare(one)))
        if number(margin) not in (None, 0.0) and not any(one.op in ("log", "log_prob", "log_softmax", "logdet", "slogdet") for one in origins(inner, ("run",))):
            yield Remark(inner.node, f"{short(inner.node)}: it is not cut off at 0, so {short(margin.node)} is only added to the number")


def _kind(value: Value) -> str:
    """The operation that gives a value, and what a mean is taken of, or a fraction has above: an overlap is no distance."""
    if value.op in ("mean", "sum") and value.args:
        return f"{value.op} of {_kind(bare(value.args[0]))}"
    return f"{value.op} of {bare(value.args[0]).op}" if value.op == "div" else value.op


@FINDERS.add("padding-in-the-divisor")
def _in_the_divisor(program: Program) -> Iterator[Remark]:
    """A sum that leaves the padding out is divided by the number of all positions."""
    computation = computation_of(program)
    for value in computation.of("div"):
        loss, by = value.args[:2] if len(value.args) > 1 else (value, value)
        if loss.op in ("cross_entropy", "nll_loss") and constant(loss.named.get("reduction")) == "sum" and _is_ignored(loss) and len(loss.args) > 1 and _counts_all(by, bare(loss.args[1])):
            yield Remark(value.node, f"{short(by.node)} counts all positions, and {short(loss.node)} (line {loss.line}) leaves those of the padding out of the sum")
    for value in computation.of("mean"):
        product = bare(value.args[0]) if len(value.args) == 1 and not value.named else value
        for loss, mask in (product.args, product.args[::-1]) if product.op == "mul" and len(product.args) == 2 else ():
            if loss.op in LOSSES and constant(loss.named.get("reduction")) == "none" and _is_padding_mask(mask):
                yield Remark(value.node, f"{short(value.node)} counts all positions, and {short(mask.node)} leaves those of the padding out of the sum")


def _is_ignored(loss: Value) -> bool:
    """Whether a loss leaves out the targets of one class, which is a word of its own: the padding."""
    known = number(loss.named.get("ignore_index"))
    return known is not None and known >= 0


def _counts_all(value: Value, target: Value) -> bool:
    """Whether a number is that of all positions of a target."""
    value = bare(value)
    if value.op == "numel":
        return bare(value.args[0]) is target
    if value.op != "mul" or len(value.args) != 2:
        return False
    return all(one.op in ("part", "size") and bare(one.args[0].args[0] if one.args[0].op == "shape" else one.args[0]) is target for one in value.args)


def _is_padding_mask(value: Value) -> bool:
    """Whether a value is 1 up to the length of each sequence and 0 behind it."""
    value = bare(value)
    if value.op.endswith("pad_sequence") and value.args and isinstance(value.args[0], Many):
        return all(one.op in ("ones", "ones_like") for one in value.args[0].parts)
    return value.op in ("lt", "le", "gt", "ge") and any(bare(one).op == "arange" for one in value.args)


@FINDERS.add("sampled-without-gradient")
def _relaxed(program: Program) -> Iterator[Remark]:
    """A distribution that was made to have gradients is drawn from by sample, which has none, and a loss is made of it."""
    computation = computation_of(program)
    learned = {id(one) for _, loss in losses(computation) for one in origins(loss)}
    for value in computation.of("sample"):
        drawn = value.args[0] if value.args else value
        if drawn.op.startswith("torch.distributions.") and ".Relaxed" in drawn.op and id(value) in learned and not value.where.no_grad and has_gradient(drawn):
            yield Remark(value.node, f"{short(value.node)} has no gradient: what {short(drawn.node)} (line {drawn.line}) is made of learns nothing of the loss by way of it")
            return
