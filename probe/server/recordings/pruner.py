"""Deletes recordings of processes that have ended, on request.

Never deletes a recording of a living process, of a run that continues, or one that is still being sealed. A
folder is renamed before it is deleted, so that a server killed in between leaves nothing that looks like a
recording; the next request deletes the rest. Runs on a request thread, one recording at a time, alternating
with the sealer.
Standard library only (and types of pydantic).
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from probe.archive.shipped import read as read_shipped
from probe.archive.shipping import destination
from probe.base import clock
from probe.base.errors import BadRequest
from probe.recording import places
from probe.server.recordings.registry import LIVE, Recorded, Registry
from probe.server.recordings.sealer import Sealer, remove_empty_folders, remove_rings
from probe.server.runtime.request_bodies import PruneBody

_PUT_ASIDE = ".pruned-"


class Pruner:
    """Deletes for one registry; one request at a time."""

    def __init__(self, registry: Registry, sealer: Sealer) -> None:
        self._registry = registry
        self._sealer = sealer
        self._one = threading.Lock()

    def prune(self, wanted: PruneBody) -> dict[str, Any]:
        """Answer of `POST /v1/prune`: recordings that were or would be deleted, and matching ones that were
        left."""
        if wanted.older_than_s is None and wanted.keep is None and wanted.job is None:
            hint = "Give --older-than, --keep or --job."
            raise BadRequest("no criteria for the recordings to delete", hint=hint)
        with self._one:
            if not wanted.dry_run:
                for folder in self._half_deleted():
                    _delete_rest(folder)
            deleted: list[dict[str, Any]] = []
            left: list[dict[str, Any]] = []
            for recorded in self._chosen(wanted):
                row = self._row(recorded)
                why = self._why_not(recorded) or (None if wanted.dry_run else self._delete(recorded))
                if why is None:
                    deleted.append(row)
                else:
                    left.append({**row, "why": why})
        return {
            "deleted": deleted, "left": left, "dry_run": wanted.dry_run,
            "bytes": sum(row["bytes"] for row in deleted),
        }

    def _chosen(self, wanted: PruneBody) -> list[Recorded]:
        """The recordings that match, those of living processes included."""
        everything = self._registry.processes()
        runs: dict[str, list[str]] = {}
        for recorded in reversed(everything):
            known = runs.setdefault(recorded.meta.job, [])
            if recorded.meta.run not in known:
                known.append(recorded.meta.run)
        found: list[Recorded] = []
        for recorded in everything:
            meta = recorded.meta
            if wanted.job is not None and meta.job != wanted.job:
                continue
            if wanted.keep is not None and meta.run in runs[meta.job][: wanted.keep]:
                continue
            if wanted.older_than_s is not None and not self._older(recorded, wanted.older_than_s):
                continue
            found.append(recorded)
        return found

    def _older(self, recorded: Recorded, age_s: float) -> bool:
        status = self._registry.status(recorded)
        since_ns = status.ended_ns if status.state not in LIVE else None
        return since_ns is not None and clock.wall_ns() - since_ns >= age_s * 1e9

    def _why_not(self, recorded: Recorded) -> str | None:
        """Why a recording that matches is not deleted; None when it may be."""
        meta = recorded.meta
        if self._registry.status(recorded).state in LIVE:
            return "it is being recorded"
        if recorded.process_lives:
            return "its process is still alive"
        for other in self._registry.processes():
            same_run = (other.meta.job, other.meta.run) == (meta.job, meta.run)
            if same_run and self._registry.status(other).state in LIVE:
                return f"its run continues: {other.name} (pid {other.meta.pid}) is being recorded"
        if not self._sealer.is_done(recorded):
            return "it is still being sealed: try again in a moment"
        url = destination(meta, self._sealer.settings)
        if url and not read_shipped(recorded.folder, url).complete:
            return f"it is not in the archive {url} yet: `probe archive --status` says why"
        return None

    def _delete(self, recorded: Recorded) -> str | None:
        """Delete one recording; returns why it could not be deleted, None when it was."""
        with self._sealer.busy:
            aside = recorded.folder.with_name(_PUT_ASIDE + recorded.folder.name)
            try:
                os.rename(recorded.folder, aside)
            except OSError as error:
                return f"it cannot be removed: {error.strerror or error}"
            if self._registry.made_here(recorded):
                remove_rings(Path(recorded.meta.rings))
            _delete_rest(aside)
        return None

    def _half_deleted(self) -> Iterator[Path]:
        yield from places.recordings(self._registry.directory).glob(f"run=*/attempt=*/{_PUT_ASIDE}process=*")

    def _row(self, recorded: Recorded) -> dict[str, Any]:
        meta = recorded.meta
        status = self._registry.status(recorded)
        return {
            "job": meta.job, "run": meta.run, "attempt": meta.attempt, "rank": meta.rank, "pid": meta.pid,
            "state": status.state, "how": status.how, "ended_ns": status.ended_ns,
            "folder": str(recorded.folder), "bytes": _size_bytes(recorded),
        }


def _delete_rest(aside: Path) -> None:
    """Delete a recording that was renamed: its segments first, its folder last."""
    found = re.fullmatch(rf"{re.escape(_PUT_ASIDE)}process=(-?\d+)-(\d+)", aside.name)
    attempt = aside.parent
    if found is not None and not aside.with_name(aside.name.removeprefix(_PUT_ASIDE)).exists():
        for path in _segments(attempt, int(found[1]), int(found[2])):
            path.unlink(missing_ok=True)
    shutil.rmtree(aside, ignore_errors=True)
    remove_empty_folders(attempt)


def _segments(attempt: Path, rank: int, pid: int) -> list[Path]:
    return sorted(attempt.glob(f"table=*/rank={rank}/{pid}-*.parquet"))


def _size_bytes(recorded: Recorded) -> int:
    meta = recorded.meta
    files = [*recorded.folder.rglob("*"), *_segments(recorded.folder.parent, meta.rank, meta.pid)]
    total = 0
    for path in files:
        with contextlib.suppress(OSError):
            found = path.lstat()
            total += found.st_size if not path.is_dir() else 0
    return total
