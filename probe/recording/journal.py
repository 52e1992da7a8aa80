"""Journal: rare records of any length in an append-only file.

A record is a marker, a length, a checksum and JSON. One `write` each, so a
killed process leaves at most a torn tail, and a damaged record costs itself
only: readers look for the next marker. Written by the agent's own threads,
never on the hot path. Standard library only.
"""

from __future__ import annotations

import json
import os
import struct
import threading
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from probe import descriptors

_MARK = b"\xf5PJ1"
_HEAD = struct.Struct("<4sII")
LARGEST_BYTES = 4 << 20
"""A longer record is refused."""
FULL_BYTES = 64 << 20
"""A journal of this size takes no more records."""
_FLAGS = os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW
BULK_BYTES = FULL_BYTES // 2
"""… and one of this size none of the kind that comes in numbers: what is rare must find room."""


class Journal:
    """The writer's side of a journal; `append` says whether the record was kept."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: descriptors.Descriptor | None = descriptors.opened(path, _FLAGS | os.O_CREAT, keep=True)
        self._reopening = threading.Lock()
        self._size = os.fstat(self._file.fileno()).st_size

    def append(self, record: dict[str, Any], *, bulk: bool = False) -> bool:
        """Write one record; False when the disk or the journal is full or it was closed. `bulk`: it is one
        of many, and may use only half of the journal."""
        payload = json.dumps(record, separators=(",", ":")).encode()
        if self._file is None or len(payload) > LARGEST_BYTES:
            return False
        if self._size > (BULK_BYTES if bulk else FULL_BYTES):
            return False
        data = _HEAD.pack(_MARK, len(payload), zlib.crc32(payload)) + payload
        try:
            written = os.write(self._number(), data)
        except OSError:
            return False
        self._size += written
        return written == len(data)

    def _number(self) -> int:
        """The file's descriptor; opened again by its path where the job has closed it. Raises `OSError`."""
        file = self._file
        if file is not None and file.ours:
            return file.fileno()
        with self._reopening:
            if self._file is None:
                raise OSError("the journal is closed")
            if not self._file.ours:
                self._file = descriptors.opened(self.path, _FLAGS, keep=True)
            return self._file.fileno()

    def close(self) -> None:
        """Close the file; later records are refused."""
        file, self._file = self._file, None
        if file is not None:
            file.close()


def read_journal(path: Path) -> Iterator[dict[str, Any]]:
    """Whole records in the order written; torn and damaged ones are left out."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return
    for record, _ in _records(data):
        yield record


def read_payloads(path: Path) -> list[bytes]:
    """Whole records in the order written, as the JSON that is in the file: for who wants few of them."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return []
    return [payload for payload, _ in _payloads(data)]


def read_on(path: Path, offset: int) -> tuple[list[dict[str, Any]], int]:
    """Whole records from a byte on, and the byte to go on from: for who reads a journal as it grows."""
    try:
        with path.open("rb") as file:
            file.seek(offset)
            data = file.read()
    except FileNotFoundError:
        return [], offset
    found = list(_records(data))
    return [record for record, _ in found], offset + (found[-1][1] if found else 0)


def _records(data: bytes) -> Iterator[tuple[dict[str, Any], int]]:
    """Each whole record and where it ends."""
    for payload, end in _payloads(data):
        yield json.loads(payload), end


def _payloads(data: bytes) -> Iterator[tuple[bytes, int]]:
    """The JSON of each whole record and where it ends."""
    position = data.find(_MARK)
    while 0 <= position <= len(data) - _HEAD.size:
        _, length, checksum = _HEAD.unpack_from(data, position)
        start = position + _HEAD.size
        payload = data[start : start + length]
        if length <= LARGEST_BYTES and len(payload) == length and zlib.crc32(payload) == checksum:
            yield payload, start + length
            position = data.find(_MARK, start + length)
        else:
            position = data.find(_MARK, position + 1)
