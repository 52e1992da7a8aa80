"""Archiver: ships the recordings of this host to their archives, in the background.

Thread `probe-archive`, at low priority and within PROBE_ARCHIVE_RATE and PROBE_ARCHIVE_CPU. A recording is
shipped every PROBE_ARCHIVE_INTERVAL_S, and once all its rows are sealed. It may be killed at any moment, and
an archive may be out of reach for days: what is missing there is found by its names and shipped later.
Nothing waits for it but pruning. May import duckdb, through `probe.archive`.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from probe.archive import archive_state, shipped
from probe.archive.shipping import Shipper, Stopped, destination
from probe.archive.store import open_store
from probe.archive.throttle import Pace
from probe.base.errors import ArchiveUnavailable, PackageMissing, ProbeError, UsageError
from probe.base.settings import Settings
from probe.recording import places
from probe.server.recordings.registry import Recorded, Registry
from probe.server.recordings.sealer import Sealer
from probe.server.runtime.supervision import FAILURES, Supervised

_log = logging.getLogger("probe.archive")
_NICE = 15
_ROUND_S = 5.0
_FIRST_WAIT_S, _LONGEST_WAIT_S = 5.0, 300.0
"""Before an archive that could not be used is tried again; doubled each time."""
_WORTH_STAYING_S = 1800.0
"""A server stays for what waits while the archive could be used so recently, or has not failed as long."""


@dataclass
class _Archive:
    """One destination. Times are monotonic seconds."""

    shipper: Shipper | None = None
    wait_s: float = 0.0
    due_s: float = 0.0
    failing_since_s: float | None = None


class Archiver:
    """Ships for one registry, on `thread`; `round` handles every recording that is due."""

    def __init__(self, registry: Registry, sealer: Sealer, settings: Settings) -> None:
        self._registry, self._sealer, self._settings = registry, sealer, settings
        self._archives: dict[str, _Archive] = {}
        self._due_s: dict[tuple[Path, int], float] = {}
        """When each recording is to be shipped next; infinite once everything is."""
        self._whole_bytes: dict[tuple[Path, int], int] = {}
        """Size of the journals of those: they are shipped again when facts or verdicts were noted since."""
        self._ended: set[tuple[Path, int]] = set()
        """Recordings that were to be shipped at once because they were sealed."""
        self._stopping = threading.Event()
        self._pace = Pace(settings.archive_rate_bytes_s, settings.archive_cpu_ratio, self._stopping)
        self.thread = Supervised("probe-archive", self._run, self._stopping)
        self.waiting = False
        """Whether recordings of ended processes wait, and their archive has not failed for long."""

    def _run(self) -> None:
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
        while not self._stopping.wait(min(_ROUND_S, self._settings.archive_interval_s)):
            self.round()

    def round(self) -> None:
        """Ship every recording that is due."""
        waiting = False
        listed = self._registry.processes()
        for recorded in listed:
            url = destination(recorded.meta, self._settings)
            if not url or self._stopping.is_set():
                continue
            ended = self._sealer.is_done(recorded)
            if self._is_due(recorded, url, ended):
                self._ship(recorded, url)
            since_s = self._archives[url].failing_since_s if url in self._archives else None
            if ended and self._due_s.get(recorded.identity) != float("inf"):
                waiting |= since_s is None or time.monotonic() - since_s < _WORTH_STAYING_S
        for archive in self._archives.values():
            if archive.shipper is not None:
                archive.shipper.close()
        self.waiting = waiting
        here = {recorded.identity for recorded in listed}
        self._due_s = {one: due_s for one, due_s in self._due_s.items() if one in here}
        self._whole_bytes = {one: size for one, size in self._whole_bytes.items() if one in here}
        self._ended &= here

    def _is_due(self, recorded: Recorded, url: str, ended: bool) -> bool:
        identity, now_s = recorded.identity, time.monotonic()
        if identity not in self._due_s:
            known = shipped.read(recorded.folder, url)
            self._whole_bytes[identity] = known.journal_bytes
            done = ended and known.complete
            self._due_s[identity] = float("inf") if done else 0.0 if ended else now_s + self._first_s()
        elif self._due_s[identity] == float("inf"):
            if places.journal_bytes(recorded.folder) == self._whole_bytes[identity]:
                return False
            self._due_s[identity] = now_s
        if ended and identity not in self._ended:
            self._ended.add(identity)
            if self._due_s[identity] != float("inf"):
                self._due_s[identity] = now_s
        archive = self._archives.get(url)
        return now_s >= self._due_s[identity] and (archive is None or now_s >= archive.due_s)

    def _first_s(self) -> float:
        """A process is in the archive soon after its start, with its facts."""
        return min(30.0, self._settings.archive_interval_s)

    def _ship(self, recorded: Recorded, url: str) -> None:
        archive = self._archives.setdefault(url, _Archive())
        try:
            if archive.shipper is None:
                archive.shipper = Shipper(self._registry.directory, open_store(url), self._pace)
            done = archive.shipper.ship(recorded.folder)
        except Stopped:
            return
        except (ArchiveUnavailable, UsageError, PackageMissing) as error:
            self._note_failure(archive, url, error)
        except FAILURES as error:  # of this recording alone: it is pruned, or damaged
            text = str(error).partition("\n")[0]
            _log.warning("%s: %s; it is not shipped now", recorded.folder, text)
            self._due_s[recorded.identity] = time.monotonic() + self._settings.archive_interval_s
            what = f"{recorded.name} (pid {recorded.meta.pid}): {text}"
            archive_state.note(self._registry.directory, url, what, "")
        else:
            interval_s = float("inf") if done.complete else self._settings.archive_interval_s
            self._due_s[recorded.identity] = time.monotonic() + interval_s
            self._whole_bytes[recorded.identity] = done.journal_bytes
            if archive.failing_since_s is not None:
                _log.info("%s can be used again", url)
            archive.wait_s, archive.due_s, archive.failing_since_s = 0.0, 0.0, None
            archive_state.note(self._registry.directory, url, "", "")

    def _note_failure(self, archive: _Archive, url: str, error: ProbeError) -> None:
        now_s = time.monotonic()
        if archive.failing_since_s is None:
            archive.failing_since_s = now_s
            _log.warning("%s. %s", error.message, error.hint)
        archive.wait_s = min(_LONGEST_WAIT_S, max(_FIRST_WAIT_S, 2 * archive.wait_s))
        archive.due_s = now_s + archive.wait_s
        archive_state.note(self._registry.directory, url, error.message, error.hint)
