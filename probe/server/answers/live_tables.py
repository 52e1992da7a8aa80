"""Tables that are computed for each request: settings, backtraces.

Called on the server's request threads; a call to an agent blocks at most for its timeout. Standard library
only.
"""

from __future__ import annotations

import contextlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from probe.base.errors import ProbeError
from probe.base.settings import BY_NAME
from probe.recording import declared, places
from probe.recording.tables import TABLES, Table, columns_of
from probe.server.answers import backtraces
from probe.server.answers.backtraces import Options
from probe.server.recordings.registry import Recorded, Registry


def setting_rows(sources: list[Recorded]) -> list[dict[str, Any]]:
    """Rows of probe.settings."""
    return [
        {
            **_common(recorded), "name": name, "value": value,
            "variable": BY_NAME[name].env if name in BY_NAME else None,
            "unit": BY_NAME[name].unit if name in BY_NAME else None,
            "meaning": BY_NAME[name].help if name in BY_NAME else None,
        }
        for recorded in sources
        for name, value in sorted(recorded.meta.settings.items())
    ]


def _common(recorded: Recorded) -> dict[str, Any]:
    meta = recorded.meta
    return {"rank": meta.rank, "run": meta.run, "attempt": meta.attempt, "pid": meta.pid}


def table_list(sources: list[Recorded]) -> list[dict[str, Any]]:
    """Answer of `GET /v1/tables`: probe's own tables, and those that these processes declared."""
    own: list[Table] = []
    for recorded in sources:
        with contextlib.suppress(ProbeError):  # a query over them says what is damaged
            own += [one for one in declared.read(recorded.folder) if one.schema == declared.SCHEMA]
    return [
        {
            "name": table.full_name, "doc": table.doc, "source": table.source,
            "columns": [column._asdict() for column in columns_of(table)], "example": table.example,
        }
        for table in (*TABLES, *declared.merged(own).values())
    ]


def capture_rows(
    registry: Registry, sources: list[Recorded], threads: ThreadPoolExecutor
) -> tuple[list[dict[str, Any]], list[str]]:
    """Rows of python.backtrace from all sources at once, and a note on each source without any."""

    def capture(recorded: Recorded) -> dict[str, Any] | str:
        try:
            return backtraces.now(registry, recorded, Options())
        except ProbeError as error:
            return f"python.backtrace is empty for {recorded.name}: {error.message}"

    rows: list[dict[str, Any]] = []
    notes: list[str] = []
    for recorded, found in zip(sources, threads.map(capture, sources), strict=True):
        if isinstance(found, str):
            notes.append(found)
            continue
        if found["source"] != "agent":
            notes += found["notes"]
        for thread in found.get("threads", []):
            if thread.get("training"):
                common = {**_common(recorded), "step": found.get("step"), "phase": found.get("phase")}
                rows += [{**common, **frame} for frame in thread.get("frames", [])]
    if not rows and not notes:
        notes.append("python.backtrace is empty: no thread has trained yet")
    return rows, notes


def rings_folders(registry: Registry, sources: list[Recorded]) -> list[Path]:
    """Folders outside of this PROBE_DIR's recordings that a worker must be able to read."""
    inside = places.recordings(registry.directory)
    found: list[Path] = []
    for recorded in sources:
        if not recorded.folder.is_relative_to(inside):
            found.append(recorded.folder.parent)
        rings = Path(recorded.meta.rings)
        if not rings.is_relative_to(recorded.folder):
            found.append(rings.parent)
    return found
