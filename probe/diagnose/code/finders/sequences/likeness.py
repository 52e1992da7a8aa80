"""Scores of how alike two pictures or sounds are, in a loss or a report. Pure; standard library only."""

from __future__ import annotations

from collections.abc import Iterator

from probe.diagnose.code.computed.computation import computation_of
from probe.diagnose.code.computed.value import Many, Value, bare, constant, number, origins, same
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Finders, Remark
from probe.diagnose.code.syntax import short
from probe.diagnose.code.traits.arithmetic import addends, complement_of, product, root_of, sides
from probe.diagnose.code.traits.backwards import has_gradient, networks_in
from probe.diagnose.code.traits.basic import losses, squared, without_small
from probe.diagnose.code.traits.extents import rank

FINDERS = Finders()
_LIKENESS = (
    "pytorch_msssim.ssim", "pytorch_msssim.ms_ssim", "piq.ssim", "piq.multi_scale_ssim", "piqa.ssim.ssim", "torchmetrics.functional.structural_similarity_index_measure",
    "torchmetrics.functional.image.structural_similarity_index_measure", "torchmetrics.functional.peak_signal_noise_ratio", "torchmetrics.functional.image.peak_signal_noise_ratio",
    "torchmetrics.functional.scale_invariant_signal_noise_ratio", "torchmetrics.functional.audio.scale_invariant_signal_noise_ratio",
    "torchmetrics.functional.scale_invariant_signal_distortion_ratio", "torchmetrics.functional.audio.scale_invariant_signal_distortion_ratio",
)
"""Functions that are the larger, the more alike two things are."""
_LIKENESS_OF_OBJECTS = (
    "pytorch_msssim.SSIM", "pytorch_msssim.MS_SSIM", "torchmetrics.StructuralSimilarityIndexMeasure", "torchmetrics.image.StructuralSimilarityIndexMeasure",
    "torchmetrics.PeakSignalNoiseRatio", "torchmetrics.image.PeakSignalNoiseRatio", "torchmetrics.ScaleInvariantSignalNoiseRatio", "torchmetrics.audio.ScaleInvariantSignalNoiseRatio",
)


def decibels_of_the_square(program: Program) -> Iterator[Remark]:
    """Twenty times the logarithm of a mean of squares is reported, where ten times it, or that of its root, is meant."""
    computation = computation_of(program)
    said: set[int] = set()
    for log in computation.of("log10"):
        by = [number(other) for user in computation.users(log) if user.op == "mul" for one, other in sides(user) if one is log]
        inner = without_small(log.args[0]) if log.args else log
        below = without_small(inner.args[1]) if inner.op == "div" and len(inner.args) == 2 else inner
        if len(by) != 1 or by[0] is None or abs(by[0]) not in (20, 10) or log.line in said:
            continue
        root = root_of(below)
        if abs(by[0]) == 20 and _is_mean_square(below):
            above = bare(inner.args[0]) if inner.op == "div" else None
            if above is not None and (root_of(above) is not None or (number(above) or 1) > 256):
                continue
            said.add(log.line)
            yield Remark(log.node, f"{short(log.node)} is that of {short(below.node)} (line {below.line}), a mean of squares, and is multiplied by {by[0]:g}: the decibels are twice as many as there are")
        elif abs(by[0]) == 10 and root is not None and _is_mean_square(without_small(root)) and inner.op == "div" and number(inner.args[0]) in (1, 255, 2):
            said.add(log.line)
            yield Remark(log.node, f"{short(log.node)} is that of {short(below.node)} (line {below.line}), the root of a mean of squares, and is multiplied by {by[0]:g}: the decibels are half of what there are")


def _is_mean_square(value: Value) -> bool:
    """Whether a value is a mean of squares: of a difference."""
    value = bare(value)
    if value.op == "mse_loss":
        return True
    inner = squared(bare(value.args[0])) if value.op == "mean" and value.args else None
    return inner is not None and bare(inner, "abs").op == "sub"


def likeness_minimized(program: Program) -> Iterator[Remark]:
    """What is the larger, the more alike output and target are, is added to a loss as it is."""
    computation = computation_of(program)
    said: set[int] = set()
    for back, loss in losses(computation):
        for term, sign in addends(loss):
            factors = product(term)
            numbers = [known for one in factors.above if (known := number(one)) is not None]
            plain = [one for one in factors.above if number(one) is None]
            if any(one < 0 for one in numbers) or sign * factors.sign < 0:
                continue
            value = bare(plain[0], "mean", "sum") if len(plain) == 1 and not factors.below else bare(term)
            like = _ratio(value) or _likeness(value)
            if like is not None and value.line not in said and sum(any(one.op == "run" for one in origins(part)) for part in origins(like) if part.op == "run") > 0:
                said.add(value.line)
                yield Remark(back.node, f"{short(back.node)} makes {short(like.node)} (line {like.line}) smaller, which is the larger, the more the output is like the target")


