"""String table: each text once, numbered, in a memory-mapped append-only file.

HOT PATH for known texts (one dictionary look-up). A new text costs a copy into
the map and never waits: when another thread is adding one this instant, or the
table is full, the answer is 0 (NULL). Entries are length-prefixed; the length
is written after the text, so a reader never sees half an entry. Standard
library only.
"""

from __future__ import annotations

import struct
import threading
from pathlib import Path

from probe.recording.layout import NULL_STRING
from probe.recording.ring import reserve

_LENGTH = struct.Struct("<I")
LONGEST = 2000
"""Characters of a text that are kept; what is longer ends in an ellipsis."""
_FIRST_BYTES = 16 << 10


class Strings:
    """The writer's side; `intern(text)` gives the number of a text, from 1."""

    def __init__(self, path: Path, size: int) -> None:
        self.path = path
        self._size = size
        self._map = reserve(path, size)
        self._numbers: dict[str, int] = {}
        self._end = 0
        self._adding = threading.Lock()

    def intern(self, text: str) -> int:
        """Number of `text`; NULL_STRING when it cannot be added now."""
        number = self._numbers.get(text)
        return number if number is not None else self._add(text)

    def close(self) -> None:
        """Forget the memory map; the file stays. Later texts are NULL."""
        self._size = 0
        self._map.close()

    def _add(self, text: str) -> int:
        if not self._adding.acquire(blocking=False):
            return NULL_STRING
        try:
            known = self._numbers.get(text)
            if known is not None:
                return known
            kept = text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"
            data = kept.encode("utf-8", "backslashreplace") or b" "
            end = self._end + _LENGTH.size + len(data)
            if end + _LENGTH.size > self._size:
                return NULL_STRING
            self._map[self._end + _LENGTH.size : end] = data
            _LENGTH.pack_into(self._map, self._end, len(data))
            self._end = end
            number = len(self._numbers) + 1
            self._numbers[text] = number
            return number
        finally:
            self._adding.release()


def read_strings(path: Path) -> list[str | None]:
    """All texts of a string table by number; entry 0 is None.

    Most of the file is room for more: it is read only as far as there are texts."""
    found: list[str | None] = [None]
    position = 0
    with open(path, "rb") as file:
        data = file.read(_FIRST_BYTES)
        while position + _LENGTH.size <= len(data):
            (length,) = _LENGTH.unpack_from(data, position)
            end = position + _LENGTH.size + length
            if length == 0:
                break
            if end + _LENGTH.size > len(data):
                data += file.read()
            if end > len(data):
                break
            found.append(data[position + _LENGTH.size : end].decode("utf-8", "replace"))
            position = end
    return found
