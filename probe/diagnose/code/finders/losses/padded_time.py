"""Sequences of several lengths that are filled up at their end, and what networks take of their positions. Pure; standard
library only."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from probe.diagnose.code.computed.computation import Computation, computation_of
from probe.diagnose.code.computed.value import Many, Value, bare, constant, is_none, number, origins
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Finders, Remark
from probe.diagnose.code.syntax import short
from probe.diagnose.code.traits.basic import losses, reduction_of
from probe.diagnose.code.traits.extents import rank
from probe.diagnose.code.traits.numberings import PADDING, WORDS, marked

FINDERS = Finders()
_SAME = frozenset({
    "to", "float", "long", "cuda", "cpu", "double", "half", "type", "clone", "contiguous", "rows", "either", "relu", "gelu", "tanh", "sigmoid", "silu", "elu",
    "leaky_relu", "dropout", "layer_norm", "normalize", "log1p", "pin_memory", "max_pool1d", "avg_pool1d",
})
"""Operations that keep the axes of what they are done on."""
_COPIES = ("from_numpy", "as_tensor", "tensor", "astype", "LongTensor", "numpy")
_BY_POSITION = ("torch.nn.Linear", "torch.nn.LayerNorm", "torch.nn.Dropout", "torch.nn.Embedding", "torch.nn.ReLU", "torch.nn.GELU", "torch.nn.TransformerEncoder", "torch.nn.TransformerEncoderLayer", "torch.nn.MultiheadAttention")
_RECURRENT = ("torch.nn.LSTM", "torch.nn.GRU", "torch.nn.RNN")
_ALONG = ("torch.nn.Conv1d", "torch.nn.BatchNorm1d", "torch.nn.MaxPool1d")
_COMPARED = ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy", "binary_cross_entropy_with_logits")
_POOLS = ("torch.nn.AdaptiveAvgPool1d",)
_BLOCKS = ("zeros", "full", "empty", "new_zeros", "new_full", "zeros_like")


def filled(value: Value, depth: int = 60) -> tuple[Value, int] | None:
    """Where sequences were filled up at their end, and which axis of a value their positions are; None where a mask was
    applied since, or that is unknown."""
    if depth == 0:
        return None
    op, args = value.op, value.args
    if op.endswith("pad_sequence") and args:
        first = constant(value.argument("batch_first", 1))
        return None if constant(value.argument("padding_side", 3)) == "left" else (value, 1 if first is True else 0)
    if op == "set_item" and len(args) == 3:
        if _is_begin(args[1]) and _block(args[0]) and rank(args[0]) == 1:
            return value, 0
        return (value, 1) if _is_begin_of_rows(args[1]) and _block(args[0]) else filled(args[0], depth - 1) if _block(args[0]) else None
    if op in ("tensor", "as_tensor", "array", "LongTensor", "stack") and args and isinstance(args[0], Many) and args[0].parts and _is_filled_list(args[0].parts[0]):
        return value, 1
    if op in ("tensor", "as_tensor", "array", "LongTensor") and args and _is_filled_list(args[0]):
        return value, 0
    if op == "run" and len(args) > 1:
        return _of_layer(value, depth)
    if op == "part" and len(args) == 2 and constant(args[1]) == 0 and args[0].op == "run" and args[0].args[0].op in (*_RECURRENT, "torch.nn.MultiheadAttention"):
        return filled(args[0], depth - 1)
    if op == "part" and len(args) == 2 and constant(args[1]) == 0 and args[0].op.endswith("pad_packed_sequence"):
        return args[0], 1 if constant(args[0].argument("batch_first", 1)) is True else 0
    if op in ("part", "index_select", "element") and args and args[0].op not in ("split", "chunk"):
        return _some_rows(value, depth)
    if op == "rows" and args and (sample := filled(args[0], depth - 1)) is not None:
        return (sample[0], 1) if sample[1] == 0 and not sample[0].op.endswith("pad_sequence") else sample
    if op == "pad" and len(args) > 1 and isinstance(args[1], Many) and len(args[1].parts) == 2 and number(args[1].parts[0]) == 0 and number(args[1].parts[1]) is None and rank(args[0]) in (None, 1):
        return value, 0
    if op in ("transpose", "permute") and len(args) > 2:
        return _turned(value, depth)
    if args and (op in _SAME or op in _COPIES):
        return filled(args[0], depth - 1)
    if op in ("squeeze", "unsqueeze") and args and number(value.argument("dim", 1)) in (-1, 2):
        return filled(args[0], depth - 1)
    if op in ("add", "sub", "div", "mul") and len(args) == 2:
        found = [filled(one, depth - 1) for one in args]
        known = [one for one in found if one is not None]
        return known[0] if len(known) == 1 and (op in ("add", "sub") or any(number(one) is not None for one in args)) else None
    return None


def _some_rows(value: Value, depth: int) -> tuple[Value, int] | None:
    """The axis of some rows of a value, or of each: `x[:800]`, `x[order]`, `x[i]`."""
    whole, index = value.args[0], value.args[-1]
    found = filled(whole, depth - 1)
    if found is None or found[1] != 1 or any(one.op == "run" for one in origins(whole)):
        return None
    if value.op == "index_select" or index.op == "slice" or (value.op == "part" and rank(index) == 1):
        return found
    return (found[0], 0) if value.op == "element" or index.op == "index" or rank(index) == 0 else None


def _of_layer(value: Value, depth: int) -> tuple[Value, int] | None:
    layer = value.args[0]
    found = filled(value.args[1], depth - 1)
    if found is None:
        return None
    if layer.op in _BY_POSITION or (layer.op in _ALONG and found[1] == 2):
        return found
    return found if layer.op in _RECURRENT and found[1] == int(constant(layer.argument("batch_first", 4)) is True) else None


def _turned(value: Value, depth: int) -> tuple[Value, int] | None:
    """The axis after two were exchanged, or all put into another order."""
    found = filled(value.args[0], depth - 1)
    order = [number(one) for one in value.args[1:]]
    if found is None or None in order:
        return None
    places = [int(one) % 3 for one in order if one is not None]
    if value.op == "permute":
        return (found[0], places.index(found[1])) if found[1] in places else None
    moved = places[1] if found[1] == places[0] else places[0] if found[1] == places[1] else found[1]
    return found[0], moved


def _is_begin_of_rows(index: Value) -> bool:
    """Whether an index is `[i, :n]`, where n is not written out."""
    parts = index.parts if isinstance(index, Many) else []
    return len(parts) > 1 and parts[0].op != "slice" and _is_begin(parts[1])


def _is_begin(cut: Value) -> bool:
    """Whether an index is `[:n]`, where n is not written out."""
    return cut.op == "slice" and is_none(cut.args[0]) and not is_none(cut.args[1]) and constant(cut.args[1]) is None


def _block(value: Value) -> bool:
    while value.op in ("set_item", "to", "float", "long") and value.args:
        value = value.args[0]
    return value.op in _BLOCKS


def _is_filled_list(row: Value) -> bool:
    """Whether a list is words and then as many of one number as are missing: `row + [0] * (n - len(row))`."""
    node = row.node
    return isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add) and isinstance(node.right, ast.BinOp) and isinstance(node.right.op, ast.Mult) and isinstance(node.right.left, ast.List)


def _learned(computation: Computation) -> Iterator[Value]:
    """What the losses are computed of, each once."""
    seen: set[int] = set()
    for _, loss in losses(computation):
        for one in origins(loss):
            if id(one) not in seen:
                seen.add(id(one))
                yield one


@FINDERS.add("mean-over-padding")
def _mean_over_padding(program: Program) -> Iterator[Remark]:
    """A network's results are averaged over all positions, also over those that were filled up."""
    said: set[ast.AST] = set()
    for value in _learned(computation_of(program)):
        over = value.args[1] if value.op == "run" and len(value.args) == 2 and value.args[0].op in _POOLS else value.args[0] if value.op == "mean" and value.args else None
        found = filled(over) if over is not None else None
        if found is None or value.node in said or not _is_along(value, found[1]):
            continue
        said.add(value.node)
        yield Remark(value.node, f"{short(value.node)} is a mean over all positions, also over those that {short(found[0].node)} (line {found[0].line}) has filled up")


