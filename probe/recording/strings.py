"""String table: each string once, numbered, in a memory-mapped append-only file.

HOT PATH for known strings (one dictionary lookup). A new one costs a copy into the map and never waits: it
gets its number at once, and while another thread writes one to the map, that thread writes it too. When the
table is full, the result is 0 (NULL). An entry is length, checksum of number and text, text; the length is
written last, so readers never see half an entry. A string that fails its checksum reads as `DAMAGED`, not as
NULL, which would say that nothing was measured. Standard library only.
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
"""Shown for a string that fails its checksum."""
LONGEST = 2000
"""Characters kept; longer strings end in an ellipsis."""
_FIRST_BYTES = 16 << 10


class Strings:
    """The writer's side; `intern(text)` returns the number of a string, from 1."""

    def __init__(self, path: Path, size: int, owner: Owner = NOBODY) -> None:
        self.path = path
        self._size = size
        self._map = reserve(path, size)
        self._map[: _HEADER.size] = _header(owner)
        self._numbers: dict[str, int] = {}
        self._texts: list[str] = [""]
        """By number, so 0 is nobody's; those from `_written` on are not in the map yet."""
        self._written = 1, _HEADER.size
        """The next number to write, and where: one value, as a signal handler may raise between any two."""
        self._writing = threading.Lock()

    def intern(self, text: str) -> int:
        """Number of a string; NULL_STRING when the table is full."""
        number = self._numbers.get(text)
        return number if number is not None else self._add(text)

    def close(self) -> None:
        """Close the map; the file stays. Later new strings are NULL."""
        self._size = 0
        self._map.close()

    def _add(self, text: str) -> int:
        if not self._size:
            return NULL_STRING
        before = len(self._texts)
        self._texts.append(text)  # appending and finding are one call each: two threads get two numbers
        number = self._numbers.setdefault(text, self._texts.index(text, before))
        self._write()
        if not self._size and number >= self._written[0]:
            self._numbers.pop(text, None)
            return NULL_STRING
        return number

    def _write(self) -> None:
        """Write what is not in the map yet, whoever added it, unless another thread is at it."""
        texts = self._texts
        while self._written[0] < len(texts) and self._size and self._writing.acquire(blocking=False):
            try:
                while self._written[0] < len(texts):
                    number, at = self._written
                    data = _bytes(texts[number])
                    start = at + _ENTRY.size
                    end = start + len(data)
                    if end + _ENTRY.size > self._size:
                        self._size = 0
                        break
                    self._map[start:end] = data
                    _LENGTH.pack_into(self._map, at + _LENGTH.size, _check(number, data))
                    _LENGTH.pack_into(self._map, at, len(data))
                    self._written = number + 1, end
            finally:
                self._writing.release()


def _bytes(text: str) -> bytes:
    kept = text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"
    return kept.encode("utf-8", "backslashreplace") or b" "


def _header(owner: Owner) -> bytes:
    head = _MAGIC + struct.pack("<qq", *owner)
    return head + _LENGTH.pack(zlib.crc32(head))


def _check(number: int, data: bytes) -> int:
    return zlib.crc32(data, zlib.crc32(_LENGTH.pack(number)))


def read_strings(path: Path, owner: Owner = NOBODY, version: int = VERSION) -> list[str | None]:
    """All strings of a table by number; entry 0 is None, damaged ones are `DAMAGED`. Raises `RecordingError`
    for a file that is not a string table, or another process's.

    `owner`: the process it must belong to, if known; `version`: of the rings beside it. Reads only the part
    of the file that is in use."""
    with checked.open_plain(path) as file:
        data = file.read(_FIRST_BYTES)
        if version == UNCHECKED and not data.startswith(_MAGIC):
            return _read_unchecked(data + file.read())
        if len(data) < _HEADER.size or data[: _HEADER.size] != _header(_owner_in(data)):
            raise RecordingError(f"{path} is damaged: it is not a string table")
        if owner != NOBODY and _owner_in(data) not in (owner, NOBODY):
            raise RecordingError(f"{path} belongs to another process")
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
        elif broken:  # its length is not reliable either, so the next entry cannot be found
            break
        else:
            found.append(DAMAGED)
            broken = True
        position = start + length
    return found


def _read_unchecked(data: bytes) -> list[str | None]:
    """Strings of version `UNCHECKED`: each after its length."""
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
