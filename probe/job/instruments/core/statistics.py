"""Tensor statistics: pure functions, exact to float64, without collectives or waits.

HOT PATH on sampled and requested steps, on the training thread. Functions compute on the device of the
values and read nothing back: they return a vector that the caller reads at once (CPU) or delivers later (a
device, `delivery`). Sums are in float64, one chunk at a time: half precision does not overflow, and neither
does the square of 1e30. No random numbers, no in-place operation on an argument, no graph. torch inside
functions.

For a sharded tensor (DTensor), the local part is used. NaNs and infinities follow IEEE arithmetic in norm,
mean, deviation and extremes, as in numpy; `distribution` covers the finite values only.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

from probe.base.accelerator import measurable

CHUNK_ELEMENTS = 1 << 18
"""Elements converted to float64 at a time on a CPU: 2 MB, which stay in the cache."""
DEVICE_CHUNK_ELEMENTS = 1 << 23
"""The same on a device, 64 MB."""
FUSED_ELEMENTS = 1 << 13
"""Longest piece for torch's own norm on a CPU: its float32 sums are off by 5e-6 there, 6e-5 at 3 million."""
EXACT_ELEMENTS = 1 << 15
"""Largest number of values of which percentiles and counts cover all. Of more values, every k-th is used,
with the smallest k that keeps the sample within this size."""
BINS = 32
PERCENTILES = (1.0, 5.0, 25.0, 50.0, 75.0, 95.0, 99.0)
MOMENTS = 9
"""Length of the vector of `moments`."""
DISTRIBUTION = 5 + len(PERCENTILES) + BINS
"""Length of the vector of `distribution`."""


class Values(NamedTuple):
    """The local values of a tensor."""

    flat: Any
    """One-dimensional, any real dtype; for a sparse tensor, the stored values."""
    numel: int
    """Elements, including the zeros that a sparse tensor does not store."""
    sharded: bool
    """Whether this is only this rank's part."""


class Figures(NamedTuple):
    """Statistics read from the vector of `moments`. For an empty tensor: NaN, except the counts and norm."""

    numel: int
    norm: float
    """L2 norm."""
    mean: float
    std: float
    """Population standard deviation."""
    min: float
    max: float
    abs_max: float
    zero_ratio: float
    nan_count: int
    inf_count: int


class Distribution(NamedTuple):
    """Distribution of the finite values, read from the vector of `distribution`."""

    numel: int
    """Number of finite values, among all values or in the sample."""
    min: float
    percentiles: tuple[float, ...]
    """At `PERCENTILES`, linear between neighbours."""
    max: float
    skewness: float | None
    """Third standardized moment; None when all values are equal."""
    kurtosis: float | None
    """Fourth standardized moment, 3 for a normal distribution; None when all values are equal."""
    counts: list[int]
    """Per bin, in `BINS` bins of equal width; each includes its left edge, the last one both."""
    edges: list[float]


def values_of(tensor: Any) -> Values | None:
    """The values of a tensor of any class; None if it has no real local values (complex, quantized, meta,
    ragged, compressed, or not a tensor). Call it with gradients off."""
    torch: Any = sys.modules["torch"]
    if is_common(tensor, common_kinds()):
        sharded = bool(tensor.__dict__) and is_sharded(tensor)
        return Values(tensor.detach().reshape(-1), tensor.numel(), sharded)
    if not isinstance(tensor, torch.Tensor):
        return None
    sharded = is_sharded(tensor)
    local = getattr(tensor, "_local_tensor", None)
    return _values_of_odd(tensor if local is None else local, sharded)


def common_kinds() -> tuple[tuple[type, ...], tuple[Any, ...], Any]:
    """Classes, dtypes and layout of usual tensors, for `is_common`."""
    torch: Any = sys.modules["torch"]
    dtypes = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
    return (torch.Tensor, torch.nn.Parameter), dtypes, torch.strided


def is_common(tensor: Any, kinds: tuple[tuple[type, ...], tuple[Any, ...], Any]) -> bool:
    """Whether a tensor is of the usual kind: dense, real, one of torch's own classes, on a device where it
    can be measured."""
    classes, dtypes, strided = kinds
    if type(tensor) not in classes or tensor.dtype not in dtypes or tensor.layout is not strided:
        return False
    return (tensor.is_cpu or measurable(tensor)) and not tensor.is_nested


