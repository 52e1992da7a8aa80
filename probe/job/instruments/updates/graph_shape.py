"""Graph shape: finds structural errors in a loss's graph.

These are linear layers in a row without a non-linearity, attentions whose softmax runs over the wrong
dimension, and parameters that weight the terms of the loss.

HOT PATH on a few sampled steps: `shape_of`, on the training thread right before backward. It reads
`next_functions`, shapes, and the constant factor of a product if that is on the host and not packed by one of
the job's hooks. It keeps no part of the graph. Uses the job's torch.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from probe.job.instruments.tensors.loss_functions import scales

MOST_NODES = 4_000
"""Largest graph that is examined: a larger one would take too long."""
MOST_TERMS = 64
"""Nodes between the loss and its terms."""
MOST_WEIGHTS = 16
"""Maximum size of a parameter that weights the terms of a loss: one element per term."""
NARROW = 2
"""A layer whose output is narrower than this times the smaller of its input and the next layers' outputs may
be an intended bottleneck: low-rank factors, adapters, projections."""
_CLOCK_EVERY = 256
_FOLLOWED = 16

_LEAF = "torch::autograd::AccumulateGrad"
_MATRIX = frozenset({"Addmm", "Mm", "Linear"})
_FUSED = frozenset({
    "ScaledDotProductFlashAttention", "ScaledDotProductFlashAttentionForCpu",
    "ScaledDotProductEfficientAttention", "ScaledDotProductCudnnAttention", "ScaledDotProductFusedAttention",
})
_PRODUCT = frozenset({"Bmm", "Baddbmm", *_FUSED})
_SHAPING = frozenset({
    "View", "UnsafeView", "ReshapeAlias", "Transpose", "Permute", "T", "Squeeze", "Unsqueeze", "Clone",
    "ToCopy", "Alias", "Slice", "Select", "Narrow", "Unbind", "Split", "UnsafeSplit", "Chunk", "Expand",
    "AsStrided",
})
_DROPOUT = frozenset({"NativeDropout", "FusedDropout"})
_SUMS = frozenset({"Mean", "Sum"})
_ARITHMETIC = frozenset({"Add", "Sub", "Neg", "Mul", "Div", "Stack", *_SUMS, *_SHAPING})
"""Operations between a loss and its terms."""
_POSITIVE = frozenset({"Exp", "Softplus", "Pow", "Abs", "Relu", "Reciprocal"})
_BOUNDED = frozenset({"Softmax", "LogSoftmax", "Clamp", "ClampMin", "Sigmoid"})
_KEEPS_SHAPE = frozenset({"Clone", "ToCopy", "Alias", *_DROPOUT})
_REGROUPS = frozenset({"View", "UnsafeView", "ReshapeAlias", "Expand", "Squeeze", "Unsqueeze"})
_SWAPS = frozenset({"Transpose", "Permute", "T"})
_SCORES = frozenset({
    "Add", "Sub", "Mul", "Div", "MaskedFill", "Where", "Tanh", "Clone", "ToCopy", *_REGROUPS, *_SWAPS,
})
"""Operations between the product of queries with keys and its softmax."""
_MADE_OF = frozenset({"Neg", "Mul", "Div", "Add", "Rsub", "Sub", "Log", *_POSITIVE, *_SHAPING, *_SUMS})


def operation(node: Any) -> str:
    """Name of a node's operation: `Addmm` for `AddmmBackward0`."""
    name: str = node.name()
    return name.partition("Backward")[0] or name


class Shape(NamedTuple):
    """The structures found. The tensors are leaves; the caller must not keep references to them."""

    junctions: int
    """Number of linear layers whose input is computed."""
    direct: list[tuple[Any, list[Any]]]
    """Weights of layers, each with the weights of the layers that consume its output unchanged."""
    attentions: int
    """Number of products of values with a softmax over products of queries with keys."""
    unnormalized: int
    """How many of these sum over a different dimension than their softmax."""
    attended: list[int]
    """Number of positions under the softmax of each attention, including fused ones."""
    loss_weights: list[Any]
    """Parameters that multiply terms of the loss and are used nowhere else in it."""
    positive: bool
    """Whether all of these are made positive first; False without any."""


