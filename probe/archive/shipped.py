"""Shipped: which rows of a recording are in an archive, `archived.json` in the recording's folder.

Written after each shipment, for code that must not wait for the archive: pruning, retention and
`probe archive --status`. The object names in the archive are authoritative; a lost or damaged file is rebuilt
from them. Standard library only; any thread.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any, NamedTuple

from probe.archive.catalog import Ranges, missing
from probe.recording import checked, places

FILE = "archived.json"
_NUMBERS = ("rows", "last_step", "last_t_ns", "shipped_ns", "journal_bytes")


class Shipped(NamedTuple):
    """The contents of the archive at `url`: row numbers by table, and whether that is everything recorded."""

    url: str
    complete: bool = False
    """True only for an ended process, until its journals grow: facts and verdicts may be noted late."""
    tables: dict[str, Ranges] = {}  # noqa: RUF012  (never changed)
    rows: int | None = 0
    """None when unknown: a shipment was interrupted."""
    last_step: int | None = None
    last_t_ns: int | None = None
    shipped_ns: int = 0
    """Wall time of the last shipment."""
    journal_bytes: int = 0
    """Size of both journals when they were read for it."""


def read(process: Path, url: str) -> Shipped:
    """The known contents of the archive at `url`; empty if there is no file."""
    try:
        told = checked.read_sealed(process / FILE, largest_bytes=16 << 20)
        one: Any = told["archives"][url]
        tables = {
            str(table): [(int(first), int(last)) for first, last in ranges]
            for table, ranges in one["tables"].items()
        }
        numbers = [one[name] for name in _NUMBERS]
        if any(type(number) is not int and number is not None for number in numbers):
            raise ValueError("a field that must be a number is not")
        rows, last_step, last_t_ns, shipped_ns, read_bytes = numbers
        complete = one["complete"] is True and read_bytes == places.journal_bytes(process)
        return Shipped(url, complete, tables, rows, last_step, last_t_ns, shipped_ns or 0, read_bytes or 0)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return Shipped(url)


def write(process: Path, shipped: Shipped) -> None:
    """Write the contents of one archive, and keep those of others. Raises `OSError`."""
    others: Any = {}
    with contextlib.suppress(OSError, ValueError, KeyError):
        others = checked.read_sealed(process / FILE, largest_bytes=16 << 20)["archives"]
    told = {name: value for name, value in shipped._asdict().items() if name != "url"}
    archives = {**(others if isinstance(others, dict) else {}), shipped.url: told}
    places.write_whole(process / FILE, checked.sealed(FILE, {"archives": archives}))


class Waiting(NamedTuple):
    """Sealed rows of a recording that are not in the archive; `size_bytes`: size of their segments."""

    rows: int
    size_bytes: int


def waiting(process: Path, rank: int, pid: int, known: Shipped) -> Waiting:
    """The rows of a recording that are to be shipped; rows that were overwritten before sealing count too."""
    from probe.recording import segments

    rows = size_bytes = 0
    for folder in process.parent.glob(f"table=*/rank={rank}"):
        held = known.tables.get(folder.parent.name.removeprefix("table="), [])
        for one in segments.visible(segments.listing(folder, pid)):
            new = missing(held, one.first, one.last)
            rows += sum(last - first + 1 for first, last in new)
            size_bytes += one.size_bytes if new else 0
    return Waiting(rows, size_bytes)


def holds_segment(known: Shipped, path: Path) -> bool:
    """Whether all rows of a segment are in the archive, by its name."""
    _, first, last, *_ = path.name.split("-")
    held = known.tables.get(path.parent.parent.name.removeprefix("table="), [])
    return not missing(held, int(first), int(last.partition(".")[0]))
