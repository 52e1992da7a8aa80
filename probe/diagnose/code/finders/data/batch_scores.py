"""What is made of one batch after the other: scores that the program averages itself, and predictions in the order of a
loader. Pure; standard library only."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from probe.diagnose.code.computed.computation import Computation, computation_of
from probe.diagnose.code.computed.value import Instance, Many, Value, bare, constant, is_none, origins, same
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Finders, Remark
from probe.diagnose.code.syntax import short
from probe.diagnose.code.traits.basic import LOSSES, losses, squared

FINDERS = Finders()
_COUNTS = ("len", "size", "shape", "numel", "@constant", "@input", "count")
_JOINED = ("cat", "concatenate", "stack", "hstack", "vstack")
_RANKED = ("argsort", "sort", "sorted")
_PIECES = ("split", "chunk", "tensor_split", "array_split")
_KEEPS = ("item", "float", "builtins.float", "either", "mean", "sum_of", "stack", "tensor", "as_tensor", "array", "cpu", "detach", "numpy", "tolist")


@FINDERS.add("score-of-each-batch")
def _score_of_batches(program: Program) -> Iterator[Remark]:
    """The ratio of two sums over the samples of a batch, or a score of their order, is averaged over the batches."""
    computation = computation_of(program)
    learned = {one.node for _, loss in losses(computation) for one in origins(loss)}  # of held-out batches, a loss and not a score
    said: set[ast.AST] = set()
    for value in computation.of("div"):
        loop = value.where.loops[-1] if value.where.loops else None
        if loop is None or not value.where.no_grad or value.node in learned or value.node in said or len(value.args) != 2:
            continue
        if not _is_of_batch(value, loop) or not _is_score(value):
            continue
        mean = _averaged(computation, value, loop)
        if mean is not None:
            said.add(value.node)
            yield Remark(value.node, f"{short(value.node)} is the score of one batch, and {short(mean.node)} (line {mean.line}) averages those of all")


@FINDERS.add("score-of-each-batch")
def _root_of_batches(program: Program) -> Iterator[Remark]:
    """The root of the mean squared error of each batch is averaged over the batches."""
    computation = computation_of(program)
    learned = {one.node for _, loss in losses(computation) for one in origins(loss)}
    for value in computation.of("sqrt", "pow"):
        loop = value.where.loops[-1] if value.where.loops else None
        if loop is None or not value.where.no_grad or value.node in learned or not value.args or (value.op == "pow" and constant(value.args[1]) != 0.5):
            continue
        mean = bare(value.args[0])
        whole = mean.op == "mse_loss" and not mean.named.keys() & {"reduction"}
        whole = whole or (mean.op == "mean" and len(mean.args) == 1 and not mean.named and squared(bare(mean.args[0])) is not None)
        found = list(origins(mean)) if whole else []
        read = any(_is_batch(one) and loop in one.where.loops for one in found) and any(one.op == "run" and loop in one.where.loops for one in found)
        if not read or any(isinstance(one, Many) and one.grown and loop in one.where.loops for one in found):
            continue
        averaged = _averaged(computation, value, loop)
        if averaged is not None:
            yield Remark(value.node, f"{short(value.node)} is the root of one batch's mean, and {short(averaged.node)} (line {averaged.line}) averages the roots: that is less than the root of the mean over all samples")
            return


def _is_of_batch(value: Value, loop: ast.AST) -> bool:
    """Whether a value is made of a batch that the loop reads, and not of several."""
    found = list(origins(value))
    return any(_is_batch(one) and loop in one.where.loops for one in found) and not any((one.op in _JOINED and not _is_beside(one)) or one.op == "sum_of" or (isinstance(one, Many) and one.grown) for one in found if loop in one.where.loops) and not any(one.op in LOSSES for one in found)


def _is_batch(value: Value) -> bool:
    """Whether a value is a batch of a loader, or the rows from one number on that a loop counts by the size of a batch."""
    index = value.args[1] if value.op == "part" and len(value.args) == 2 else None
    if value.op == "element":  # of `x.split(64)`, `torch.chunk(x, 10)`
        return bool(value.args) and value.args[0].op in _PIECES
    if index is not None and bare(index).op == "element":  # `x[chosen]` for each piece of an order
        return bool(bare(index).args) and bare(index).args[0].op in _PIECES
    return value.op == "rows" or (index is not None and index.op == "slice" and index.args[0].op == "index" and len(index.args[0].args) == 3)


def _is_beside(joined: Value) -> bool:
    """Whether what is joined stands side by side: for the same samples, not one batch after the other."""
    return constant(joined.argument("dim", 1)) not in (None, 0)


def _is_score(value: Value) -> bool:
    """Whether a quotient divides by what depends on the labels or predictions: not by a number of samples."""
    below = list(origins(value.args[1], stop=_COUNTS))
    asked = any(one.op in ("ne", "isnan", "mask") for one in below)  # a mean over what is not padding
    sums = any(one.op in ("sum", "norm") and _is_over_samples(one) for one in below) and any(map(_is_batch, below))
    ranked = any(one.op in _RANKED for one in origins(value.args[0]))
    return (sums and not asked and not _is_share(value)) or (ranked and any(map(_is_batch, below)))


def _is_over_samples(value: Value) -> bool:
    """Whether a sum or a norm is taken over the samples of a batch, and not for each of them."""
    given = value.argument("dim", 1 if value.op == "sum" else None)
    axes = given.parts if isinstance(given, Many) else [] if is_none(given) or given is None else [given]
    return not axes or any(constant(one) == 0 for one in axes)


def _is_share(value: Value) -> bool:
    """Whether a quotient is a weighted mean: what is above is what is below times something."""
    below = bare(value.args[1])
    mask = bare(below.args[0]) if below.op == "sum" and below.args else None
    above = bare(value.args[0])
    inner = bare(above.args[0]) if above.op == "sum" and above.args else above
    return mask is not None and inner.op == "mul" and any(bare(one) is mask for one in inner.args)


def _averaged(computation: Computation, value: Value, loop: ast.AST) -> Value | None:
    """Where the values of all passes of a loop are averaged: in a list whose mean is taken, or by a sum."""
    waiting, seen = [value], {id(value)}
    while waiting and len(seen) < 80:
        for user in computation.users(waiting.pop()):
            if id(user) in seen:
                continue
            seen.add(id(user))
            inside = loop in user.where.loops
            if not inside and user.op in ("mean", "statistics.mean", "statistics.fmean", "sum_of", "div"):
                return user
            if user.op in _KEEPS or (user.op in ("mul", "div", "sub", "add") and inside) or isinstance(user, Many):
                waiting.append(user)
    return None


# Predictions in the order of a loader ---------------------------------------------------


@FINDERS.add("predictions-in-another-order")
def _another_order(program: Program) -> Iterator[Remark]:
    """What a network gives for the batches of a loader that shuffles is collected, and put beside the data's own order."""
    computation = computation_of(program)
    for value in computation.of("sub", "eq", "ne", "corrcoef", "zip", *LOSSES):
        for one, other in ((value.args[0], value.args[1]), (value.args[1], value.args[0])) if len(value.args) > 1 else ():
            collected = next((each for each in _rows_kept(one) if _is_collected(each)), None)
            loader = _shuffled_loader(collected) if collected is not None else None
            data = loader.argument("dataset", 0) if loader is not None else None
            if loader is None or data is None or not any(_is_of_data(each, loader, data) for each in _rows_kept(other)):
                continue
            yield Remark(value.node, f"{short(value.node)} puts what was computed in the order in which {short(loader.node)} (line {loader.line}) shuffles beside what is in the order of the data")
            return


