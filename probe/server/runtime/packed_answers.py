"""A head and any number of byte strings as one answer: rows of tables, or relayed answers.

    uint32 length of the head, the head as JSON, then the byte strings, with the lengths in the head's
    `lengths`

Packed answers come from other hosts: `unpack` checks every number in them. Standard library only; pure.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from typing import Any

MEDIA_TYPE = "application/x-probe-frames"
_HEAD = struct.Struct("<I")
_LONGEST_HEAD = 16 << 20


def pack(head: Mapping[str, Any], parts: Sequence[bytes]) -> bytes:
    """The head and the parts as one byte string."""
    text = json.dumps({**head, "lengths": [len(part) for part in parts]}).encode()
    return b"".join((_HEAD.pack(len(text)), text, *parts))


def unpack(data: bytes | memoryview) -> tuple[dict[str, Any], list[memoryview]]:
    """The head and the parts; raises `ValueError` for anything that `pack` does not produce."""
    view = memoryview(data)
    if len(view) < _HEAD.size:
        raise ValueError("cut short")
    (length,) = _HEAD.unpack(view[: _HEAD.size])
    if length > min(_LONGEST_HEAD, len(view) - _HEAD.size):
        raise ValueError("cut short")
    try:
        head = json.loads(bytes(view[_HEAD.size : _HEAD.size + length]))
    except RecursionError:
        raise ValueError("nested too deeply") from None
    lengths = head.get("lengths") if isinstance(head, dict) else None
    if not isinstance(lengths, list) or any(type(size) is not int or size < 0 for size in lengths):
        raise ValueError("no lengths")
    place = _HEAD.size + length
    if place + sum(lengths) != len(view):
        raise ValueError("cut short")
    parts = []
    for size in lengths:
        parts.append(view[place : place + size])
        place += size
    return head, parts
