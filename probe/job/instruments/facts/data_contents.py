"""Data contents: checksums of data sets, to compare samples and their order between ranks, and byte shares
of pictures.

Runs on the agent's thread, and reads some elements of tensors and lists on the host. Calls no code of the
job, so a data set that computes its samples has no checksum. Uses the job's torch and numpy.
"""

from __future__ import annotations

import sys
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from probe.job.instruments.core.object_access import attributes

PLACES = 16
"""Number of samples read, evenly spaced, and of elements per sample."""
_PICTURES, _MOST_BYTES = 32, 4096
"""Pictures and bytes read of an array of pictures."""
_DEEPEST, _LONGEST = 4, 64
_MOST_ATTRIBUTES, _MOST_ARRAYS = 64, 4
"""For a data set of the job's own class: attributes examined, and arrays read. An array takes some 0.1 ms."""
MOST_LISTED, MOST_ROWS = 1 << 14, 1 << 17
"""Maximum list entries and tensor rows for a sum: it takes about 20 µs per list entry, and temporarily 16 MB
for this many rows."""
_AT_A_TIME = 16
"""List entries between two rests."""
_FACTOR = 0x9E3779B97F4A7C15 - (1 << 64)
"""Odd multiplier: 2 to the power of 64, divided by the golden ratio."""


def checksum(dataset: Any) -> int | None:
    """Checksum of some samples of a data set, equal for equal data sets in every process; None if they cannot
    be read."""
    found, seen = 0, False
    for piece in _pieces(dataset, 0):
        found, seen = zlib.crc32(piece, found), True
    return found if seen else None


def byte_shares(dataset: Any, depth: int = 0) -> tuple[float, float] | None:
    """For the first byte array with three dimensions or more, such as pictures: the share of bytes that are
    255, and of bytes that are 128 or more; None without one."""
    kind, held = type(dataset), attributes(dataset)
    if depth > _DEEPEST:
        return None
    wraps = kind.__module__.startswith("torch.utils.data")
    if wraps:
        inner = [held.get("dataset"), *(held.get("datasets") or ()), *(held.get("tensors") or ())]
    elif _has_samples(kind):
        inner = list(held.values())[:_MOST_ATTRIBUTES]
    else:
        return None
    for one in inner:
        found = _byte_shares(one)
        if found is None and wraps:
            found = byte_shares(one, depth + 1)
        if found is not None:
            return found
    return None


