"""Softmaxes over the wrong axis, what is done to their probabilities, and what losses take. Pure; standard library only."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from probe.diagnose.code.computed.computation import Computation, computation_of
from probe.diagnose.code.computed.value import (
    DRAWN,
    KEPT,
    SHAPED,
    Many,
    Value,
    alternatives,
    bare,
    comes_from,
    constant,
    is_none,
    number,
    origins,
    same,
)
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Finders, Remark
from probe.diagnose.code.syntax import short
from probe.diagnose.code.traits.basic import squared, without_small
from probe.diagnose.code.traits.extents import last, rank
from probe.diagnose.code.traits.uses import made_from

FINDERS = Finders()
_SOFTMAXES = ("softmax", "log_softmax")
_PRODUCTS = frozenset({"matmul", "einsum", "baddbmm"})
_COMPARED = frozenset({"eq", "ne", "lt", "le", "gt", "ge", "invert", "tril", "triu", "isin"})
_POINTWISE = frozenset({
    "relu", "gelu", "silu", "tanh", "sigmoid", "leaky_relu", "elu", "dropout", "to", "float", "double", "half", "cuda", "cpu", "detach", "clone",
    "contiguous", "normalize", "add", "mul", "div", "sub",
})
_SAME_BATCH = ("Linear", "Conv", "BatchNorm", "LayerNorm", "GroupNorm", "Pool", "Flatten", "Dropout", "Embedding", "Identity")
_KEEPS = KEPT | SHAPED | {"div", "part", "pow"}
_DRAWS = frozenset({"multinomial", "choice", "choices", "torch.distributions.Categorical"})


def _axis(value: Value) -> Value | None:
    """The axis that a softmax is given."""
    return value.argument("dim", 1)


# Over which axis ------------------------------------------------------------


@FINDERS.add("softmax-over-the-batch")
def _over_the_batch(program: Program) -> Iterator[Remark]:
    """A softmax runs over axis 0 of what layers make of a whole batch, or of what is read along axis 1."""
    computation = computation_of(program)
    for value in computation.of(*_SOFTMAXES):
        if not value.args or number(_axis(value)) != 0 or rank(value.args[0]) == 1:
            continue
        scores = value.args[0]
        if scores.op == "run" and (_keeps_batch(scores) or any(True for _ in _best_along_one(computation, value))):
            yield Remark(value.node, f"{short(value.node)} runs over axis 0, and axis 0 of {short(scores.node)} is the batch")


@FINDERS.add("softmax-over-the-batch")
def _classes_in_the_loss(program: Program) -> Iterator[Remark]:
    """A softmax runs over axis 0 of scores, by a temperature at most, and a cross-entropy takes scores of the same kind, of
    which axis 1 are the classes."""
    computation = computation_of(program)
    taken = [(loss, _scores_of(loss.args[0])) for loss in computation.of("cross_entropy") if len(loss.args) > 1]
    for value in computation.of(*_SOFTMAXES):
        if not value.args or number(_axis(value)) != 0:
            continue
        scores = _scores_of(value.args[0])
        for loss, given in taken:
            if scores.op == "run" and given.op == "run" and given.args[0] is scores.args[0] and given.where.functions == scores.where.functions and rank(scores) in (None, 2) and loss.args[0].op != "unsqueeze":
                yield Remark(value.node, f"{short(value.node)} runs over axis 0, and {short(loss.node)} (line {loss.line}) takes axis 1 of what the same layer gives for the classes")
                break


def _scores_of(value: Value) -> Value:
    """Scores without a temperature, a cut of the gradient, or a cut into parts of the batch."""
    while value.args and (value.op in ("detach", "div", "float", "split", "chunk", "clone") or (value.op == "part" and value.args[0].op in ("split", "chunk"))):
        value = value.args[0]
    return value


def _keeps_batch(value: Value) -> bool:
    """Whether a value's first axis is that of the samples of a DataLoader's batch: layers alone stand between."""
    for _ in range(60):
        if value.op == "rows":
            size = value.named["loader"].argument("batch_size", 1) if "loader" in value.named else None
            return size is None or not is_none(size)
        if value.op == "run" and len(value.args) == 2 and _by_sample(value.args[0]):
            value = value.args[1]
        elif (value.op in _POINTWISE and value.args) or (value.op == "flatten" and number(value.argument("start_dim", 1)) == 1) or _is_field(value):
            value = value.args[0]
        else:
            return False
    return False


def _is_field(value: Value) -> bool:
    """Whether a value is one field of the samples of a batch: `x` of `x, y = batch`, and `batch["x"]`."""
    return value.op == "part" and value.args[0].op == "rows" and (isinstance(value.node, (ast.Tuple, ast.List)) or isinstance(constant(value.args[1]), str))


def _by_sample(layer: Value) -> bool:
    """Whether a layer keeps the first axis: most do, and so does a network that is not known."""
    return not layer.op.startswith("torch.nn.") or any(word in layer.op for word in _SAME_BATCH)


def _best_along_one(computation: Computation, value: Value) -> Iterator[Value]:
    """Where the best, the first few or the sum of a value is taken along axis 1."""
    for one in made_from(computation, value, frozenset({"cat", "list", "to", "cpu", "numpy", "exp", "detach", "concatenate", "log"})):
        if one.op in ("argmax", "topk", "max") and one.args and number(one.argument("dim", 1 if one.op != "topk" else 2)) == 1:
            yield one


@FINDERS.add("softmax-over-the-width")
def _over_the_width(program: Program) -> Iterator[Remark]:
    """A softmax runs over another axis than the classes: cross_entropy takes the same scores with classes in axis 1."""
    computation = computation_of(program)
    for value in computation.of(*_SOFTMAXES):
        axis = number(_axis(value)) if value.args else None
        if axis is None or axis in (0, 1):
            continue
        scores = value.args[0]
        if axis < 0 and (rank(scores) or 0) + axis < 2:
            continue
        for loss in (*computation.of("cross_entropy"), *computation.of("nll_loss")):
            taken = loss.args[0] if loss.args else None
            if taken is scores or (loss.op == "nll_loss" and taken is value):
                yield Remark(value.node, f"{short(value.node)} runs over axis {axis:g}, and {short(loss.node)} (line {loss.line}) takes axis 1 of the same values for the classes")
                break


@FINDERS.add("softmax-without-axis")
def _without_axis(program: Program) -> Iterator[Remark]:
    """A softmax of three axes or more is given no axis."""
    computation = computation_of(program)
    for value in computation.of(*_SOFTMAXES):
        if not value.args or not is_none(_axis(value)) or "**" in value.named or not _torch(value.node):
            continue
        count = _axes(computation, value)
        if count is not None and count > 2:
            yield Remark(value.node, f"{short(value.node)} is given no dim, and {short(value.args[0].node)} has {'more than two' if rank(value.args[0]) is None else count} axes: torch takes axis {0 if count == 3 else 1}")


def _torch(node: ast.AST) -> bool:
    """Whether a softmax is torch's: scipy's and numpy's take all values together."""
    return "scipy" not in ast.unparse(node) and "special" not in ast.unparse(node)


