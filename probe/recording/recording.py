"""Recording: one process's rings, strings and journal, and its meta.json.

The agent makes it when it starts; readers begin with `Meta`. Standard library only; the agent's starting
thread, never the hot path.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from probe.base.errors import NoRoom, RecordingError
from probe.base.settings import Settings
from probe.recording import checked, declared, layout, places
from probe.recording.journal import Journal
from probe.recording.ring import Ring
from probe.recording.strings import Strings
from probe.recording.tables import RINGS, Table

VERSION = 2
UNCHECKED = 1
"""The previous version, without a checksum in meta.json; readers accept it."""
STRINGS_BYTES = 1 << 20
MOST_RANKS = 1 << 20
"""A larger rank or world size is invalid."""
_SPARE = 1.25
"""Free memory required, as a multiple of the rings' size: tmpfs has other users."""


@dataclass(frozen=True)
class Meta:
    """Facts about a recorded process. Written once, never changed."""

    version: int
    run: str
    attempt: int
    job: str
    rank: int
    world_size: int | None
    local_rank: int | None
    host: str
    pid: int
    start_ticks: int
    boot_id: str
    uid: int
    argv: list[str]
    cwd: str
    executable: str
    python: str
    torch: str
    started_ns: int
    rings: str
    socket: str
    settings: dict[str, str]
    """Name and text of every setting in force."""

    @property
    def owner(self) -> layout.Owner:
        """Identifies this recording in its rings and strings."""
        return self.pid, self.started_ns

    @classmethod
    def read(cls, process: Path) -> Meta:
        """Read the facts from the folder of a recorded process; raises `RecordingError`."""
        path = process / "meta.json"
        try:
            raw = checked.read_sealed(path, older=_is_unchecked, raw=True)
        except OSError as error:
            raise RecordingError(f"{process} is not a recording: {error.strerror or error}") from None
        except ValueError as error:
            raise RecordingError(f"{path} cannot be used: {error}", hint=_HINT) from None
        try:
            version = raw["version"]
            if version not in (VERSION, UNCHECKED):
                raise RecordingError(
                    f"{process} was written in format {str(version)[:20]!r}, this probe reads {VERSION}",
                    hint="Read it with the version of probe that wrote it.",
                )
            facts = {field.name: raw[field.name] for field in fields(cls)}
            for name, value in facts.items():
                _check_fact(name, value)
                if name not in _PATHS:
                    facts[name] = checked.encodable(value)
        except (ValueError, KeyError, TypeError) as error:
            what = f"it has no {error}" if isinstance(error, KeyError) else str(error)
            raise RecordingError(f"{path} cannot be used: {what}", hint=_HINT) from None
        _check_place(process, facts)
        return cls(**facts).without_secrets()

    def without_secrets(self) -> Meta:
        """The same with secrets of command line and settings redacted: when written, and again when read,
        because a recording may be older than a rule."""
        from probe.base import redaction  # its patterns take 4 ms to compile

        return replace(
            self, argv=redaction.command_line(self.argv), cwd=redaction.redact(self.cwd),
            executable=redaction.redact(self.executable), settings=redaction.settings(self.settings),
        )


def _is_unchecked(facts: dict[str, Any]) -> bool:
    return facts.get("version") == UNCHECKED


_HINT = "Other recordings are not affected; `probe prune` does not touch this one."
_PATHS = ("rings", "socket")
"""Paths are kept as they are, even if not UTF-8, so that they can be opened."""
_LARGEST = {
    "version": 1 << 31, "attempt": 1 << 31, "rank": MOST_RANKS, "world_size": MOST_RANKS,
    "local_rank": MOST_RANKS, "pid": 1 << 31, "start_ticks": 1 << 63, "uid": 1 << 32, "started_ns": 1 << 63,
}
"""Integers from 0 to below these."""
_MAY_BE_NONE = ("world_size", "local_rank")
_LONGEST_TEXT = 1 << 16


def _check_fact(name: str, value: object) -> None:
    """Raise `ValueError` for an impossible value."""
    if name in _LARGEST:
        known = value is None and name in _MAY_BE_NONE
        fits = type(value) is int and 0 <= value < _LARGEST[name] and (value > 0 or name != "pid")
        if not (known or fits):
            raise ValueError(f"its {name} is {str(value)[:40]!r}")
    elif name == "argv":
        if not isinstance(value, list) or not all(isinstance(word, str) for word in value):
            raise ValueError("its argv is not a list of strings")
    elif name == "settings":
        if not isinstance(value, dict) or not all(isinstance(one, str) for one in value.values()):
            raise ValueError("its settings are not strings")
    elif not isinstance(value, str) or len(value) > _LONGEST_TEXT or "\0" in value:
        raise ValueError(f"its {name} is not a string")
    elif name in _PATHS and value and not value.startswith("/"):
        raise ValueError(f"its {name} is not an absolute path")


