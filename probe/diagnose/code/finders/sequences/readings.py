"""What reads the words of a sequence: positions that see one word alone, memories with padding, layers that take the batch for
the sequence. Pure; standard library only."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from probe.diagnose.code.computed.computation import Computation, computation_of
from probe.diagnose.code.computed.value import (
    KEPT,
    Many,
    Value,
    alternatives,
    bare,
    constant,
    is_none,
    number,
    origins,
    takes_all,
)
from probe.diagnose.code.finders.words.causal_masks import causal
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Finders, Remark
from probe.diagnose.code.syntax import short
from probe.diagnose.code.traits.basic import losses
from probe.diagnose.code.traits.extents import RECURRENT, batch_first
from probe.diagnose.code.traits.numberings import contents
from probe.diagnose.code.traits.uses import made_from

FINDERS = Finders()
_BY_POSITION = ("torch.nn.Linear", "torch.nn.LayerNorm", "torch.nn.RMSNorm", "torch.nn.Dropout")
_EACH = frozenset({"dropout", "layer_norm", "relu", "gelu", "tanh", "mul", "div"}) | KEPT
_ENCODERS = ("torch.nn.TransformerEncoder", "torch.nn.TransformerEncoderLayer")
_DECODERS = {"torch.nn.TransformerDecoder": (2, 7), "torch.nn.TransformerDecoderLayer": (2, 7)}
"""Decoders, the place of the memory among their arguments, and that of the mask of its padding."""
_ALONG = frozenset({"add", "run", "dropout", "layer_norm", "relu", "gelu", "mul"})
_CARRY = ("flip", "roll", "mean", "sum", "max", "min", "cumsum", "sort", "topk", "logsumexp", "softmax", "scatter", "index_select", "gather", "unknown", "fft", "ifft", "irfft")
"""Operations that may carry numbers from one position to another."""
_TURNS = ("permute", "transpose", "t", "T", "movedim", "swapaxes", "stack", "view", "reshape", "einsum")


def _learned(computation: Computation) -> Iterator[Value]:
    seen: set[int] = set()
    for _, loss in losses(computation):
        for one in origins(loss):
            if id(one) not in seen:
                seen.add(id(one))
                yield one


def first_position_alone(program: Program) -> Iterator[Remark]:
    """What a loss is computed of is the output at the first position, of a network in which each position sees only those
    before it."""
    said: set[ast.AST] = set()
    computation = computation_of(program)
    masked: set[int] | None = None
    for value in _learned(computation):
        index = value.args[1] if value.op == "part" and len(value.args) == 2 else None
        parts = index.parts if isinstance(index, Many) else []
        if len(parts) < 2 or parts[0].op != "slice" or not is_none(parts[0].args[0]) or not is_none(parts[0].args[1]) or constant(parts[1]) != 0 or isinstance(constant(parts[1]), bool) or any(one.op != "slice" for one in parts[2:]):
            continue
        if masked is None:
            masked = causal(computation)
        run = _forward_only(value.args[0], masked) or _masked_by_hand(value, masked)
        if run is not None and value.node not in said and not _read_on(computation, value):
            said.add(value.node)
            yield Remark(value.node, f"{short(value.node)} is the output at the first position, and in {short(run.node)} (line {run.line}) each position sees only those before it: it has read the first word alone")


def _read_on(computation: Computation, first: Value) -> bool:
    """Whether the outputs at the other positions are read too, one after the other in a loop or all behind the first."""
    for user in computation.users(first.args[0]):
        index = user.args[1] if user.op == "part" and len(user.args) == 2 and user.args[0] is first.args[0] else None
        place = index.parts[1] if isinstance(index, Many) and len(index.parts) > 1 else None
        if place is not None and (any(one.op == "index" for one in origins(place)) or (place.op == "slice" and number(place.args[0]) == 1)):
            return True
    return False


def _masked_by_hand(first: Value, masked: set[int]) -> Value | None:
    """The attention, written out in the function that takes the first position or in those that it calls, in which each position
    sees only those before it; None where anything else may carry words from one position to another."""
    around = first.where.functions[-1] if first.where.functions else None
    inside = [one for one in origins(first.args[0]) if around is not None and around in one.where.functions]
    weights = [one for one in inside if one.op == "softmax" and one.args]
    fused = [one for one in inside if one.op == "scaled_dot_product_attention"]
    if not (weights or fused) or not all(id(one) in masked for one in (*fused, *(bare(weight.args[0]) for weight in weights))):
        return None
    scores = {id(one) for weight in weights for one in origins(weight.args[0])}
    for one in inside:
        if one.op in ("matmul", "einsum") and id(one) not in scores and not any(bare(each, "dropout") in weights for each in one.args):
            return None
        if one.op == "run":
            given = bare(one.args[1]) if len(one.args) == 2 else one
            turned = given.op in ("transpose", "permute", "mT") and bare(given.args[0]).op not in ("matmul", "einsum", "scaled_dot_product_attention")
            if given is one or turned or one.args[0].op not in (*_BY_POSITION, "torch.nn.Embedding"):
                return None
        elif one.op in _CARRY and one not in weights:
            return None
    return (weights or fused)[0]


def _forward_only(value: Value, masked: set[int]) -> Value | None:
    """The layer over a sequence, with the batch in front, whose output at a position knows nothing of those behind it."""
    for _ in range(40):
        if value.op == "part" and len(value.args) == 2 and constant(value.args[1]) == 0 and value.args[0].op == "run" and value.args[0].args[0].op in RECURRENT:
            run = value.args[0]
            layer = run.args[0]
            both = layer.named.get("bidirectional")
            alone = len(run.args) == 2 and not run.named and (both is None or constant(both) is False) and len(layer.args) < 7 and "**" not in layer.named
            return run if alone and constant(layer.named.get("batch_first")) is True and _is_sequence(run.args[1]) else None
        if value.op == "run" and value.args[0].op in _ENCODERS:
            mask = value.named.get("mask", value.named.get("src_mask"))
            mask = value.args[2] if mask is None and len(value.args) > 2 else mask
            alone = id(value) in masked or (mask is not None and (mask.op.endswith("generate_square_subsequent_mask") or mask.op == "triu"))
            return value if alone and batch_first(value.args[0]) is True and _is_sequence(value.args[1]) else None
        if value.op == "run" and len(value.args) == 2 and value.args[0].op in _BY_POSITION:
            value = value.args[1]
        elif value.op in _EACH and value.args:
            value = value.args[0]
        else:
            return None
    return None


def _is_sequence(value: Value) -> bool:
    """Whether a value holds several words in the order in which they stand: none that was put in alone, or turned round."""
    return not any(one.op in ("unsqueeze", "flip", "multinomial", "argmax", "unknown") for one in _along(value)) and not any(
        one.op == "part" and isinstance(one.args[1], Many) and any(is_none(each) and each.op == "@constant" for each in one.args[1].parts) for one in _along(value) if len(one.args) == 2
    )


def _along(value: Value) -> Iterator[Value]:
    """A value, and what it was before, along what each operation is done on."""
    for _ in range(60):
        yield value
        if value.op == "run" and len(value.args) > 1:
            value = value.args[1]
        elif value.args:
            value = value.args[0]
        else:
            return


@FINDERS.add("padding-read-as-text")
def _memory_with_padding(program: Program) -> Iterator[Remark]:
    """A decoder attends to what an encoder gives, and is not told the padding that the encoder is told."""
    for value in computation_of(program).of("run"):
        layer = value.args[0]
        if layer.op == "torch.nn.Transformer":
            told = value.named.get("src_key_padding_mask", value.args[6] if len(value.args) > 6 else None)
            if told is not None and _is_given(told) and not _has(value, 8):
                yield Remark(value.node, f"{short(value.node)} tells the encoder the padding, and gives no memory_key_padding_mask: the decoder attends to it")
            continue
        crosses = layer.op == "torch.nn.MultiheadAttention" and len(value.args) == 4 and value.args[1] is not value.args[2] and not value.named.keys() & {"key_padding_mask", "attn_mask", "**"}
        if not crosses and (layer.op not in _DECODERS or len(value.args) < 3 or _has(value, _DECODERS[layer.op][1] - 1)):
            continue
        memory = value.args[2 if crosses else _DECODERS[layer.op][0]]
        while memory.args and (memory.op in KEPT or memory.op in ("dropout", "layer_norm") or (memory.op == "run" and memory.args[0].op in _BY_POSITION)):
            memory = memory.args[1 if memory.op == "run" else 0]
        if memory.op != "run" or memory.args[0].op not in _ENCODERS:
            continue
        told = memory.named.get("src_key_padding_mask", memory.args[3] if len(memory.args) > 3 else None)
        if told is not None and _is_given(told):
            yield Remark(value.node, f"{short(value.node)} is given no {'key' if crosses else 'memory_key'}_padding_mask, and {short(memory.node)} (line {memory.line}) is told where the padding is: the decoder attends to it")
            return


def _has(call: Value, place: int) -> bool:
    return bool({"memory_key_padding_mask", "memory_mask", "**"} & call.named.keys()) or len(call.args) > place or any(one.op == "star" for one in call.args)


def _is_given(mask: Value) -> bool:
    return all(not is_none(one) for one in alternatives(mask))


@FINDERS.add("attention-over-the-batch")
def _over_the_batch(program: Program) -> Iterator[Remark]:
    """An encoder without batch_first, whose output is laid out in one row for each sample in front, or whose input is one
    column beside the other, or has its positions numbered along axis 1."""
    computation = computation_of(program)
    for value in computation.of("run"):
        if value.args[0].op not in _ENCODERS or len(value.args) < 2 or batch_first(value.args[0]) is not False:
            continue
        beside = _columns(value.args[1]) or _places_behind(value.args[1])
        for user in computation.users(value):
            rows = user.op == "flatten" and number(user.argument("start_dim", 1)) == 1 and len(user.args) < 3 and "end_dim" not in user.named
            if rows or beside is not None:
                shown = user if rows else beside
                assert shown is not None
                yield Remark(value.node, f"{short(value.args[0].node)} is made without batch_first=True and takes (positions, batch, width), and {short(shown.node)} (line {shown.line}) has the batch in front")
                return


@FINDERS.add("attention-over-the-batch")
def _taken_along_axis_1(program: Program) -> Iterator[Remark]:
    """An attention without batch_first, of what is computed from whose output the first or last entry along axis 1 is taken, and
    no axis is turned before."""
    computation = computation_of(program)
    for value in computation.of("run"):
        layer = value.args[0]
        if layer.op not in ("torch.nn.MultiheadAttention", _ENCODERS[1]) or len(value.args) < 2 or batch_first(layer) is not False or any(_is_turned(one) for one in origins(value.args[1])):
            continue
        given = [one for one in computation.users(value) if one.op == "part" and constant(one.args[1]) == 0] if layer.op != _ENCODERS[1] else [value]
        for one in (user for start in given for user in (start, *made_from(computation, start, _ALONG, 60))):
            index = one.args[1] if one.op == "part" and len(one.args) == 2 else None
            if isinstance(index, Many) and len(index.parts) == 2 and takes_all(index.parts[0]) and number(index.parts[1]) in (0, -1):
                yield Remark(layer.node, f"{short(layer.node)} is made without batch_first=True and takes (positions, batch, width), and {short(one.node)} (line {one.line}) has the batch in front")
                return


def _is_turned(value: Value) -> bool:
    """Whether a model may bring the positions to the front."""
    return value.op in _TURNS and any(getattr(one, "name", "") == "forward" for one in value.where.functions)


def _columns(value: Value) -> Value | None:
    """Where the embeddings of several columns of a batch are stacked along axis 1."""
    for _ in range(20):
        if value.op == "stack" and value.args and number(value.argument("dim", 1)) == 1:
            inner = value.args[0]
            parts = inner.parts if isinstance(inner, Many) else []
            return value if parts and all(one.op == "run" and one.args[0].op in ("torch.nn.Embedding", "torch.nn.Linear") and _is_column(one.args[1]) for one in parts) else None
        if value.op == "cat" and number(value.argument("dim", 1)) == 1 and isinstance(value.args[0], Many):
            return next((found for one in value.args[0].parts if (found := _columns(one)) is not None), None)
        if value.op in ("add", "run") and len(value.args) == 2:
            value = value.args[int(value.op == "run")]
        elif value.op in _EACH and value.args:
            value = value.args[0]
        else:
            return None
    return None


def _places_behind(value: Value) -> Value | None:
    """Where what is added to words has the positions along axis 1: a parameter of sizes 1, positions, width, or an
    embedding of as many numbers as axis 1 is long."""
    for _ in range(20):
        if value.op == "add" and len(value.args) == 2:
            if any(map(_is_of_axis_1, value.args)):
                return value
            value = next((one for one in value.args if one.op in ("run", "add", "mul")), value.args[0])
        elif value.op == "run" and len(value.args) == 2 and value.args[0].op in ("torch.nn.Dropout", "torch.nn.LayerNorm"):
            value = value.args[1]
        elif value.op in _EACH and value.args:
            value = value.args[0]
        else:
            return None
    return None


def _is_of_axis_1(value: Value) -> bool:
    """Whether a value is [1, positions, width], or the embedding of `arange(x.size(1))`, for axis 1 of what it is added to."""
    if value.op == "run" and len(value.args) == 2 and value.args[0].op == "torch.nn.Embedding":
        numbers = bare(value.args[1])
        length = numbers.args[-1] if numbers.op == "arange" and len(numbers.args) in (1, 2) else None
        return length is not None and _is_length_of_axis_1(length)
    while value.op == "part" and len(value.args) == 2 and value.args[1].op in ("tuple", "slice"):
        parts = value.args[1].parts if isinstance(value.args[1], Many) else [value.args[1]]
        if any(one.op != "slice" for one in parts):
            return False
        value = value.args[0]
    made = value.args[0] if value.op == "torch.nn.Parameter" and value.args else None
    while made is not None and made.op in ("mul", "div") and made.args:
        made = next((one for one in made.args if number(one) is None), None)
    return made is not None and made.op in ("zeros", "randn", "empty", "rand") and len(made.args) == 3 and number(made.args[0]) == 1


def _is_length_of_axis_1(value: Value) -> bool:
    """Whether a value is `x.size(1)` or `x.shape[1]`."""
    if value.op == "size" and len(value.args) == 2:
        return number(value.args[1]) == 1
    return value.op == "part" and len(value.args) == 2 and value.args[0].op in ("shape", "size") and number(value.args[1]) == 1


def _is_column(value: Value) -> bool:
    """Whether a value is `x[:, j]` of a batch."""
    index = value.args[1] if value.op == "part" and len(value.args) == 2 else None
    parts = index.parts if isinstance(index, Many) else []
    return len(parts) == 2 and parts[0].op == "slice" and (parts[1].op == "index" or isinstance(constant(parts[1]), int))


@FINDERS.add("part-written-twice")
def _hidden_by_the_next(program: Program) -> Iterator[Remark]:
    """Some of the places of a mask are given one value, and then all of its places another one."""
    computation = computation_of(program)
    said: set[ast.AST] = set()
    for later in computation.of("set_item", "masked_fill"):
        first = later.args[0] if len(later.args) == 3 else later
        if first.op not in ("set_item", "masked_fill") or first is later or len(first.args) < 3 or later.node in said or first.where.under != later.where.under or first.where.loops != later.where.loops:
            continue
        whole, some = later.args[1], first.args[1]
        if not _is_within(some, whole) or any(one is first for one in origins(later.args[2])) or any(one is not later for one in computation.users(first)):
            continue
        said.add(later.node)
        yield Remark(later.node, f"{short(later.node)} writes over line {first.line}: all places of {short(some.node)} are places of {short(whole.node)} too")


def _is_within(some: Value, whole: Value) -> bool:
    """Whether all places of one mask are places of another one: `whole & other`."""
    if some.op not in ("and", "logical_and") or some is whole:
        return False
    return any(one is whole or _is_within(one, whole) for one in some.args)


def unknown_word_is_padding(program: Program) -> Iterator[Remark]:
    """A word that a vocabulary does not know gets the number of the padding, where an entry for unknown words has another."""
    computation = computation_of(program)
    said: set[ast.AST] = set()
    for padded in computation.of("torch.nn.utils.rnn.pad_sequence"):
        given = padded.argument("padding_value", 2)
        fill = 0.0 if given is None else number(given)
        for one in contents(computation, padded) if fill is not None else ():
            entries = getattr(one.args[0], "entries", None) if one.op == "get" and len(one.args) == 3 else None
            if entries is None or number(one.args[2]) != fill or one.node in said:
                continue
            known = next((name for name, value in entries.items() if isinstance(name, str) and name.strip("<>[]_").lower() in ("unk", "unknown", "oov") and number(value) not in (None, fill)), None)
            if known is not None:
                said.add(one.node)
                yield Remark(one.node, f"{short(one.node)} gives words that are not known the number {fill:g}, which fills up in {short(padded.node)} (line {padded.line}), and {known!r} has another one")