@FINDERS.add("likeness-minimized")
def _closeness_minimized(program: Program) -> Iterator[Remark]:
    """What is the larger, the closer an output is to a fixed target, is added to a loss: an overlap of boxes, or the cosine
    to what a network gives without a gradient."""
    computation = computation_of(program)
    for back, loss in losses(computation):
        for term, sign in _weighted(loss):
            if sign > 0 and (_is_overlap(term) or _is_cosine_to_fixed(term)):
                yield Remark(back.node, f"{short(back.node)} makes {short(term.node)} (line {term.line}) smaller, which is the larger, the more the output is like the target")
                return


def _weighted(loss: Value, sign: int = 1, depth: int = 8) -> Iterator[tuple[Value, int]]:
    """The addends of a loss, also of those that a number is multiplied by, each with its sign."""
    for term, plus in addends(loss, sign):
        factors = product(term)
        numbers = [known for one in factors.above if (known := number(one)) is not None]
        plain = [one for one in factors.above if number(one) is None]
        turned = plus * factors.sign * (-1 if sum(one < 0 for one in numbers) % 2 else 1)
        if len(plain) == 1 and all(number(one) is not None for one in factors.below) and plain[0] is not term and depth:
            yield from _weighted(plain[0], turned, depth - 1)
        else:
            yield term, turned


def _is_overlap(value: Value) -> bool:
    """Whether a value is the common area of two boxes over that of both, one of which a network gives."""
    value = bare(value)
    if value.op != "div" or len(value.args) != 2 or not any(one.op == "run" for one in origins(value)):
        return False
    common = bare(value.args[0])
    edges = [one for one in origins(common, stop=("run",)) if one.op == "sub" and {bare(part).op for part in one.args} == {"minimum", "maximum"} and bare(one.args[0]).op == "minimum"]
    return bool(edges) and common.op in ("mul", "prod") and any(one is common for one in origins(value.args[1]))


def _is_cosine_to_fixed(value: Value) -> bool:
    """Whether a value is the cosine between what is learned and what a network gives without a gradient."""
    if value.op != "cosine_similarity" or len(value.args) < 2:
        return False
    learned = [has_gradient(one) for one in value.args[:2]]
    return learned.count(True) == 1 and all(networks_in(one) for one in value.args[:2])


def _likeness(value: Value) -> Value | None:
    """A score of likeness: of a library, or the logarithm of a signal over its noise."""
    if value.op in _LIKENESS:
        return value
    if value.op == "run" and value.args and value.args[0].op in _LIKENESS_OF_OBJECTS:
        return value
    inner = [one for one in product(value).above if number(one) is None]
    log = bare(inner[0], "mean", "sum") if len(inner) == 1 and all((number(one) or 1) > 0 for one in product(value).above) else value
    if log.op not in ("log10", "log") or not log.args:
        return None
    ratio = without_small(log.args[0])
    if ratio.op != "div" or len(ratio.args) != 2:
        return None
    noise = without_small(ratio.args[1])
    signal = without_small(ratio.args[0])
    return log if _energy_of_a_difference(noise) and not _energy_of_a_difference(signal) and (_is_energy(signal) or number(signal) is not None) and (log.op == "log10") else None


def _is_energy(value: Value) -> bool:
    return value.op in ("sum", "mean") and bool(value.args) and squared(bare(value.args[0])) is not None


def _energy_of_a_difference(value: Value) -> bool:
    """Whether a value is the sum or mean of the squares of a difference."""
    if value.op == "mse_loss":
        return True
    inner = squared(bare(value.args[0])) if value.op in ("sum", "mean") and value.args else None
    return inner is not None and bare(inner).op == "sub" and not _is_centred(bare(inner))


def _is_centred(value: Value) -> bool:
    """Whether a difference only takes the mean away."""
    return any(bare(one).op == "mean" and bare(one).args and same(bare(bare(one).args[0]), bare(value.args[0])) for one in value.args[1:])


def _ratio(value: Value) -> Value | None:
    """The structural similarity, written out: products of means and of a covariance over sums of squares and variances."""
    value = bare(value)
    if value.op != "div" or len(value.args) != 2:
        return None
    above = [bare(one) for one in product(value.args[0]).above if number(one) is None]
    below = [bare(one) for one in product(value.args[1]).above if number(one) is None]
    if len(above) != 2 or len(below) != 2 or not all(one.op == "add" for one in (*above, *below)):
        return None
    pairs = [pair for one in above if (pair := _twice_a_product(one)) is not None]
    for first, second in pairs:
        if any({id(inner) for part, _ in addends(other) if (inner := squared(bare(part))) is not None} >= {id(first), id(second)} or _squares(other, first, second) for other in below):
            return value
    return None


