"""Batch history: the sample indices of the last batches, and the newest batch itself.

HOT PATH, on the training thread: `indices_drawn` and `arrived`, once per batch, two lookups each. Nothing is
copied: the indices are the sampler's own lists, and the newest batch is held until the next one arrives, just
as a training loop's own variable holds it. Standard library only.
"""

from __future__ import annotations

import weakref
from collections import deque
from typing import Any, NamedTuple

from probe.job.instruments.core.object_access import attributes
from probe.job.introspection import python_frames
from probe.recording.layout import NULL_INTEGER

LAST = 64
"""Batches whose indices are remembered."""
LONGEST_INDICES = 8192
"""Indices of longer batches are not kept, to save memory."""
LARGEST_BYTES = 64 << 20
"""A larger batch is only referenced weakly, tensor by tensor."""
MOST_TENSORS = 64
"""Weak references per batch."""
_made: Any = tuple.__new__
"""Creates a named tuple without calling its Python constructor."""
_TORCHS, _SAMPLERS = "torch.utils.data.sampler", ("RandomSampler", "WeightedRandomSampler")
MOST_SEARCHED = 256
"""Indices per batch that `highest` examines."""
MOST_DRAWN = 4096
"""Batches drawn ahead and not yet returned, per iterator."""


class Batch(NamedTuple):
    """A batch from a loader. `content`: the batch itself; None if it is too large to hold."""

    step: int
    micro_step: int
    loader: str
    indices: Any
    content: Any
    tensors: tuple[weakref.ref[Any], ...]

    def alive(self) -> Any:
        """The batch if it is held, else its tensors if all are still alive; None otherwise."""
        if self.content is not None:
            return self.content
        found = [tensor for reference in self.tensors if (tensor := reference()) is not None]
        return found if found and len(found) == len(self.tensors) else None


class Batches:
    """The last batches. `last` is the newest, with its content."""

    def __init__(self) -> None:
        self.last: Batch | None = None
        self.before: deque[tuple[int, int, str, Any]] = deque(maxlen=LAST)
        """Step, micro step, loader and indices of the earlier ones."""
        self._drawn: dict[int, tuple[weakref.ref[Any], dict[int, Any]]] = {}

    def forget(self) -> None:
        """Drop everything."""
        self.last = None
        self.before.clear()
        self._drawn.clear()

    def of_step(self, step: int) -> list[Batch]:
        """The batches of a step, oldest first, without contents."""
        found = [Batch(*fields, None, ()) for fields in list(self.before)]
        return [batch for batch in (*found, self.last) if batch is not None and batch.step == step]

    def highest(self) -> dict[str, int]:
        """The highest index in each loader's last batches; on the agent's thread."""
        found: dict[str, int] = {}
        for _, _, loader, indices in list(self.before):
            some = indices[:MOST_SEARCHED] if type(indices) is list else []
            if some and all(type(one) is int for one in some):
                found[loader] = max(found.get(loader, 0), *some)
        return found

    # HOT PATH ---------------------------------------------------------------

    def indices_drawn(self, iterator: Any, indices: Any) -> None:
        """A loader's iterator drew the indices of a batch; with workers, this happens ahead of time."""
        kept = self._drawn.get(id(iterator))
        if kept is None or kept[0]() is not iterator:
            self._drawn = {key: entry for key, entry in self._drawn.items() if entry[0]() is not None}
            kept = self._drawn[id(iterator)] = (weakref.ref(iterator), {})
        drawn: dict[int, Any] = kept[1]
        if len(drawn) < MOST_DRAWN:
            ahead = getattr(iterator, "_send_idx", None)
            drawn[iterator._num_yielded if ahead is None else ahead] = indices

    def arrived(
        self,
        indices: Any,
        content: Any,
        tensors: list[Any],
        size_bytes: int,
        step: int,
        micro_step: int,
        loader: str,
    ) -> None:
        """Record a batch that arrived; `indices` from `indices_of`."""
        last = self.last
        if last is not None:
            self.before.append(last[:4])
        held = size_bytes <= LARGEST_BYTES
        weak = () if held else tuple([weakref.ref(tensor) for tensor in tensors[:MOST_TENSORS]])
        self.last = _made(Batch, (step, micro_step, loader, indices, content if held else None, weak))

    def indices_of(self, iterator: Any) -> Any:
        """Take the indices of the batch just returned; None if unknown, too many, or loaded out of order."""
        kept: Any = self._drawn.get(id(iterator))
        if kept is None or kept[0]() is not iterator:
            return None
        given = getattr(iterator, "_rcvd_idx", None)
        indices = kept[1].pop((iterator._num_yielded if given is None else given) - 1, None)
        if getattr(iterator, "_dataset_kind", None) != 0 or not getattr(iterator, "_in_order", True):
            return None
        return indices if not hasattr(indices, "__len__") or len(indices) <= LONGEST_INDICES else None


def samples_in_pass(iterator: Any) -> int:
    """Number of samples in a whole pass of a loader's iterator; NULL if unknown. Read from the frames of
    torch's samplers, which keep the data set's length (as `n`, or as the end of a range): the data set's own
    `__len__`, which is the job's code, is not called."""
    batches = getattr(iterator, "_sampler_iter", None)
    held = _variables(batches, "BatchSampler")
    samples = held.get("sampler_iter")
    if type(samples) is type(iter(range(0))):
        whole: Any = samples.__reduce__()[1]  # the remaining range
        return int(whole[0].stop)
    for name in _SAMPLERS:
        own = _variables(samples, name)
        if own:
            sampler = attributes(own.get("self"))
            counts = (sampler.get("_num_samples"), sampler.get("num_samples"), own.get("n"))
            known = [one for one in counts if type(one) is int]
            return known[0] if known else NULL_INTEGER
    return NULL_INTEGER


def _variables(generator: Any, kind: str) -> dict[str, Any]:
    """Variables of a generator that is the `__iter__` of torch's sampler class `kind`; else empty."""
    frame = getattr(generator, "gi_frame", None)
    if frame is None:
        return {}
    held = python_frames.variables(frame)
    own = type(held.get("self"))
    return held if own.__name__ == kind and own.__module__ == _TORCHS else {}


def as_list(indices: Any) -> list[Any] | None:
    """Indices as JSON values; None if unknown."""
    if indices is None:
        return None
    several = list(indices) if isinstance(indices, (list, tuple)) else [indices]
    if all(one is None for one in several):
        return None
    return [one if isinstance(one, (int, str)) else _json_index(one) for one in several]


def _json_index(index: Any) -> int | str:
    whole = getattr(index, "__index__", None)  # NumPy and torch
    return int(whole()) if whole is not None else str(index)[:100]