def _values_of_odd(tensor: Any, sharded: bool) -> Values | None:
    """`values_of` for sparse tensors and rare dtypes."""
    torch: Any = sys.modules["torch"]
    if type(tensor).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
        return None  # a class with its own arithmetic
    if not measurable(tensor):
        return None
    tensor = tensor.detach()
    if tensor.is_complex() or tensor.is_quantized or tensor.is_meta or tensor.is_nested:
        return None
    if tensor.is_floating_point() and tensor.element_size() == 1:
        tensor = tensor.to(torch.bfloat16)  # holds every value of an 8-bit float, and supports arithmetic
    numel = tensor.numel()
    if tensor.layout is torch.sparse_coo:
        tensor = tensor.coalesce().values()
    elif tensor.layout is not torch.strided:
        return None
    return Values(tensor.reshape(-1), numel, sharded)


def is_sharded(tensor: Any) -> bool:
    """Whether a tensor is one rank's part of a larger one: a DTensor that is not replicated, or a flat
    parameter of FSDP."""
    placements = getattr(tensor, "placements", None)
    if placements is not None:
        sizes = tensor.device_mesh.shape
        return any(size > 1 and not one.is_replicate() for one, size in zip(placements, sizes, strict=True))
    return bool(getattr(tensor, "_fsdp_flattened", False) or getattr(tensor, "_is_flat_param", False))


def moments(flat: Any) -> Any:
    """Scale, sum, sum of squares, smallest, largest, non-zeros, NaNs, infinities and count, for `figures`.
    A list on a CPU, a float64 vector on a device; NaNs when empty."""
    torch: Any = sys.modules["torch"]
    if flat.dtype is torch.bool:
        flat = flat.byte()
    return _moments_here(flat) if flat.is_cpu else moments_there(flat)


def moments_there(flat: Any) -> Any:
    """`moments` on a device."""
    torch: Any = sys.modules["torch"]
    if not flat.numel():
        return torch.full((MOMENTS,), math.nan, dtype=torch.float64, device=flat.device)
    least, most = (one.double() for one in torch.aminmax(flat))
    scale = torch.ones_like(most)
    if flat.dtype is torch.float64:  # squares of the other dtypes fit
        widest = torch.maximum(most, -least)
        scale = torch.where(torch.isfinite(widest) & (widest > 0), widest, scale)
    zero = torch.zeros_like(most)
    total, squares, nonzero, nans, infinities = zero, zero, zero, zero, zero
    for piece in _pieces(flat):
        own = piece.double() / scale
        total, squares = total + own.sum(), squares + torch.dot(own, own)
        nonzero = nonzero + torch.count_nonzero(piece)
        nans = nans + torch.count_nonzero(torch.isnan(piece))
        infinities = infinities + torch.count_nonzero(torch.isinf(piece))
    count = torch.full_like(most, flat.numel())
    return torch.stack([scale, total, squares, least, most, nonzero, nans, infinities, count])


def _moments_here(flat: Any) -> list[float]:
    """`moments` on a CPU. Counts NaNs and infinities only if the sum of squares is not finite."""
    torch: Any = sys.modules["torch"]
    if not flat.numel():
        return [math.nan] * MOMENTS
    least, most = (float(one) for one in torch.aminmax(flat))
    scale = 1.0
    if flat.dtype is torch.float64 and 0.0 < max(most, -least) < math.inf:
        scale = max(most, -least)
    total = squares = 0.0
    nonzero = 0
    for piece in _pieces(flat):
        own = piece.double() if scale == 1.0 else piece / scale
        total += float(own.sum())
        squares += float(torch.dot(own, own))
        nonzero += int(torch.count_nonzero(piece))
    nans = infinities = 0
    if not math.isfinite(squares):
        nans = sum(int(torch.count_nonzero(torch.isnan(piece))) for piece in _pieces(flat))
        infinities = sum(int(torch.count_nonzero(torch.isinf(piece))) for piece in _pieces(flat))
    return [scale, total, squares, least, most, nonzero, nans, infinities, flat.numel()]


