"""Loss figures: statistics of a loss's targets, class weights, outputs and error.

HOT PATH on the steps that `loss_functions` samples, on the training thread: computed from a part of the
tensors that a node of the autograd graph saved, and only from those without hooks of the job. Nothing waits
for a device: the figures are tensors. Imports nothing; torch is passed in.
"""

from __future__ import annotations

from typing import Any

MOST_ELEMENTS = 4096
"""Elements of targets and outputs that the figures cover."""
SAMPLES = 32
"""Samples of the batch used for the spread of the outputs."""
MOST_CLASSES = 1 << 17
FIGURES = 15
WRITTEN_OUT = ("Pow", "Abs")
"""Operations that, applied to a difference, are a regression loss written out."""
_REGRESSIONS = frozenset({"MseLoss", "SmoothL1Loss", "HuberLoss", "L1Loss"})


def signed(value: int) -> int:
    """A node's integer with its sign: torch shows negative ones as unsigned."""
    return value - (1 << 64) if value >= 1 << 63 else value


def operation(node: Any) -> str:
    """Name of a node's operation: `NllLoss` for `NllLossBackward0`."""
    name: str = node.name()
    head = name.partition("Backward")[0]
    return head or name


def kept(node: Any, name: str) -> Any:
    """A tensor that a node saved; None without it, or if a hook of the job would have to unpack it."""
    raw = getattr(node, f"_raw_saved_{name}", None)
    if raw is None or getattr(raw, "unpack_hook", raw) is not None:
        return None  # older versions of torch do not expose `unpack_hook`
    try:
        return raw.data
    except RuntimeError:  # freed, or changed in place: backward will report it
        return None


def figures(torch: Any, node: Any, target: Any, classes: int) -> Any:
    """ignored_ratio, top_ratio, entropy, mean, std of the target, smallest share of a class in the loss, its
    share of the targets, ratio of the class weights, spread of the outputs over the samples, smallest and
    largest target, shares of the targets that equal these two, classes that occur, and size of the error.
    float64 on their device, NaN for missing figures; None without a target and an error."""
    error = _error(torch, node, target)
    if target is None or not target.numel() or target.layout is not torch.strided:
        if error is None:
            return None
        return torch.cat([torch.full_like(error, float("nan")).repeat(FIGURES - 1), error])
    device = target.device
    none = torch.full((), float("nan"), dtype=torch.float64, device=device)
    flat = part(target)
    ignored = top = entropy = least = plain = ratio = occur = none
    exact = flat.double()
    counted = torch.ones_like(exact)
    if not flat.is_floating_point() and 0 < classes <= MOST_CLASSES:
        index = getattr(node, "_saved_ignore_index", None)
        if index is not None:
            counted = (flat != signed(index)).double()
        ignored = 1.0 - counted.mean()
        counts = torch.zeros(classes, dtype=torch.float64, device=device)
        counts.scatter_add_(0, flat.clamp(0, classes - 1).long(), counted)
        shares = counts / counts.sum()
        top, occur = shares.max(), (counts > 0).sum().double()
        entropy = -torch.special.xlogy(shares, shares).sum()
        weight = kept(node, "weight")
        if weight is not None and weight.numel() == classes and weight.device == device:
            weighted = weight.double() * shares
            weighted = torch.where(shares > 0, weighted / weighted.sum(), torch.inf)
            place = weighted.argmin()
            least, plain = weighted[place], shares[place]
            ratio = weight.double().min() / weight.double().max()
    total = counted.sum()
    mean = (exact * counted).sum() / total
    std = (((exact - mean) ** 2 * counted).sum() / total).sqrt()
    some = counted > 0
    low = torch.where(some, exact, torch.inf).min()
    high = torch.where(some, exact, -torch.inf).max()
    spread = _spread(torch, node, none)
    at_ends = [((exact == end) & some).sum().double() / total for end in (low, high)]
    found = [ignored, top, entropy, mean, std, least, plain, ratio, spread, low, high, *at_ends, occur]
    same = error is not None and error.device == device
    return torch.cat([torch.stack(found), error if same else none.reshape(1)])


def _error(torch: Any, node: Any, target: Any) -> Any:
    """Root mean square of prediction - target in a regression, as a vector of one; None for other losses."""
    name, output = operation(node), kept(node, "self")
    if output is None or output.layout is not torch.strided or not output.numel():
        return None
    if name in WRITTEN_OUT:  # they saved the difference itself
        difference = part(output).double()
    elif name in _REGRESSIONS and target is not None and target.shape == output.shape:
        if output.is_contiguous() is not target.is_contiguous() or output.device != target.device:
            return None
        difference = part(output).double() - part(target).double()
    else:
        return None
    return (difference * difference).mean().sqrt().reshape(1)


def _spread(torch: Any, node: Any, none: Any) -> Any:
    """Standard deviation of the outputs over the samples, as a share of their size."""
    output = kept(node, "self")
    if output is None or output.dim() < 1 or len(output) < 2 or output.device != none.device:
        return none
    some = output[:: max(1, len(output) // SAMPLES)][:SAMPLES]
    for dimension in range(2, some.dim()):
        some = some.narrow(dimension, 0, min(some.shape[dimension], 8))
    some = some.reshape(len(some), -1)[:, : MOST_ELEMENTS // SAMPLES].double()
    size = (some * some).mean().sqrt()
    return some.std(dim=0, correction=0).mean() / torch.where(size > 0, size, 1.0)


def part(tensor: Any) -> Any:
    """At most `MOST_ELEMENTS` elements, evenly spaced, without copying the rest."""
    flat = tensor if tensor.is_contiguous() else tensor[:: max(1, tensor.numel() // MOST_ELEMENTS)]
    flat = flat.reshape(-1)
    return flat[:: -(-flat.numel() // MOST_ELEMENTS) or 1]