def _axes(computation: Computation, value: Value) -> int | None:
    """The number of axes of a softmax, by what it is made of or by what takes it; at least that many."""
    scores = value.args[0]
    while scores.op in ("div", "mul", "add", "dropout", "masked_fill") and scores.args and rank(scores) is None:
        scores = scores.args[0]
    if (known := rank(scores)) is not None:
        return known
    if scores.op == "einsum" and isinstance(text := constant(scores.args[0]), str) and "->" in text and "." not in text:
        return len(text.rpartition("->")[2].replace(" ", ""))
    if scores.op == "permute":
        return len(scores.args) - 1 if len(scores.args) > 2 else None
    if scores.op == "transpose" and max((number(one) or 0) for one in (*scores.args[1:], *scores.named.values())) >= 2:
        return 3
    bmm = [one for one in (scores, *computation.users(value)) if isinstance(one.node, ast.Call) and ast.unparse(one.node.func).endswith("bmm")]
    return 3 if bmm else None


@FINDERS.add("softmax-of-one-value")
def _of_one_value(program: Program) -> Iterator[Remark]:
    """A softmax runs over an axis of length 1."""
    for value in computation_of(program).of(*_SOFTMAXES):
        if not value.args or last(value.args[0]) != 1:
            continue
        axis, axes = number(_axis(value)), rank(value.args[0])
        if axis == -1 or (axis is not None and axes is not None and axis == axes - 1):
            yield Remark(value.node, f"{short(value.node)} runs over the last axis of {short(value.args[0].node)}, which has one value: the result is always {'1' if value.op == 'softmax' else '0'}")


