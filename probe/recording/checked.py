"""Checked: JSON that is read from disk, judged where it is read.

A disk loses bits, an editor saves half a file, another version has other fields. What comes from here
is a JSON object of texts that can be encoded again and of numbers that fit into 64 bits; `sealed` writes
one with a checksum over its content, and a file that has one is what was written or is refused. Standard
library only; any thread, never the hot path.
"""

from __future__ import annotations

import errno
import io
import json
import math
import os
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, cast

from probe.base import descriptors

LARGEST_BYTES = 4 << 20
"""A larger file is none of ours."""
CHECKSUM = "checksum"
_LARGEST_INTEGER = 2**63
_LONGEST_NUMBER = 32


def sealed(name: str, facts: dict[str, Any]) -> bytes:
    """The facts as JSON that carries its own checksum, for a file of that name."""
    return json.dumps(signed(name, facts), indent=1).encode()


def signed(name: str, facts: dict[str, Any]) -> dict[str, Any]:
    """The facts with their checksum, for who writes them himself, as plain JSON."""
    return {**facts, CHECKSUM: _checksum(name, facts)}


def read_sealed(
    path: Path, *, older: Callable[[dict[str, Any]], bool] = bool, raw: bool = False,
    largest_bytes: int = LARGEST_BYTES,
) -> dict[str, Any]:
    """The facts in a file that `sealed` made, without the checksum. `older` judges one that has no checksum:
    whether it is of a version that wrote none; it is refused otherwise. `raw`: texts as they were, for paths
    that are no UTF-8. Raises `OSError` or `ValueError`."""
    facts = strict(read_bytes(path, largest_bytes))
    if not isinstance(facts, dict):
        raise ValueError("it holds no JSON object")
    told = facts.pop(CHECKSUM, None)
    nameless = any(_is_checksum_of(path.name, facts, name) for name in facts)
    if told != _checksum(path.name, facts) if told is not None else nameless or not older(facts):
        raise ValueError("it is damaged: it is not what was written")
    found: dict[str, Any] = facts if raw else encodable(facts)
    return found


def _checksum(name: str, facts: dict[str, Any]) -> str:
    """Of a file's name, too: what was written as another file does not count."""
    return f"{zlib.crc32(json.dumps([name, facts], sort_keys=True).encode()):08x}"


def _is_checksum_of(file: str, facts: dict[str, Any], name: str) -> bool:
    """Whether what is called `name` is the checksum of the rest: then the damage is in its name."""
    rest = {one: value for one, value in facts.items() if one != name}
    return type(facts[name]) is str and len(facts[name]) == 8 and facts[name] == _checksum(file, rest)


def read_bytes(path: Path, largest_bytes: int = LARGEST_BYTES) -> bytes:
    """What a plain file holds; raises `OSError`, or `ValueError` for what is too large. A pipe that was put
    there is not waited for."""
    with open_plain(path) as file:
        data = file.read(largest_bytes + 1)
    if len(data) > largest_bytes:
        raise ValueError(f"it is larger than {largest_bytes} bytes")
    return data


def open_plain(path: Path) -> BinaryIO:
    """A plain file, open for reading; raises `OSError`, also for what is none."""
    found = descriptors.opened(path, os.O_RDONLY | os.O_NONBLOCK)
    if not found.plain:
        found.close()
        raise OSError(errno.EINVAL, "it is no plain file")
    return cast(BinaryIO, io.BufferedReader(descriptors.File(found, writable=False)))


def loads(data: bytes | str) -> Any:
    """JSON from outside, with texts that can be encoded. Raises `ValueError`."""
    return encodable(strict(data))


def strict(data: bytes | str) -> Any:
    """JSON from outside: no NaN, no number beyond 64 bits, no depth that ends a thread. Raises
    `ValueError`."""
    try:
        return json.loads(data, parse_int=_integer, parse_float=_float, parse_constant=_constant)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _integer(text: str) -> int:
    found = int(text) if len(text) <= _LONGEST_NUMBER else _LARGEST_INTEGER
    if not -_LARGEST_INTEGER <= found < _LARGEST_INTEGER:
        raise ValueError("it holds a number beyond 64 bits")
    return found


def _float(text: str) -> float:
    found = float(text)
    if not math.isfinite(found):
        raise ValueError("it holds a number beyond 64 bits")
    return found


def _constant(text: str) -> float:
    raise ValueError(f"it holds {text}")


def encodable(value: Any) -> Any:
    """The same with every lone surrogate written out (`\\udc80`): it stands for a byte that is no UTF-8, as
    in the arguments of a job, and no JSON answer could hold it."""
    if isinstance(value, str):
        return text(value)
    if isinstance(value, list):
        return [encodable(one) for one in value]
    if isinstance(value, dict):
        return {text(name): encodable(one) for name, one in value.items()}
    return value


def text(value: str) -> str:
    """A text that can be encoded."""
    return value if value.isascii() else value.encode("utf-8", "backslashreplace").decode("utf-8")
