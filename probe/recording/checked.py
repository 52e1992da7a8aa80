"""Checked JSON files: validated where they are read from disk.

Disks lose bits, editors save half a file, other versions have other fields. Results are JSON objects whose
strings can be encoded and whose numbers fit into 64 bits. `sealed` adds a checksum over the content; a file
that has changed since is refused. Standard library only; any thread, never the hot path.
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
"""A larger file is not ours."""
CHECKSUM = "checksum"
_LARGEST_INTEGER = 2**63
_LONGEST_NUMBER = 32


def sealed(name: str, facts: dict[str, Any]) -> bytes:
    """The facts as JSON with a checksum, for a file of that name."""
    return json.dumps(signed(name, facts), indent=1).encode()


def signed(name: str, facts: dict[str, Any]) -> dict[str, Any]:
    """The facts with their checksum, for a caller that writes the JSON itself."""
    return {**facts, CHECKSUM: _checksum(name, facts)}


def read_sealed(
    path: Path, *, older: Callable[[dict[str, Any]], bool] = bool, raw: bool = False,
    largest_bytes: int = LARGEST_BYTES,
) -> dict[str, Any]:
    """The facts in a file that `sealed` made, without the checksum. Raises `OSError` or `ValueError`.

    `older`: whether facts without a checksum come from a version that wrote none; else they are refused.
    `raw`: keep strings as they are, for paths that are not UTF-8."""
    facts = strict(read_bytes(path, largest_bytes))
    if not isinstance(facts, dict):
        raise ValueError("it is not a JSON object")
    stored = facts.pop(CHECKSUM, None)
    nameless = any(_is_checksum_of(path.name, facts, name) for name in facts)
    if stored != _checksum(path.name, facts) if stored is not None else nameless or not older(facts):
        raise ValueError("it is damaged: its checksum does not match")
    found: dict[str, Any] = facts if raw else encodable(facts)
    return found


def _checksum(name: str, facts: dict[str, Any]) -> str:
    """Covers the file's name too: the content of another file is refused."""
    return f"{zlib.crc32(json.dumps([name, facts], sort_keys=True).encode()):08x}"


def _is_checksum_of(file: str, facts: dict[str, Any], name: str) -> bool:
    """Whether the value of `name` is the checksum of the rest: then the key itself is damaged."""
    rest = {one: value for one, value in facts.items() if one != name}
    return type(facts[name]) is str and len(facts[name]) == 8 and facts[name] == _checksum(file, rest)


def read_bytes(path: Path, largest_bytes: int = LARGEST_BYTES) -> bytes:
    """Content of a regular file; raises `OSError`, or `ValueError` if too large. Does not wait for a pipe."""
    with open_plain(path) as file:
        data = file.read(largest_bytes + 1)
    if len(data) > largest_bytes:
        raise ValueError(f"it is larger than {largest_bytes} bytes")
    return data


def open_plain(path: Path) -> BinaryIO:
    """Open a regular file for reading; raises `OSError`, also for anything else."""
    found = descriptors.opened(path, os.O_RDONLY | os.O_NONBLOCK)
    if not found.plain:
        found.close()
        raise OSError(errno.EINVAL, "it is not a regular file")
    return cast(BinaryIO, io.BufferedReader(descriptors.File(found, writable=False)))


def loads(data: bytes | str) -> Any:
    """Untrusted JSON, with strings that can be encoded. Raises `ValueError`."""
    return encodable(strict(data))


def strict(data: bytes | str) -> Any:
    """Untrusted JSON: no NaN, no number beyond 64 bits, limited depth. Raises `ValueError`."""
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
    """The same with lone surrogates escaped (`\\udc80`): they stand for bytes that are not UTF-8, as in a
    job's arguments, and cannot be sent as JSON."""
    if isinstance(value, str):
        return text(value)
    if isinstance(value, list):
        return [encodable(one) for one in value]
    if isinstance(value, dict):
        return {text(name): encodable(one) for name, one in value.items()}
    return value


def text(value: str) -> str:
    """A string with lone surrogates escaped."""
    return value if value.isascii() else value.encode("utf-8", "backslashreplace").decode("utf-8")
