"""Values: makes the text that `eval` shows for the value of the last expression, limited in length.

`repr` of nested lists can take seconds and holds the GIL, so the size is checked
before it is called. Runs on the snippet's thread. Standard library only.
"""

from __future__ import annotations

import reprlib
import sys
from typing import Any

from probe.job.introspection.snippet_names import Names
from probe.job.snippets.output import Buffer, size_bytes

LONGEST_CHARACTERS = 65_536
"""A longer text is cut, and the cut part is counted if its length is known."""
LONGEST_TEXT_CHARACTERS = 10_000
"""Limit for a value that is itself a text or bytes."""
LARGEST_TENSOR = 1000
"""Elements; a larger tensor is described."""
DEEPEST = 50
"""Levels of containers within containers."""


def short_repr(value: Any, buffer: Buffer) -> str:
    """A value as text: large tensors by shape, dtype and device, other values cut to a limit.

    Cut characters are counted in `buffer`."""
    torch: Any = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor) and value.numel() > LARGEST_TENSOR:
        return f"tensor(shape={list(value.shape)}, dtype={value.dtype}, device={value.device})"
    if isinstance(value, (str, bytes, bytearray)):
        rest = value[LONGEST_TEXT_CHARACTERS:]
        buffer.dropped_bytes += size_bytes(rest) if isinstance(rest, str) else len(rest)
        return repr(value[:LONGEST_TEXT_CHARACTERS])
    fits = type(value) is Names or _room_after(value, LONGEST_CHARACTERS, DEEPEST) >= 0
    text = repr(value) if fits else _SHORTENER.repr(value)
    buffer.dropped_bytes += size_bytes(text[LONGEST_CHARACTERS:])
    return text[:LONGEST_CHARACTERS]


def _room_after(value: Any, room: int, depth: int) -> int:
    """Upper limit of the characters left of `room` after this value; negative if it does not fit."""
    if isinstance(value, (str, bytes, bytearray)):
        return room - len(value)
    if isinstance(value, int):
        return room - value.bit_length() // 4
    if not isinstance(value, (list, tuple, set, frozenset, dict)):
        return room - 1
    if depth == 0 or len(value) > room:
        return -1
    for item in value:
        room = _room_after(item, room - 2, depth - 1)
        if room >= 0 and isinstance(value, dict):
            room = _room_after(value[item], room - 2, depth - 1)
        if room < 0:
            break
    return room


class _Shortener(reprlib.Repr):
    """Shows the first hundred items of every container."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlist = self.maxtuple = self.maxdict = self.maxset = self.maxfrozenset = self.maxdeque = 100
        self.maxarray = 100
        self.maxstring = self.maxother = 200

    def repr_bytes(self, value: bytes, _level: int) -> str:
        """Bytes; the base class would make the whole text first."""
        return repr(value[: self.maxstring]) + ("..." if len(value) > self.maxstring else "")

    repr_bytearray = repr_bytes


_SHORTENER = _Shortener()