class _Layer(NamedTuple):
    weight: Any
    data: Any
    """The node that computed its input; None if the input needs no gradient."""
    ins: int
    outs: int


def shape_of(root: Any, limit_ns: int) -> Shape | None:
    """The shape of a loss's graph; None if it is too large or takes too long."""
    first = getattr(root, "grad_fn", None)
    if first is None:
        return None
    users = _users(first, limit_ns)
    if users is None:
        return None
    layers = {node: layer for node in users if (layer := _layer(node)) is not None}
    weights, positive = _loss_weights(first, users)
    behind = [node for node, layer in layers.items() if layer.data is not None]
    sums = [one for node in users if (one := _sums_over_softmax(node)) is not None]
    direct = _direct(users, layers, behind)
    attended = [positions for node in users if (positions := _attended(node))]
    return Shape(len(behind), direct, len(sums), sums.count(False), attended, weights, positive)


def _users(first: Any, limit_ns: int) -> dict[Any, list[Any]] | None:
    """All nodes of the graph, each with the nodes that consume its output."""
    users: dict[Any, list[Any]] = {first: []}
    waiting = [first]
    ends_ns = time.monotonic_ns() + limit_ns
    count = 0
    while waiting:
        node = waiting.pop()
        count += 1
        if count > MOST_NODES or (count % _CLOCK_EVERY == 0 and time.monotonic_ns() > ends_ns):
            return None
        for following, _ in node.next_functions:
            if following is None:
                continue
            if following not in users:
                users[following] = []
                waiting.append(following)
            users[following].append(node)
    return users


# Layers ----------------------------------------------------------------------


def _layer(node: Any) -> _Layer | None:
    """The node as a linear layer with a trained weight matrix; None for other nodes."""
    if operation(node) not in _MATRIX:
        return None
    given = [one for one, _ in node.next_functions]
    if operation(node) == "Addmm":
        given = given[1:]
    weight = _leaf(given[1], _SHAPING) if len(given) > 1 else None
    if weight is None or weight.dim() != 2:
        return None
    outs = (_sizes(node) or (0,))[-1]
    if outs not in weight.shape:
        return None
    ins = weight.shape[0] if weight.shape[1] == outs else weight.shape[1]
    return _Layer(weight, given[0], ins, outs)


def _direct(
    users: dict[Any, list[Any]], layers: dict[Any, _Layer], behind: list[Any]
) -> list[tuple[Any, list[Any]]]:
    """Layers whose output only linear layers consume, and that are wide enough to be merged with them."""
    takers: dict[Any, list[Any]] = {}
    for node in behind:
        before = _before(layers[node].data)
        if before in layers and layers[before].weight is not layers[node].weight:
            takers.setdefault(before, []).append(node)

    def joins(one: Any) -> bool:
        """Whether an operation combines several layers: an attention, a gate, a sum."""
        if operation(one) not in ("Add", "Sub"):
            return operation(one) in _PRODUCT
        return sum(_before(each) in layers for each, _ in one.next_functions if each is not None) > 1

    found = []
    for node, after in takers.items():
        layer = layers[node]
        source = _before(layer.data) if layer.data is not None else None
        if source is not None and operation(source) in _PRODUCT:
            continue  # it joins the heads of an attention
        plain = [one for one in after if _meets(users, one, joins) is False]
        if not plain or _meets(users, node, lambda one: one not in layers) is not False:
            continue
        if layer.outs >= NARROW * min(layer.ins, sum(layers[one].outs for one in after)):
            found.append((layer.weight, [layers[one].weight for one in plain]))
    return found


