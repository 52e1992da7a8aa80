"""Output bounds: the range of a loss function's input, derived from the operations that compute it.

HOT PATH on the steps that `loss_functions` samples: a walk over a few nodes, from the loss function back to
the operation that bounds its input. Recognized are functions such as tanh and sigmoid, clamps, and the cosine
of two normalized vectors, with constant factors applied afterwards. Values multiplied by a tensor, or added
to one, count as unbounded. Imports nothing from torch.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

MOST_NODES = 16
_PASSING = frozenset({
    "View", "UnsafeView", "ReshapeAlias", "Transpose", "Permute", "T", "Squeeze", "Unsqueeze", "Expand",
    "Slice", "Select", "Index", "Clone", "ToCopy", "Gather", "IndexSelect", "AsStrided", "Alias", "Narrow",
})
"""Operations that pass on their input's values, or some of them."""
_FIXED = {
    "Tanh": (-1.0, 1.0), "Sigmoid": (0.0, 1.0), "Softmax": (0.0, 1.0), "Softsign": (-1.0, 1.0),
    "Sin": (-1.0, 1.0), "Cos": (-1.0, 1.0),
}
_CLAMPS = {"Hardtanh": ("min_val", "max_val"), "Clamp": ("min", "max")}
_PRODUCTS = ("Mm", "Bmm", "Linear", "Mv", "Dot")
_NORMS = ("LinalgVectorNorm", "Norm")
_AROUND_A_NORM = _PASSING | {"ClampMin", "Clamp", "Add", "Maximum"}
COSINE, OF_OUTPUTS = "cosine", "cosine of outputs"
"""Cosine with a parameter, such as a class vector; of two computed vectors, as in a contrastive loss."""
_LEAF = "torch::autograd::AccumulateGrad"


class Bounds(NamedTuple):
    """Smallest and largest possible value, and what bounds them: an operation, or a cosine."""

    low: float
    high: float
    by: str


def bounds_of(
    node: Any, name_of: Callable[[Any], str], scalar: Callable[[Any, str], float | None]
) -> Bounds | None:
    """The bounds of a node's output; None if no operation nearby bounds it. `scalar` reads a number that a
    node saved."""
    factor, first = 1.0, True
    for _ in range(MOST_NODES):
        if node is None:
            return None
        name = name_of(node)
        if name in _FIXED:
            return _scaled(*_FIXED[name], factor, name)
        if name in _CLAMPS:
            low, high = (scalar(node, one) for one in _CLAMPS[name])
            if low is None or high is None or not math.isfinite(low - high):
                return None
            return _scaled(low, high, factor, name)
        cosine = _cosine(node, name, name_of)
        if cosine:
            return _scaled(-1.0, 1.0, factor, cosine)
        if name in ("Mul", "Div"):
            number = scalar(node, "other")
            if number is None or not number or not math.isfinite(number):
                return None
            factor = factor * number if name == "Mul" else factor / number
        elif name not in _PASSING and not (first and name == "LogSoftmax"):
            return None
        first = False
        following = [one for one, _ in node.next_functions if one is not None]
        if len(following) != 1:
            return None
        node = following[0]
    return None


def _scaled(low: float, high: float, factor: float, by: str) -> Bounds:
    return Bounds(min(low * factor, high * factor), max(low * factor, high * factor), by)


def _cosine(node: Any, name: str, name_of: Callable[[Any], str]) -> str:
    """The kind of cosine that a node computes, from two sides both divided by their norms; empty for none."""
    if name == "Sum" and node.next_functions[0][0] is not None:  # cosine_similarity
        node = node.next_functions[0][0]
        if name_of(node) != "Mul":
            return ""
    elif name not in _PRODUCTS:
        return ""
    sides = [_normalized(one, name_of) for one, _ in node.next_functions]
    if len(sides) != 2 or None in sides:
        return ""
    return COSINE if any(_is_leaf(one, name_of) for one in sides) else OF_OUTPUTS


def _normalized(node: Any, name_of: Callable[[Any], str]) -> Any:
    """The node that computed the vectors before their division by their norms; None if not normalized."""
    node = _past(node, _PASSING, name_of)
    if node is None or name_of(node) != "Div" or len(node.next_functions) != 2:
        return None
    norm = _past(node.next_functions[1][0], _AROUND_A_NORM, name_of)
    return node.next_functions[0][0] if norm is not None and name_of(norm) in _NORMS else None


def _is_leaf(node: Any, name_of: Callable[[Any], str]) -> bool:
    found = _past(node, _PASSING, name_of)
    return found is not None and name_of(found) == _LEAF


def _past(node: Any, passing: frozenset[str], name_of: Callable[[Any], str]) -> Any:
    """The first node below those named in `passing`; None without one nearby."""
    for _ in range(MOST_NODES):
        if node is None or name_of(node) not in passing:
            return node
        node = node.next_functions[0][0]
    return None