# Afterwards -----------------------------------------------------------------


def _attention(value: Value) -> Value | None:
    """The softmax that a value is, perhaps after dropout, where its scores are products."""
    value = bare(value, "dropout")
    if value.op == "run" and len(value.args) == 2 and (value.args[0].op.endswith("Dropout") or value.args[0].op in ("@input", "part")):
        value = bare(value.args[1], "dropout")
    return value if value.op == "softmax" and value.args else None


def _weighs(computation: Computation, value: Value) -> bool:
    """Whether a value is the weights of a sum: a factor of a matrix product, and never divided by its own sum."""
    weighs = False
    for one in made_from(computation, value, frozenset({"dropout", "unsqueeze", "to", "float", "transpose", "run", "squeeze", "part", "sum", "clamp", "add"})):
        if one.op in ("normalize",) or (one.op == "div" and comes_from(one.args[1], value)):
            return False
        weighs = weighs or (one.op in _PRODUCTS and not any(comes_from(part, value) and part.op == "sum" for part in one.args))
    return weighs


@FINDERS.add("masked-after-softmax")
def _masked_after(program: Program) -> Iterator[Remark]:
    """What is hidden has been counted by the softmax: its weights are set to 0 afterwards, and not normalized anew."""
    computation = computation_of(program)
    for value in computation.of("masked_fill", "where", "mul"):
        for weights, mask in _hidden(value):
            softmax = _attention(weights)
            if softmax is None or any(one is softmax.args[0] for one in origins(mask, ("shape", "size", "len"))) or _has_mask(softmax.args[0]) or not _weighs(computation, value):
                continue
            yield Remark(value.node, f"{short(value.node)} hides positions after {short(softmax.node)} (line {softmax.line}) has counted them")
            break


def _hidden(value: Value) -> Iterator[tuple[Value, Value]]:
    """The weights and the mask, where a value sets weights to 0."""
    if value.op == "masked_fill" and len(value.args) > 2 and number(value.args[2]) == 0:
        yield value.args[0], value.args[1]
    elif value.op == "where" and len(value.args) == 3:
        for kept, other in (value.args[1:], value.args[:0:-1]):
            if number(other) == 0 or bare(other).op in ("zeros_like", "zeros"):
                yield kept, value.args[0]
    elif value.op == "mul" and len(value.args) == 2:
        for one, other in (value.args, value.args[::-1]):
            if _is_mask(other):
                yield one, other


def _is_mask(value: Value) -> bool:
    """Whether a value is 0 and 1 for what is left out and what is kept."""
    value = bare(value, "transpose", "permute")
    if any(one.op in DRAWN for one in origins(value, ("run", "rows", "element", "shape", "size"))):
        return False
    if value.op == "set_item":
        return _filled(value) in ({0.0, 1.0}, {0.0}, {1.0})
    if value.op == "pad_sequence" and value.args:
        return all(one.op in ("ones", "ones_like") for one in getattr(value.args[0], "parts", ()) or [value])
    return value.op in _COMPARED and not (value.op in ("tril", "triu") and bare(value.args[0]).op not in ("ones", "ones_like"))


def _filled(value: Value) -> set[float | None]:
    """The numbers that a tensor of zeros or ones is filled with, item by item."""
    found: set[float | None] = set()
    while value.op == "set_item":
        known = constant(value.args[2])
        found.add(None if known is None else float(known) if isinstance(known, (int, float)) else None)
        value = bare(value.args[0])
    return found | {0.0} if value.op in ("zeros", "zeros_like", "new_zeros") else found | {1.0} if value.op in ("ones", "ones_like") else {None}


def _has_mask(scores: Value) -> bool:
    """Whether scores are masked, or may be, before the softmax: by filling, or by adding what is no number."""
    while scores.op in ("div", "mul", "sub", "to", "float", "view", "reshape", "tanh") and scores.args:
        scores = scores.args[0] if scores.args[0].op != "@constant" else scores.args[-1]
    return scores.op in ("masked_fill", "where", "add", "either", "masked_fill_", "set_item", "@input")


