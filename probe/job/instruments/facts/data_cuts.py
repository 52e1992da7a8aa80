"""Cuts: data of which only a part is used, such as the first rows of a tensor.

A slice of a tensor is a view, and knows what it is a view of; so does a `Subset`. Runs on the agent's thread;
reads shapes only, and calls no code of the job's. torch inside functions.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

from probe.job.instruments.core.object_access import attributes
from probe.job.instruments.facts.hyperparameters import Value, named_things

MOST_CUTS = 16
LARGEST_SHARE = 0.25
"""Of a variable: a larger part is no cut that stands out."""
LEAST_ROWS = 256
"""Of what was cut: a smaller one is hardly a data set."""


class Cut(NamedTuple):
    """A part of `whole` rows (or samples); `source`: equal for parts of the same thing."""

    rows: int
    whole: int
    source: int


def of_tensor(tensor: Any) -> Cut | None:
    """How much of another tensor's rows it is a view of; None for what is no part of one."""
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
    """How much of what it was cut from a data set has. One of the job's own is judged by the first of its
    tensors that is a cut."""
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
    """Samples in a dataset of torch's own classes; None for others, whose `__len__` is the job's code."""
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
    """Small cuts among the variables and globals of the user's frames: those that were the same part at the
    look before. A batch may be a slice too, but each time another one."""

    def __init__(self) -> None:
        self._before: dict[str, tuple[int, int, int]] = {}

    def facts(self, thread: int | None) -> Iterator[tuple[str, Value]]:
        """Names and values for `probe.facts`."""
        before, self._before = self._before, {}
        for name, thing in named_things(thread):
            cut = of_tensor(thing)
            small = cut is not None and 1 < cut.rows <= LARGEST_SHARE * cut.whole
            if cut is None or not small or len(self._before) == MOST_CUTS or name in self._before:
                continue
            place = (cut.rows, cut.whole, thing.storage_offset())
            self._before[name] = place
            if before.get(name) == place:
                yield f"cut.{name}.rows", cut.rows
                yield f"cut.{name}.whole", cut.whole
