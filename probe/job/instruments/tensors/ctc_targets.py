"""CTC targets: detects the blank among the targets of a CTC loss, and sequences too short for their targets.

HOT PATH on the steps that `loss_functions` samples, on the training thread. Reads a part of the targets and
the lengths that the loss function saved, if they are on the host. torch is passed in.
"""

from __future__ import annotations

from typing import Any

from probe.job.instruments.tensors.loss_figures import kept

FIGURES = 2
MOST_SEQUENCES, MOST_TARGETS = 64, 256
"""Sequences of a batch, and targets of each, that are looked at."""


def figures(torch: Any, node: Any) -> Any:
    """Share of the targets that are the blank, and of the sequences with fewer steps than targets: CTC has no
    path for them, and its loss is infinite, or 0 with `zero_infinity`. None for other losses, and for targets
    on a device or lengths that are tensors."""
    blank = getattr(node, "_saved_blank", None)
    steps, lengths = (getattr(node, f"_saved_{name}_lengths", None) for name in ("input", "target"))
    if blank is None or type(steps) is not tuple or type(lengths) is not tuple or not lengths:
        return None
    targets = kept(node, "targets")
    if targets is None or not targets.is_cpu or targets.layout is not torch.strided:
        return None
    if targets.dim() == 2:
        rows = zip(targets[:MOST_SEQUENCES], lengths, strict=False)
        counted = [row[: min(n, MOST_TARGETS)] for row, n in rows]
    else:  # one after the other
        counted = [targets[: min(sum(lengths[:MOST_SEQUENCES]), MOST_SEQUENCES * MOST_TARGETS)]]
    flat = torch.cat(counted)
    share = (flat == blank).double().mean() if flat.numel() else torch.tensor(float("nan"))
    short = sum(n < most for n, most in zip(steps, lengths, strict=False)) / len(lengths)
    return torch.stack([share.double(), torch.tensor(short, dtype=torch.float64)])
