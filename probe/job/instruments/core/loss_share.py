"""Loss share: the fraction of the step's loss that one backward call covers, under gradient accumulation.

HOT PATH of jobs that accumulate or scale their loss themselves, a few microseconds a backward. The share is
read from the last operations of the loss's graph: a division by a number (the accumulation steps), or a sum
over this micro batch's items divided by the number of all items. `parts_of` turns the shares of a step into
the factor for its mean loss. A loss scale that the job multiplies itself, as DeepSpeed, apex and Megatron do,
is read in the same way.
A saved tensor packed by one of the job's hooks is left alone: unpacking it would run the hook. Standard
library only.
"""

from __future__ import annotations

import math
import sys
from typing import Any

from probe.recording.layout import NULL_DOUBLE

MOST_OPERATIONS = 6
"""Divisions, multiplications and casts followed back from the loss."""
LEAST_SCALE = 256.0
"""A power of two from this on, by which a whole loss is multiplied, is taken for a loss scale (ours: they
begin at 2**10 to 2**24, and weights of a loss are neither powers of two nor as large)."""
WHOLE = 0.05
"""How far the sum of a step's shares may be from 1."""
_SUM = 2
"""torch's number of `reduction="sum"`."""


class LossShare:
    """Recognizes the operations by their graph nodes; created once torch is imported."""

    def __init__(self, torch: Any) -> None:
        with torch.enable_grad():
            one = torch.zeros((), device="cpu", dtype=torch.float32, requires_grad=True)
            self._quotient, self._product = type((one / 2).grad_fn), type((one * 2).grad_fn)
            self._cast = type(one.to(torch.float64).grad_fn)

    def scale(self, loss: Any, least: float = LEAST_SCALE) -> float:
        """The power of two, at least `least`, by which the whole loss is multiplied; 1 without one."""
        node = loss.grad_fn
        for _ in range(MOST_OPERATIONS):
            kind = type(node)
            if kind is self._product:
                if node.next_functions[1][0] is not None:
                    return 1.0
                constant = saved_number(node, "_raw_saved_other")
                if constant is not None and least <= constant < math.inf and math.frexp(constant)[0] == 0.5:
                    return constant
            elif kind is not self._cast and kind is not self._quotient:
                return 1.0
            node = node.next_functions[0][0]
        return 1.0

    def of(self, loss: Any, scale: float = 1.0) -> float:
        """The share of a loss, before its backward: 1 if nothing divided it; NULL if unknown. `scale`: its
        loss scale, which is no part of the share."""
        node, share = loss.grad_fn, 1.0 / scale
        for _ in range(MOST_OPERATIONS):
            kind = type(node)
            if kind is self._quotient or kind is self._product:
                if node.next_functions[1][0] is not None:
                    break  # the factor has a gradient too: not a constant
                constant = saved_number(node, "_raw_saved_other")
                if constant is None or not constant > 0:
                    return NULL_DOUBLE
                share = share / constant if kind is self._quotient else share * constant
            elif kind is not self._cast:
                break
            node = node.next_functions[0][0]
        if getattr(node, "_saved_reduction", None) == _SUM and hasattr(node, "_raw_saved_total_weight"):
            items = saved_number(node, "_raw_saved_total_weight")
            share = NULL_DOUBLE if items is None else share * items
        return share if 0 < share < 1.5 else NULL_DOUBLE


def saved_number(node: Any, name: str) -> float | None:
    """A node's saved tensor as a number; None unless it is a plain one of one element in host memory."""
    saved = getattr(node, name, None)
    if saved is None or getattr(saved, "unpack_hook", saved) is not None:
        return None  # packed by a hook of the job, or this torch does not expose it
    try:
        found = saved.data
    except RuntimeError:  # freed by an earlier backward
        return None
    if type(found) is not sys.modules["torch"].Tensor:  # the value of a DTensor may take a collective
        return None
    if not found.is_cpu or found.numel() != 1:
        return None
    return float(found.item())


def parts_of(share: float, count: int, known: float) -> float:
    """Factor from the mean of `count` losses to the step's loss, given the sum of their shares; 0 if it
    cannot be determined. `known`: the factor of an earlier step.

    Shares that add up to 1 are parts of one loss, which is their sum. If there are fewer than the `known`
    equal parts, as in the last step of an epoch, each is scaled back up."""
    if not share > 0:
        return 0.0
    if count > 1 and abs(share - 1) <= WHOLE:
        return float(count)
    if known > 1 and abs(share * known - count) <= 1e-6 * count:
        return known
    # Nearer to parts than to whole losses: weighted by items, and other ranks may have more items.
    if known > 1 and share / count < (1 + 1 / known) / 2:
        return float(count)
    return 0.0