@FINDERS.add("padding-not-ignored")
def _compared_over_padding(program: Program) -> Iterator[Remark]:
    """Predictions and targets of sequences that were filled up are compared at all positions alike."""
    for value in _learned(computation_of(program)):
        compared = value if value.op in _COMPARED and len(value.args) == 2 and "weight" not in value.named and reduction_of(value) == "mean" else _squared(value)
        sides = [filled(one) for one in compared.args] if compared is not None else []
        found = sides[1] or sides[0] if len(sides) == 2 and None not in sides else None
        if found is not None:
            yield Remark(value.node, f"{short(value.node)} is a mean over all positions, also over those that {short(found[0].node)} (line {found[0].line}) has filled up")
            return


@FINDERS.add("mean-over-padding")
def _masked_and_averaged(program: Program) -> Iterator[Remark]:
    """The losses of padded positions are set to 0 by a mask, and the mean counts them."""
    computation = computation_of(program)
    for value in _learned(computation):
        product = bare(value.args[0]) if value.op == "mean" and len(value.args) == 1 and not value.named else None
        masks = [one for one in product.args if marked(computation, one) == WORDS] if product is not None and product.op == "mul" and len(product.args) == 2 else []
        if len(masks) == 1:
            yield Remark(value.node, f"{short(value.node)} divides by all positions, also by those that {short(masks[0].node)} (line {masks[0].line}) sets to 0")
            return
    for value in _learned(computation):
        product = _averaged(value)
        if product is not None and product.op == "masked_fill" and len(product.args) == 3 and number(product.args[2]) == 0 and marked(computation, product.args[1]) == PADDING and any(one.op == "run" for one in origins(product.args[0])):
            yield Remark(value.node, f"{short(value.node)} divides by all positions, also by those that {short(product.node)} (line {product.line}) sets to 0")
            return
        if product is None or product.op != "mul" or len(product.args) != 2:
            continue
        for mask, results in (product.args, product.args[::-1]):
            if _keeps_words(computation, mask) and any(one.op == "run" for one in origins(results)):
                yield Remark(value.node, f"{short(value.node)} divides by all positions, also by those that {short(bare(mask).node)} (line {bare(mask).line}) sets to 0")
                return


