"""Journal: rare records of any length in an append-only file.

A record is marker, length, checksum and JSON, written by one `write`: a killed process leaves at most a torn
tail, and after a damaged record readers continue at the next marker. The checksum covers the journal's name
and process, so a record counts only in the journal it was written into. Other bytes are reported (`Hole`).
Written by the agent's and the server's threads, never on the hot path. Standard library only.
"""

from __future__ import annotations

import functools
import json
import os
import re
import struct
import threading
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from probe.base import descriptors
from probe.recording import checked

_MARK = b"\xf5PJ2"
_UNOWNED = b"\xf5PJ1"
"""Marker of the previous version, whose checksum does not cover the journal."""
_ANY_MARK = re.compile(b"\xf5PJ[12]")
_HEAD = struct.Struct("<4sII")
LARGEST_BYTES = 4 << 20
"""A longer record is refused."""
FULL_BYTES = 64 << 20
"""A journal of this size accepts no records …"""
_FLAGS = os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW
_MOST_BYTES = 2 * FULL_BYTES
BULK_BYTES = FULL_BYTES // 2
"""… and one of this size no bulk records: rare records need room."""


class Journal:
    """The writer's side of a journal; `append` says whether the record was kept."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: descriptors.Descriptor | None = descriptors.opened(path, _FLAGS | os.O_CREAT, keep=True)
        self._reopening = threading.Lock()
        self._size = os.fstat(self._file.fileno()).st_size
        self._seed = _seed(path)

    def append(self, record: dict[str, Any], *, bulk: bool = False) -> bool:
        """Write one record; False if the disk or the journal is full, or it is closed. `bulk`: one of many
        records, which may use only half of the journal."""
        payload = json.dumps(record, separators=(",", ":")).encode()
        if self._file is None or len(payload) > LARGEST_BYTES:
            return False
        if self._size > (BULK_BYTES if bulk else FULL_BYTES):
            return False
        data = _HEAD.pack(_MARK, len(payload), zlib.crc32(payload, self._seed)) + payload
        try:
            written = os.write(self._number(), data)
        except OSError:
            return False
        self._size += written
        return written == len(data)

    def _number(self) -> int:
        """The file's descriptor, reopened if the job has closed it. Raises `OSError`."""
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


@functools.lru_cache(4096)
def _seed(path: Path) -> int:
    """Start value of a journal's checksums: covers its name and process."""
    return zlib.crc32(f"{path.name} of {_process(path.parent)}".encode())


def _process(folder: Path) -> str:
    """Pid of the process recorded in `folder`; a copied folder may have another name."""
    match = re.fullmatch(r"process=\d+-(\d+)", folder.name)
    if match is not None:
        return match[1]
    try:
        return str(checked.read_sealed(folder / "meta.json").get("pid"))
    except (OSError, ValueError):
        return ""


def _content(path: Path) -> bytes:
    with checked.open_plain(path) as file:
        return file.read(_MOST_BYTES)


class Hole(NamedTuple):
    """Bytes of a journal that are not a record. `torn`: at its end, where a record may be half written."""

    offset: int
    size_bytes: int
    torn: bool

    def said_of(self, path: Path) -> str:
        """A sentence for the user."""
        where = "its end" if self.torn else f"byte {self.offset}"
        return f"{self.size_bytes} bytes of {path.name} at {where} are not a record and are left out"


def read_journal(path: Path) -> Iterator[dict[str, Any]]:
    """All records in the order written, without torn and damaged ones."""
    try:
        data = _content(path)
    except OSError:
        return
    for record, _ in _records(data, _seed(path)):
        yield record


def read_payloads(path: Path) -> tuple[list[bytes], list[Hole]]:
    """The JSON text of all records in the order written, for callers that need few of them; and the holes."""
    try:
        data = _content(path)
    except FileNotFoundError:
        return [], []
    return [payload for payload, _ in _payloads(data, _seed(path))], _holes(data, _seed(path))


def read_on(path: Path, offset: int) -> tuple[list[dict[str, Any]], int]:
    """Records from a byte on, and the byte to continue from: for readers of a growing journal."""
    try:
        with checked.open_plain(path) as file:
            file.seek(offset)
            data = file.read(_MOST_BYTES)
    except FileNotFoundError:
        return [], offset
    found = list(_records(data, _seed(path)))
    return [record for record, _ in found], offset + (found[-1][1] if found else 0)


def read_ends(path: Path, offset: int = 0) -> list[tuple[dict[str, Any], int]]:
    """Records from a byte on, each with the byte after it, which identifies it in this journal: journals only
    grow. Raises `OSError`; a journal that does not exist yet has none."""
    try:
        with checked.open_plain(path) as file:
            file.seek(offset)
            data = file.read(_MOST_BYTES)
    except FileNotFoundError:
        return []
    return [(record, offset + end) for record, end in _records(data, _seed(path))]


def record_of(payload: bytes) -> dict[str, Any] | None:
    """A record with strings that can be encoded and valid `rows`; None if it is not a JSON object."""
    try:
        record: Any = json.loads(payload)
    except (ValueError, RecursionError):
        return None
    if not isinstance(record, dict):
        return None
    found: dict[str, Any] = record
    if b"\\ud" in payload:
        found = checked.encodable(record)
    if "table" in found and "rows" in found:
        rows = found["rows"]
        found["rows"] = [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
    return found


def _records(data: bytes, seed: int) -> Iterator[tuple[dict[str, Any], int]]:
    """Each record and its end."""
    for payload, end in _payloads(data, seed):
        record = record_of(payload)
        if record is not None:
            yield record, end


def _payloads(data: bytes, seed: int) -> Iterator[tuple[bytes, int]]:
    """The JSON of each record and its end."""
    position = _next(data, 0)
    while 0 <= position <= len(data) - _HEAD.size:
        mark, length, checksum = _HEAD.unpack_from(data, position)
        start = position + _HEAD.size
        payload = data[start : start + length] if length <= LARGEST_BYTES else b""
        begin = 0 if mark == _UNOWNED else seed
        if length and len(payload) == length and zlib.crc32(payload, begin) == checksum:
            yield payload, start + length
            position = _next(data, start + length)
        else:
            position = _next(data, position + 1)


def _next(data: bytes, position: int) -> int:
    """Position of the next marker; -1 without one."""
    if data.startswith(_MARK, position):
        return position
    found = _ANY_MARK.search(data, position)
    return -1 if found is None else found.start()


def _holes(data: bytes, seed: int) -> list[Hole]:
    """The bytes between records, and after the last."""
    found: list[Hole] = []
    reached = 0
    for payload, end in _payloads(data, seed):
        begin = end - len(payload) - _HEAD.size
        if begin > reached:
            found.append(Hole(reached, begin - reached, torn=False))
        reached = end
    if reached < len(data):
        found.append(Hole(reached, len(data) - reached, torn=True))
    return found
