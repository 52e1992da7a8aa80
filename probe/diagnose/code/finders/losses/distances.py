"""Distances, margins and masks in losses, whatever they are written like. Pure; standard library only."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from probe.diagnose.code.computed.computation import Computation, computation_of
from probe.diagnose.code.computed.value import (
    KEPT,
    SHAPED,
    Many,
    Value,
    bare,
    constant,
    number,
    origins,
    same,
)
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Finders, Remark
from probe.diagnose.code.syntax import short
from probe.diagnose.code.traits.arithmetic import (
    TURNED,
    complement_of,
    complements,
    computed_by_none,
    is_distance,
    is_large,
    networks,
    product,
    rectified,
    sides,
    trained,
)
from probe.diagnose.code.traits.basic import is_mean_of, losses, squared, without_small
from probe.diagnose.code.traits.extents import rank

FINDERS = Finders()
_COMPARED = ("eq", "ne", "lt", "gt", "le", "ge", "invert", "not", "and", "or", "bool", "isnan")


# Quantiles ------------------------------------------------------------------


@FINDERS.add("quantile-reversed")
def _quantile_reversed(program: Program) -> Iterator[Remark]:
    """Predictions above the target weigh q, and those below it 1 - q."""
    computation = computation_of(program)
    known = networks(computation)
    for value in computation.of("maximum", "max", "where", "add"):
        found = [side for one in value.args[-2:] if (side := _weighted_side(one)) is not None]
        if len(value.args) < 2 or len(found) != 2:
            continue
        (plain, less, larger, smaller, gap), other = sorted(found, key=lambda side: side[1])
        if less or not other[1] or not same(bare(plain), bare(other[0])) or not same(bare(larger), bare(other[3])) or not same(bare(smaller), bare(other[2])):
            continue
        if trained(larger, known) and computed_by_none(smaller):
            yield Remark(
                value.node,
                f"{short(value.node)} gives predictions above the target the weight q, and those below it the weight 1 - q: "
                f"{short(gap.node)} (line {gap.line}) is the prediction minus the target",
            )


def _weighted_side(value: Value) -> tuple[Value, bool, Value, Value, Value] | None:
    """Of `q * (a - b)`: q, whether it is the 1 - q of another q, which of a and b is larger where the term counts,
    and the difference."""
    factors = product(value, shapes=False)
    if factors.below or len(factors.above) != 2:
        return None
    for weight, gap in (factors.above, factors.above[::-1]):
        inner = rectified(gap)
        gap = bare(gap if inner is None else inner)
        if gap.op != "sub" or number(gap.args[0]) is not None or number(gap.args[1]) is not None:
            continue
        sign = factors.sign
        larger, smaller = gap.args
        rest = complement_of(weight)
        if rest is None and isinstance(weight.node, ast.BinOp) and isinstance(weight.node.op, ast.Sub) and number(weight) is not None:
            rest = _folded_complement(weight)
            if rest is not None and (number(weight) or 0) < 0:  # q - 1
                sign = -sign
        elif rest is None and bare(weight).op == "sub" and number(bare(weight).args[1]) == 1:
            rest, sign = bare(weight).args[0], -sign
        if sign < 0:
            larger, smaller = smaller, larger
        return (weight if rest is None else rest), rest is not None, larger, smaller, gap
    return None


def _folded_complement(weight: Value) -> Value | None:
    """q of a number that is written 1 - q or q - 1."""
    node, known = weight.node, number(weight)
    if isinstance(node, ast.BinOp) and isinstance(node.left, ast.Constant) and node.left.value == 1 and known is not None:
        return Value("@constant", node=node.right, where=weight.where, data=round(1 - known, 12))
    if isinstance(node, ast.BinOp) and isinstance(node.right, ast.Constant) and node.right.value == 1 and known is not None:
        return Value("@constant", node=node.left, where=weight.where, data=round(1 + known, 12))
    return None


# Margins ----------------------------------------------------------------------


@FINDERS.add("margin-without-end")
def _margin_without_end(program: Program) -> Iterator[Remark]:
    """One kind of pairs is pulled to a distance of 0, the other to a distance of exactly the margin."""
    for value in computation_of(program).of("add", "where"):
        if len(value.args) < 2:
            continue
        for pull, push in (value.args[-2:], value.args[:-3:-1]):
            pulled, pushed = product(pull).above, product(push).above
            for term in pushed:
                inner = squared(term)
                gap = None if inner is None else bare(inner)
                if gap is None or gap.op != "sub" or not is_distance(gap.args[1]) or is_distance(gap.args[0]):
                    continue
                pulls = any(same(bare(squared(one) or one), bare(gap.args[1])) for one in pulled)
                told_apart = value.op == "where" or any(complements(a, b) for a in pulled for b in pushed)
                if pulls and told_apart:
                    yield Remark(term.node, f"{short(term.node)} is smallest at {short(gap.args[0].node)} and grows beyond it")


# Extremes under a mask -----------------------------------------------------------


@FINDERS.add("zero-is-the-smallest")
def _zero_is_the_smallest(program: Program) -> Iterator[Remark]:
    """The smallest of distances is taken where a mask has set some of them to 0."""
    for value in computation_of(program).of("min"):
        over = bare(value.args[0]) if value.args else None
        if over is None or (len(value.args) > 1 and not isinstance(constant(value.args[1]), int)):
            continue
        for mask, kept in _zeroed(over):
            if _never_negative(kept):
                yield Remark(value.node, f"{short(value.node)}: {short(mask.node)} sets the entries to 0 that it leaves out, and 0 is smaller than the distances that it keeps")


def _zeroed(value: Value) -> Iterator[tuple[Value, Value]]:
    """The mask, and what it keeps, of a value that is 0 elsewhere."""
    if value.op == "mul" and len(value.args) == 2:
        for mask, kept in (value.args, value.args[::-1]):
            if _is_mask(mask):
                yield mask, kept
    elif value.op == "where" and len(value.args) == 3 and (number(value.args[2]) == 0 or bare(value.args[2]).op == "zeros_like"):
        yield value.args[0], value.args[1]
    elif value.op == "masked_fill" and len(value.args) == 3 and number(value.args[2]) == 0:
        yield value.args[1], value.args[0]


def _is_mask(value: Value) -> bool:
    """Whether a value is 1 in some places and 0 in all others."""
    value = bare(value)
    if value.op in ("part", "mul") and value.args and (value.op == "mul" or isinstance(value.args[1], Many)):
        return all(_is_mask(one) for one in value.args[: 2 if value.op == "mul" else 1])
    if value.op == "set_item":
        return number(value.args[2]) in (0, 1) and (_is_mask(value.args[0]) or bare(value.args[0]).op in ("zeros", "zeros_like", "ones", "ones_like"))
    inner = complement_of(value)
    return value.op in _COMPARED or (inner is not None and _is_mask(inner))


def _never_negative(value: Value) -> bool:
    """Whether a value is a distance or a square."""
    value = bare(value)
    if value.op == "sum" and value.args:
        value = bare(value.args[0])
    return is_distance(value) or squared(value) is not None or value.op in ("sqrt", "abs", "square")


@FINDERS.add("positive-masked-out")
def _positive_masked_out(program: Program) -> Iterator[Remark]:
    """The targets are the entries of the diagonal, which is filled with a number that can never win."""
    for value in computation_of(program).of("cross_entropy"):
        if len(value.args) < 2:
            continue
        target = bare(value.args[1])
        plain = target.op == "arange" and (len(target.args) == 1 or number(target.args[0]) == 0)
        scores = bare(value.args[0], *TURNED)
        if plain and (filled := _without_diagonal(scores)) is not None:
            yield Remark(value.node, f"the targets {short(target.node)} stand on the diagonal of {short(filled.node)}, which line {scores.line} takes out of the choice")


def _without_diagonal(value: Value) -> Value | None:
    """What a value is, but for a diagonal of very small numbers."""
    if value.op in ("div", "mul") and number(value.args[1]) is not None:
        value = bare(value.args[0], *TURNED)
    if value.op == "fill_diagonal_" and is_large(value.args[1] if len(value.args) > 1 else None):
        return value.args[0]
    if value.op == "masked_fill" and len(value.args) == 3 and bare(value.args[1]).op == "eye" and is_large(value.args[2]):
        return value.args[0]
    if value.op == "sub" and _is_diagonal_of_large(value.args[1]):
        return value.args[0]
    if value.op == "where" and len(value.args) == 3 and bare(value.args[0]).op == "eye" and is_large(value.args[1]):
        return value.args[2]
    return None


def _is_diagonal_of_large(value: Value) -> bool:
    above = product(value).above
    return any(one.op == "eye" for one in above) and any(is_large(one) for one in above)


# Angles, axes ------------------------------------------------------------------------


@FINDERS.add("infinite-gradient")
def _infinite_gradient(program: Program) -> Iterator[Remark]:
    """The loss holds an arc cosine of what may be exactly 1: its gradient divides by 0 there."""
    computation = computation_of(program)
    known = networks(computation)
    seen: set[int] = set()
    for _, loss in losses(computation):
        for value in origins(loss, stop=("detach", "item", "numpy")):
            if value.op not in ("acos", "asin", "arcsin") or not value.args or value.where.no_grad or id(value) in seen:
                continue
            seen.add(id(value))
            inside = bare(value.args[0])
            low, high = number(inside.argument("min", 1)), number(inside.argument("max", 2))
            if inside.op == "clamp" and low == -1 and high == 1 and trained(inside, known):
                yield Remark(value.node, f"{short(value.node)} has no finite gradient where {short(inside.node)} is 1 or -1")


@FINDERS.add("normalized-over-time")
def _normalized_over_time(program: Program) -> Iterator[Remark]:
    """The norm of sequences of features is taken along the sequence."""
    for value in computation_of(program).of("normalize"):
        at = value.argument("dim", 2)
        if value.args and (at is None or number(at) == 1) and (of := _sequence(value.args[0])) is not None:
            yield Remark(value.node, f"{short(value.node)} works along dimension 1, which for {short(of.node)} is the sequence")
    for value in computation_of(program).of("div"):
        by = without_small(value.args[1])
        if by.op in ("norm", "vector_norm") and number(by.argument("dim", 2)) == 1 and constant(by.named.get("keepdim")) is True:
            of = _sequence(by.args[0])
            if of is not None and same(bare(by.args[0]), bare(value.args[0])):
                yield Remark(value.node, f"{short(value.node)} works along dimension 1, which for {short(of.node)} is the sequence")


def _sequence(value: Value) -> Value | None:
    """A value whose axes are batch, sequence and features, as a linear layer or a network for text gives it."""
    value = bare(value, "relu", "gelu", "tanh", "dropout", shapes=False)
    if value.op == "run" and value.args[0].op in ("torch.nn.Linear", "torch.nn.LayerNorm") and len(value.args) > 1:
        inside = value.args[1]
        return value if _of_sequences(inside) else None
    return value if value.op != "last_hidden_state" and _of_sequences(value) else None


def _of_sequences(value: Value) -> bool:
    """Whether a value is what a recurrent network or a transformer gives for batches of sequences."""
    value = bare(value, "relu", "gelu", "tanh", "dropout", shapes=False)
    if value.op == "last_hidden_state":
        return True
    if value.op == "run" and value.args[0].op in ("torch.nn.Linear", "torch.nn.LayerNorm", "torch.nn.Dropout") and len(value.args) > 1:
        return _of_sequences(value.args[1])
    inner = value.args[0] if value.op == "part" and constant(value.args[1]) == 0 else value
    if inner.op != "run" or not inner.args[0].op.startswith("torch.nn."):
        return False
    layer = inner.args[0]
    if layer.op == "torch.nn.TransformerEncoder" and layer.args:
        layer = layer.args[0]
    recurrent = layer.op in ("torch.nn.LSTM", "torch.nn.GRU", "torch.nn.RNN") and inner is not value
    attends = (layer.op == "torch.nn.TransformerEncoderLayer" and inner is value) or (layer.op == "torch.nn.MultiheadAttention" and inner is not value)
    return (recurrent or attends) and constant(layer.named.get("batch_first")) is True and rank(value) in (3, None)


@FINDERS.add("standardized-across-features")
def _standardized_across_features(program: Program) -> Iterator[Remark]:
    """A product over the samples, whose diagonal is to be 1, is taken of what is standardized within each sample."""
    computation = computation_of(program)
    for value in computation.of("matmul"):
        if len(value.args) < 2 or not _diagonal_to_be_one(value, computation):
            continue
        left = bare(value.args[0])
        if left.op not in ("T", "t", "mT", "transpose") or rank(left.args[0]) not in (2, None):
            continue
        inner = [bare(left.args[0]), bare(value.args[1])]
        if all(_within_samples(one) for one in inner):
            yield Remark(value.node, f"{short(value.node)} multiplies over the samples, and {short(inner[0].node)} (line {inner[0].line}) has its mean and deviation taken over the features of each")


def _within_samples(value: Value) -> bool:
    """Whether a value has its mean and deviation taken over the last axis."""
    if value.op == "layer_norm" or (value.op == "run" and value.args[0].op == "torch.nn.LayerNorm"):
        return True
    if value.op != "div":
        return False
    centred, by = bare(value.args[0]), without_small(value.args[1])
    if by.op == "sqrt":
        by = without_small(by.args[0])
    if centred.op != "sub" or not is_mean_of(centred.args[1], centred.args[0]):
        return False
    source = by.args[0] if by.op == "part" and by.args[0].op in ("var_mean", "std_mean") else by
    return source.op in ("std", "var", "var_mean", "std_mean") and number(source.argument("dim", 1)) in (1, -1)


def _diagonal_to_be_one(value: Value, computation: Computation) -> bool:
    """Whether something takes the diagonal of a value, and 1 from it."""
    waiting, seen = [value], 0
    while waiting and seen < 60:
        at = waiting.pop()
        seen += 1
        for user in computation.users(at):
            if user.op == "diagonal" or user.op == "diag":
                if any((one.op == "sub" and number(one.args[1]) == 1) or (one.op == "mse_loss" and any(bare(a).op in ("ones", "ones_like") for a in one.args)) or (one.op == "add" and number(one.args[1]) == -1) for one in computation.users(user)):
                    return True
            elif user.op in ("div", "mul", "matmul", "to", "float") or isinstance(user, Many):
                waiting.append(user)
    return False


# Pairs ---------------------------------------------------------------------------------


@FINDERS.add("pairs-inverted")
def _pairs_inverted(program: Program) -> Iterator[Remark]:
    """The loss pulls the pairs together whose label says that they differ."""
    computation = computation_of(program)
    for value in computation.of("cosine_embedding_loss", "hinge_embedding_loss"):
        place = 2 if value.op == "cosine_embedding_loss" else 1
        label = value.argument("target", place)
        if label is not None and (told := _larger_where_equal(label)) is not None and not told[0]:
            yield Remark(value.node, f"{short(value.node)} pulls the pairs together that {short(told[1].node)} marks as different")
    for value in computation.of("add"):
        for pull, push in sides(value):
            pulled, pushed = product(pull).above, product(push).above
            gaps = [gap for one in pushed if (gap := rectified(squared(one) or one)) is not None and bare(gap).op == "sub" and number(bare(gap).args[1]) is None]
            for gap in gaps:
                far = bare(bare(gap).args[1])
                if not any(same(bare(squared(one) or one), far) for one in pulled):
                    continue
                told = next((found for one in pulled if (found := _larger_where_equal(one)) is not None), None)
                if told is not None and not told[0]:
                    yield Remark(value.node, f"{short(value.node)} pulls the pairs together that {short(told[1].node)} marks as different")


def _larger_where_equal(value: Value, depth: int = 20) -> tuple[bool, Value] | None:
    """Whether a label is larger where two things are equal (True) or where they differ (False), and where that is
    decided; None where it is unknown."""
    while isinstance(value, Many) or value.op in (KEPT | SHAPED | {"element"}) - {"either"}:
        inner = next(iter(value.made_of()), None)
        if inner is None or depth == 0:
            return None
        value, depth = inner, depth - 1
    if value.op in ("eq", "ne") and len(value.args) == 2 and number(value.args[1]) is None:
        return value.op == "eq", value
    if value.op in ("sub", "add", "mul") and len(value.args) == 2 and depth:
        for place, (one, other) in enumerate((value.args, value.args[::-1])):
            known = number(one)
            if known is not None and (found := _larger_where_equal(other, depth - 1)) is not None:
                turned = (value.op == "sub" and place == 0) or (value.op == "mul" and known < 0)
                return found[0] is not turned, found[1]
    if value.op in ("invert", "not", "neg") and (found := _larger_where_equal(value.args[0], depth - 1)) is not None:
        return not found[0], found[1]
    if value.op == "where" and len(value.args) == 3 and (found := _larger_where_equal(value.args[0], depth - 1)) is not None:
        high, low = number(value.args[1]), number(value.args[2])
        return None if high is None or low is None or high == low else (found[0] is (high > low), found[1])
    if value.op == "either" and isinstance(value.node, ast.IfExp) and isinstance(test := value.node.test, ast.Compare) and len(value.args) == 2:
        high, low = number(value.args[0]), number(value.args[1])
        if high is not None and low is not None and isinstance(test.ops[0], (ast.Eq, ast.NotEq)) and not isinstance(test.comparators[0], ast.Constant):
            return isinstance(test.ops[0], ast.Eq) is (high > low), value
    return None


# Averages over padding --------------------------------------------------------------------


@FINDERS.add("mean-over-padding")
def _mean_over_padding(program: Program) -> Iterator[Remark]:
    """What a packed sequence is padded to again is averaged over all of its positions."""
    for value in computation_of(program).of("mean", "div"):
        if not value.args:
            continue
        of = bare(value.args[0])
        summed = value if value.op == "mean" else of
        if value.op == "div" and not (of.op == "sum" and _is_length(value.args[1], of.args[0])):
            continue
        padded = bare(summed.args[0], "dropout", shapes=False)
        if padded.op != "part" or constant(padded.args[1]) != 0 or not padded.args[0].op.endswith("pad_packed_sequence"):
            continue
        time = 1 if constant(padded.args[0].argument("batch_first", 1)) is True else 0
        if number(summed.argument("dim", 1)) == time:
            yield Remark(value.node, f"{short(value.node)} divides by all positions, also by those that line {padded.line} fills with 0")


def _is_length(value: Value, of: Value) -> bool:
    """Whether a value is the length of an axis of another one."""
    value = bare(value)
    if value.op == "size":
        return same(value.args[0], of)
    return value.op == "part" and value.args[0].op == "shape" and same(value.args[0].args[0], of)


