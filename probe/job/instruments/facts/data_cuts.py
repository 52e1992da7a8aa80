"""Data cuts: detects data of which only a part is used, such as the first rows of a tensor.

A slice of a tensor is a view and refers to its base; so does a `Subset`. Runs on the agent's thread; reads
shapes only, and calls no code of the job. torch inside functions.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

from probe.job.instruments.core.object_access import attributes
from probe.job.instruments.facts.hyperparameters import Value, named_things

MOST_CUTS = 16
LARGEST_SHARE = 0.25
"""Largest part in a variable that is reported: a larger one is not remarkable."""
LEAST_ROWS = 256
"""Minimum rows of the whole: a smaller tensor is hardly a data set."""


class Cut(NamedTuple):
    """A part of `whole` rows (or samples); `source`: equal for parts of the same object."""

    rows: int
    whole: int
    source: int


def of_tensor(tensor: Any) -> Cut | None:
    """The part of another tensor's rows that a tensor is a view of; None if it is no such part."""
    torch: Any = sys.modules["torch"]
    if type(tensor) is not torch.Tensor or not tensor.dim() or not tensor.numel():
        return None
    base = tensor._base
    if type(base) is not torch.Tensor or not base.dim() or base.requires_grad:
        return None
    rows, whole = int(tensor.shape[0]), int(base.shape[0])
    same_rows = tensor.numel() // rows == base.numel() // whole and tensor.numel() % rows == 0
    if not same_rows or rows >= whole or whole < LEAST_ROWS:
        return None
    return Cut(rows, whole, id(base))


def of_dataset(dataset: Any) -> Cut | None:
    """The part that a data set is of a larger one. For one of the job's own classes, the first of its tensors
    that is a cut counts."""
    held = attributes(dataset)
    kind = type(dataset)
    if kind.__module__.startswith("torch.utils.data"):
        if kind.__name__ == "TensorDataset" and held.get("tensors"):
            return of_tensor(held["tensors"][0])
        rows, whole = dataset_length(dataset), dataset_length(held.get("dataset"))
        if rows is not None and whole is not None and rows < whole:
            return Cut(rows, whole, id(held["dataset"]))
        return None
    return next((cut for value in held.values() if (cut := of_tensor(value)) is not None), None)


def dataset_length(dataset: Any, depth: int = 0) -> int | None:
    """Number of samples in a data set of torch's classes; None for others: `__len__` is the job's code."""
    found = attributes(dataset)
    kind = type(dataset)
    if kind in (list, tuple, range):
        return len(dataset)
    if not kind.__module__.startswith("torch.utils.data") or depth > 4:
        return None
    if kind.__name__ == "TensorDataset" and found.get("tensors"):
        return int(found["tensors"][0].shape[0])
    if kind.__name__ == "Subset" and type(found.get("indices")) in (list, tuple, range):
        return len(found["indices"])
    if kind.__name__ == "ConcatDataset" and found.get("cumulative_sizes"):
        return int(found["cumulative_sizes"][-1])
    return None


class Variables:
    """Finds small cuts among the variables and globals of the user's frames. Reports only cuts that were the
    same part in the previous round: a batch may be a slice too, but a different one each time. A cut beside a
    larger one of the same tensor is a held-out part, and is not reported."""

    def __init__(self) -> None:
        self._before: dict[str, tuple[int, int, int, int]] = {}

    def facts(self, thread: int | None) -> Iterator[tuple[str, Value]]:
        """Names and values for `probe.facts`."""
        before, self._before = self._before, {}
        largest: dict[int, int] = {}
        for name, thing in named_things(thread):
            cut = of_tensor(thing)
            if cut is None or cut.rows <= 1 or len(self._before) == MOST_CUTS or name in self._before:
                continue
            largest[cut.source] = max(largest.get(cut.source, 0), cut.rows)
            self._before[name] = (cut.rows, cut.whole, thing.storage_offset(), cut.source)
        for name, (rows, whole, offset, source) in self._before.items():
            small = rows <= LARGEST_SHARE * whole and rows == largest[source]
            if small and before.get(name) == (rows, whole, offset, source):
                yield f"cut.{name}.rows", rows
                yield f"cut.{name}.whole", whole
