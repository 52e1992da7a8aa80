"""Known samples: recognizes inputs that the model has already been trained on, and changes of their labels.

HOT PATH on the steps on which the model's inputs are sampled (`model_inputs`), on the training thread: hashes
the bits of some samples and looks them up among the training samples. This recognizes the same sample in
another epoch, with another label, and in an evaluation. Only for tensors on the CPU: reading a hash from a
device would wait for it. Integer arithmetic: the same bits give the same hash, whatever else is in the batch.
torch inside functions.
"""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

MOST_COMPARED = 64
"""Samples hashed per batch, evenly spaced."""
MOST_ELEMENTS = 256
"""Elements hashed per sample, evenly spaced."""
LEAST_ELEMENTS = 8
"""Minimum number of elements of a sample: shorter ones are equal by chance."""
MOST_KNOWN = 8192
"""Samples remembered, about 1 MB."""
_FACTOR = 0x9E3779B97F4A7C15 - (1 << 64)
"""Odd multiplier: 2 to the power of 64, divided by the golden ratio."""


class Recognised(NamedTuple):
    """Number of samples `compared`, and of those seen `again`. Of the latter, those with a different label
    than the first time are `elsewhere` if their index in the data set differs too, so that they are other
    samples, else `relabelled`; both None without labels."""

    compared: int
    again: int
    relabelled: int | None
    elsewhere: int | None


class KnownSamples:
    """The training samples hashed so far, with their labels."""

    def __init__(self) -> None:
        self._labels: dict[int, tuple[float | None, int | None]] = {}
        """By the hash of a sample: its label and its index in the data set, as far as known."""

    def trained(self, tensor: Any, labels: Any, indices: list[int] | None = None) -> Recognised | None:
        """Compare a training batch, and remember it. `labels`: a tensor with one value per sample, or None;
        `indices`: of the samples in the data set. None if the tensor cannot be compared."""
        numbers = sample_numbers(tensor)
        if numbers is None:
            return None
        known = self._labels
        given = labels is not None and labels.is_cpu and len(labels) == len(tensor)
        names: list[Any] = _some(labels).reshape(-1).tolist() if given else [None] * len(numbers)
        names = [None if name != name else name for name in names]  # NaN: this sample has no label
        whole = indices is not None and len(indices) == len(tensor)
        places: list[Any] = _some(indices) if whole else [None] * len(numbers)
        came = list(zip(numbers, names, places, strict=True))
        before = [one for one in came if one[0] in known]
        for number, name, place in came:
            if len(known) < MOST_KNOWN:
                known.setdefault(number, (name, place))
        changed = elsewhere = 0
        for number, name, place in before:
            first, at = known[number]
            if None not in (first, name) and first != name:
                other = None not in (at, place) and at != place
                changed, elsewhere = changed + (not other), elsewhere + other
        counts = (changed, elsewhere) if given else (None, None)
        return Recognised(len(numbers), len(before), *counts)

    def evaluated(self, tensor: Any) -> Recognised | None:
        """Compare an evaluation batch with the training samples."""
        numbers = sample_numbers(tensor)
        if numbers is None:
            return None
        return Recognised(len(numbers), sum(number in self._labels for number in numbers), None, None)


def sample_numbers(tensor: Any) -> list[int] | None:
    """Hashes of some samples of a batch; None if its samples cannot be compared."""
    torch: Any = sys.modules["torch"]
    plain = type(tensor) is torch.Tensor and tensor.is_cpu and tensor.layout is torch.strided
    if not plain or tensor.dim() < 2 or len(tensor) < 2 or tensor.is_complex() or tensor.is_quantized:
        return None
    some = _some(tensor.detach())
    rows = some.reshape(len(some), -1)
    if rows.shape[1] < LEAST_ELEMENTS:
        return None
    rows = rows[:, :: -(-rows.shape[1] // MOST_ELEMENTS)]
    bits = rows.float().view(torch.int32).long() if rows.is_floating_point() else rows.long()
    places = torch.arange(1, bits.shape[1] + 1) * _FACTOR
    found: list[int] = ((bits + places) * (places ^ (bits << 17))).sum(1).tolist()
    return found


def _some(tensor: Any) -> Any:
    return tensor[:: max(1, len(tensor) // MOST_COMPARED)][:MOST_COMPARED]