@FINDERS.add("scaled-after-softmax")
def _scaled_after(program: Program) -> Iterator[Remark]:
    """The weights, and not the scores, are divided by a root."""
    computation = computation_of(program)
    for value in computation.of("div", "mul"):
        softmax = _attention(value.args[0]) if len(value.args) == 2 else None
        if softmax is None or not _is_root(value.args[1]) or not any(one.op in _PRODUCTS for one in origins(softmax.args[0], ("run",))):
            continue
        if any(one.op in _PRODUCTS for one in made_from(computation, value, frozenset({"dropout", "run", "to", "type_as"}))):
            yield Remark(value.node, f"{short(value.node)} scales by {short(value.args[1].node)} what {short(softmax.node)} has already normalized")


def _is_root(value: Value) -> bool:
    """Whether a number is a root, or 1 over a root."""
    if value.op == "div" and number(value.args[0]) == 1:
        value = value.args[1]
    power = number(value.args[1]) if value.op == "pow" and len(value.args) > 1 else None
    if value.op in ("sqrt", "rsqrt") or power in (0.5, -0.5):
        return True
    node = value.node
    return value.op == "@constant" and ((isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow)) or (isinstance(node, ast.Call) and "sqrt" in ast.unparse(node.func)))


@FINDERS.add("temperature-after-softmax")
def _temperature_after(program: Program) -> Iterator[Remark]:
    """Probabilities, and not scores, are divided by one number before something is drawn from them."""
    computation = computation_of(program)
    for value in computation.of("div"):
        softmax, by = bare(value.args[0]), value.args[1]
        if softmax.op != "softmax" or comes_from(by, softmax) or (number(by) in (None, 1.0) and bare(by).op != "@input"):
            continue
        if any(one.op in _DRAWS for one in made_from(computation, value, _KEEPS)):
            yield Remark(value.node, f"{short(value.node)} scales the probabilities of {short(softmax.node)} (line {softmax.line}) by {short(by.node)}, and what is drawn stays the same")


@FINDERS.add("rows-masked-whole")
def _rows_whole(program: Program) -> Iterator[Remark]:
    """The mask of products of queries and keys has length 1 along the axis of the softmax."""
    for value in computation_of(program).of("softmax"):
        if not value.args or number(axis := _axis(value)) is None:
            continue
        for scores, mask in _filled_scores(value.args[0]):
            at = number(axis)
            if last(mask) == 1 and (at == -1 or (at is not None and at in (_less(rank(mask)), _less(rank(value.args[0]))))) and _is_product(scores):
                yield Remark(value.node, f"{short(mask.node)} (line {mask.line}) has length 1 along axis {at:g}, which {short(value.node)} runs over: whole rows of scores are filled")


def _less(axes: int | None) -> int | None:
    """The last axis, counted from the front."""
    return None if axes is None else axes - 1


def _filled_scores(value: Value) -> Iterator[tuple[Value, Value]]:
    """Scores and the mask that is filled or added into them."""
    if value.op == "masked_fill" and len(value.args) > 1:
        yield value.args[0], value.args[1]
    elif value.op == "where" and len(value.args) == 3:
        yield value.args[1], value.args[0]
        yield value.args[2], value.args[0]
    elif value.op in ("add", "sub"):
        for scores, other in (value.args, value.args[::-1]):
            large = any((known := number(one)) is not None and abs(known) >= 1000 for one in origins(other, ("run", *_PRODUCTS)))
            if large and bare(other).op in ("where", "mul", "masked_fill"):
                yield scores, next((one for one in other.args if last(one) == 1), other) if other.op != "masked_fill" else other


def _is_product(scores: Value) -> bool:
    """Whether scores are products, with a last axis that is not 1."""
    while scores.op in ("div", "mul", "add") and scores.args:
        scores = scores.args[0] if bare(scores.args[0]).op != "@constant" else scores.args[1]
    return scores.op in _PRODUCTS and last(scores.args[-1]) != 1


# Drawn among the best -------------------------------------------------------


@FINDERS.add("rank-for-index")
def _rank_for_index(program: Program) -> Iterator[Remark]:
    """A place among sorted values is taken for the word that stands there."""
    computation = computation_of(program)
    for drawn in computation.of("multinomial", "sample"):
        given = drawn.args[0] if drawn.args else None
        if given is None or (drawn.op == "sample" and given.op != "torch.distributions.Categorical"):
            continue
        ordered = _ordered(given)
        if ordered is None or any(_is_places(one, ordered) for one in origins(given)):
            continue
        if any(any(_is_places(one, ordered) for one in origins(user)) for user in made_from(computation, drawn, None, most=60)):
            continue
        yield Remark(drawn.node, f"{short(drawn.node)} is a place among the sorted values of {short(ordered.node)} (line {ordered.line}), and their indices are not looked up with it")