def _averaged(value: Value) -> Value | None:
    """What a value is the mean of over all positions: `x.mean(1)`, or `x.sum(1) / x.size(1)`."""
    if value.op == "div" and len(value.args) == 2:
        total, count = bare(value.args[0]), bare(value.args[1])
        places = count.args[1] if count.op == "size" and len(count.args) == 2 else count.args[1] if count.op == "part" and count.args[0].op == "shape" else None
        return bare(total.args[0]) if places is not None and number(places) == 1 and total.op == "sum" and number(total.argument("dim", 1)) == 1 else None
    return bare(value.args[0]) if value.op == "mean" and value.args and number(value.argument("dim", 1)) == 1 else None


def _keeps_words(computation: Computation, mask: Value) -> bool:
    """Whether a mask is true at no padded position: at words, or at some of them."""
    inner = bare(mask, "part")
    return marked(computation, mask) == WORDS or (inner.op in ("and", "logical_and", "mul") and any(marked(computation, one) == WORDS for one in inner.args))


def _squared(value: Value) -> Value | None:
    """The difference of which a value is the mean error over all positions."""
    inner = bare(value.args[0]) if value.op == "mean" and len(value.args) == 1 and not value.named else value
    while inner is not value and inner.op in ("pow", "square", "abs") and inner.args:
        inner = bare(inner.args[0])
    return inner if inner is not value and inner.op == "sub" and len(inner.args) == 2 else None


def _is_along(value: Value, axis: int) -> bool:
    """Whether a mean is taken along an axis of three."""
    if value.op == "run":
        return axis == 2
    given = value.argument("dim", 1)
    parts = given.parts if isinstance(given, Many) else [given] if given is not None else []
    places = [number(one) for one in parts]
    return len(places) == 1 and places[0] is not None and int(places[0]) % 3 == axis


@FINDERS.add("mean-over-padding")
def _summed_over_padding(program: Program) -> Iterator[Remark]:
    """What layers give is added up over all positions, also over those that were filled up, and divided by the lengths."""
    for value in _learned(computation_of(program)):
        total = bare(value.args[0]) if value.op == "div" and len(value.args) == 2 else value
        if total is value or total.op != "sum" or not total.args or number(value.args[1]) is not None or any(one.op in ("size", "shape") for one in (bare(value.args[1]), *bare(value.args[1]).args)):
            continue
        found = filled(total.args[0])
        layer = None if found is None or not _is_along(total, found[1]) else _not_zero_at_zero(total.args[0], found[0])
        if found is not None and layer is not None:
            yield Remark(value.node, f"{short(total.node)} also adds up what the layer of line {layer.line} gives for the positions that {short(found[0].node)} (line {found[0].line}) has filled up, and it is divided by {short(value.args[1].node)}")
            return


