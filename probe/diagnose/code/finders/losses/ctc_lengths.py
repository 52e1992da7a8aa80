"""The lengths that CTC is given beside padded inputs. Pure; standard library only."""

from __future__ import annotations

from collections.abc import Iterator

from probe.diagnose.code.computed.computation import Computation, computation_of
from probe.diagnose.code.computed.value import (
    KEPT,
    SHAPED,
    Many,
    Value,
    bare,
    constant,
    is_none,
    number,
    origins,
)
from probe.diagnose.code.finders.losses.padded_time import filled
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Remark
from probe.diagnose.code.syntax import short

_SIZES = ("size", "shape", "len")
_ARITHMETIC = frozenset({"add", "sub", "mul", "div", "floordiv", "rshift", "builtins.int", "int", "ceil", "floor", "tensor", "as_tensor", "to", "long", "item", "builtins.min", "builtins.max"})
_DRAWN = ("randn", "rand", "zeros", "ones", "full", "normal", "randint")
_HALVED = ("torch.nn.Conv1d", "torch.nn.Conv2d", "torch.nn.MaxPool1d", "torch.nn.AvgPool1d", "torch.nn.MaxPool2d", "torch.nn.AvgPool2d")
_TYPES = ("torch.IntTensor", "torch.LongTensor", "torch.Tensor", "torch.autograd.Variable")
_BLOCKS = ("zeros", "full", "empty", "new_zeros", "new_full")


def ctc_over_padding(program: Program) -> Iterator[Remark]:
    """A CTC loss that is told one length for all sequences of a batch, or the lengths that they had before a layer shortened
    them, although the inputs of the network are filled up to the longest one."""
    computation = computation_of(program)
    for value in computation.of("ctc_loss"):
        logits, lengths = value.argument("log_probs", 0), value.argument("input_lengths", 2)
        if logits is None or lengths is None or value.where.no_grad or _is_of_one(computation):
            continue
        padded = next((one for one in _path(logits) if _is_filled(one)), None)
        if padded is None:
            continue
        node = lengths.node
        whole = _of_all(lengths)
        if whole is not None and _is_extent(whole, padded, logits):
            yield Remark(node, f"{short(node)} gives all sequences of a batch the length of the longest one: {short(padded.node)} (line {padded.line}) fills up the others, and the loss of line {value.line} reads what they are filled with too")
            continue
        cut = _cut(lengths, padded, logits)
        shortened = None if cut is None or not _are_sizes(cut, padded) else _shortens(logits, padded)
        if shortened is not None:
            yield Remark(node, f"{short(node)} takes the lengths from before {short(shortened.node)} (line {shortened.line}), which shortens the sequences, and cuts them to that of the whole batch: the loss of line {value.line} reads padding too")


def _is_of_one(computation: Computation) -> bool:
    """Whether each batch of the program is one sample, which nothing is filled up beside."""
    loaders = [one for one in computation.of("torch.utils.data.DataLoader") if is_none(one.named.get("batch_sampler"))]
    sizes = [one.argument("batch_size", 1) for one in loaders]
    return bool(sizes) and all(one is None or number(one) == 1 for one in sizes)


def _path(value: Value) -> Iterator[Value]:
    """A value and what it is computed from, but not the layers that do it."""
    waiting, seen = [value], {id(value)}
    while waiting:
        at = waiting.pop()
        yield at
        if at.op in _SIZES or (at.op.startswith("torch.nn.") and not at.op.startswith("torch.nn.utils.rnn.")):
            continue
        for one in (at.args[1:] if at.op == "run" else at.made_of()):
            if id(one) not in seen:
                seen.add(id(one))
                waiting.append(one)


def _is_filled(value: Value) -> bool:
    """Whether a value is where sequences of several lengths are filled up at their end."""
    if value.op == "set_item" and len(value.args) == 3:
        return _is_start_of_row(value.args[1]) and _block(value.args[0]).op in _BLOCKS
    if value.op == "pad" and len(value.args) > 1:
        amounts = value.args[1].parts if isinstance(value.args[1], Many) else []
        return any(one.op == "sub" and any(each.op in ("max", "builtins.max", "amax") for each in origins(one.args[0], stop=("run",))) for one in amounts)
    found = filled(value) if value.op.endswith("pad_sequence") else None
    return found is not None and not all(_is_of_fixed_size(one) for one in _rows(value))


def _is_start_of_row(index: Value) -> bool:
    """Whether an index is that of the start of one row: `[i, :n]`, `[i, :, :n]`."""
    parts = index.parts if isinstance(index, Many) else []
    cuts = [one for one in parts if one.op == "slice" and len(one.args) == 3 and not all(is_none(end) for end in one.args)]
    return bool(parts) and parts[0].op != "slice" and len(cuts) == 1 and is_none(cuts[0].args[0]) and not is_none(cuts[0].args[1]) and constant(cuts[0].args[1]) is None


def _block(value: Value) -> Value:
    while value.op in ("set_item", "to", "float", "long") and value.args:
        value = value.args[0]
    return value


