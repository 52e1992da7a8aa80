"""Contrasts: tells whether a loss adds what a network gives for some inputs and subtracts what it gives for
others, as an energy-based model does with data and samples. The value of such a loss means nothing: it says
which of the two is ahead.

HOT PATH on a few sampled steps: `contrasts`, on the training thread right before backward, reads at most
`MOST_NODES` nodes behind the loss and, if it subtracts terms, compares at most `MOST_COMPARED` pairs.
Reads no values but constant factors. Standard library only.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from probe.job.instruments.core.loss_share import saved_number
from probe.job.instruments.updates.graph_shape import operation

MOST_NODES, MOST_COMPARED, MOST_TERMS = 48, 256, 4
LEAST_SHARE = 0.1
"""Smallest factor of a contrast, relative to the largest of the loss's factors: a small penalty leaves the
loss its meaning."""
_LEAF = "torch::autograd::AccumulateGrad"
_PASSES = frozenset({
    "ToCopy", "Squeeze", "Unsqueeze", "View", "UnsafeView", "ReshapeAlias", "Alias", "Clone", "Mean", "Sum",
})
_PARTS = frozenset({"Slice", "Split", "Chunk", "Narrow", "Unbind", "Select", "Index", "IndexSelect"})
"""Operations that take some of the samples, where one call gave the outputs for all."""


class _Term(NamedTuple):
    node: Any
    factor: float
    part: bool
    """Whether it is some of what the node gave."""


def contrasts(loss: Any) -> bool | None:
    """Whether two terms of a loss, one added and one subtracted, are made of the same parameters by the same
    operations; None if the loss has too many terms or operations to tell."""
    found = _terms(getattr(loss, "grad_fn", None))
    if not found:
        return None if found is None else False
    least = LEAST_SHARE * max(abs(one.factor) for one in found)
    added = [one for one in found if one.factor >= least][:MOST_TERMS]
    taken = [one for one in found if -one.factor >= least][:MOST_TERMS]
    left = iter(range(MOST_COMPARED))
    for one in added:
        for other in taken:
            if (alike := _alike(one, other, left)) is not False:
                return alike
    return False


def _terms(root: Any) -> list[_Term] | None:
    """What a loss adds up; None for a loss of too many terms."""
    waiting, found = [_Term(root, 1.0, False)], []
    seen = 0
    while waiting:
        term = waiting.pop()
        node, factor, part = term
        seen += 1
        if seen > MOST_NODES:
            return None
        if node is None:  # a term that needs no gradient
            continue
        kind, behind = operation(node), node.next_functions
        if kind in ("Add", "Sub") and len(behind) == 2:
            alpha = getattr(node, "_saved_alpha", 1)
            second = factor * (float(alpha) if isinstance(alpha, (int, float)) else 1.0)
            second = second if kind == "Add" else -second
            waiting += [_Term(behind[0][0], factor, part), _Term(behind[1][0], second, part)]
        elif kind in _PASSES and behind:
            waiting.append(_Term(behind[0][0], factor, part))
        elif kind in _PARTS and behind:
            waiting.append(_Term(behind[0][0], factor, True))
        elif kind in ("Neg", "Rsub") and behind:
            waiting.append(_Term(behind[0][0], -factor, part))
            waiting += [_Term(one, factor, part) for one, _ in behind[1:]]
        elif kind in ("Mul", "Div") and len(behind) == 2 and None in (behind[0][0], behind[1][0]):
            side = 0 if behind[0][0] is not None else 1
            by = saved_number(node, "_raw_saved_other" if side == 0 else "_raw_saved_self")
            if by is None or (kind == "Div" and (side == 1 or by == 0)):
                found.append(term)
            else:
                waiting.append(_Term(behind[side][0], factor * by if kind == "Mul" else factor / by, part))
        else:
            found.append(term)
    return found


def _alike(one: _Term, other: _Term, left: Iterator[int]) -> bool | None:
    """Whether two terms come from parameters in the same way, or are two parts of one result; None if no
    comparisons are `left` before that is known."""
    if one.node is other.node:
        return one.part and other.part
    waiting = [(one.node, other.node)]
    shared = 0
    while waiting:
        first, second = waiting.pop()
        if first is None and second is None:
            continue
        if first is None or second is None or first.name() != second.name():
            return False
        if next(left, None) is None:
            return None
        if first is second:
            shared += 1  # a parameter, or what both were computed from
            continue
        if first.name() == _LEAF or len(first.next_functions) != len(second.next_functions):
            return False
        pairs = zip(first.next_functions, second.next_functions, strict=True)
        waiting += [(a, b) for (a, _), (b, _) in pairs]
    return shared > 0
