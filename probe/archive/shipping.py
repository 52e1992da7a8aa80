"""Shipping: puts the recordings of this host into an archive, each row once.

For each table of a recording, list which rows the archive has, and put the missing ones: a shipment that is
killed leaves nothing that must be undone. While `lock` is held no other process ships from this PROBE_DIR, so
that two processes do not split the same rows differently. Other files follow, then the process's row of
archive.processes, and last `archived.json` in the recording, which lists what was shipped.

Runs on the server's thread `probe-archive`, and in `probe archive`; duckdb in functions. Reads only
recordings, never the job.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pwd
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from probe import __version__
from probe.archive import catalog, dataset, rows, shipped
from probe.archive.catalog import Catalog, Ranges
from probe.archive.rows import Entry, Piece
from probe.archive.shipped import Shipped
from probe.archive.store import Store, normal_url
from probe.archive.throttle import Pace
from probe.base import clock
from probe.base.errors import ProbeError, RecordingError
from probe.base.settings import Settings
from probe.bundle import cleaning
from probe.recording import checked, declared, places, segments
from probe.recording.recording import Meta
from probe.recording.tables import Table

if TYPE_CHECKING:
    import duckdb

_WORKING = ".shipping-"
_STALE_S = 24 * 3600.0
_LOCK = "archive.lock"
_MEMORY = "512MB"
_LARGEST_LIVE_JOURNAL_BYTES = 256 << 10
"""A larger journal is put as a file only once its process has ended; its rows are shipped earlier."""
_FACTS = {
    "commit": ("git", "commit"), "driver": ("hardware", "driver"), "device": ("hardware", "device"),
    "image": ("environment", "image"), "script": ("command", "script"),
}
"""Columns of archive.processes that are facts: kind and name in probe.facts."""


def destination(meta: Meta, settings: Settings) -> str:
    """The archive of a recording: its own PROBE_ARCHIVE, else the one in force here, as `normal_url` writes
    it; empty if there is none."""
    url = meta.settings.get("archive") or settings.archive
    try:
        return normal_url(url) if url else ""
    except ProbeError:
        return url


class Stopped(Exception):
    """The caller must stop; objects that were put stay, the rest is shipped later."""


_OURS = os.urandom(8).hex()
"""With the pid, identifies this process among those that ship from a PROBE_DIR."""


@contextlib.contextmanager
def lock(home: Path) -> Iterator[bool]:
    """The lock for shipping from this PROBE_DIR; waits for other holders. Yields whether another process has
    held it since this one did: then this process's cache of the archive may be stale. Raises `OSError`."""
    descriptor = os.open(home / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        name = f"{os.getpid()}-{_OURS}".encode()
        another = os.pread(descriptor, 64, 0) != name
        if another:
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, name, 0)
        yield another
    finally:
        os.close(descriptor)


class Progress(NamedTuple):
    """The state that one shipment of a recording leaves for the next, which then reads only what is new."""

    seen: dict[str, Any]
    """The files on disk when it began (`_seen`)."""
    shipped: Shipped
    places: tuple[int, ...]
    """The bytes of the journals up to which their rows were read."""
    facts: dict[tuple[str, str], Any]
    verdict: tuple[int, str | None]
    """Time and text of the last verdict."""
    row: dict[str, Any]
    """The process's row of archive.processes."""
    row_name: str