def _rows(padded: Value) -> list[Value]:
    """The sequences that are filled up."""
    if padded.op == "set_item":
        return [padded.args[2]]
    if padded.op == "pad":
        return [padded.args[0]]
    given = padded.args[0] if padded.args else None
    return given.parts if isinstance(given, Many) else []


def _is_of_fixed_size(value: Value) -> bool:
    value = bare(value)
    sizes = value.args[0].parts if value.args and isinstance(value.args[0], Many) else value.args
    return value.op in _DRAWN and bool(sizes) and all(number(one) is not None for one in sizes)


def _plain(value: Value) -> Value:
    """A value without what changes its type or place."""
    while value.args and value.op not in ("stack", "either", "expand", "expand_as") and (value.op in KEPT or value.op in SHAPED or value.op in _TYPES):
        value = value.args[0]
    return value


def _of_all(lengths: Value) -> Value | None:
    """The one number that all lengths of a batch are: `full((n,), t)`, `[t] * n`, `ones(n) * t`."""
    lengths = _plain(lengths)
    if isinstance(lengths, Many):
        return lengths.parts[0] if lengths.grown and len(lengths.parts) == 1 else None
    if lengths.op in ("full", "full_like", "fill"):
        return lengths.argument("fill_value", 1)
    if lengths.op == "new_full":
        return lengths.argument("fill_value", 2)
    if lengths.op == "mul" and len(lengths.args) == 2:
        return next((other for one, other in (lengths.args, lengths.args[::-1]) if bare(one).op in ("ones", "ones_like", "new_ones")), None)
    if lengths.op in ("expand", "repeat", "expand_as", "repeat_interleave") and lengths.args:
        inner = _plain(lengths.args[0])
        return inner.parts[0] if isinstance(inner, Many) and len(inner.parts) == 1 else inner
    return None


def _is_extent(value: Value, padded: Value, logits: Value) -> bool:
    """Whether a number is computed from the size of the padded batch, or of what the network makes of it, and from numbers
    alone."""
    value = bare(value)
    if value.op == "part" and len(value.args) == 2 and value.args[0].op == "shape":
        value = value.args[0]
    if value.op in _SIZES and value.args:
        of = value.args[0]
        return of is logits or (any(one is of for one in _path(logits)) and any(one is padded for one in _path(of))) or (of.op == "detach" and bare(of) is bare(logits))
    if value.op not in _ARITHMETIC:
        return False
    inner = [one for one in value.args if number(one) is None]
    return bool(inner) and all(_is_extent(one, padded, logits) for one in inner)


def _cut(lengths: Value, padded: Value, logits: Value) -> Value | None:
    """The lengths, of what cuts them to that of the whole batch: `lengths.clamp(max=t)`, `[min(n, t) for n in lengths]`."""
    lengths = _plain(lengths)
    if isinstance(lengths, Many) and lengths.grown and len(lengths.parts) == 1:
        lengths = bare(lengths.parts[0])
    if lengths.op in ("clamp", "clip", "clamp_max"):
        most = lengths.argument("max", 1 if lengths.op == "clamp_max" else 2)
        return lengths.args[0] if most is not None and lengths.args and _is_extent(most, padded, logits) else None
    if lengths.op in ("minimum", "min", "builtins.min") and len(lengths.args) == 2:
        for one, other in (lengths.args, lengths.args[::-1]):
            most = _of_all(other)
            if _is_extent(other if most is None else most, padded, logits):
                return one
    return None


def _are_sizes(lengths: Value, padded: Value) -> bool:
    """Whether lengths are those of the sequences themselves, as they are filled up."""
    lengths = _plain(lengths)
    found = lengths.parts if isinstance(lengths, Many) else [lengths]
    rows = [bare(one) for one in _rows(padded)]
    return bool(found) and all(_is_size_of(bare(one), rows) for one in found)


def _is_size_of(value: Value, rows: list[Value]) -> bool:
    if value.op == "part" and len(value.args) == 2 and value.args[0].op == "shape":
        value = value.args[0]
    return value.op in _SIZES and bool(value.args) and any(bare(value.args[0]) is one for one in rows)


def _shortens(logits: Value, padded: Value) -> Value | None:
    """A layer between the padded batch and what CTC reads that gives fewer steps than it takes, where none gives more."""
    found = None
    for one in _path(logits):
        layer = one.args[0] if one.op == "run" and one.args else one
        if "ConvTranspose" in layer.op or "Upsample" in layer.op or layer.op in ("interpolate", "repeat_interleave", "pixel_shuffle"):
            return None
        if found is None and one.op == "run" and layer.op in _HALVED and _is_stride(layer) and any(each is padded for each in _path(one)):
            found = layer
    return found


def _is_stride(layer: Value) -> bool:
    """Whether a layer takes every second step, or fewer, along all of its axes."""
    pools = "Pool" in layer.op
    stride = layer.argument("stride", 1 if pools else 3)
    if pools and is_none(stride):
        stride = layer.argument("kernel_size", 0)
    sizes = [] if stride is None else stride.parts if isinstance(stride, Many) else [stride]
    return bool(sizes) and all((number(one) or 0) > 1 for one in sizes)