def _not_zero_at_zero(value: Value, filler: Value) -> Value | None:
    """The last layer between filled up sequences and a value that gives more than 0 for zeros: it has a bias, or looks up rows."""
    for one in origins(value, stop=(filler.op,)):
        layer = one.args[0] if one.op == "run" and one.args else one
        if layer.op in ("torch.nn.Linear", "torch.nn.Conv1d", *_RECURRENT) and constant(layer.named.get("bias")) is not False:
            return layer
        if layer.op == "torch.nn.Embedding" and not layer.named.keys() & {"padding_idx"} and len(layer.args) < 3:
            return layer
    return None


@FINDERS.add("last-position-of-padded")
def _last_position(program: Program) -> Iterator[Remark]:
    """A network's result at the last position is taken, where all but the longest sequences were filled up."""
    said: set[ast.AST] = set()
    computation = computation_of(program)
    for value in (*_learned(computation), *(one for one in computation.of("part") if one.where.no_grad)):
        index = value.args[1] if value.op == "part" and len(value.args) == 2 else None
        parts = index.parts if isinstance(index, Many) else []
        if len(parts) < 2 or parts[0].op != "slice" or number(parts[1]) != -1 or value.node in said:
            continue
        found = filled(value.args[0])
        if found is not None and found[1] == 1 and any(one.op == "run" for one in origins(value.args[0])):
            said.add(value.node)
            yield Remark(value.node, f"{short(value.node)} is the output after the padding: {short(found[0].node)} (line {found[0].line}) fills sequences up at their end")


@FINDERS.add("last-position-of-padded")
def _length_from_the_left(program: Program) -> Iterator[Remark]:
    """A network's result is taken at the place of a sequence's length minus 1, where sequences were filled up at their
    start, and all end at the last place."""
    computation = computation_of(program)
    said: set[ast.AST] = set()
    for value in computation.of("part", "gather"):
        index = value.args[-1] if len(value.args) > 1 else value
        parts = index.parts if isinstance(index, Many) else [index] if value.op == "gather" else []
        if value.op == "part" and not (len(parts) == 2 and bare(parts[0]).op in ("arange", "range")):
            continue
        counted = _before_its_end(parts[-1]) if parts else None
        if counted is None or value.node in said:
            continue
        along = list(origins(value.args[0]))
        filled_ones = [found for one in along if (found := _filled_from_start(computation, one)) is not None]
        start = filled_ones[0] if filled_ones and _is_lengths(counted) else _filled_from_start(computation, counted)
        if start is not None and (filled_ones or any(one is start for one in along)) and any(one.op == "run" for one in along) and not _asks_for_the_side(value, start) and not any(one.op in _MOVED for one in _line(value.args[0])):
            said.add(value.node)
            yield Remark(value.node, f"{short(value.node)} counts {short(parts[-1].node)} places from the start, and {short(start.node)} (line {start.line}) fills sequences up there: all end at the last place")


@FINDERS.add("last-position-of-padded")
def _behind_the_end(program: Program) -> Iterator[Remark]:
    """A network's result is taken at the place of a sequence's length, where sequences begin at 0 and were filled up: that is the
    first place behind its end."""
    computation = computation_of(program)
    said: set[ast.AST] = set()
    for value in computation.of("part", "gather"):
        index = value.args[-1] if len(value.args) > 1 else value
        parts = index.parts if isinstance(index, Many) else [index] if value.op == "gather" else []
        if value.node in said or not parts or (value.op == "part" and not (len(parts) == 2 and bare(parts[0]).op in ("arange", "range"))):
            continue
        found = filled(value.args[0])
        length = bare(parts[-1], "expand", "repeat", "clamp", "rows", "part", "element")
        if found is None or found[1] != 1 or not any(one.op == "run" for one in origins(value.args[0])):
            continue
        ends = _end_of_rows(found[0])
        if (ends is not None and ends is length) or (length.op == "sum" and number(length.argument("dim", 1)) in (1, -1) and length.args and marked(computation, length.args[0]) == WORDS):
            said.add(value.node)
            yield Remark(value.node, f"{short(value.node)} is the output at the place {short(parts[-1].node)}, the first one behind the end: places count from 0, and {short(found[0].node)} (line {found[0].line}) fills sequences up there")