def _ordered(given: Value) -> Value | None:
    """The sort or topk whose values a distribution is made of, number by number."""
    for _ in range(20):
        if given.op == "values" or (given.op == "part" and number(given.args[1]) == 0):
            return given.args[0] if given.args[0].op in ("sort", "topk") else None
        given = next(iter((*given.args, *given.named.values())), given) if given.op not in ("run", "gather", "scatter", "where") else given
    return None


def _is_places(value: Value, ordered: Value) -> bool:
    """Whether a value is the indices that a sort or topk gives."""
    return bool(value.args) and value.args[0] is ordered and (value.op == "indices" or (value.op == "part" and number(value.args[1]) in (1, -1)))


# What losses take, and other axes -------------------------------------------

_TAKES = {
    "cross_entropy": ("logits", {"softmax": "a softmax", "sigmoid": "a sigmoid"}),
    "binary_cross_entropy_with_logits": ("logits", {"softmax": "a softmax", "sigmoid": "a sigmoid"}),
    "nll_loss": ("log probabilities", {"softmax": "a softmax", "sigmoid": "a sigmoid"}),
    "kl_div": ("log probabilities", {"softmax": "a softmax", "sigmoid": "a sigmoid"}),
    "binary_cross_entropy": ("probabilities", {"log_softmax": "a log_softmax", "tanh": "a tanh"}),
}
"""What a loss takes, and operations that give something else."""


@FINDERS.add("values-of-another-range")
def _another_range(program: Program) -> Iterator[Remark]:
    """A loss is given probabilities for logits, or the other way round."""
    for value in computation_of(program).of(*_TAKES):
        takes, wrong = _TAKES[value.op]
        found = {by_hand(bare(one, "permute", "transpose")) for one in _all_of(value.args[0])} if value.args else set()
        given = bare(value.args[0], "permute", "transpose") if value.args else value
        swapped = value.op == "kl_div" and len(value.args) > 1 and bare(value.args[1]).op == "log_softmax"
        if by_hand(given) in wrong and found == {by_hand(given)} and not swapped:
            yield Remark(value.node, f"{value.op} takes {takes}, and {short(value.args[0].node)} is the output of {wrong[by_hand(given)]} (line {given.line})")
        target = bare(value.args[1]) if value.op == "kl_div" and len(value.args) > 1 else value
        if target.op == "log_softmax" and is_none(value.named.get("log_target")) and "**" not in value.named and len(value.args) < 6 and by_hand(given) == "log_softmax":
            yield Remark(value.node, f"kl_div takes probabilities as its target without log_target=True, and {short(target.node)} (line {target.line}) is the output of a log_softmax")
        if target.op in ("softmax", "sigmoid") and constant(value.named.get("log_target")) is True:
            yield Remark(value.node, f"{short(value.node)} takes the target for logarithms (log_target=True), and {short(target.node)} (line {target.line}) gives probabilities")


def by_hand(value: Value) -> str:
    """The name of an operation, also of a softmax or a sigmoid that is written out: exp(x) / exp(x).sum(), 1 / (1 + exp(-x))."""
    if value.op == "normalize" and value.args and number(value.argument("p", 1)) == 1 and bare(value.args[0]).op == "exp":
        return "softmax"
    if value.op != "div" or len(value.args) != 2:
        return value.op
    above, below = bare(value.args[0]), without_small(value.args[1])
    if above.op == "exp" and below.op == "sum" and below.args and same(bare(below.args[0]), above) and not is_none(below.argument("dim", 1)):
        return "softmax"
    powers = [bare(one) for one in below.args if number(one) is None] if below.op == "add" and len(below.args) == 2 else []
    negative = len(powers) == 1 and powers[0].op == "exp" and bare(powers[0].args[0]).op == "neg"
    return "sigmoid" if negative and number(above) == 1 and any(number(one) == 1 for one in below.args) else value.op