def _byte_shares(thing: Any) -> tuple[float, float] | None:
    torch: Any = sys.modules["torch"]
    numpy = sys.modules.get("numpy")
    if type(thing) is torch.Tensor:
        if thing.dtype != torch.uint8 or not thing.is_cpu or thing.layout is not torch.strided:
            return None
    elif numpy is None or type(thing) is not numpy.ndarray or thing.dtype != numpy.uint8:
        return None
    if len(thing.shape) < 3 or not all(thing.shape):
        return None
    some = thing[:: max(1, len(thing) // _PICTURES)][:_PICTURES].reshape(-1)
    values = some[:: max(1, len(some) // _MOST_BYTES)][:_MOST_BYTES].tolist()
    return sum(one == 255 for one in values) / len(values), sum(one >= 128 for one in values) / len(values)


def unordered(dataset: Any, rest: Callable[[], None]) -> int | None:
    """A sum over all samples of a data set that does not depend on their order; None if not all can be read,
    or if there are more than `MOST_LISTED` or `MOST_ROWS`. Slow: call once per data set. Calls `rest`
    regularly in between."""
    torch: Any = sys.modules["torch"]
    columns = [one for one in _columns(dataset) if 0 < len(one) <= MOST_ROWS]
    if not columns:
        return None
    (length, _), = Counter(map(len, columns)).most_common(1)
    with torch.no_grad():
        total = torch.zeros(length, dtype=torch.int64)
        for column in columns:
            if len(column) == length:
                listed = type(column) in (list, tuple)
                numbers = _listed(torch, column, rest) if listed else _rows(torch, column)
                if numbers is None:
                    return None
                total = (total ^ (total << 13)) * _FACTOR + numbers
        return int(((total ^ (total << 29)) * _FACTOR).sum())


def _columns(dataset: Any) -> list[Any]:
    """The lists, tensors and arrays with an entry per sample."""
    kind = type(dataset)
    if kind in (list, tuple):
        return [dataset]
    held = attributes(dataset)
    if kind.__module__.startswith("torch.utils.data"):
        return [*held.get("tensors", ())]
    named = [value for _, value in sorted(held.items())[:_MOST_ATTRIBUTES] if _has_samples(kind)]
    return [one for one in named if _is_listing(one) or _array(one) is not None][:_MOST_ARRAYS]


def _is_listing(thing: Any) -> bool:
    """Whether it is a list of strings, or of tuples that start with one: other lists may be caches."""
    some = [thing[place] for place in _places(len(thing))] if type(thing) is list else []
    return bool(some) and all(type(one[0] if type(one) is tuple and one else one) is str for one in some)


def _listed(torch: Any, entries: Any, rest: Callable[[], None]) -> Any:
    """A checksum for each entry of a list; None if one cannot be read."""
    if len(entries) > MOST_LISTED:
        return None
    numbers = []
    for number, entry in enumerate(entries):
        if number % _AT_A_TIME == 0:
            rest()
        found, seen = 0, False
        for piece in _pieces(entry, 1):
            found, seen = zlib.crc32(piece, found), True
        if not seen:
            return None
        numbers.append(found)
    return torch.tensor(numbers, dtype=torch.int64)


def _rows(torch: Any, thing: Any) -> Any:
    """A hash for each row of a tensor or array, from some of its elements; None if it cannot be read without
    a copy."""
    rows = thing if type(thing) is torch.Tensor else torch.from_numpy(thing)
    if not rows.is_contiguous() or rows.is_complex():
        return None
    rows = rows.detach().view(len(rows), -1)
    rows = rows[:, :: max(1, rows.shape[1] // PLACES)][:, :PLACES]
    bits = rows.float().view(torch.int32).long() if rows.is_floating_point() else rows.long()
    places = torch.arange(1, bits.shape[1] + 1) * _FACTOR
    return ((bits + places) * (places ^ (bits << 17))).sum(1)


def _pieces(thing: Any, depth: int) -> Iterator[bytes]:
    kind = type(thing)
    if depth > _DEEPEST:
        return
    array = _array(thing)
    if array is not None:
        yield array
    elif kind in (int, float, bool, str, bytes):
        yield repr(thing[:_LONGEST] if kind in (str, bytes) else thing).encode("utf-8", "replace")
    elif kind in (list, tuple, range):
        yield str(len(thing)).encode()
        for place in _places(len(thing)):
            yield from _pieces(thing[place], depth + 1)
    elif kind.__module__.startswith("torch.utils.data"):
        held = attributes(thing)
        for name in ("tensors", "indices", "dataset", "datasets"):
            if name in held:
                yield from _pieces(held[name], depth + 1)
    elif kind is dict:
        for key in list(thing)[:PLACES]:
            yield from _pieces(thing.get(key), depth + 1)
    elif depth <= 1 and not issubclass(kind, dict) and _has_samples(kind):
        found = 0
        for _, value in sorted(attributes(thing).items())[:_MOST_ATTRIBUTES]:
            content = _array(value)
            if found < _MOST_ARRAYS and (content is not None or _is_listing(value)):
                found += 1
                yield from _pieces(value, depth + 1) if content is None else [content]


def _has_samples(kind: type) -> bool:
    return any("__getitem__" in vars(one) for one in kind.__mro__)


def _array(thing: Any) -> bytes | None:
    """Shape and some elements of a host tensor or numeric array, as bytes; None for anything else."""
    torch: Any = sys.modules["torch"]
    numpy = sys.modules.get("numpy")
    if type(thing) is torch.Tensor:
        if not thing.is_cpu or thing.layout is not torch.strided or thing.is_quantized:
            return None
        with torch.no_grad():
            rows = [_some(thing[place]) for place in _places(len(thing))] if thing.dim() else [[thing.item()]]
    elif numpy is not None and type(thing) is numpy.ndarray and thing.dtype.kind in "biuf":
        rows = [_some(thing[place]) for place in _places(len(thing))] if thing.ndim else [[thing.item()]]
    else:
        return None
    return repr((tuple(thing.shape), rows)).encode()


def _some(row: Any) -> list[Any]:
    """Some elements of a sample, without copying the rest."""
    while len(row.shape) > 1 and row.shape[0]:
        row = row[row.shape[0] // 2]
    if not row.shape:
        return [row.item()]
    found: list[Any] = row[:: max(1, row.shape[0] // PLACES)][:PLACES].tolist()
    return found


def _places(length: int) -> list[int]:
    count = min(length, PLACES)
    return [number * length // count for number in range(count)]