def figures(row: Sequence[float], numel: int) -> Figures:
    """Read the vector of `moments` of a tensor of `numel` elements; elements that are not stored are 0."""
    scale, total, squares, least, most, nonzero, nans, infinities, stored = row
    if not numel:
        none = math.nan
        return Figures(0, 0.0, none, none, none, none, none, none, 0, 0)
    if stored != stored:  # an empty sparse tensor
        return Figures(numel, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0, 0)
    if stored < numel:
        least, most = min(least, 0.0), max(most, 0.0)
    mean = total / numel
    deviation = squares / numel - mean * mean if math.isfinite(total) else math.nan
    if nans:
        least = most = math.nan
    # NaN stays NaN; a deviation that rounding made negative is 0.
    std = math.sqrt(deviation) if deviation > 0 else deviation * 0.0
    return Figures(
        numel, math.sqrt(squares) * scale, mean * scale, abs(std) * scale, least, most, max(most, -least),
        (numel - nonzero) / numel, int(nans), int(infinities),
    )


def measure(tensor: Any) -> Figures | None:
    """Statistics of a tensor, read at once: waits for a device. None if `values_of` is None."""
    torch: Any = sys.modules["torch"]
    with torch.no_grad():
        values = values_of(tensor)
        if values is None:
            return None
        found = moments(values.flat)
        return figures(found if values.flat.is_cpu else found.tolist(), values.numel)


def norm(flat: Any) -> Any:
    """L2 norm of values: one float64 on their device, 0 if there are none."""
    torch: Any = sys.modules["torch"]
    if flat.dtype is torch.float64:
        return torch.linalg.vector_norm(flat) if flat.numel() else flat.sum()
    total = None
    for piece in _pieces(flat):
        own = piece.double()
        squares = torch.dot(own, own)
        total = squares if total is None else total + squares
    return total.sqrt() if total is not None else torch.zeros((), dtype=torch.float64, device=flat.device)


def difference_norm(before: Any, after: Any) -> Any:
    """L2 norm of the difference of two sets of values: one float64 on their device."""
    torch: Any = sys.modules["torch"]
    total = None
    for old, new in zip(_pieces(before), _pieces(after), strict=True):
        change = new.double() - old.double()
        squares = torch.dot(change, change)
        total = squares if total is None else total + squares
    return torch.zeros((), dtype=torch.float64, device=after.device) if total is None else total.sqrt()


