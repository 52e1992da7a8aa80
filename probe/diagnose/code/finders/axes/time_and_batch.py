"""The axes of time and of the batch in what recurrent layers and encoders give. Pure; standard library only."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import NamedTuple

from probe.diagnose.code.computed.computation import Computation, computation_of
from probe.diagnose.code.computed.value import Many, Value, bare, constant, number, takes_all
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Remark
from probe.diagnose.code.syntax import short
from probe.diagnose.code.traits.extents import RECURRENT, batch_first

_ENCODERS = ("torch.nn.TransformerEncoder", "torch.nn.TransformerEncoderLayer")
_MEANS = ("mean", "sum", "amax", "max", "median")
_KEPT = ("dropout", "layer_norm", "float", "contiguous", "relu", "tanh", "gelu")
_BY_PLACE = ("torch.nn.Dropout", "torch.nn.LayerNorm", "torch.nn.Identity")


class Read(NamedTuple):
    """What a layer gives that reads sequences: the layer, and the number of the axis that is the batch."""

    layer: Value
    batch: int

    def called(self) -> str:
        """The layer in words, as it is made."""
        name = "a TransformerEncoder" if self.layer.op in _ENCODERS else f"the {self.layer.op.removeprefix('torch.nn.')}"
        return f"{name} is made {'without' if self.batch else 'with'} batch_first=True"


def batch_for_time(program: Program) -> Iterator[Remark]:
    """One sample is taken, or a mean over the batch, where the positions are meant; a state of layers, batch and width is cut into
    rows; or the half of a bidirectional layer is read that has read one element there."""
    computation = computation_of(program)
    said: set[ast.AST] = set()
    for value in computation.of("part", "select", "view", "reshape", "gather", *_MEANS):
        found = next(_remarks(computation, value), None) if value.args and value.node not in said else None
        if found is not None:
            said.add(value.node)
            yield found


def _remarks(computation: Computation, value: Value) -> Iterator[Remark]:
    whole, taken = last_taken(value)
    read = _output(whole)
    if read is not None and taken == read.batch:
        yield Remark(value.node, f"{short(value.node)} takes the last sample of the batch and not the last position: {read.called()}")
    if read is not None and value.op in _MEANS and number(value.argument("dim", 1)) == read.batch:
        yield Remark(value.node, f"{short(value.node)} averages over the batch and not over the positions: {read.called()}")
    if read is not None and taken == 1 - read.batch and _is_both(read.layer) and not _is_cut(computation, value):
        yield Remark(value.node, f"{short(value.node)} takes the last position of a bidirectional {read.layer.op.removeprefix('torch.nn.')}: its backward half has read one element there")
    layer = _last_of_each(value)
    if layer is not None and not _halves(computation, value):
        yield Remark(value.node, f"{short(value.node)} takes the last position of each text from a bidirectional {layer.op.removeprefix('torch.nn.')}: its backward half has read one element there")
    layer = _state(whole)
    if layer is not None and taken == 0 and _is_both(layer) and all(last_taken(one)[1] == 0 for one in computation.users(whole) if one.op in ("part", "select", "view", "reshape", "cat")):
        yield Remark(value.node, f"{short(value.node)} is the backward half of the bidirectional {layer.op.removeprefix('torch.nn.')} alone")
    layer = _state(value.args[0]) if value.op in ("view", "reshape") else None
    if layer is not None and len(_sizes(value)) == 2 and (number(layer.argument("num_layers", 2)) or 1) * (2 if _is_both(layer) else 1) > 1:
        yield Remark(value.node, f"{short(value.node)} cuts the {layer.op.removeprefix('torch.nn.')}'s state (layers, batch, width) into rows that mix the samples of a batch")


def _last_of_each(value: Value) -> Value | None:
    """The bidirectional layer from whose output the place `length - 1` of each sample is taken."""
    index = value.args[-1] if value.op == "gather" and len(value.args) > 2 else value.args[1] if value.op == "part" and len(value.args) == 2 else None
    if isinstance(index, Many):
        index = next((one for one in index.parts if bare(one, "expand").op == "sub"), None)
    index = bare(index, "expand", "repeat", "expand_as") if index is not None else None
    if index is None or index.op != "sub" or len(index.args) != 2 or number(index.args[1]) != 1 or number(index.args[0]) is not None:
        return None
    whole = value.args[0]
    for _ in range(8):
        if whole.op == "part" and len(whole.args) == 2 and constant(whole.args[1]) == 0:
            whole = whole.args[0]
        elif whole.op == "run" and len(whole.args) > 1 and whole.args[0].op in _BY_PLACE:
            whole = whole.args[1]
        elif whole.args and (whole.op in _KEPT or whole.op.endswith("pad_packed_sequence")):
            whole = whole.args[0]
    found = whole.args[0] if whole.op == "run" and whole.args[0].op in RECURRENT else None
    return found if found is not None and _is_both(found) else None


def _halves(computation: Computation, value: Value) -> bool:
    """Whether a part of the features is taken of a value: the forward half, or each half in its turn."""
    waiting, seen = [value], {id(value)}
    while waiting and len(seen) < 20:
        for user in computation.users(waiting.pop()):
            if user.op in ("chunk", "split", "narrow", "unbind") or (user.op == "part" and isinstance(user.args[1], (Many,)) and not all(takes_all(one) or one.op == "ellipsis" for one in user.args[1].parts[1:])):
                return True
            if user.op in ("squeeze", "dropout", "view", "reshape", "part") and id(user) not in seen:
                seen.add(id(user))
                waiting.append(user)
    return False


def _sizes(value: Value) -> list[Value]:
    given = value.args[1:]
    return given[0].parts if len(given) == 1 and isinstance(given[0], Many) else list(given)


def last_taken(value: Value) -> tuple[Value, int | None]:
    """What a value is taken of, and the axis that it is the last of: `x[:, -1]`, `x[-1]` and `x.select(1, -1)`."""
    whole = value.args[0]
    if value.op == "select" and len(value.args) == 3 and number(value.args[2]) == -1:
        return whole, int(axis) if isinstance(axis := constant(value.args[1]), int) else None
    if value.op != "part" or len(value.args) != 2:
        return whole, None
    parts = value.args[1].parts if isinstance(value.args[1], Many) else [value.args[1]]
    before = next((place for place, one in enumerate(parts) if not takes_all(one)), len(parts))
    last = before < len(parts) and number(parts[before]) == -1 and before < 2
    return whole, before if last else None


def _is_cut(computation: Computation, value: Value) -> bool:
    """Whether a part of the features is taken too."""
    index = value.args[1]
    if isinstance(index, Many) and len(index.parts) > 2 and not takes_all(index.parts[2]):
        return True
    return any(one.op == "part" and one.args[0] is value for one in computation.users(value))


def _output(value: Value) -> Read | None:
    """What a layer gives for each position, as far as the axes are in place."""
    for _ in range(12):
        if value.op == "run" and value.args[0].op in _BY_PLACE:
            value = value.args[1]
        elif value.op in _KEPT and value.args:
            value = value.args[0]
        else:
            break
    run = value.args[0] if value.op == "part" and len(value.args) == 2 and constant(value.args[1]) == 0 else value
    if run.op != "run" or len(run.args) < 2 or run.args[0].op not in (_ENCODERS if run is value else RECURRENT) or "pack" in bare(run.args[1]).op:
        return None
    layer = run.args[0]
    first = batch_first(layer)
    while layer.op == _ENCODERS[0] and layer.args:
        layer = layer.args[0]
    return None if first is None or layer.op not in (*RECURRENT, *_ENCODERS) else Read(layer, 0 if first else 1)


def _is_both(layer: Value) -> bool:
    return constant(layer.argument("bidirectional", 6)) is True


def _state(value: Value) -> Value | None:
    """The recurrent layer whose hidden state a value is, all of its layers or the last ones of them."""
    while value.op == "part" and len(value.args) == 2 and value.args[1].op == "slice":
        value = value.args[0]
    if value.op != "part" or len(value.args) != 2:
        return None
    inner = value.args[0]
    if inner.op == "part" and constant(value.args[1]) == 0 and inner.args[0].op == "run" and inner.args[0].args[0].op == "torch.nn.LSTM" and constant(inner.args[1]) == 1:
        return inner.args[0].args[0]
    if inner.op == "run" and inner.args[0].op in RECURRENT and inner.args[0].op != "torch.nn.LSTM" and constant(value.args[1]) == 1:
        return inner.args[0]
    return None