class Shipper:
    """Ships recordings of one PROBE_DIR to one archive."""

    def __init__(self, home: Path, store: Store, pace: Pace) -> None:
        self.home, self.store, self._pace = home, store, pace
        self._catalog = Catalog(store)
        self._held: dict[dataset.Group, dict[str, Ranges]] = {}
        """Rows in the archive by group and process; a group is dropped when a put to it fails."""
        self._progress: dict[str, Progress] = {}
        self._files: dict[tuple[str, str], tuple[int, int]] = {}
        """Size and modification time of the files that were put, by process and name."""
        self._engine: duckdb.DuckDBPyConnection | None = None

    def ship(self, process: Path) -> Shipped:
        """Put the missing rows and files of one recording. Raises `RecordingError` (`ArchiveUnavailable` is
        one), `OSError` or `duckdb.Error`; objects that were put by then stay."""
        meta = Meta.read(process)
        meta = replace(
            meta, job=cleaning.text(meta.job), run=cleaning.text(meta.run), host=cleaning.text(meta.host)
        )
        with lock(self.home) as another:
            if another:
                self._held.clear()
                self._progress.clear()
                self._files.clear()
            key, seen = dataset.process_id(meta), _seen(process, meta)
            known = shipped.read(process, self.store.url)
            before = self._progress.pop(key, None)  # unknown until this succeeds
            if before is not None and before.shipped != known:
                before = None
            if before is None or before.seen != seen:
                before = self._ship(process, meta, seen, known, before)
            self._progress[key] = before
            return before.shipped

    def _ship(
        self, process: Path, meta: Meta, seen: dict[str, Any], known: Shipped, before: Progress | None
    ) -> Progress:
        with _working_folder(self.home) as folder:
            if self._engine is None:
                self._engine = segments.engine()
                self._engine.execute(f"SET memory_limit = '{_MEMORY}'")
            try:
                return _Shipment(self, self._engine, folder, process, meta, known, before).run(seen)
            except BaseException:
                self.close()
                raise

    def close(self) -> None:
        """Close the engine, which the next shipment opens again."""
        if self._engine is not None:
            self._engine.close()
            self._engine = None

    def held(self, meta: Meta, table: str) -> Ranges:
        """The rows of one process's table that are in the archive. One listing covers all processes of the
        run."""
        group = dataset.group_of(meta, table)
        if group not in self._held:
            self._held[group], _ = self._catalog.held(group)
        return self._held[group].get(dataset.process_id(meta), [])

    def put(self, name: str, data: bytes | Path) -> None:
        """Put one object within the limits. Raises `Stopped` afterwards, or `ArchiveUnavailable`."""
        size = len(data) if isinstance(data, bytes) else data.stat().st_size
        self.store.put(name, data)
        if self._pace.pause(size):
            raise Stopped

    def put_rows(self, file: dataset.DataFile, made: Path) -> None:
        """Put a file of rows and note that they are there."""
        held = self._held.pop(file.group)  # unknown until the put succeeds: a failed one may have happened
        self.store.put(file.name, made)
        ranges = catalog.union([*held.get(file.process, ()), (file.first, file.last)])
        self._held[file.group] = {**held, file.process: ranges}
        if self._pace.pause(made.stat().st_size):
            raise Stopped

    def put_file(self, meta: Meta, path: Path, data: bytes, mark: tuple[int, int]) -> None:
        """Put a file that is not a table, if it has changed since."""
        key = dataset.process_id(meta), path.name
        if self._files.get(key) != mark:
            self.put(dataset.files_folder(meta) + path.name, data)
            self._files[key] = mark

    def file_there(self, meta: Meta, path: Path) -> tuple[int, int] | None:
        """Size and modification time of a file when this process last put it; None if it has not."""
        return self._files.get((dataset.process_id(meta), path.name))