def distribution(flat: Any) -> Any:
    """Count, smallest, largest, third and fourth standardized moment, percentiles and bin counts of the
    finite values: float64 on their device, for `described`."""
    torch: Any = sys.modules["torch"]
    stride = -(-flat.numel() // EXACT_ELEMENTS) or 1
    sample = flat[::stride].double()
    if not sample.numel():
        return torch.zeros(DISTRIBUTION, dtype=torch.float64, device=flat.device)
    finite = torch.isfinite(sample)
    ordered = torch.sort(torch.where(finite, sample, math.inf)).values
    count = torch.count_nonzero(finite)
    last = (count - 1).clamp(min=0)
    places = torch.tensor(PERCENTILES, dtype=torch.float64, device=flat.device) / 100 * last
    below = places.floor().long()
    lower, upper = ordered[below], ordered[torch.minimum(below + 1, last)]
    percentiles = lower + (upper - lower) * (places - below)
    least, most = ordered[:1], torch.gather(ordered, 0, last.reshape(1))
    third, fourth = _standardized(sample, finite, count)
    edges = _edges(least, most)
    below_edge = torch.searchsorted(ordered, edges[:-1].contiguous())
    counts = torch.diff(torch.cat([below_edge, count.reshape(1)]))
    single = torch.stack([count.double(), least[0], most[0], third, fourth])
    return torch.cat([single, percentiles, counts.double()])


def _standardized(sample: Any, finite: Any, count: Any) -> tuple[Any, Any]:
    """Third and fourth standardized moment of the finite values; NaN if all are equal."""
    torch: Any = sys.modules["torch"]
    kept = torch.where(finite, sample, 0.0)
    widest = kept.abs().max()
    kept = kept / torch.where(widest > 0, widest, 1.0)
    offset = torch.where(finite, kept - kept.sum() / count, 0.0)
    spread = (torch.dot(offset, offset) / count).sqrt()
    # Rounding of the mean leaves a tiny spread of equal values.
    spread = torch.where(spread > 1e-14, spread, math.nan)
    offset = offset / spread
    square = offset * offset
    return torch.dot(square, offset) / count, torch.dot(square, square) / count


def _edges(least: Any, most: Any) -> Any:
    """Edges of the bins between two values; around them if they are equal."""
    torch: Any = sys.modules["torch"]
    widen = torch.where(least == most, torch.clamp(least.abs() * 1e-6, min=0.5), 0.0)
    low, high = least - widen, most + widen
    steps = torch.arange(BINS + 1, dtype=torch.float64, device=least.device) / BINS
    return low * (1 - steps) + high * steps


def described(row: Sequence[float]) -> Distribution | None:
    """Read a vector of `distribution`; None if no value was finite."""
    count, least, most, third, fourth = row[:5]
    if not count:
        return None
    percentiles = tuple(row[5 : 5 + len(PERCENTILES)])
    widen = max(abs(least) * 1e-6, 0.5) if least == most else 0.0
    low, high = least - widen, most + widen
    edges = [low * (1 - step / BINS) + high * (step / BINS) for step in range(BINS + 1)]
    return Distribution(
        int(count), least, percentiles, most, None if third != third else third,
        None if fourth != fourth else fourth, [int(one) for one in row[5 + len(PERCENTILES) :]], edges,
    )


def dead_ratio(tensor: Any, unit_dimension: int) -> Any:
    """Share of the indices along one dimension at which all elements are 0: one float64 on its device."""
    torch: Any = sys.modules["torch"]
    others = [one for one in range(tensor.dim()) if one != unit_dimension % tensor.dim()]
    used = (tensor != 0).sum(dim=others) if others else tensor != 0
    return 1.0 - torch.count_nonzero(used).double() / max(used.numel(), 1)


def saturated_ratio(flat: Any, low: float, high: float, margin_ratio: float = 0.01) -> Any:
    """Share of values at either end of the range `low` to `high`, within `margin_ratio` of its width: one
    float64."""
    torch: Any = sys.modules["torch"]
    margin = margin_ratio * (high - low)
    count = torch.count_nonzero(flat <= low + margin) + torch.count_nonzero(flat >= high - margin)
    return count.double() / max(flat.numel(), 1)


def total_norm(gradients: Sequence[Any]) -> Any:
    """L2 norm of all values together: a number on a CPU, one float64 on a device; None without values. The
    tensors are dense, of any real dtypes, shapes and devices.

    Uses torch's fused float32 norm, on a CPU in pieces short enough for 1e-5 accuracy. Overflow and underflow
    of squares are corrected on a CPU, not on a device."""
    torch: Any = sys.modules["torch"]
    fused: dict[Any, list[Any]] = {}
    norms: dict[Any, list[Any]] = {}
    for flat in gradients:
        size = flat.numel()
        if not size:
            continue
        if flat.dtype in (torch.float32, torch.float64):
            alike = fused.setdefault((flat.device, flat.dtype), [])
            long = size > FUSED_ELEMENTS and flat.is_cpu
            alike.extend(flat.reshape(-1).split(FUSED_ELEMENTS) if long else (flat,))
        else:
            here = flat.is_cpu
            own = norm(flat.reshape(-1)) if here else torch.linalg.vector_norm(flat, dtype=torch.float32)
            norms.setdefault(flat.device, []).append(own.double())
    totals = [torch.stack(found) for found in norms.values()]
    totals += [torch.stack(torch._foreach_norm(ones)) for ones in fused.values()]
    if not totals:
        return None
    if all(one.is_cpu for one in totals):
        total = math.hypot(*[value for one in totals for value in one.tolist()])
        if 1e-15 < total < 1e15:
            return total
        return math.hypot(*[float(norm(flat.reshape(-1))) for flat in gradients])
    first = next(one.device for one in totals if not one.is_cpu)
    return torch.linalg.vector_norm(torch.cat([one.to(first, torch.float64) for one in totals]))


def _pieces(flat: Any) -> Sequence[Any]:
    size = CHUNK_ELEMENTS if flat.is_cpu else DEVICE_CHUNK_ELEMENTS
    if flat.numel() <= size:
        return (flat,) if flat.numel() else ()
    pieces: Sequence[Any] = flat.split(size)
    return pieces
