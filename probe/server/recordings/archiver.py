"""Archiver: ships the recordings of this host to their archives, in the background.

Thread `probe-archive`, at low priority and within PROBE_ARCHIVE_RATE and PROBE_ARCHIVE_CPU. Most of the cost
is per file, so the rows of a living process are shipped together: after as long as it has run, at most
PROBE_ARCHIVE_INTERVAL_S, and after a sixth of that if the server noted something about it or many bytes wait.
The recording of an ended process is shipped once all its rows are sealed. The thread may be killed at any
moment, and an archive may be unreachable for days: missing files are found by their names and shipped later.
Only pruning waits for this thread. May import duckdb, through `probe.archive`.
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
from probe.base import clock
from probe.base.errors import ArchiveUnavailable, PackageMissing, ProbeError, UsageError
from probe.base.settings import Settings
from probe.recording import places
from probe.server.recordings.registry import Recorded, Registry
from probe.server.recordings.sealer import Sealer
from probe.server.runtime.supervision import FAILURES, Supervised

_log = logging.getLogger("probe.archive")
_NICE = 15
_ROUND_S = 5.0
_FIRST_S = 30.0
"""Delay of a process's first shipment, which includes its facts."""
_CHECKS = 6
"""How many times per interval a living process is checked."""
_MUCH_BYTES = 16 << 20
"""Sealed bytes of one process that are shipped early. With 64 ranks they are half of the default
PROBE_RETENTION_BYTES, beyond which segments are deleted even if they were not shipped."""
_FIRST_WAIT_S, _LONGEST_WAIT_S = 5.0, 300.0
"""Wait before an archive that failed is tried again; doubled each time."""
_WORTH_STAYING_S = 1800.0
"""The server keeps running for waiting recordings until their archive has failed for this long."""


@dataclass
class _Archive:
    """One destination. Times are monotonic seconds."""

    shipper: Shipper | None = None
    wait_s: float = 0.0
    due_s: float = 0.0
    failing_since_s: float | None = None


@dataclass
class _Turn:
    """When one recording is shipped next. Times are monotonic seconds."""

    due_s: float
    """Infinite once everything is shipped."""
    check_s: float
    """When to check next whether to ship it early."""
    journal_bytes: int
    """Size of both journals when it was shipped: a complete recording is shipped again when it changes."""
    noted_bytes: int
    """Size of the server's journal, which holds stalls and verdicts."""
    sealed: bool = False
    """Whether it was made due because its process has ended."""


class Archiver:
    """Ships for one registry, on `thread`; `round` handles every recording that is due."""

    def __init__(self, registry: Registry, sealer: Sealer, settings: Settings) -> None:
        self._registry, self._sealer, self._settings = registry, sealer, settings
        self._archives: dict[str, _Archive] = {}
        self._turns: dict[tuple[Path, int], _Turn] = {}
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
            turn = self._turns.get(recorded.identity) or self._first_turn(recorded, url, ended)
            if self._is_due(turn, recorded, url, ended):
                self._ship(turn, recorded, url)
            since_s = self._archives[url].failing_since_s if url in self._archives else None
            if ended and turn.due_s != float("inf"):
                waiting |= since_s is None or time.monotonic() - since_s < _WORTH_STAYING_S
        for archive in self._archives.values():
            if archive.shipper is not None:
                archive.shipper.close()
        self.waiting = waiting
        here = {recorded.identity for recorded in listed}
        self._turns = {one: turn for one, turn in self._turns.items() if one in here}

    def _first_turn(self, recorded: Recorded, url: str, ended: bool) -> _Turn:
        known, now_s = shipped.read(recorded.folder, url), time.monotonic()
        due_s = float("inf") if ended and known.complete else now_s
        if not ended:
            due_s += min(_FIRST_S, self._settings.archive_interval_s)
        turn = _Turn(due_s, due_s, known.journal_bytes, _noted_bytes(recorded.folder))
        self._turns[recorded.identity] = turn
        return turn

    def _is_due(self, turn: _Turn, recorded: Recorded, url: str, ended: bool) -> bool:
        now_s = time.monotonic()
        if turn.due_s == float("inf"):
            if places.journal_bytes(recorded.folder) == turn.journal_bytes:
                return False
            turn.due_s = now_s
        if ended and not turn.sealed:
            turn.sealed, turn.due_s = True, now_s
        elif turn.check_s <= now_s < turn.due_s and not ended:
            turn.check_s = now_s + self._settings.archive_interval_s / _CHECKS
            if _noted_bytes(recorded.folder) != turn.noted_bytes or self._much_waits(recorded, url):
                turn.due_s = now_s
        archive = self._archives.get(url)
        return now_s >= turn.due_s and (archive is None or now_s >= archive.due_s)

    @staticmethod
    def _much_waits(recorded: Recorded, url: str) -> bool:
        known, meta = shipped.read(recorded.folder, url), recorded.meta
        return shipped.waiting(recorded.folder, meta.rank, meta.pid, known).size_bytes >= _MUCH_BYTES

    def _ship(self, turn: _Turn, recorded: Recorded, url: str) -> None:
        archive = self._archives.setdefault(url, _Archive())
        try:
            turn.noted_bytes = _noted_bytes(recorded.folder)
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
            turn.due_s = time.monotonic() + self._settings.archive_interval_s / _CHECKS
            what = f"{recorded.name} (pid {recorded.meta.pid}): {text}"
            archive_state.note(self._registry.directory, url, what, "")
        else:
            interval_s, now_s = self._settings.archive_interval_s, time.monotonic()
            ran_s = (clock.wall_ns() - recorded.meta.started_ns) * 1e-9
            turn.due_s = float("inf") if done.complete else now_s + min(interval_s, max(_FIRST_S, ran_s))
            turn.check_s, turn.journal_bytes = now_s + interval_s / _CHECKS, done.journal_bytes
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


def _noted_bytes(process: Path) -> int:
    """Size of the server's journal of a recording."""
    try:
        return places.journals(process)[1].stat().st_size
    except OSError:  # nothing was noted yet
        return 0