class _Shipment:
    """One shipment of one recording. `before`: the last one's `Progress`, if nobody else shipped since."""

    def __init__(
        self, shipper: Shipper, connection: duckdb.DuckDBPyConnection, folder: Path, process: Path,
        meta: Meta, known: Shipped, before: Progress | None,
    ) -> None:
        self.shipper, self.connection, self.folder = shipper, connection, folder
        self.process, self.meta = process, meta
        self.id = dataset.process_id(meta)
        self.known, self.before = known, before
        self.rows = known.rows
        self.last_step, self.last_t_ns = known.last_step, known.last_t_ns
        self.tables: dict[str, Ranges] = dict(known.tables)

    def run(self, seen: dict[str, Any]) -> Progress:
        end = self._end()  # first: rows written after it are shipped later
        sealed = rows.tables_of(self.process)
        written, places_reached = rows.entries(self.process, self.before.places if self.before else (0, 0))
        if self.before is None:
            self._count_anew([table for table in sealed if seen.get(table.full_name)], written)
        for table in sealed:
            name = table.full_name
            if self.before is None or self.before.seen.get(name) != seen.get(name):
                self._ship_sealed(table)
        names = dict.fromkeys(one.table.full_name for one in written)
        held = {name: self.shipper.held(self.meta, name) for name in names}
        for piece in rows.journal_pieces(written, held):
            self._ship(piece)
        for name in names:
            self.tables[name] = self.shipper.held(self.meta, name)
        self._ship_files(ended=end is not None)
        complete = end is not None and end.get("sealed") is True
        facts, verdict = _told(written, self.before)
        row = self._row(end, complete, facts, verdict[1])
        row_name = self.before.row_name if self.before else ""
        if self.before is None or row != self.before.row:
            row_name = self._ship_process(row, row_name)
        marks = (seen[path.name] for path in places.journals(self.process))
        now = Shipped(
            self.shipper.store.url, complete, self.tables, self.rows, self.last_step, self.last_t_ns,
            clock.wall_ns(), sum(mark[0] for mark in marks if mark is not None),
        )
        shipped.write(self.process, now)
        return Progress(seen, now, places_reached, facts, verdict, row, row_name)

    def _count_anew(self, sealed: Sequence[Table], written: Sequence[Entry]) -> None:
        """Count the rows that are in the archive but not in `archived.json`, because a shipment was
        interrupted. Unknown if their segments are gone."""
        known = self.known.tables
        if self.rows is None:
            self.rows, known = 0, {}
        found: list[rows.Counted | None] = []
        for table in sealed:
            if new := self._beyond(known, table.full_name):
                found.append(rows.counted(self.connection, self.process, self.meta, table, new))
        for name in dict.fromkeys(one.table.full_name for one in written):
            found.append(rows.counted_entries(written, name, self._beyond(known, name)))
        for one in found:
            if one is None:
                self.rows = None
            else:
                self._note(*one)

    def _beyond(self, known: dict[str, Ranges], table: str) -> Ranges:
        """The rows of a table that are in the archive but not in `known`."""
        told = known.get(table, [])
        return [one for held in self.shipper.held(self.meta, table) for one in catalog.missing(told, *held)]

    def _note(self, count: int, last_step: int | None, last_t_ns: int | None) -> None:
        """Count rows that are in the archive now."""
        self.rows = None if self.rows is None else self.rows + count
        if last_step is not None:
            self.last_step = max(self.last_step or 0, last_step)
        if last_t_ns is not None:
            self.last_t_ns = max(self.last_t_ns or 0, last_t_ns)

    def _end(self) -> dict[str, Any] | None:
        try:
            return checked.read_sealed(self.process / "end.json", older=lambda facts: "version" not in facts)
        except FileNotFoundError:
            return None
        except (OSError, ValueError):  # damaged: it ended, and how is lost
            return {"sealed": True}

    # Rows -------------------------------------------------------------------

    def _ship_sealed(self, table: Table) -> None:
        name = table.full_name
        folder = places.segments_folder(self.process, name, self.meta.rank)
        if not segments.listing(folder, self.meta.pid):
            return
        held = self.shipper.held(self.meta, name)
        for attempt in range(8):
            try:
                for piece in rows.sealed_pieces(self.process, self.meta, table, held):
                    self._ship(piece)
                break
            except FileNotFoundError:  # merged, or deleted to free space, since it was listed
                if attempt == 7:
                    raise
                held = self.shipper.held(self.meta, name)
        self.tables[name] = self.shipper.held(self.meta, name)

    def _ship(self, piece: Piece) -> None:
        made = rows.make(self.connection, self.folder, self.meta, piece)
        name = piece.table.full_name
        file = dataset.file_of(self.meta, name, piece.first, piece.last, made.checksum)
        self._note(made.rows, made.last_step, made.last_t_ns)
        self.shipper.put_rows(file, made.path)

    # Files ------------------------------------------------------------------

    def _ship_files(self, *, ended: bool) -> None:
        own = [self.process / name for name in ("meta.json", "end.json", declared.FILE)]
        for path in [*own, places.crash_file(self.process)]:
            mark = _mark(path)
            if mark is None or self.shipper.file_there(self.meta, path) == mark:
                continue
            with contextlib.suppress(FileNotFoundError):
                data = checked.read_bytes(path)
                if path.suffix == ".txt":
                    clean = cleaning.lines(data.decode("utf-8", "replace")).encode()
                else:
                    facts = checked.loads(data)
                    facts.pop(checked.CHECKSUM, None)
                    clean = checked.sealed(path.name, cleaning.plain(facts))
                if clean:
                    self.shipper.put_file(self.meta, path, clean, mark)
        marks = {path: mark for path in places.journals(self.process) if (mark := _mark(path))}
        due = {path: mark for path, mark in marks.items() if self._is_due(path, mark, ended)}
        if due:
            copy = self.folder / self.process.name
            copy.mkdir()
            cleaning.journals(self.process, copy)
            for path, mark in due.items():
                if (copy / path.name).exists():
                    self.shipper.put_file(self.meta, path, (copy / path.name).read_bytes(), mark)

    def _is_due(self, path: Path, mark: tuple[int, int], ended: bool) -> bool:
        """Whether to put a journal as a file now: for a living process, each time that it has doubled."""
        there = self.shipper.file_there(self.meta, path)
        if ended:
            return there != mark
        return mark[0] <= _LARGEST_LIVE_JOURNAL_BYTES and (there is None or mark[0] >= 2 * there[0])

    # archive.processes ------------------------------------------------------

    def _ship_process(self, row: dict[str, Any], before: str) -> str:
        """Put the process's row, which replaces the one `before`, or all others if that is unknown. Returns
        its name."""
        table = dataset.PROCESSES
        held = self.shipper.held(self.meta, table.full_name)
        number = (held[-1][1] if held else 0) + 1
        made = rows.make(self.connection, self.folder, self.meta, Piece(
            table._replace(columns=table.columns[len(dataset.IDENTITY):]), number, number,
            rows=[{**row, "updated_ns": clock.wall_ns(), dataset.NUMBER: number}],
        ))
        file = dataset.file_of(self.meta, table.full_name, number, number, made.checksum)
        older = [before] if before else [
            one.name for one in self.shipper.store.list(f"{file.group.folder}rank={self.meta.rank}/")
            if (found := dataset.read_file(one.name)) and found.process == self.id and found.last < number
        ]
        self.shipper.put_rows(file, made.path)
        self.shipper.store.delete(older)
        return file.name

    def _row(
        self, end: dict[str, Any] | None, complete: bool, facts: dict[tuple[str, str], Any],
        verdict: str | None,
    ) -> dict[str, Any]:
        """The process's row, without the time at which it is written."""
        meta = self.meta
        ended: dict[str, Any] = {"state": "running"} if end is None else end
        step: int | None = self.last_step if ended.get("step") is None else ended["step"]
        return {
            **{column: facts.get(fact) for column, fact in _FACTS.items()},
            "world_size": meta.world_size, "user": _user(meta.uid), "started_ns": meta.started_ns,
            "ended_ns": ended.get("ended_ns"), "state": ended.get("state"), "how": ended.get("how") or None,
            "exit_status": ended.get("exit_status"), "verdict": verdict,
            "steps": None if step is None else step + 1, "last_t_ns": self.last_t_ns, "rows": self.rows,
            "complete": complete, "version": __version__, "python": meta.python, "torch": meta.torch,
        }


