"""Known samples: which inputs of a model have come before, and with which label.

HOT PATH on the steps on which the model's inputs are looked at (`model_inputs`), on the training thread: a
number for each of some samples, made of their bits, is looked up among those that the model was trained on.
So the same sample is known again in another epoch, with another label, and in an evaluation. Only tensors on
the CPU: a number from a device would have to be waited for. Integer arithmetic: the same bits give the same
number, whatever else is in the batch. torch inside functions.
"""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

MOST_COMPARED = 64
"""Samples of a batch, evenly spaced."""
MOST_ELEMENTS = 256
"""Of a sample, evenly spaced."""
LEAST_ELEMENTS = 8
"""Of a sample: shorter ones are equal by chance."""
MOST_KNOWN = 8192
"""Samples remembered, about 1 MB."""
_FACTOR = 0x9E3779B97F4A7C15 - (1 << 64)
"""An odd number: 2 to the power of 64, divided by the golden ratio."""


class Recognised(NamedTuple):
    """Samples `compared`; how many of them the model was `again` given; of those, `relabelled` with another
    label than the first time, and `elsewhere` with another label and another index in the data set, so that
    they are other samples; None without labels."""

    compared: int
    again: int
    relabelled: int | None
    elsewhere: int | None


class KnownSamples:
    """The samples that the model was trained on, as far as they were looked at, with their labels."""

    def __init__(self) -> None:
        self._labels: dict[int, tuple[float | None, int | None]] = {}
        """By the number of a sample: its label and its index in the data set, as far as known."""

    def trained(self, tensor: Any, labels: Any, indices: list[int] | None = None) -> Recognised | None:
        """Compare a batch of the training, and remember it. `labels`: a tensor with one value per sample, or
        None; `indices` of the samples in the data set. None when the tensor cannot be compared."""
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
        """Compare a batch of an evaluation with those of the training."""
        numbers = sample_numbers(tensor)
        if numbers is None:
            return None
        return Recognised(len(numbers), sum(number in self._labels for number in numbers), None, None)


def sample_numbers(tensor: Any) -> list[int] | None:
    """A number for each of some samples of a batch; None without samples that can be compared."""
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