def _before(node: Any) -> Any:
    """The node that computed a value, skipping linear operations with no other computed input."""
    for _ in range(_FOLLOWED):
        following = _passes(node)
        if following is None:
            return node
        node = following
    return node


def _passes(node: Any) -> Any:
    """The input of a linear operation with one computed input; None for any other operation."""
    name = operation(node)
    given = [one for one, _ in node.next_functions if one is not None]
    if name in _SHAPING or name in _DROPOUT or name in _SUMS:
        return given[0] if len(given) == 1 else None
    if name in ("Add", "Sub"):
        computed = [one for one in given if _leaf(one, _SHAPING) is None]
        return computed[0] if len(computed) == 1 else None
    if name in ("Mul", "Div") and len(given) == 1:
        return given[0] if scales(node) else None
    return None


def _meets(users: dict[Any, list[Any]], node: Any, found: Callable[[Any], bool]) -> bool | None:
    """Whether `found` holds for any consumer of a node's output, skipping linear operations; None if there
    are too many."""
    waiting = list(users[node])
    for _ in range(4 * _FOLLOWED):
        if not waiting:
            return False
        one = waiting.pop()
        if _passes(one) is not None:
            waiting += users[one]
        elif found(one):
            return True
    return None


def _leaf(node: Any, through: frozenset[str]) -> Any:
    """The parameter at the end of a chain of the operations in `through`; None if there is none."""
    for _ in range(_FOLLOWED):
        if node is None:
            return None
        name = operation(node)
        if name == _LEAF:
            return node.variable
        given = [one for one, _ in node.next_functions if one is not None]
        if name not in through or len(given) != 1:
            return None
        node = given[0]
    return None


# Attentions -------------------------------------------------------------------


def _sums_over_softmax(node: Any) -> bool | None:
    """Whether a product sums over the dimension along which the attention weights add up to 1; None if it is
    no such product, or if unknown."""
    if operation(node) not in ("Bmm", "Mm") or len(node.next_functions) != 2:
        return None
    for place, (given, _) in enumerate(node.next_functions):
        if given is None:
            continue
        dimension: int | None = len(_sizes(given)) - (1 if place == 0 else 2)
        for _ in range(_FOLLOWED):
            if given is None or operation(given) == "Softmax" or dimension is None:
                break
            before = _only(given) if _is_reshaped(given) else None
            dimension = _came_from(given, dimension, before) if before is not None else None
            given = before
        if given is not None and dimension is not None and operation(given) == "Softmax":
            over = _place_of(getattr(given, "_saved_dim", None), len(_sizes(given)))
            if over is not None and _has_scores(given):
                return dimension == over
    return None


def _attended(node: Any) -> int:
    """Number of positions that an attention weights; 0 if the node is no attention, or if unknown."""
    name, sizes = operation(node), _sizes(node)
    if name in _FUSED:
        keys = node.next_functions[1][0]
        made = _sizes(keys) if keys is not None and node.next_functions[1][1] == 0 else ()
        return made[-2] if len(made) == len(sizes) == 4 else 0
    if name not in ("Softmax", "SafeSoftmax") or len(sizes) < 3 or not _has_scores(node):
        return 0
    over = _place_of(getattr(node, "_saved_dim", None), len(sizes))
    return 0 if over is None else sizes[over]


def _is_reshaped(node: Any) -> bool:
    name = operation(node)
    return name in _KEEPS_SHAPE or name in _REGROUPS or name in _SWAPS or (name == "Mul" and scales(node))