def _told(
    written: Sequence[Entry], before: Progress | None
) -> tuple[dict[tuple[str, str], Any], tuple[int, str | None]]:
    """The facts in the journals of a recording that belong in its row, by kind and name; and the last verdict
    with its time."""
    facts = dict(before.facts) if before else {}
    verdicts = [before.verdict if before else (0, None)]
    wanted = set(_FACTS.values())
    for one in written:
        for row in one.rows:
            if one.table.full_name == "probe.facts":
                key = str(row.get("kind")), str(row.get("name"))
                if key in wanted:
                    facts.setdefault(key, row.get("value"))
            elif one.table.full_name == "probe.verdicts":
                verdicts.append((row.get("t_ns") or 0, row.get("what")))
    return facts, max(verdicts, key=lambda pair: pair[0])


def _seen(process: Path, meta: Meta) -> dict[str, Any]:
    """The state of a recording on disk: names of its segments by table, sizes and times of its files. While
    it is unchanged, there is nothing to ship."""
    files = [process / name for name in ("meta.json", "end.json", declared.FILE)]
    found: dict[str, Any] = {
        path.name: _mark(path) for path in (*files, places.crash_file(process), *places.journals(process))
    }
    own = f"{meta.pid}-"
    for name in os.listdir(process.parent):
        if name.startswith("table="):
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                names = os.listdir(f"{process.parent}/{name}/rank={meta.rank}")
                found[name.removeprefix("table=")] = {one for one in names if one.startswith(own)}
    return found


def _mark(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return (found.st_size, found.st_mtime_ns) if found.st_size else None


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


@contextlib.contextmanager
def _working_folder(home: Path) -> Iterator[Path]:
    """A new private folder; removes those of processes that were killed."""
    for left in home.glob(f"{_WORKING}*"):
        with contextlib.suppress(OSError):
            if time.time() - left.stat().st_mtime > _STALE_S:
                shutil.rmtree(left, ignore_errors=True)
    try:
        folder = Path(tempfile.mkdtemp(prefix=_WORKING, dir=home))
    except OSError as error:
        raise RecordingError(f"no room to ship from {home}: {error.strerror}") from None
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
