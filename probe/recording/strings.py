"""String table: each text once, numbered, in a memory-mapped append-only file.

HOT PATH for known texts (one dictionary look-up). A new text costs a copy into
the map and never waits: when another thread is adding one this instant, or the
table is full, the answer is 0 (NULL). An entry is its length, a checksum of its number
and text, the text; the length is written last, so a reader never sees half an entry.
A text that is not what was written is `DAMAGED` to readers: a marker that is seen
where the text would have been, because NULL would say that nothing was measured.
Standard library only.
"""

from __future__ import annotations

import struct
import threading
import zlib
from pathlib import Path
from typing import BinaryIO

from probe.base.errors import RecordingError
from probe.recording import checked
from probe.recording.layout import NOBODY, NULL_STRING, UNCHECKED, VERSION, Owner
from probe.recording.ring import reserve

_HEADER = struct.Struct("<8sqqI")
_MAGIC = b"PROBTEXT"
_LENGTH = struct.Struct("<I")
_ENTRY = struct.Struct("<II")
DAMAGED = "<damaged text>"
"""What stands for a text that fails its checksum."""
LONGEST = 2000
"""Characters of a text that are kept; what is longer ends in an ellipsis."""
_FIRST_BYTES = 16 << 10


class Strings:
    """The writer's side; `intern(text)` gives the number of a text, from 1."""

    def __init__(self, path: Path, size: int, owner: Owner = NOBODY) -> None:
        self.path = path
        self._size = size
        self._map = reserve(path, size)
        self._map[: _HEADER.size] = _header(owner)
        self._numbers: dict[str, int] = {}
        self._end = _HEADER.size
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
            start = self._end + _ENTRY.size
            end = start + len(data)
            if end + _ENTRY.size > self._size:
                return NULL_STRING
            number = len(self._numbers) + 1
            self._map[start:end] = data
            _LENGTH.pack_into(self._map, self._end + _LENGTH.size, _check(number, data))
            _LENGTH.pack_into(self._map, self._end, len(data))
            self._end = end
            self._numbers[text] = number
            return number
        finally:
            self._adding.release()


def _header(owner: Owner) -> bytes:
    head = _MAGIC + struct.pack("<qq", *owner)
    return head + _LENGTH.pack(zlib.crc32(head))


def _check(number: int, data: bytes) -> int:
    return zlib.crc32(data, zlib.crc32(_LENGTH.pack(number)))


def read_strings(path: Path, owner: Owner = NOBODY, version: int = VERSION) -> list[str | None]:
    """All texts of a string table by number; entry 0 is None, one that is not what was written `DAMAGED`.
    `owner`: whose it must be, where that is known; `version`: that of the rings beside it.

    Most of the file is room for more: it is read only as far as there are texts. Raises `RecordingError`
    where the file is no string table, or another process's."""
    with checked.open_plain(path) as file:
        data = file.read(_FIRST_BYTES)
        if version == UNCHECKED and not data.startswith(_MAGIC):
            return _read_unchecked(data + file.read())
        if len(data) < _HEADER.size or data[: _HEADER.size] != _header(_owner_in(data)):
            raise RecordingError(f"{path} is damaged: no texts can be read from it")
        if owner != NOBODY and _owner_in(data) not in (owner, NOBODY):
            raise RecordingError(f"{path} holds the texts of another process")
        return _read_checked(data, file)


def _owner_in(data: bytes) -> Owner:
    _, pid, started_ns, _ = _HEADER.unpack_from(data)
    return pid, started_ns


def _read_checked(data: bytes, file: BinaryIO) -> list[str | None]:
    found: list[str | None] = [None]
    position = _HEADER.size
    broken = False
    while position + _ENTRY.size <= len(data):
        length, check = _ENTRY.unpack_from(data, position)
        start = position + _ENTRY.size
        if length and start + length + _ENTRY.size > len(data):
            data += file.read()
        text = data[start : start + length]
        if length == 0 or len(text) < length:
            break
        if _check(len(found), text) == check:
            found.append(text.decode("utf-8", "replace"))
            broken = False
        elif broken:  # its length is not to be trusted either: nothing tells where the next one begins
            break
        else:
            found.append(DAMAGED)
            broken = True
        position = start + length
    return found


def _read_unchecked(data: bytes) -> list[str | None]:
    """Texts as `UNCHECKED` has them: each after its length."""
    found: list[str | None] = [None]
    position = 0
    while position + _LENGTH.size <= len(data):
        (length,) = _LENGTH.unpack_from(data, position)
        end = position + _LENGTH.size + length
        if length == 0 or end > len(data):
            break
        found.append(data[position + _LENGTH.size : end].decode("utf-8", "replace"))
        position = end
    return found