def _all_of(value: Value) -> Iterator[Value]:
    """All that a value may be, without what only changes its shape or type."""
    while value.op != "either" and value.op in (KEPT | SHAPED) and value.args:
        value = value.args[0]
    for one in alternatives(value):
        yield from [one] if one is value else _all_of(one)


@FINDERS.add("prediction-and-target-swapped")
def _swapped(program: Program) -> Iterator[Remark]:
    """kl_div is given the probabilities of the target first and the logarithms of the output second."""
    for value in computation_of(program).of("kl_div"):
        first, second = (bare(one) for one in value.args[:2]) if len(value.args) > 1 else (value, value)
        if first.op == "softmax" and second.op == "log_softmax" and is_none(value.named.get("log_target")):
            yield Remark(value.node, f"{short(value.node)} takes {short(first.node)} for the prediction, and {short(second.node)} for the target: logarithms come first")


@FINDERS.add("normalized-over-the-batch")
def _unit_over_the_batch(program: Program) -> Iterator[Remark]:
    """Vectors of samples are normalized along axis 0, and compared sample by sample."""
    computation = computation_of(program)
    for value in computation.of("normalize", "div"):
        axis = _unit_axis(value)
        of = bare(value.args[0], "cat")
        of = bare(of.parts[0]) if isinstance(of, Many) and of.parts else of
        if number(axis) != 0 or rank(value.args[0]) == 1 or of.op != "run":
            continue
        for product in made_from(computation, value, frozenset({"mul", "div", "cat", "t", "T", "mT", "transpose", "to"})):
            if product.op == "matmul" and len(product.args) == 2 and _is_turned(product.args[1]) and not _is_turned(product.args[0]) and comes_from(product.args[0], value):
                yield Remark(value.node, f"{short(value.node)} divides each feature by its norm over the samples, and {short(product.node)} (line {product.line}) compares samples")
                break


def _unit_axis(value: Value) -> Value | None:
    """The axis along which a value is divided by its length."""
    if value.op == "normalize" and value.args:
        return value.argument("dim", 2)
    length = bare(value.args[1], "clamp", "add") if len(value.args) == 2 else value
    squares = bare(length.args[0], "clamp", "add") if length.op in ("sqrt", "pow") and length.args else length
    if squares.op == "sum" and squares.args and (of := squared(squares.args[0])) is not None and bare(of) is bare(value.args[0]):
        return squares.argument("dim", 1)
    if length.op != "norm" or not length.args or bare(length.args[0]) is not bare(value.args[0]):
        return None
    return length.argument("dim", 2) or (length.args[1] if number(length.argument("p")) is not None and len(length.args) == 2 else None)


def _is_turned(value: Value) -> bool:
    """Whether a value is a transposed matrix."""
    return bare(value, "div", "mul", shapes=False).op in ("t", "T", "mT", "transpose")


@FINDERS.add("penalty-of-each-pixel")
def _each_pixel(program: Program) -> Iterator[Remark]:
    """The length of a gradient of images is taken along one axis, and pulled to 1."""
    computation = computation_of(program)
    for value in computation.of("sub"):
        if len(value.args) != 2 or number(value.args[1]) != 1:
            continue
        length = bare(value.args[0])
        length = bare(length.args[0], "add", "clamp") if length.op in ("sqrt", "pow") else length
        slope = length.args[0] if length.op in ("norm", "sum", "vector_norm") and length.args else None
        if slope is not None and length.op == "sum":
            slope = slope.args[0] if slope.op in ("square", "pow", "mul") else None
        axis = length.argument("dim", 2 if length.op == "norm" else 1) if slope is not None else None
        grad = slope.args[0] if slope is not None and slope.op == "part" else slope
        if grad is None or not isinstance(constant(axis), int) or not grad.op.endswith("grad") or not grad.args:
            continue
        given = grad.argument("inputs", 1)
        given = given.parts[0] if isinstance(given, Many) and len(given.parts) == 1 else given
        if given is not None and (_is_image(computation, given) or (rank(given) or 0) > 2):
            yield Remark(length.node, f"{short(length.node)} is taken over axis {constant(axis)} of the gradient of {short(given.node)}, which has more than one axis for each sample")


def _is_image(computation: Computation, value: Value) -> bool:
    """Whether a convolution takes a value."""
    return any(one.op == "run" and one.args[0].op.startswith("torch.nn.Conv") for one in computation.users(value))
