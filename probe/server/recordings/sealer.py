"""Sealer: moves rows from rings into Parquet segments and enforces retention.

Thread `probe-drain`, at low priority. It may be killed at any moment: sealed rows are in segments, whose
names say which rows, and all others are still in the rings. A full disk or a damaged recording costs that
recording a round, never another one. May import duckdb and numpy.
"""

from __future__ import annotations

import contextlib
import logging
import os
import resource
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from probe.archive.shipped import FILE as SHIPPED
from probe.archive.shipped import Shipped, holds_segment
from probe.archive.shipped import read as read_shipped
from probe.archive.shipping import destination
from probe.base.errors import ProbeError, RecordingError
from probe.base.settings import Settings
from probe.recording import declared, layout, places, segments
from probe.recording.reader import (
    Facts,
    RingFile,
    damaged_texts,
    open_ring,
    pending_rows,
    sealable,
    spelled,
    texts_of,
    with_texts,
)
from probe.recording.tables import RINGS, Table
from probe.server.recordings import end_record, exit_report, server_journal
from probe.server.recordings.registry import LIVE, Recorded, Registry
from probe.server.runtime.supervision import FAILURES, Supervised

_log = logging.getLogger("probe.sealer")
_NICE = 10
_RETENTION_INTERVAL_S = 30.0
_PAUSE_RATIO, _LONGEST_PAUSE_S = 20.0, 5.0
"""With hundreds of recordings the pauses get longer, so that the thread uses about a twentieth of a core."""
SEAL_RATIO, _SEAL_CREDIT_S = 0.015, 0.5
"""Share of a core for sealing rows by age, and the CPU time that can be saved up. Without this limit, 64
training ranks would use four times as much."""
LATEST = 5
"""Rows older than this many PROBE_SEAL_INTERVAL_S are sealed regardless of `SEAL_RATIO`: this bounds what is
lost if the host loses power."""
_LEFTOVER_S = 30.0
"""Merged segments stay this long: a query may have listed but not read them yet."""


@dataclass(slots=True)
class _Backlog:
    """The state of one ring; all of it can be restored from the files."""

    folder: Path
    """The folder of its segments."""
    ring: Path
    watermark: int
    facts: Facts | None = None
    """The ring's facts, from when it was last open."""
    kept: RingFile | None = None
    """The ring, kept open since the last round if there are descriptors: a check then reads a few bytes."""
    highest: int = 0
    """Highest number written, as of the last time that rows were sealed."""
    waiting_since: float | None = None
    merged: bool = False


@dataclass(slots=True)
class _Rings:
    """The rings of one recording."""

    backlogs: dict[str, _Backlog] = field(default_factory=dict)
    """By table."""
    state: tuple[int, int, int] | None = None
    """Device, inode and modification time of their folder: while these are equal, so are the files in it."""

    def close(self) -> int:
        """Close those that are kept open; returns how many."""
        kept = [backlog for backlog in self.backlogs.values() if backlog.kept is not None]
        for backlog in kept:
            assert backlog.kept is not None
            backlog.kept.close()
            backlog.kept = None
        return len(kept)


