"""Which networks an optimizer holds the parameters of. Pure; standard library only."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import NamedTuple

from probe.diagnose.code.computed.computation import Computation
from probe.diagnose.code.computed.value import Instance, Many, Table, Value, alternatives, constant, number
from probe.diagnose.code.traits.arithmetic import module
from probe.diagnose.code.traits.updates import is_optimizer

_LISTED = ("list", "tuple", "reversed", "sorted", "iter", "filter", "set")
_NO_ATTRIBUTES = frozenset({
    "@input", "run", "part", "element", "deepcopy", "unknown", "either", "@object", "rows", "next", "index", "star",
})


class Source(NamedTuple):
    """Where parameters come from: all of `of`, or some of them that are chosen one by one."""

    of: Value
    chosen: bool


def optimizers(computation: Computation) -> list[Value]:
    """All optimizers of torch that a program makes."""
    return [value for value in computation.values if is_optimizer(value)]


def groups(optimizer: Value) -> list[Value] | None:
    """The groups of parameters that an optimizer is given; None where it is given one."""
    given = optimizer.argument("params", 0)
    inner = None if given is None else given
    if inner is not None and inner.op in _LISTED and inner.args and not isinstance(inner, Many):
        inner = inner.args[0]
    if isinstance(inner, Many) and inner.parts and all(isinstance(one, Table) for one in inner.parts):
        return inner.parts
    return None


def sources(value: Value | None, depth: int = 12) -> list[Source] | None:
    """Where the parameters in a list, a chain or groups come from; None where that is unknown."""
    if value is None or depth == 0:
        return None
    if isinstance(value, Table):
        return sources(value.entries.get("params"), depth - 1)
    if isinstance(value, Many):
        return _joined(value.parts, depth, value.grown)
    if value.op in ("parameters", "named_parameters", "trainable_params"):
        return [Source(module(value.args[0]), value.op != "parameters" or "recurse" in value.named)]
    if value.op == "part" and constant(value.args[1]) == 1 and value.args[0].op == "element":
        return _chosen(sources(value.args[0].args[0], depth - 1))
    if value.op == "element":
        found = sources(value.args[0], depth - 1)
        return found if isinstance(value.node, ast.Starred) else _chosen(found)
    if value.op in _LISTED and value.args:
        found = sources(value.args[-1], depth - 1)
        return _chosen(found) if value.op == "filter" else found
    if value.op == "itertools.chain.from_iterable" and len(value.args) == 1 and isinstance(value.args[0], Many):
        return sources(value.args[0], depth - 1)
    if value.op in ("itertools.chain", "add"):
        return _joined(value.args, depth, False)
    if value.op == "star":
        return None
    if value.op == "torch.nn.Parameter":
        return [Source(value, False)]
    if value.op in ("weight", "bias") and value.args:
        return [Source(module(value.args[0]), True)]
    if value.op == "either":
        return _joined(list(alternatives(value)), depth, True)
    return None


def _joined(values: list[Value] | tuple[Value, ...], depth: int, partly: bool) -> list[Source] | None:
    found: list[Source] = []
    for one in values:
        inner = sources(one, depth - 1)
        if inner is None:
            return None
        found += inner
    return found if values else None


def _chosen(found: list[Source] | None) -> list[Source] | None:
    return None if found is None else [Source(one.of, True) for one in found]


def contents(value: Value, computation: Computation, depth: int = 10) -> Iterator[Value]:
    """A network and all layers, networks and parameters that are in it or have been, as far as they are known."""
    yield value
    if depth == 0:
        return
    inner: list[Value] = []
    if isinstance(value, Instance):
        ever = [one.args[1] for one in computation.users(value) if one.op == "set_attribute" and len(one.args) > 1]
        given = value.data if isinstance(value.data, list) else []
        inner = [*value.attributes.values(), *ever, *(one for one in given if isinstance(one, Value))]
    elif isinstance(value, (Many, Table)) or value.op.startswith("torch.nn.") or value.op == "either":
        inner = list(value.made_of())
    for one in {id(core): core for core in map(_core, inner)}.values():
        if _is_part(one):
            yield from contents(one, computation, depth - 1)


_UNSTEADY = ("BatchNorm", "SyncBatchNorm", "Dropout", "AlphaDropout")


def is_unsteady(layer: Value) -> bool:
    """Whether a layer works otherwise in train mode: it drops, or uses the statistics of the batch."""
    word = layer.op.rpartition(".")[2]
    if layer.op in ("torch.nn.TransformerEncoderLayer", "torch.nn.TransformerDecoderLayer", "torch.nn.Transformer"):
        return number(layer.argument("dropout", 6 if word == "Transformer" else 3)) != 0
    if layer.op in ("torch.nn.LSTM", "torch.nn.GRU", "torch.nn.MultiheadAttention"):
        return bool(number(layer.named.get("dropout")))
    return word.startswith(_UNSTEADY)


_MEASURES = frozenset({
    "size", "shape", "len", "numel", "ndim", "dim", "in_features", "out_features", "num_features", "in_channels", "out_channels", "input_size",
    "hidden_size", "embedding_dim", "num_embeddings", "embed_dim", "num_heads", "num_layers", "kernel_size", "stride", "padding",
})
"""What gives numbers of a layer or tensor: what is made by them is not made of it."""


def _core(value: Value) -> Value:
    """A layer or parameter without what was done on it in place."""
    at = value
    for _ in range(8):
        if _is_part(at) or not at.args or at.op in _MEASURES:
            break
        at = at.args[0]
    return at if _is_part(at) else value


def _is_part(value: Value) -> bool:
    return isinstance(value, (Instance, Many, Table)) or value.op.startswith("torch.nn.") or value.op in ("@input", "either")


def apart(one: Value, other: Value, computation: Computation) -> bool:
    """Whether two networks certainly share no parameters."""
    if one is other:
        return False
    inside = ({id(part) for part in contents(one, computation)}, {id(part) for part in contents(other, computation)})
    if inside[0] & inside[1]:
        return False
    if one.op == "@input" and other.op == "@input":
        return _home(one, computation) is not None and _home(one, computation) is _home(other, computation)
    if one.op == other.op == "@object" or (one.op.startswith("torch.nn.") and other.op.startswith("torch.nn.")):
        return True
    if one.args and other.args and one.op not in _NO_ATTRIBUTES and other.op not in _NO_ATTRIBUTES and not one.op.startswith("torch."):
        return one.op != other.op and len(one.args) == len(other.args) == 1 and one.args[0] is other.args[0]
    return False


def _home(value: Value, computation: Computation) -> ast.AST | None:
    """The function whose parameter an input is."""
    return computation.program.parent.get(computation.program.parent.get(value.node)) if isinstance(value.node, ast.arg) else None  # type: ignore[arg-type]


def owner(value: Value, computation: Computation) -> ast.AST | None:
    """The class or function that is run from outside when a value is computed; None for a file's own lines."""
    if not value.where.functions:
        return None
    first = value.where.functions[0]
    return computation.program.class_of(first) or first