def _came_from(node: Any, dimension: int, given: Any) -> int | None:
    """The dimension of an operation's input that corresponds to this dimension of its output; None if
    unknown."""
    name, after = operation(node), _sizes(node)
    if not 0 <= dimension < len(after):
        return None
    if name in _SWAPS:
        order = list(range(len(after)))
        if name == "Permute":
            order = [_place_of(one, len(after)) or 0 for one in getattr(node, "_saved_dims", order)]
        else:
            named = [getattr(node, f"_saved_dim{number}", number) for number in (0, 1)]
            one, other = (_place_of(value, len(after)) or 0 for value in named)
            order[one], order[other] = order[other], order[one]
        return order[dimension]
    if name not in _REGROUPS:
        return dimension
    before, behind = _sizes(given), math.prod(after[dimension + 1 :])
    places = [
        place for place, size in enumerate(before)
        if size == after[dimension] and size > 1 and math.prod(before[place + 1 :]) == behind
    ]
    return places[0] if len(places) == 1 else None


def _has_scores(softmax: Any) -> bool:
    """Whether a softmax is taken over products of two computed tensors."""
    waiting = [softmax]
    for _ in range(_FOLLOWED):
        if not waiting:
            return False
        for one, _number in waiting.pop().next_functions:
            if one is None:
                continue
            if operation(one) in ("Bmm", "Mm", "Baddbmm"):
                return sum(_leaf(each, _SHAPING) is None for each, _ in one.next_functions if each) > 1
            if operation(one) in _SCORES:
                waiting.append(one)
    return False


def _only(node: Any) -> Any:
    """The single input node of an operation; None if there are several."""
    given = [one for one, _ in node.next_functions if one is not None]
    return given[0] if len(given) == 1 else None


def _sizes(node: Any) -> tuple[int, ...]:
    """Shape of a node's output (its backward's input); () if it has none, such as a ragged tensor."""
    made = getattr(node, "_input_metadata", None)
    try:
        return tuple(map(int, made[0].shape)) if made else ()
    except (RuntimeError, TypeError, ValueError):
        return ()


def _place_of(dimension: Any, dimensions: int) -> int | None:
    """A dimension counted from the front; nodes store negative dimensions as unsigned 64-bit numbers."""
    if not isinstance(dimension, int) or not dimensions:
        return None
    return (dimension - (1 << 64) if dimension >= 1 << 63 else dimension) % dimensions


# Weights of the loss ----------------------------------------------------------


def _loss_weights(first: Any, users: dict[Any, list[Any]]) -> tuple[list[Any], bool]:
    """Small parameters that multiply terms of the loss and are used nowhere else in it; and whether all are
    made positive first."""
    terms = _arithmetic(first)
    found, positive = [], True
    for node in users:
        if operation(node) == _LEAF and node.variable.numel() <= MOST_WEIGHTS:
            made_by = _weighs(node, users, terms)
            if made_by is not None:
                found.append(node.variable)
                positive = positive and bool(made_by & _POSITIVE)
    return found, positive and bool(found)


def _arithmetic(first: Any) -> set[Any]:
    """The nodes that combine the terms of a loss."""
    found: set[Any] = set()
    waiting = [first]
    while waiting and len(found) < MOST_TERMS:
        node = waiting.pop()
        if node is not None and node not in found and operation(node) in _ARITHMETIC:
            found.add(node)
            waiting += [one for one, _ in node.next_functions]
    return found


def _weighs(leaf: Any, users: dict[Any, list[Any]], terms: set[Any]) -> set[str] | None:
    """The operations between a parameter and the terms that it multiplies; None if it has any other use in
    the graph, which may keep it bounded."""
    operations: set[str] = set()
    waiting = [leaf]
    for _ in range(_FOLLOWED):
        if not waiting:
            return operations
        node = waiting.pop()
        if not users[node]:
            return None
        for one in users[node]:
            name = operation(one)
            given = sum(other is not None for other, _ in one.next_functions)
            if given == 1 and name not in _BOUNDED:
                operations.add(name)
                waiting.append(one)
            elif name != "Mul" or one not in terms or not _is_computed(one, node):
                return None
    return None


def _is_computed(product: Any, node: Any) -> bool:
    """Whether the other factor of a product is computed from more than a single parameter."""
    others = [one for one, _ in product.next_functions if one is not node]
    return bool(others) and all(_leaf(one, _MADE_OF) is None for one in others)
