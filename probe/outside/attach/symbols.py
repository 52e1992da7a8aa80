"""Finds addresses of exported functions in a running process, from its memory map and the mapped files.

A debugger could find them itself, but with the process stopped: it takes a tenth of a second and more to read
the debug information of a Python. 64-bit ELF of this machine's byte order. Runs in the command; standard
library only.
"""

from __future__ import annotations

import mmap
import os
import re
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

ALLOCATORS = re.compile(r"/(?:lib(?:jemalloc|tcmalloc|mimalloc)[^/]*|(?:libc|ld-musl)[.-][^/]*)$")
LOADERS = re.compile(r"/(?:ld-[^/]*|ld\.[^/]*)$")
_SYSTEM = re.compile(r"/(?:libc|libdl|libpthread|ld-musl)[.-][^/]*$")
_PYTHON = re.compile(r"/libpython[^/]*$")
_DYNSYM, _VERSYM, _LOAD = 11, 0x6FFFFFFF, 1
_HIDDEN = 0x8000
_FUNCTION = 2


class Mapped(NamedTuple):
    """One line of the memory map that shows a file."""

    low: int
    high: int
    offset: int
    device: str
    inode: int
    path: str


def mapped(pid: int) -> list[Mapped]:
    """The files and named areas ([stack], [vdso]) in the memory map of `pid`. Raises `OSError`."""
    found = []
    for line in Path(f"/proc/{pid}/maps").read_text(encoding="utf-8", errors="replace").splitlines():
        fields = line.split(maxsplit=5)
        if len(fields) == 6:
            low, _, high = fields[0].partition("-")
            found.append(
                Mapped(int(low, 16), int(high, 16), int(fields[2], 16), fields[3], int(fields[4]), fields[5])
            )
    return found


def addresses(pid: int, names: Iterable[str], allocators: Iterable[str] = ()) -> dict[str, list[int]]:
    """Addresses of `names` (in the C library or Python), and of `allocators` (in every allocator).

    A name that is not exported is left out. A file that was replaced on disk since it was mapped is skipped.
    Raises `OSError` when the map cannot be read.
    """
    wanted, every = frozenset(names), frozenset(allocators)
    first: dict[str, Mapped] = {}
    for line in mapped(pid):
        if line.path.startswith("/"):
            first.setdefault(line.path, line)
    program = os.readlink(f"/proc/{pid}/exe")
    found: dict[str, list[int]] = {}
    for path, line in first.items():
        search = frozenset[str]()
        if path == program or _SYSTEM.search(path) or _PYTHON.search(path):
            search |= wanted
        if path == program or ALLOCATORS.search(path):
            search |= every
        if search and _unchanged(line):
            for name, value in exported(Path(path), search, line):
                found.setdefault(name, []).append(value)
    return found


def exported(path: Path, names: frozenset[str], line: Mapped) -> Iterator[tuple[str, int]]:
    """The functions with these names in a mapped file, with their addresses in the process."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as elf:
        if elf[:6] not in (b"\x7fELF\x02\x01", b"\x7fELF\x02\x02"):
            return
        base = line.low - _first_load(elf, line.offset)
        sections = list(_sections(elf))
        table = next((section for section in sections if section[0] == _DYNSYM), None)
        if table is None:
            return
        _, at, size, link = table
        strings = sections[link][1]
        versions = next((section[1] for section in sections if section[0] == _VERSYM), None)
        wanted = {name.encode(): name for name in names}
        for number in range(size // 24):
            name_at, info, _, section, value = struct.unpack_from("=IBBHQ", elf, at + 24 * number)
            if section == 0 or info & 15 != _FUNCTION:
                continue
            start = strings + name_at
            name = wanted.get(elf[start : elf.find(b"\0", start, start + 64)])
            if name is None:
                continue
            if versions is not None and struct.unpack_from("=H", elf, versions + 2 * number)[0] & _HIDDEN:
                continue
            yield name, base + value


def _first_load(elf: mmap.mmap, offset: int) -> int:
    """The virtual address of the segment at `offset`, from the file's program header."""
    table, = struct.unpack_from("=Q", elf, 32)
    size, count = struct.unpack_from("=HH", elf, 54)
    for number in range(count):
        kind, _, at, address = struct.unpack_from("=IIQQ", elf, table + size * number)
        if kind == _LOAD and at & ~0xFFF <= offset <= at:
            return int(address - (at - offset))
    return 0


def _sections(elf: mmap.mmap) -> Iterator[tuple[int, int, int, int]]:
    """Kind, offset, size and link of every section."""
    table, = struct.unpack_from("=Q", elf, 40)
    size, count = struct.unpack_from("=HH", elf, 58)
    for number in range(count):
        at = table + size * number
        kind, = struct.unpack_from("=I", elf, at + 4)
        offset, length, link = struct.unpack_from("=QQI", elf, at + 24)
        yield kind, offset, length, link


def _unchanged(line: Mapped) -> bool:
    try:
        found = os.stat(line.path)
    except OSError:
        return False
    return found.st_ino == line.inode
