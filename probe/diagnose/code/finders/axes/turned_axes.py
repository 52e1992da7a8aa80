"""Axes that are counted anew where they should be turned. Pure; standard library only."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from probe.diagnose.code.computed.computation import computation_of
from probe.diagnose.code.computed.value import KEPT, Many, Value, bare, constant, number, origins, same
from probe.diagnose.code.finders.sizes.turned_back import turned_place
from probe.diagnose.code.flow import flow_of
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Finders, Remark
from probe.diagnose.code.syntax import last_word, short, text_of
from probe.diagnose.code.traits.extents import at_least, last, rank, view_sizes

FINDERS = Finders()
_ALIKE = frozenset({"add", "sub", "mul", "div", "relu", "clamp", "float", "contiguous", "astype", "ascontiguousarray"}) | KEPT
"""Operations whose result has the axes of what they are done on."""
_RECURRENT = ("torch.nn.GRU", "torch.nn.LSTM", "torch.nn.RNN")
_BY_ROW = tuple(f"torch.nn.{name}" for name in ("Linear", "LayerNorm", "RMSNorm", "Dropout", "ReLU", "GELU", "SiLU", "Tanh", "Identity", "Embedding"))
"""Layers whose result has the first two axes of what they are given, where that has three (an embedding: two)."""


@FINDERS.add("view-mixes-axes")
def _mixes(program: Program) -> Iterator[Remark]:
    """A tensor is given its own sizes in another order: its numbers are counted anew, and no axis is turned."""
    said: set[ast.AST] = set()
    for value in computation_of(program).of("view", "reshape"):
        sizes = view_sizes(value)
        places = [place for one in sizes if (place := _place(one, value.args[0])) is not None or (place := turned_place(one, value.args[0])) is not None]
        if len(places) > 1 and places != sorted(places) and value.node not in said and len(set(places)) == len(places):
            said.add(value.node)
            yield Remark(value.node, f"{short(value.node)} gives {short(bare(value.args[0]).node)} its own sizes in another order: it counts its numbers anew, and turns no axis")


def _place(size: Value, of: Value) -> int | None:
    """Which axis of a tensor a size is that of."""
    size = bare(size)
    found = size.args[0] if size.op == "part" and len(size.args) == 2 and size.args[0].op in ("shape", "size") else None
    place = constant(size.args[1]) if found is not None else number(size.args[1]) if size.op == "size" and len(size.args) == 2 else None
    owner = found.args[0] if found is not None else size.args[0] if place is not None else None
    if owner is None or place is None or place < 0:
        return None
    return int(place) if _same(owner) is _same(of) or (place < 2 and _same(owner) is _before_layers(of)) else None


def _same(value: Value) -> Value:
    """What has the axes of a value, before operations that keep them."""
    for _ in range(30):
        if value.op not in _ALIKE or not value.args or isinstance(value, Many):
            return value
        value = value.args[0]
    return value


def _before_layers(value: Value) -> Value:
    """What has the first two axes of a value, before layers that compute row by row or go along the second or the first."""
    for _ in range(30):
        value = _same(value)
        if value.op == "part" and len(value.args) == 2 and constant(value.args[1]) == 0 and value.args[0].op == "run" and value.args[0].args[0].op in _RECURRENT:
            value = value.args[0].args[1]
        elif value.op == "run" and len(value.args) > 1 and value.args[0].op in _BY_ROW:
            value = value.args[1]
        elif value.op in ("tanh", "gelu", "silu", "sigmoid", "dropout", "layer_norm", "leaky_relu", "elu") and value.args:
            value = value.args[0]
        else:
            break
    return value


@FINDERS.add("view-mixes-axes")
def _split_before_its_axis(program: Program) -> Iterator[Remark]:
    """A new axis is put before one that keeps its length: its numbers come from the axes after that one, and it cuts
    through it."""
    said: set[ast.AST] = set()
    for value in computation_of(program).of("view", "reshape"):
        sizes = view_sizes(value)
        places = [_place(one, value.args[0]) for one in sizes]
        if value.node in said or -1 in [number(one) for one in sizes]:
            continue
        for at, place in enumerate(places):
            before = sizes[:at]
            free = [one for one, of in zip(before, places[:at], strict=True) if of is None]
            if place and set(range(place)) == set(places[:at]) - {None} and len(free) == 1 and number(free[0]) != 1 and not _divides(free[0]):
                said.add(value.node)
                yield Remark(value.node, f"{short(value.node)} puts {short(free[0].node)} before axis {place} of {short(bare(value.args[0]).node)}, which keeps its length: it counts its numbers anew, and turns no axis")
                break


def _divides(size: Value) -> bool:
    """Whether a size is made of another one, so that two of them may be one axis."""
    return any(one.op in ("floordiv", "div", "shape", "size", "len") for one in origins(size))


@FINDERS.add("view-mixes-axes")
def _last_put_second(program: Program) -> Iterator[Remark]:
    """What has its channels last is given as many channels in its second axis, or a picture in its first one: its numbers are
    counted anew."""
    said: set[ast.AST] = set()
    for value in computation_of(program).of("view", "reshape"):
        sizes = view_sizes(value)
        channels = last(value.args[0])
        if len(sizes) < 3 or channels is None or channels < 2 or value.node in said or at_least(value.args[0]) != len(sizes):
            continue
        colours_first = len(sizes) == 3 and number(sizes[0]) == channels and channels in (3, 4) and rank(value.args[0]) == 3
        if (number(sizes[1]) == channels or colours_first) and number(sizes[-1]) not in (1, channels):
            said.add(value.node)
            whole = "its batch" if isinstance(value.args[0].node, (ast.Tuple, ast.For)) else short(value.args[0].node)
            yield Remark(value.node, f"{short(value.node)} puts {channels} in the {'first' if colours_first else 'second'} axis, and the last one of {whole} has that length: it counts its numbers anew, and turns no axis")


@FINDERS.add("view-mixes-axes")
def _features_put_before_time(program: Program) -> Iterator[Remark]:
    """Rows of features, one for each frame, are given as (samples, features, frames): the features lie behind, and are cut
    into pieces."""
    said: set[ast.AST] = set()
    for value in computation_of(program).of("view", "reshape"):
        sizes = view_sizes(value)
        if len(sizes) != 3 or value.node in said or not _is_several(sizes, value.args[0]):
            continue
        features = _features(value.args[0])
        known = number(sizes[1])
        alike = features is not None and (same(features, sizes[1]) if known is None else number(features) == known > 1)
        if features is not None and alike and not same(features, sizes[2]) and rank(value.args[0]) in (2, None):
            said.add(value.node)
            long = f"{known:g}" if known is not None else short(sizes[1].node)
            yield Remark(value.node, f"{short(value.node)} puts {long} in the second axis, and the last one of {short(bare(value.args[0]).node)} has that length: it counts its numbers anew, and turns no axis")


@FINDERS.add("view-mixes-axes")
def _channels_put_last(program: Program) -> Iterator[Remark]:
    """What a convolution gives has its channels in the second axis, and is viewed as rows of as many numbers: each row
    holds places of one channel."""
    said: set[ast.AST] = set()
    for value in computation_of(program).of("view", "reshape"):
        sizes = view_sizes(value)
        channels = _channels_second(value.args[0]) if len(sizes) == 3 and value.node not in said else None
        if channels is None or number(sizes[1]) in (1, number(channels) or 1) or same(sizes[1], channels):
            continue
        if same(sizes[2], channels) or (number(channels) is not None and number(sizes[2]) == number(channels) != 1):
            said.add(value.node)
            yield Remark(value.node, f"{short(value.node)} puts the channels last, and {short(bare(value.args[0]).node)} has them in its second axis: it counts its numbers anew, and turns no axis")


@FINDERS.add("view-mixes-axes")
def _classes_put_last(program: Program) -> Iterator[Remark]:
    """What a convolution gives has its classes in the second axis, and is viewed as one row of classes for each pixel, beside the
    classes of all pixels in one row."""
    for loss in computation_of(program).of("cross_entropy", "nll_loss"):
        value, target = loss.args[:2] if len(loss.args) > 1 else (loss, loss)
        sizes = view_sizes(value) if value.op in ("view", "reshape") else []
        channels = _channels_second(value.args[0]) if len(sizes) == 2 and target.op in ("view", "reshape", "flatten") else None
        known = number(channels) if channels is not None else None
        if channels is None or known == 1 or not (same(sizes[1], channels) or (known is not None and number(sizes[1]) == known)):
            continue
        if at_least(target.args[0]) > 1 and not any("AdaptiveAvgPool" in one.op or "AdaptiveMaxPool" in one.op for one in origins(value.args[0])):
            yield Remark(value.node, f"{short(value.node)} puts the classes last, and {short(bare(value.args[0]).node)} has them in its second axis: it counts its numbers anew, and turns no axis")
            return


@FINDERS.add("view-mixes-axes")
def _fields_put_last(program: Program) -> Iterator[Remark]:
    """What a convolution gives has its channels, `anchors * fields`, in the second axis, and is viewed as rows of `fields`:
    each row holds places of one channel."""
    said: set[ast.AST] = set()
    for value in computation_of(program).of("view", "reshape"):
        sizes = view_sizes(value)
        channels = _channels_second(value.args[0]) if len(sizes) > 2 and value.node not in said else None
        several = _several(program, channels, sizes[-1]) if channels is not None else None
        if channels is None or several is None or _keeps_channels(value, sizes, channels, several):
            continue
        said.add(value.node)
        yield Remark(value.node, f"{short(value.node)} puts a part of the channels last, and {short(bare(value.args[0]).node)} has all {short(channels.node)} in its second axis: it counts its numbers anew, and turns no axis")


def _several(program: Program, channels: Value, fields: Value) -> Value | None:
    """How many times a number of fields the channels are: `anchors` of the product `anchors * fields`, in which the fields
    are written as in the view: another number may be as large."""
    if channels.op == "mul" and len(channels.args) == 2:
        for one, other in (channels.args, channels.args[::-1]):
            known = number(other)
            if same(other, fields) if known is None else known == number(fields) and (other is fields or text_of(other.node) == text_of(fields.node)):
                return one
    node = channels.node
    if number(channels) is None or number(fields) in (None, 1) or not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Mult):
        return None
    flow = flow_of(program)
    times = (number(channels) or 0) / (number(fields) or 1)
    for times_of, factor in ((node.left, node.right), (node.right, node.left)):
        named = text_of(factor) == text_of(fields.node) or last_word(factor) == last_word(fields.node) != ""
        if times > 1 and (named or flow.value(factor) is fields.node) and flow.number(factor) in (None, number(fields)):
            return Value("@constant", node=times_of, where=channels.where, data=times)
    return None


def _keeps_channels(value: Value, sizes: list[Value], channels: Value, several: Value) -> bool:
    """Whether a view may leave the channels where they are: its first axes after that of the batch are the channels, or
    there is one place only."""
    whole, parts, first = number(channels), 1.0, number(sizes[1])
    if same(sizes[1], several) or same(sizes[1], channels) or (first is not None and first in (1, whole, number(several))):
        return True
    for one in sizes[1:] if len(sizes) > 3 else ():
        known = number(one)
        if whole is None or known is None or known < 1:
            return True
        parts *= known
        if parts == whole:
            return True
    pooled = ("adaptive_avg_pool", "adaptive_max_pool", "AdaptiveAvgPool", "AdaptiveMaxPool")
    return any(
        any(word in one.op for word in pooled) or (one.op in ("mean", "unsqueeze", "view", "reshape") and any(each.op == "run" for each in origins(one)))
        for one in origins(value.args[0])
    )


def _channels_second(value: Value) -> Value | None:
    """The channels of what a convolution over pictures gives, places and all."""
    for _ in range(40):
        layer = value.args[0] if value.op == "run" and len(value.args) > 1 else None
        name = layer.op.rpartition(".")[2] if layer is not None else ""
        if layer is not None and name in ("Conv2d", "ConvTranspose2d"):
            return layer.argument("out_channels", 1)
        if name in ("BatchNorm2d", "GroupNorm", "MaxPool2d", "AvgPool2d", "AdaptiveAvgPool2d", "Dropout", "Dropout2d", "Identity"):
            value = value.args[1]
        elif value.op in _ALIKE and value.args and not isinstance(value, Many):
            value = value.args[0]
        else:
            return None
    return None


def _is_several(sizes: list[Value], of: Value) -> bool:
    """Whether the last of three sizes counts several rows: a number above 1, a size of another value, or what is left of
    rows that were joined of samples and frames."""
    known = number(sizes[2])
    if known == -1:
        return any(_joins(one, sizes[0]) for one in origins(of))
    if known is not None:
        return known > 1
    size = bare(sizes[2])
    return size.op in ("part", "size") and bool(size.args) and (size.op == "size" or bare(size.args[0], "part").op in ("shape", "size"))


def _joins(value: Value, first: Value) -> bool:
    """Whether a value joins the first two axes of what it is done on, of which the first is as long as `first`."""
    if value.op == "flatten" and len(value.args) > 1:
        joined = number(value.args[1]) == 0 and number(value.argument("end_dim", 2)) == 1
        return joined and _place(first, value.args[0]) == 0
    sizes = view_sizes(value) if value.op in ("view", "reshape") else []
    return bool(sizes) and sizes[0].op == "mul" and any(same(one, first) for one in sizes[0].args)


def _features(value: Value) -> Value | None:
    """How long the last axis of what a layer gives is: the features of a Linear, or the channels of a convolution whose
    places are averaged away."""
    for _ in range(30):
        layer = value.args[0] if value.op == "run" and len(value.args) > 1 else None
        if layer is not None and layer.op == "torch.nn.Linear":
            return layer.argument("out_features", 1)
        if layer is not None and layer.op.rpartition(".")[2] in ("BatchNorm1d", "LayerNorm", "Dropout"):
            value = value.args[1]
        elif value.op in _ALIKE and value.args and not isinstance(value, Many):
            value = value.args[0]
        elif value.op in ("mean", "flatten") and value.args:
            return _channels(value) if number(value.argument("start_dim", 1)) == 1 or _over_places(value) else None
        else:
            return None
    return None


def _over_places(value: Value) -> bool:
    """Whether a mean is taken over the last two of four axes."""
    over = value.argument("dim", 1)
    places = [number(one) for one in over.parts] if isinstance(over, Many) else []
    return value.op == "mean" and constant(value.named.get("keepdim")) is not True and places in ([2, 3], [-2, -1], [-1, -2], [3, 2])


def _channels(value: Value) -> Value | None:
    """The channels of what a convolution gives, where its places have been brought to one."""
    one_place, at = value.op == "mean", value.args[0]
    for _ in range(30):
        layer = at.args[0] if at.op == "run" and len(at.args) > 1 else None
        name = layer.op.rpartition(".")[2] if layer is not None else ""
        if layer is not None and name == "Conv2d":
            return layer.argument("out_channels", 1) if one_place else None
        if name == "AdaptiveAvgPool2d" and layer is not None:
            size = layer.argument("output_size", 0)
            one_place = one_place or (size is not None and all(number(one) == 1 for one in (size.parts if isinstance(size, Many) else [size])))
            at = at.args[1]
        elif name in ("BatchNorm2d", "GroupNorm", "MaxPool2d", "AvgPool2d", "Dropout", "Dropout2d"):
            at = at.args[1]
        elif at.op in _ALIKE and at.args and not isinstance(at, Many):
            at = at.args[0]
        else:
            return None
    return None


def over_another_axis(program: Program) -> Iterator[Remark]:
    """Two sequences of vectors are compared by their cosine, which runs over axis 1 where no axis is named."""
    said: set[ast.AST] = set()
    for value in computation_of(program).of("cosine_similarity"):
        if value.named.get("dim") is not None or len(value.args) != 2 or value.node in said:
            continue
        said.add(value.node)
        if all(rank(one) == 3 and last(one) not in (None, 1) for one in value.args):
            yield Remark(value.node, f"{short(value.node)} runs over axis 1, and {short(value.args[0].node)} has its {last(value.args[0])} features in axis 2")