class Sealer:
    """Seals, compacts and deletes, on `thread`; `round` handles every recording once."""

    def __init__(
        self, registry: Registry, settings: Settings, *, is_ours: Callable[[], bool] = lambda: True,
        record_end: Callable[[Recorded], object] | None = None,
    ) -> None:
        """`is_ours`: whether no other server can work in this PROBE_DIR; two would seal the same rows twice.
        `record_end` writes the end record of a process (`exit_watch`) before its rings are removed; by
        default it is written from the files alone."""
        self.registry = registry
        self.settings = settings
        self.is_ours = is_ours
        self.record_end = record_end
        self.failures: dict[Path, str] = {}
        """Recordings whose last round failed, and why."""
        self._engine = segments.engine()
        self.busy = threading.Lock()
        """Held while one recording is sealed or deleted."""
        self._rings: dict[tuple[Path, int], _Rings] = {}
        """By the identity of the recording."""
        self._may_keep = resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2
        """Rings that may still be kept open."""
        self._credit_s, self._credited_s = _SEAL_CREDIT_S, time.monotonic()
        self._first: tuple[Path, int] | None = None
        """The recording with which a round begins: the first one that had to wait in the round before."""
        self._declared: dict[Path, tuple[tuple[int, int], list[Table]]] = {}
        """By recording: the tables that its job declared, and inode and modification time of that file."""
        self._done: set[tuple[Path, int]] = set()
        self._stopping = threading.Event()
        self._retention_due = 0.0
        self.thread = Supervised("probe-drain", self._run, self._stopping)

    def _run(self) -> None:
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
        while not self._stopping.is_set():
            began_s = time.thread_time()
            self.round()
            pause_s = min(_LONGEST_PAUSE_S, (time.thread_time() - began_s) * _PAUSE_RATIO)
            self._stopping.wait(max(self.settings.drain_interval_s, pause_s))

    def round(self) -> None:
        """Handle every recording once."""
        if self._lost():
            return
        recorded_now = self.registry.processes()
        self._forget(recorded_now)
        now_s = time.monotonic()
        earned_s = (now_s - self._credited_s) * SEAL_RATIO
        self._credit_s, self._credited_s = min(_SEAL_CREDIT_S, self._credit_s + earned_s), now_s
        first = next((at for at, one in enumerate(recorded_now) if one.identity == self._first), 0)
        self._first = None
        for recorded in recorded_now[first:] + recorded_now[:first]:
            if self._stopping.is_set() or self._lost():
                return
            if recorded.identity not in self._done and not self._was_finished(recorded):
                self._attempt(recorded)
        self._done &= {recorded.identity for recorded in recorded_now}
        if time.monotonic() >= self._retention_due:
            self._retention_due = time.monotonic() + _RETENTION_INTERVAL_S
            try:
                with self.busy:
                    self._keep_retention(recorded_now)
            except FAILURES as error:
                _log.warning("retention: %s", error)

    def _forget(self, recorded_now: list[Recorded]) -> None:
        """Close the rings of recordings that are gone."""
        for identity in self._rings.keys() - {recorded.identity for recorded in recorded_now}:
            self._may_keep += self._rings.pop(identity).close()

    def _lost(self) -> bool:
        """Whether this server must end, because its folder was deleted or replaced."""
        if not self._stopping.is_set() and not self.is_ours():
            _log.error("%s was deleted or replaced: this server ends", self.registry.directory)
            self._stopping.set()
        return self._stopping.is_set()

    def _attempt(self, recorded: Recorded) -> None:
        try:
            with self.busy:
                if os.path.exists(f"{recorded.folder}/meta.json"):  # not just deleted
                    self._drain(recorded)
        except FAILURES as error:
            text = str(error).partition("\n")[0]
            if self.failures.get(recorded.folder) != text:
                _log.warning("%s: %s; its rows stay in the rings", recorded.folder, text)
            self.failures[recorded.folder] = text
        else:
            self.failures.pop(recorded.folder, None)

    def _was_finished(self, recorded: Recorded) -> bool:
        """Whether an earlier server has sealed everything and removed the rings: nothing is left to do."""
        if os.path.exists(recorded.meta.rings) or not end_record.exists(recorded.folder):
            return False
        if end_record.is_sealed(recorded.folder, recorded.meta):
            self._done.add(recorded.identity)
        return recorded.identity in self._done

    def is_done(self, recorded: Recorded) -> bool:
        """Whether all rows of an ended process are sealed, or its rings are damaged and given up."""
        return recorded.identity in self._done or end_record.is_sealed(recorded.folder, recorded.meta)

    # One recording ----------------------------------------------------------

    def _drain(self, recorded: Recorded) -> None:
        final = not self.registry.lives(recorded)
        problems: list[str] = []
        try:
            own = self._declared_by(recorded)
        except ProbeError as error:
            own = []
            problems.append(error.message)
        rings = self._rings.setdefault(recorded.identity, _Rings())
        if final or self._has_changed(rings, recorded.meta.rings):
            self._may_keep += rings.close()
        for table in (*RINGS, *own):
            if table.sealed and not self._stopping.is_set():
                try:
                    self._drain_ring(rings, recorded, table, final)
                except ProbeError as error:  # one damaged ring: seal the others first
                    problems.append(error.message)
        if final and not self._stopping.is_set():
            status = self.registry.status(recorded)
            if problems:  # given up: the damage will not go away
                self._done.add(recorded.identity)
            # While it is exiting, how it ends is not known yet.
            elif status.state not in LIVE and status.how != exit_report.ENDING:
                self._finish(recorded)
        if problems:
            raise ValueError("; ".join(problems))

    def _declared_by(self, recorded: Recorded) -> list[Table]:
        """The tables that a job declared; a file is read again when it has changed. Raises `ProbeError`."""
        try:
            found = os.stat(f"{recorded.folder}/{declared.FILE}")
        except FileNotFoundError:
            return []
        state = found.st_ino, found.st_mtime_ns
        known = self._declared.get(recorded.folder)
        if known is None or known[0] != state:
            known = self._declared[recorded.folder] = state, declared.read(recorded.folder)
        return known[1]

    def _has_changed(self, rings: _Rings, folder: str) -> bool:
        """Whether files in this folder may have been replaced or removed since the last round."""
        try:
            found = os.stat(folder)
        except OSError:
            return True
        before, rings.state = rings.state, (found.st_dev, found.st_ino, found.st_mtime_ns)
        return rings.state != before

    def _drain_ring(self, rings: _Rings, recorded: Recorded, table: Table, final: bool) -> None:
        pid, name = recorded.meta.pid, table.full_name
        backlog = rings.backlogs.get(name)
        if backlog is None:
            folder = places.segments_folder(recorded.folder, name, recorded.meta.rank)
            segments.remove_temporaries(folder)
            path = Path(recorded.meta.rings) / f"{name}.ring"
            backlog = _Backlog(folder, path, segments.watermark(segments.listing(folder, pid)))
            rings.backlogs[name] = backlog
        elif not final and not backlog.merged and not self._is_due(backlog, recorded):
            return
        try:
            ring = open_ring(recorded.meta, name)
        except FileNotFoundError:
            if not final:
                raise
            return  # sealed and removed before, or lost in a reboot
        began_s = time.thread_time()
        with ring:
            if table.on_demand and ring.columns != layout.stored_columns(table):
                raise RecordingError(f"{ring.path} has other columns than {declared.FILE} says")
            self._seal(recorded, table, ring, backlog, final)
        if backlog.merged:
            self._compact(pid, backlog)
        if not final:
            spent_s = time.thread_time() - began_s
            self._credit_s = max(-_SEAL_CREDIT_S, self._credit_s - spent_s)

    def _is_due(self, backlog: _Backlog, recorded: Recorded) -> bool:
        """Whether there may be rows to seal now: unsealed ones that are old, or a third of the ring. Checks a
        few places of the ring and reads no rows. Raises like `RingFile`."""
        if self._is_old(backlog, recorded):
            return True
        ring = backlog.kept or RingFile(backlog.ring, recorded.meta.owner, backlog.facts)
        keep = backlog.kept is not None
        try:
            backlog.facts = ring.facts
            waits = backlog.waiting_since is not None or ring.written_after(backlog.watermark)
            if waits and backlog.waiting_since is None:
                backlog.waiting_since = time.monotonic()
            due = waits and ring.written_after(backlog.watermark + ring.rows // 3)
            if not keep and self._may_keep > 0:
                self._may_keep -= 1
                backlog.kept, keep = ring, True
            return due
        except RecordingError:  # truncated: open it anew
            if backlog.kept is not None:
                self._may_keep += 1
                backlog.kept = None
            keep = False
            raise
        finally:
            if not keep:
                ring.close()

    def _is_old(self, backlog: _Backlog, recorded: Recorded) -> bool:
        """Whether rows have waited for long, and there is processor time to seal them or they have waited for
        too long."""
        if backlog.waiting_since is None:
            return False
        age_s, interval_s = time.monotonic() - backlog.waiting_since, self.settings.seal_interval_s
        if age_s < interval_s:
            return False
        if self._credit_s > 0 or age_s >= LATEST * interval_s:
            return True
        if self._first is None:
            self._first = recorded.identity
        return False

    def _seal(
        self, recorded: Recorded, table: Table, ring: RingFile, backlog: _Backlog, final: bool
    ) -> None:
        backlog.highest = ring.highest(max(backlog.highest, backlog.watermark))
        waiting = backlog.highest - backlog.watermark
        if waiting <= 0:
            backlog.waiting_since = None
            return
        now = time.monotonic()
        if backlog.waiting_since is None:
            backlog.waiting_since = now
        if not (final or self._is_old(backlog, recorded) or waiting > ring.rows // 3):
            return
        rows = ring.read(backlog.watermark, backlog.highest)
        texts: list[str | None] = [None]
        if any(kind == "VARCHAR" for _, kind in ring.columns):
            texts = texts_of(recorded.meta, ring)
        if not final:
            pending = pending_rows(rows, table.pending, texts)
            rows = rows[: sealable(rows, backlog.highest, ring.rows, pending)]
        if len(rows):
            rows, columns, texts = spelled(rows, ring.columns, texts)
            rows, texts, damaged = with_texts(rows, columns, texts)
            segments.set_texts(self._engine, texts)
            sealed = segments.write(self._engine, backlog.folder, recorded.meta.pid, rows, columns)
            lost = ring.left_out(up_to=sealed.last)
            for what in filter(None, (lost, damaged_texts(table.full_name, damaged))):
                server_journal.note(recorded.folder, {"event": exit_report.DAMAGE, "what": what})
            backlog.watermark = sealed.last
            backlog.merged = True
        # Pending rows are not read again in each round: a job may hang for hours.
        backlog.waiting_since = now if backlog.highest > backlog.watermark else None

    def _compact(self, pid: int, backlog: _Backlog) -> None:
        found = segments.listing(backlog.folder, pid)
        merged = segments.compact(self._engine, backlog.folder, found)
        old = segments.leftovers(found, _LEFTOVER_S, time.time())
        for segment in old:
            segment.path.unlink(missing_ok=True)
        leftover = len(found) - len(segments.visible(found)) - len(old)
        backlog.merged = merged is not None or leftover > 0

    def _finish(self, recorded: Recorded) -> None:
        """Record that everything is sealed, then remove the rings."""
        folder, meta, rings = recorded.folder, recorded.meta, Path(recorded.meta.rings)
        if self.record_end is not None:
            self.record_end(recorded)
        else:
            end_record.write(folder, meta, self.registry.status(recorded)._asdict())
        end_record.seal(folder, meta, {
            "rows_written": self._rows_written(recorded), "rings_found": (rings / "strings").exists(),
            "journal_bytes": exit_report.journal_sizes(folder),
        })
        if self.registry.made_here(recorded):  # a copy shares its rings with the original
            remove_rings(rings)
            self._remove_socket(recorded)
        crash = places.crash_file(recorded.folder)
        with contextlib.suppress(OSError):
            if crash.stat().st_size == 0:
                crash.unlink()
        self._done.add(recorded.identity)
        self._may_keep += self._rings.pop(recorded.identity, _Rings()).close()
        self._declared.pop(recorded.folder, None)

    def _remove_socket(self, recorded: Recorded) -> None:
        """Remove the socket of a killed agent, unless a later process with its pid listens there."""
        meta = recorded.meta
        path = places.agent_socket(self.registry.directory, meta.pid)
        later = [one for one in self.registry.processes() if one.meta.pid == meta.pid and one != recorded]
        reused = any(self.registry.status(one).state in LIVE for one in later)
        if meta.socket == str(path) and not recorded.process_lives and not reused:
            path.unlink(missing_ok=True)

    def _rows_written(self, recorded: Recorded) -> dict[str, int]:
        found: dict[str, int] = {}
        own: list[Table] = []
        rings = self._rings.get(recorded.identity, _Rings())
        with contextlib.suppress(ProbeError):
            own = declared.read(recorded.folder)
        for table in (*RINGS, *own):
            name = table.full_name
            backlog = rings.backlogs.get(name)
            if backlog is not None:
                found[name] = max(backlog.highest, backlog.watermark)
            else:
                with contextlib.suppress(ProbeError, OSError), open_ring(recorded.meta, name) as ring:
                    found[name] = ring.highest()
        return found

    # Retention --------------------------------------------------------------

    def _keep_retention(self, recorded_now: list[Recorded]) -> None:
        """Delete segments beyond PROBE_RETENTION_BYTES, the oldest first, those that wait to be shipped last;
        then recordings that are empty."""
        shipped = self._shipped(recorded_now)
        found: list[tuple[bool, int, Path, int]] = []
        total = 0
        everything = places.recordings(self.registry.directory)
        for path in everything.glob("run=*/attempt=*/table=*/rank=*/*.parquet"):
            with contextlib.suppress(FileNotFoundError):
                stat = path.stat()
                waits = path.parent in shipped and not any(
                    holds_segment(known, path) for known in shipped[path.parent]
                )
                found.append((waits, stat.st_mtime_ns, path, stat.st_size))
                total += stat.st_size
        if total <= self.settings.retention_bytes:
            return
        newest = self._newest_of_the_living(recorded_now)
        deleted = lost = 0
        for waits, _, path, size in sorted(found):
            if total <= self.settings.retention_bytes:
                break
            if path not in newest:
                path.unlink(missing_ok=True)
                total -= size
                deleted += 1
                lost += waits
        if lost:
            _log.warning("retention: %d of the deleted segments were not in the archive yet", lost)
        if deleted:
            _log.info("retention: deleted the %d oldest segments", deleted)
        self._remove_empty(recorded_now)

    def _shipped(self, recorded_now: list[Recorded]) -> dict[Path, list[Shipped]]:
        """By folder of segments: what has been shipped of each recording that has an archive."""
        found: dict[Path, list[Shipped]] = {}
        for recorded in recorded_now:
            url = destination(recorded.meta, self.settings)
            if url:
                known = read_shipped(recorded.folder, url)
                for folder in recorded.folder.parent.glob(f"table=*/rank={recorded.meta.rank}"):
                    found.setdefault(folder, []).append(known)
        return found

    def _newest_of_the_living(self, recorded_now: list[Recorded]) -> set[Path]:
        """The newest segment of each table that is still written: it holds the watermark."""
        kept: set[Path] = set()
        for recorded in recorded_now:
            if recorded.identity in self._done:
                continue
            attempt = recorded.folder.parent
            for folder in attempt.glob(f"table=*/rank={recorded.meta.rank}"):
                found = segments.listing(folder, recorded.meta.pid)
                if found:
                    kept.add(max(found, key=lambda segment: segment.last).path)
        return kept

    def _remove_empty(self, recorded_now: list[Recorded]) -> None:
        """Remove recordings of ended processes that have no segments, and empty folders."""
        for recorded in recorded_now:
            if recorded.identity not in self._done:
                continue
            attempt = recorded.folder.parent
            if any(attempt.glob(f"table=*/rank={recorded.meta.rank}/{recorded.meta.pid}-*.parquet")):
                continue
            files = ("journal.bin", "watch.bin", "crash.txt", "end.json", declared.FILE, SHIPPED, "meta.json")
            for name in files:
                (recorded.folder / name).unlink(missing_ok=True)
            with contextlib.suppress(OSError):
                recorded.folder.rmdir()
            remove_empty_folders(attempt)


def remove_empty_folders(attempt: Path) -> None:
    """Remove the folders of an attempt, and of its run, as far as they are empty."""
    for folder in (*attempt.glob("table=*/rank=*"), *attempt.glob("table=*"), attempt, attempt.parent):
        with contextlib.suppress(OSError):
            folder.rmdir()


def remove_rings(folder: Path) -> None:
    """Delete rings by name only: a damaged meta.json may name any folder."""
    for path in (*folder.glob("*.ring"), folder / "strings"):
        path.unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        folder.rmdir()
