"""Recording: one process's rings, strings and journal, and the facts in meta.json.

Made once by the agent when it starts. `Meta` is what readers go by. Standard
library only; the agent's starting thread, never the hot path.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import struct
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from probe.errors import NoRoom, RecordingError
from probe.recording import layout, places
from probe.recording.journal import Journal
from probe.recording.ring import Ring
from probe.recording.strings import Strings
from probe.settings import Settings
from probe.tables import RINGS

VERSION = 1
STRINGS_BYTES = 1 << 20
_SPARE = 1.25
"""Room that must be free beyond the rings' own size: we are not the only user of tmpfs."""


@dataclass(frozen=True)
class Meta:
    """What a recorded process is. Written once, never changed."""

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
    """Name and text form of every setting in force."""

    @classmethod
    def read(cls, process: Path) -> Meta:
        """Facts of the process recorded in the folder `process`; raises `RecordingError`."""
        try:
            raw: dict[str, Any] = json.loads((process / "meta.json").read_bytes())
            if raw["version"] != VERSION:
                raise RecordingError(
                    f"{process} was written in format {raw['version']}, this probe reads {VERSION}",
                    hint="Read it with the version of probe that wrote it.",
                )
            return cls(**{field.name: raw[field.name] for field in fields(cls)}).without_secrets()
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise RecordingError(f"{process} is not a recording: {error}") from None

    def without_secrets(self) -> Meta:
        """The same without the secrets of the command line and the settings: when it is taken, and again
        when it is read, for a recording may be older than a rule."""
        from probe import redaction  # its patterns take 4 ms to compile

        return replace(
            self, argv=redaction.command_line(self.argv), cwd=redaction.redact(self.cwd),
            executable=redaction.redact(self.executable), settings=redaction.settings(self.settings),
        )


class Recording:
    """The writer's side: `rings` by table name, `strings`, `journal`."""

    def __init__(self, process: Path, meta: Meta, settings: Settings) -> None:
        self.process = process
        self.meta = meta
        self.rings: dict[str, Ring] = {}
        self._open: list[Strings | Ring | Journal] = []
        folder = Path(meta.rings)
        try:
            scale = ring_scale(settings.rings_bytes)
            self.strings = Strings(folder / "strings", STRINGS_BYTES)
            self._open.append(self.strings)
            for table in RINGS:
                rows = max(64, int(table.rows * scale))
                ring = self.rings[table.full_name] = Ring(folder / f"{table.full_name}.ring", table, rows)
                self._open.append(ring)
            self.journal = Journal(process / "journal.bin")
            self._open.append(self.journal)
            places.write_whole(process / "meta.json", json.dumps(asdict(meta), indent=1).encode())
        except BaseException:
            self.discard()
            raise

    def close(self) -> None:
        """Stop writing and give up every descriptor; everything written stays readable."""
        for one in self._open:
            one.close()

    def discard(self) -> None:
        """Remove a recording that could not be made whole."""
        self.close()
        shutil.rmtree(self.meta.rings, ignore_errors=True)
        shutil.rmtree(self.process, ignore_errors=True)


def default_bytes() -> int:
    """Size of all rings and the strings at the declared capacities."""
    total = STRINGS_BYTES
    for table in RINGS:
        row = struct.calcsize(layout.row_format(layout.stored_columns(table)))
        total += layout.HEADER_BYTES + table.rows * row
    return total


def ring_scale(limit_bytes: int) -> float:
    """Factor for the declared capacities so that everything fits into `limit_bytes`.

    Raises `NoRoom` when the limit leaves less than one hundredth of them."""
    scale = min(1.0, (limit_bytes - STRINGS_BYTES) / (default_bytes() - STRINGS_BYTES))
    if scale < 0.01:
        raise NoRoom(
            f"PROBE_RINGS_BYTES={limit_bytes} is too small",
            hint=f"At least {STRINGS_BYTES + default_bytes() // 100} bytes are needed.",
        )
    return scale


def rings_folders(settings: Settings, process: Path, name: str, refused: list[str]) -> Iterator[Path]:
    """New private folders for the rings, the best first: in memory, then beside the recording.

    Never on a network file system. Why one is left out is added to `refused`."""
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