def _rows_kept(value: Value) -> Iterator[Value]:
    """A value, and what it was before operations that keep the order of its rows."""
    for _ in range(40):
        yield value
        if value.op == "run" and len(value.args) == 2:
            value = value.args[1]
        elif value.args and (value.op in ("add", "sub", "mul", "div", "sigmoid", "argmax", "gt", "softmax", "normalize") or bare(value) is not value) and not isinstance(value, Many):
            value = value.args[0]
        else:
            return


def _is_collected(value: Value) -> bool:
    """Whether a value is a list, or an array, to which each turn of a loop adds what its batch gives."""
    if isinstance(value, Many):
        return value.grown
    first = value.args[0] if value.args else value
    if isinstance(first, Many) and value.op in _JOINED and len(first.parts) == 2:
        first = first.parts[0]  # `kept = cat([kept, new])`
    if first is not value and len(first.where.loops) < len(value.where.loops):
        cut = value.args[1] if value.op == "set_item" else None
        if cut is not None:
            return cut.op == "slice" and cut.args[1].op == "add" and any(one.op == "len" or one.op == "size" or one.op == "part" for one in cut.args[1].args)
        if value.op in _JOINED or (value.op == "add" and isinstance(first, Many)):
            return True
    listed = (*_JOINED, "array", "asarray", "tensor", "as_tensor", "FloatTensor", "LongTensor")  # a list that was extended
    return value.op in listed and bool(value.args) and isinstance(value.args[0], Many) and value.args[0].grown


def _shuffled_loader(collected: Value) -> Value | None:
    """The loader that shuffles whose batches a network's results were collected of."""
    found = list(origins(collected))
    loaders = {id(one.named["loader"]): one.named["loader"] for one in found if one.op == "rows" and "loader" in one.named}
    if len(loaders) != 1 or not any(one.op == "run" for one in found):
        return None
    loader = next(iter(loaders.values()))
    return loader if constant(loader.argument("shuffle", 2)) is True else None


def _is_of_data(value: Value, loader: Value, data: Value) -> bool:
    """Whether a value is what a data set keeps of all samples, in their order."""
    kept = data.attributes.values() if isinstance(data, Instance) else data.args if data.op.endswith("TensorDataset") else ()
    if any(bare(one) is bare(value) and value.op not in ("@constant", "@input") for one in kept):
        return True
    if any(_same_rows_of(value, one) for one in (data.args if data.op.endswith("TensorDataset") else ())):
        return True
    at = value.args[0] if value.op == "part" and value.args else value
    below = at.args[0] if at.op in ("tensors", "targets", "labels") and at.args else None
    return below is not None and (below is data or (below.op == "dataset" and below.args[0] is loader))


def _same_rows_of(value: Value, kept: Value) -> bool:
    """Whether a value is the rows of one array that a data set keeps scaled: the same part of it, from the same row on."""
    parts = [_part_of(value), _part_of(kept)]
    first, second = parts
    if first is None or second is None or first[0] is not second[0] or first[0].op in ("@constant", "@input"):
        return False
    return same(first[1], second[1])


def _part_of(value: Value) -> tuple[Value, Value] | None:
    """The array that a value is a part of, but for its scale, and the slice that takes it."""
    value = bare(value)
    while value.op in ("sub", "div", "mul", "add") and len(value.args) == 2 and bare(value.args[1]).op in ("mean", "std", "min", "max", "@constant", "sub"):
        value = bare(value.args[0])
    if value.op != "part" or len(value.args) != 2 or value.args[1].op != "slice":
        return None
    cut, at = value.args[1], bare(value.args[0])
    while at.op in ("sub", "div", "mul", "add") and len(at.args) == 2 and bare(at.args[1]).op in ("mean", "std", "min", "max", "@constant", "sub"):
        at = bare(at.args[0])
    return at, cut