def _twice_a_product(value: Value) -> tuple[Value, Value] | None:
    """a and b of 2 * a * b + c."""
    for one, _ in addends(value):
        factors = product(one)
        plain = [bare(part) for part in factors.above if number(part) is None]
        if len(plain) == 2 and 2 in [number(part) for part in factors.above]:
            return plain[0], plain[1]
        if len(plain) == 1 and plain[0].op == "mul" and len(plain[0].args) == 2:
            return bare(plain[0].args[0]), bare(plain[0].args[1])
    return None


def _squares(value: Value, first: Value, second: Value) -> bool:
    """Whether a value adds up the squares of two others."""
    found = [inner for part, _ in addends(value) if (inner := squared(bare(part))) is not None]
    return all(any(same(bare(one), wanted) for one in found) for wanted in (first, second))


@FINDERS.add("focal-weight")
def _weight_of_one_class(program: Program) -> Iterator[Remark]:
    """The weight of easy samples is that of the positive class for all of them: negatives that are easy weigh the most."""
    said: set[int] = set()
    for value in computation_of(program).of("mul"):
        factors = [bare(one) for one in product(value).above]
        losses_of = [one for one in factors if one.op == "binary_cross_entropy_with_logits" and constant(one.named.get("reduction")) == "none" and len(one.args) > 1]
        if len(losses_of) != 1 or value.line in said:
            continue
        loss = losses_of[0]
        for one in factors:
            rest = complement_of(one.args[0]) if one.op == "pow" and len(one.args) == 2 else None
            sure = bare(rest) if rest is not None else None
            if sure is None or sure.op != "sigmoid" or not same(bare(sure.args[0]), bare(loss.args[0])):
                continue
            if not any(any(part is bare(loss.args[1]) for part in origins(other)) for other in factors if other is not loss):
                said.add(value.line)
                yield Remark(value.node, f"{short(value.node)}: {short(one.node)} (line {one.line}) is small where the answer is yes, also where yes is wrong: negatives that are easy weigh the most, and hard ones hardly at all")


@FINDERS.add("view-mixes-axes")
def _classes_last_beside_second(program: Program) -> Iterator[Remark]:
    """Probabilities whose classes are the second axis are multiplied in one row with one-hot codes, whose classes are the last."""
    said: set[int] = set()
    for value in computation_of(program).of("mul", "sub"):
        for codes, probable in sides(value):
            coded, given = _in_one_row(codes), _in_one_row(probable)
            if coded is None or given is None or bare(coded).op != "one_hot" or value.line in said:
                continue
            given = bare(given, "softmax", "sigmoid", "clamp", "exp", "log_softmax", shapes=False)
            if rank(given) == 4 or _ends_in_a_convolution(given):
                said.add(value.line)
                yield Remark(value.node, f"{short(value.node)}: {short(bare(coded).node)} has its classes last, and {short(given.node)} as its second axis; both are made one row as they are, so numbers of different pixels and classes meet")


def _in_one_row(value: Value) -> Value | None:
    """What a value was before all its axes, or all but the first, were made one."""
    value = bare(value, "clamp", shapes=False)
    while value.op in ("float", "to", "contiguous") and value.args:
        value = value.args[0]
    if value.op == "flatten" and value.args:
        return value.args[0] if number(value.argument("start_dim", 1)) in (None, 0, 1) else None
    if value.op in ("view", "reshape") and value.args:
        sizes = [one for given in value.args[1:] for one in (given.parts if isinstance(given, Many) else [given])]
        return value.args[0] if sizes and number(sizes[-1]) == -1 and len(sizes) <= 2 else None
    return None


def _ends_in_a_convolution(value: Value) -> bool:
    return value.op == "run" and bool(value.args) and value.args[0].op in ("torch.nn.Conv2d", "torch.nn.ConvTranspose2d")


def divided_by_the_output(program: Program) -> Iterator[Remark]:
    """An error is divided by what the network gives, and not by what it should give."""
    computation = computation_of(program)
    said: set[int] = set()
    for value in computation.of("div"):
        if len(value.args) != 2 or value.line in said:
            continue
        above, below = _size_of(value.args[0]), _size_of(without_small(value.args[1]))
        error = bare(above) if above is not None else None
        if error is None or below is None or error.op != "sub" or len(error.args) != 2:
            continue
        for output, target in sides(error):
            learned = [any(one.op == "run" for one in origins(part)) for part in (output, target)]
            if any(part is bare(target) for part in origins(output)):
                continue
            if learned == [True, False] and same(bare(below), bare(output)) and not any(same(bare(one), bare(target)) for one in origins(value.args[1])):
                said.add(value.line)
                yield Remark(value.node, f"{short(value.node)} divides the error by the size of the output {short(output.node)}, and not of {short(target.node)}: a larger output makes it smaller")


def _size_of(value: Value) -> Value | None:
    """x of the norm of x, or of its absolute value."""
    value = bare(value)
    if value.op in ("norm", "vector_norm", "abs") and value.args:
        return value.args[0]
    return None
