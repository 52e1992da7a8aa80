"""Sizes of what was turned since, and axes that are cut in two and put before the rows. Pure; standard library only."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator

from probe.diagnose.code.computed.computation import computation_of
from probe.diagnose.code.computed.value import KEPT, Many, Value, bare, constant, number, same
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Finders, Remark
from probe.diagnose.code.syntax import short
from probe.diagnose.code.traits.arithmetic import product
from probe.diagnose.code.traits.extents import last, rank, view_sizes

FINDERS = Finders()
_ALIKE = frozenset({
    "contiguous", "ascontiguousarray", "relu", "gelu", "silu", "tanh", "sigmoid", "leaky_relu", "elu", "softplus", "dropout", "softmax", "log_softmax",
    "exp", "log", "sqrt", "abs", "neg", "pow", "square", "clamp", "cumsum", "flip", "roll", "normalize", "set_item", "zeros_like", "empty_like", "ones_like",
    "masked_fill", "requires_grad_", "layer_norm", "batch_norm",
}) | KEPT
"""Operations whose result has the axes of what they are done on, in their order."""
_LAYERS = (
    "Conv1d", "Conv2d", "BatchNorm1d", "BatchNorm2d", "GroupNorm", "InstanceNorm1d", "InstanceNorm2d", "LayerNorm", "Dropout", "Dropout1d", "Linear", "ReLU",
    "GELU", "SiLU", "Tanh", "Sigmoid", "ELU", "LeakyReLU", "Identity", "AvgPool1d", "MaxPool1d",
)
"""Layers that leave the axes where they are."""
_TURNS = ("transpose", "permute", "swapaxes", "swapdims", "movedim", "moveaxis", "T", "t", "mT")
_SIZED = ("shape", "size")
_Turn = Callable[[int], int]


def turned_place(size: Value, of: Value) -> int | None:
    """Where the axis of a size lies in a tensor that was made of the size's owner by turning axes; None if it is not known,
    or nothing was turned."""
    size = bare(size)
    found = size.args[0] if size.op == "part" and len(size.args) == 2 and size.args[0].op in _SIZED else None
    place = constant(size.args[1]) if found is not None else number(size.args[1]) if size.op == "size" and len(size.args) == 2 else None
    owner = found.args[0] if found is not None else size.args[0] if place is not None else None
    turns = _turns_between(owner, of) if owner is not None and place is not None and place >= 0 else []
    if not turns or place is None:
        return None
    return _through(turns, int(place))


def _through(turns: list[_Turn], place: int) -> int:
    """Where an axis lies after turns."""
    for turn in turns:
        place = turn(place)
    return place


def _turns_between(owner: Value, of: Value) -> list[_Turn]:
    """The turns that lead from one tensor to another one, the first one first; none where that is not known."""
    owner, turns = _same(owner), list[_Turn]()
    for _ in range(40):
        of = _same(of)
        if turns and of is owner:
            return turns[::-1]
        if of.op in _TURNS and of.args:
            turn = _turn(of)
            if turn is None:
                return []
            turns.append(turn)
            of = of.args[0]
        elif of.op == "run" and len(of.args) > 1 and of.args[0].op.rpartition(".")[2] in _LAYERS:
            of = of.args[1]
        elif of.op in ("add", "sub", "mul", "div") and len(of.args) == 2 and (number(of.args[1]) is not None or number(of.args[0]) is not None):
            of = of.args[0] if number(of.args[1]) is not None else of.args[1]
        else:
            return []
    return []


def _same(value: Value) -> Value:
    """What has the axes of a value, before operations that keep them."""
    for _ in range(40):
        if value.op not in _ALIKE or not value.args or isinstance(value, Many):
            return value
        value = value.args[0]
    return value


def _turn(value: Value) -> _Turn | None:
    """Where a turn puts each axis; None where that is not known."""
    given = [constant(one) for arg in value.args[1:] for one in (arg.parts if isinstance(arg, Many) else [arg])]
    given += [constant(value.named[name]) for name in ("dim0", "dim1") if name in value.named]
    axes = [int(one) for one in given if isinstance(one, int)]
    known = rank(value.args[0])
    if len(axes) != len(given) or value.op in ("movedim", "moveaxis"):
        return None
    if value.op in ("permute", "transpose") and len(axes) > 2:
        order = [one % len(axes) for one in axes]
        return (lambda place: order.index(place) if place in order else place) if sorted(order) == list(range(len(order))) else None
    if value.op in ("T", "t") and not axes and known == 2:
        axes = [0, 1]
    elif value.op == "mT":
        axes = [-1, -2]
    if len(axes) != 2 or (min(axes) < 0 and known is None):
        return None
    first, second = (one + (known or 0) if one < 0 else one for one in axes)
    return lambda place: {first: second, second: first}.get(place, place)


@FINDERS.add("view-mixes-axes")
def _viewed_as_before(program: Program) -> Iterator[Remark]:
    """What was turned is given the shape that it had before, as a whole: its numbers are counted anew."""
    for value in computation_of(program).of("view", "reshape", "view_as", "reshape_as"):
        given = list(value.args[1:])
        whole = given[0] if len(given) == 1 else value
        owner = whole if value.op in ("view_as", "reshape_as") and len(given) == 1 else whole.args[0] if whole.op in _SIZED and len(whole.args) == 1 else None
        turns = _turns_between(owner, value.args[0]) if owner is not None else []
        if owner is not None and any(_through(turns, one) != one for one in range(rank(owner) or 4)):
            yield Remark(value.node, f"{short(value.node)} gives {short(bare(value.args[0]).node)} the shape of {short(owner.node)}, whose axes it has in another order: it counts its numbers anew, and turns no axis back")
            return


@FINDERS.add("view-mixes-axes")
def _layers_before_rows(program: Program) -> Iterator[Remark]:
    """Rows of `layers * features` numbers are viewed as (layers, rows, features): the numbers of a row lie side by side, and
    are dealt out to several rows."""
    said: set[ast.AST] = set()
    for value in computation_of(program).of("view", "reshape"):
        sizes = view_sizes(value)
        if len(sizes) != 3 or value.node in said or number(sizes[0]) == 1 or number(sizes[2]) == -1 or not _counts_rows(sizes[1]):
            continue
        if rank(value.args[0]) in (2, None) and _is_of_both(value.args[0], sizes[0], sizes[2]):
            said.add(value.node)
            yield Remark(value.node, f"{short(value.node)} puts {short(sizes[0].node)} before the rows, and {short(bare(value.args[0]).node)} has as many times {short(sizes[2].node)} numbers in each row: it counts its numbers anew, and turns no axis")


def _counts_rows(size: Value) -> bool:
    """Whether a size is that of a batch: what is left, a size of another value, or not known."""
    size = bare(size)
    return number(size) == -1 or (number(size) is None and (size.op in ("part", "size", "len", "@input")))


def _is_of_both(value: Value, first: Value, second: Value) -> bool:
    """Whether a linear layer, or a part of it, gives rows of `first * second` numbers."""
    layer = value
    for _ in range(20):
        if layer.op == "run" and len(layer.args) > 1 and layer.args[0].op.rpartition(".")[2] in _LAYERS and layer.args[0].op != "torch.nn.Linear":
            layer = layer.args[1]
        elif (layer.op in _ALIKE or (layer.op == "part" and layer.args[0].op == "chunk")) and layer.args and not isinstance(layer, Many):
            layer = layer.args[0].args[0] if layer.op == "part" else layer.args[0]
        else:
            break
    if layer.op != "run" or layer.args[0].op != "torch.nn.Linear":
        return False
    known, wanted = last(value), (number(first), number(second))
    if known is not None and None not in wanted:
        return known == (wanted[0] or 0) * (wanted[1] or 0) and (wanted[0] or 0) > 1
    features = layer.args[0].argument("out_features", 1)
    made = product(features) if features is not None and value is layer else None
    return made is not None and len(made.above) == 2 and not made.below and any(same(one, first) and same(other, second) for one, other in (made.above, made.above[::-1]))