def _end_of_rows(value: Value) -> Value | None:
    """The lengths up to which rows are written: n of `x[i, :n[i]]`."""
    cut = value.args[1].parts[-1] if value.op == "set_item" and isinstance(value.args[1], Many) and value.args[1].parts else None
    return bare(cut.args[1], "part", "element") if cut is not None and cut.op == "slice" and not is_none(cut.args[1]) else None


_MOVED = ("roll", "flip", "gather", "sort", "argsort")
"""Operations that may bring padding from the start to the end."""


def _before_its_end(index: Value) -> Value | None:
    """What is counted where an index is a sequence's length minus 1: the mask that is summed, or the lengths."""
    index = bare(index, "expand", "repeat", "clamp", "part")
    if index.op != "sub" or len(index.args) != 2 or number(index.args[1]) != 1:
        return None
    counted = bare(index.args[0], "rows", "part")
    if _is_lengths(counted):
        return counted
    counted = bare(index.args[0], "rows")
    return counted.args[0] if counted.op == "sum" and counted.args and number(counted.argument("dim", 1)) in (1, -1) else None


def _is_lengths(value: Value) -> bool:
    """Whether a value is the lengths of sequences, in a list or an array."""
    if value.op == "set_item" and len(value.args) == 3:
        return value.args[2].op == "len"
    return value.op == "len" or (isinstance(value, Many) and bool(value.parts) and all(one.op == "len" for one in value.parts))


def _filled_from_start(computation: Computation, mask: Value) -> Value | None:
    """Where the sequences were written to the end of their rows of which a mask, or a comparison with the padding, says where
    their words are."""
    while mask.args and (mask.op in _SAME or (mask.op == "ne" and len(mask.args) == 2)):
        mask = mask.args[0]
    if mask.op == "part" and len(mask.args) == 2 and constant(mask.args[1]) == "attention_mask":
        return _left_tokenizer(computation, mask.args[0])
    if mask.op == "set_item" and len(mask.args) == 3 and _is_end_of_rows(mask.args[1]) and _block(mask.args[0]) and (constant(mask.args[2]) in (True, 1) or mask.args[2].op != "@constant"):
        return mask
    if mask.op.endswith("pad_sequence") and constant(mask.argument("padding_side", 3)) == "left":
        return mask
    if mask.op in ("tensor", "as_tensor", "array", "LongTensor", "stack") and mask.args and isinstance(mask.args[0], Many) and mask.args[0].parts:
        node = mask.args[0].parts[0].node
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add) and isinstance(node.left, ast.BinOp) and isinstance(node.left.op, ast.Mult) and isinstance(node.left.left, ast.List):
            return mask
    return None


def _left_tokenizer(computation: Computation, batch: Value) -> Value | None:
    """What a tokenizer gives, where it is told to fill up at the start."""
    while batch.op in ("to", "rows") and batch.args:
        batch = batch.args[0]
    made = batch.args[0] if batch.op in ("run", "pad") and batch.args else None
    if made is None:
        return None
    sides = [constant(user.args[1]) for user in computation.users(made) if user.op == "set_attribute" and user.data == "padding_side"]
    sides = sides or [constant(made.named.get("padding_side"))]
    return batch if all(one == "left" for one in sides) else None


def _is_end_of_rows(index: Value) -> bool:
    """Whether an index is `[i, width - n:]` or `[i, -n:]`, where n is not written out."""
    parts = index.parts if isinstance(index, Many) else []
    cut = parts[-1] if len(parts) == 2 else None
    return cut is not None and parts[0].op != "slice" and cut.op == "slice" and len(cut.args) == 3 and is_none(cut.args[1]) and cut.args[0].op in ("sub", "neg")


def _line(value: Value) -> Iterator[Value]:
    """A value and what it was before, along what each operation is done on."""
    for _ in range(60):
        yield value
        if not value.args:
            return
        value = value.args[1] if value.op == "run" and len(value.args) > 1 else value.args[0]


def _asks_for_the_side(value: Value, start: Value) -> bool:
    """Whether a value is made only where a condition on the mask, or on the side of the padding, holds."""
    return any(
        one is start or one.op == "padding_side" or (one.op == "@constant" and one.data in ("left", "right"))
        for test, _ in value.where.under for one in origins(test)
    )