def _check_place(process: Path, facts: dict[str, Any]) -> None:
    """Raise `RecordingError` if the folder's name belongs to another process."""
    match = re.fullmatch(r"process=(\d+)-(\d+)", process.name)
    if match is not None and (int(match[1]), int(match[2])) != (facts["rank"], facts["pid"]):
        raise RecordingError(
            f"{process / 'meta.json'} belongs to another process: rank {facts['rank']}, pid {facts['pid']}",
            hint=_HINT,
        )


class Recording:
    """The writer's side: `rings` by table name, `strings`, `journal`."""

    def __init__(self, process: Path, meta: Meta, settings: Settings) -> None:
        self.process = process
        self.meta = meta
        self.rings: dict[str, Ring] = {}
        self._open: list[Strings | Ring | Journal] = []
        self._added: list[Table] = []
        folder = Path(meta.rings)
        try:
            self._scale = scale = ring_scale(settings.rings_bytes)
            self.strings = Strings(folder / "strings", STRINGS_BYTES, meta.owner)
            self._open.append(self.strings)
            for table in RINGS:
                rows = max(64, int(table.rows * scale))
                ring = Ring(folder / f"{table.full_name}.ring", table, rows, meta.owner)
                self.rings[table.full_name] = ring
                self._open.append(ring)
            self.journal = Journal(process / "journal.bin")
            self._open.append(self.journal)
            places.write_whole(process / "meta.json", checked.sealed("meta.json", asdict(meta)))
        except BaseException:
            self.discard()
            raise

    def add(self, table: Table) -> Ring:
        """Make the ring of a table that the job declares, about a millisecond of work; the caller holds a
        lock. Raises `NoRoom` or `OSError`, and then makes none."""
        rows = max(64, int(table.rows * self._scale))
        ring = Ring(Path(self.meta.rings) / f"{table.full_name}.ring", table, rows, self.meta.owner)
        try:
            declared.write(self.process, [*self._added, table])
        except BaseException:
            ring.close()
            ring.path.unlink(missing_ok=True)
            raise
        self._added.append(table)
        self.rings[table.full_name] = ring
        self._open.append(ring)
        return ring

    def end_rows(self) -> dict[str, int]:
        """Close the rings; returns the number of rows written, by table."""
        for ring in self.rings.values():
            ring.close()
        return {name: ring.written for name, ring in self.rings.items()}

    def close(self) -> None:
        """Stop writing and close all files; everything written stays readable."""
        for one in self._open:
            one.close()

    def discard(self) -> None:
        """Remove a recording that could not be completed."""
        self.close()
        shutil.rmtree(self.meta.rings, ignore_errors=True)
        shutil.rmtree(self.process, ignore_errors=True)


def default_bytes() -> int:
    """Size of all rings and the strings at the declared capacities."""
    total = STRINGS_BYTES
    for table in RINGS:
        row_bytes = layout.row_bytes(layout.stored_columns(table))
        total += layout.HEADER_BYTES + table.rows * row_bytes
    return total


def ring_scale(limit_bytes: int) -> float:
    """Factor by which the declared capacities shrink to fit `limit_bytes`; raises `NoRoom` below 0.01."""
    scale = min(1.0, (limit_bytes - STRINGS_BYTES) / (default_bytes() - STRINGS_BYTES))
    if scale < 0.01:
        raise NoRoom(
            f"PROBE_RINGS_BYTES={limit_bytes} is too small",
            hint=f"At least {STRINGS_BYTES + default_bytes() // 100} bytes are needed.",
        )
    return scale


def rings_folders(settings: Settings, process: Path, name: str, refused: list[str]) -> Iterator[Path]:
    """Make private folders for the rings, the best first: in memory, then beside the recording; never on a
    network file system. Reasons for skipping one are added to `refused`."""
    needed = int(min(settings.rings_bytes, default_bytes()) * _SPARE)
    for base, leaf in (
        (Path(os.path.abspath(settings.rings_directory)) / f"probe-{os.getuid()}", name),
        (process, "rings"),
    ):
        top = base if base == process else base.parent
        kind = places.file_system(top)
        if kind in places.NETWORK_FILE_SYSTEMS:
            refused.append(f"{top} is on a network file system ({kind})")
        elif places.room_bytes(top) < needed:
            refused.append(f"{top} has {places.room_bytes(top)} bytes free, {needed} are needed")
        else:
            folder = base / leaf
            try:
                places.make_private(base)
                with contextlib.suppress(FileNotFoundError):
                    shutil.rmtree(folder)
                folder.mkdir(mode=0o700)
            except (OSError, RecordingError) as error:
                refused.append(str(error))
            else:
                yield folder
