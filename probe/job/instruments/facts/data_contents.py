"""Contents of data sets: a checksum, by which two ranks hold the same samples or not, and how the bytes of
pictures are spread.

Runs on the agent's thread, and reads some elements of tensors and lists on the host; no code of the job's is
called, so that a data set that makes its samples has no checksum. torch and numpy are the job's own.
"""

from __future__ import annotations

import sys
import zlib
from collections.abc import Iterator
from typing import Any

from probe.job.instruments.core.object_access import attributes

PLACES = 16
"""Samples looked at, evenly spaced, and elements of each."""
_PICTURES, _MOST_BYTES = 32, 4096
"""Of an array of pictures."""
_DEEPEST, _LONGEST = 4, 64
_MOST_ATTRIBUTES, _MOST_ARRAYS = 64, 4
"""Of a data set of the job's own: attributes looked at, and arrays read. One array takes about 0.1 ms."""


def checksum(dataset: Any) -> int | None:
    """Checksum of some of its samples: equal data sets have equal ones in every process; None when they
    cannot be read."""
    found, seen = 0, False
    for piece in _pieces(dataset, 0):
        found, seen = zlib.crc32(piece, found), True
    return found if seen else None


def byte_shares(dataset: Any, depth: int = 0) -> tuple[float, float] | None:
    """Of the first array of bytes with three dimensions or more, such as pictures: the share of bytes that
    are 255, and of those that are 128 or more; None without one."""
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
            content = _array(value)  # lists may be caches, which each rank fills in its own way
            if content is not None and found < _MOST_ARRAYS:
                found += 1
                yield content


def _has_samples(kind: type) -> bool:
    return any("__getitem__" in vars(one) for one in kind.__mro__)


def _array(thing: Any) -> bytes | None:
    """Some elements of a tensor on the host or of an array of numbers, with its shape."""
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
