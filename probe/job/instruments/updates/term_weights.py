"""Term weights: reads the constant factors of the terms that a loss adds up, such as the weight of a VAE's
divergence. A job that changes them changes what its loss means.

HOT PATH on sampled steps: `term_weights`, on the training thread right before backward, reads at most
`MOST_NODES` nodes behind the loss. A factor that is on a device, or packed by one of the job's hooks, is left
alone. Standard library only.
"""

from __future__ import annotations

import math
from typing import Any

from probe.job.instruments.core.loss_share import saved_number
from probe.job.instruments.updates.graph_shape import operation
from probe.recording.layout import NULL_DOUBLE

MOST_NODES = 48
LEAST = 1e-9
"""What a factor of 0 counts as: a term that is off, and may be turned on."""
_SUMS = frozenset({"Add", "Sub"})
_PASSES = frozenset({"Neg", "ToCopy", "Squeeze", "View", "Alias", "Mean", "Sum"})


def term_weights(loss: Any) -> float:
    """Product of the absolute constant factors of a loss's terms, each divided by the constant factor of the
    whole loss; NULL for a loss of one term, of too many, or with a factor that is no finite number."""
    waiting = [(getattr(loss, "grad_fn", None), 1.0)]
    found: list[float] = []
    whole, seen = None, 0
    while waiting:
        node, weight = waiting.pop()
        seen += 1
        if seen > MOST_NODES:
            return NULL_DOUBLE
        if node is None:  # a term that needs no gradient
            continue
        kind, behind = operation(node), node.next_functions
        if kind in _SUMS and len(behind) == 2:
            whole = weight if whole is None else whole
            alpha = getattr(node, "_saved_alpha", 1)
            second = weight * float(alpha) if isinstance(alpha, (int, float)) else math.nan
            waiting += [(behind[0][0], weight), (behind[1][0], second)]
        elif kind in _PASSES and behind:
            waiting.append((behind[0][0], weight))
        elif kind in ("Mul", "Div") and len(behind) == 2 and None in (behind[0][0], behind[1][0]):
            side = 0 if behind[0][0] is not None else 1
            factor = saved_number(node, "_raw_saved_other" if side == 0 else "_raw_saved_self")
            if factor is None or (kind == "Div" and (side == 1 or factor == 0)):
                found.append(weight)  # by a tensor, as weights of the samples: where the term ends
            else:
                waiting.append((behind[side][0], weight * factor if kind == "Mul" else weight / factor))
        else:
            found.append(weight)
    if not whole or not math.isfinite(whole):
        return NULL_DOUBLE
    product = math.prod(max(abs(one / whole), LEAST) for one in found)
    return product if math.isfinite(product) else NULL_DOUBLE
