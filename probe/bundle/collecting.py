"""Collects a bundle: copies the recordings of a job's ranks on this host into a folder for the archive.

Segments are linked or copied; rows that are still in rings are sealed here, in the copy, so that a bundle
holds neither rings nor the string table. Nothing is written to a recording, and no request is sent to a job:
verdicts and stacks come with the `Subject`s. Runs in the client's process; duckdb in functions.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from probe.base.errors import RecordingError
from probe.bundle import cleaning, moment
from probe.bundle.moment import Moment
from probe.recording import checked, declared, layout, places, segments
from probe.recording.reader import open_ring, spelled, texts_of, with_texts
from probe.recording.recording import VERSION, Meta
from probe.recording.segments import Segment
from probe.recording.tables import RINGS, Table

if TYPE_CHECKING:
    import duckdb

_TRIES = 8
"""How often a table's segments are listed, while the server merges and deletes them."""
_MEMORY = "2GB"
"""Memory of DuckDB: a job's own texts may all differ, and those of a segment are checked together."""
END_VERSION = 3
"""The version of the end records that the server writes."""


class Subject(NamedTuple):
    """One process to copy: its recording, its row of `GET /v1/ranks`, and its `Moment`."""

    process: Path
    row: Mapping[str, Any]
    moment: Moment


class Piece(NamedTuple):
    """One segment of the copy."""

    table: str
    rank: int
    path: Path
    first: int
    last: int
    size_bytes: int


class Collected(NamedTuple):
    """A copy: the files that every bundle needs, the segments, and notes about what could not be copied."""

    files: list[Path]
    pieces: list[Piece]
    notes: list[str]


def collect(subjects: Sequence[Subject], folder: Path, since: int | None) -> Collected:
    """Copy recordings into an empty folder, rows from step `since` on. Raises `RecordingError`, `OSError`."""
    import duckdb

    found = Collected([], [], [])
    connection = segments.engine()
    connection.execute(f"SET memory_limit = '{_MEMORY}'")
    try:
        for subject in subjects:
            _Copy(subject, folder, since, connection, found).make()
    except duckdb.Error as error:
        raise RecordingError(f"the rows could not be copied: {str(error).partition(chr(10))[0]}") from None
    finally:
        connection.close()
    return found


class _Copy:
    """The copy of one recording."""

    def __init__(
        self, subject: Subject, folder: Path, since: int | None, connection: duckdb.DuckDBPyConnection,
        found: Collected,
    ) -> None:
        self.meta = _meta(subject.process)
        self.source, self.row, self.moment = subject.process, subject.row, subject.moment
        attempt = folder / f"run={self.meta.run}" / f"attempt={self.meta.attempt}"
        self.target = attempt / f"process={self.meta.rank}-{self.meta.pid}"
        self.since, self.connection, self.found = since, connection, found
        self.written: dict[str, int] = {}
        """Number of the last row of each table."""

    def make(self) -> None:
        """Copy everything; the rows first, because they may be overwritten."""
        self.target.mkdir(mode=0o700, parents=True)
        tables: list[Table] = [*RINGS]
        try:
            own = declared.read(self.source)
        except RecordingError as error:
            own = []
            self._note(error.message)
        for table in (*tables, *own):
            self._copy_table(table)
        if own:
            declared.write(self.target, [_without_secrets(table) for table in own])
        for note in cleaning.journals(self.source, self.target):
            self._note(note)
        meta = replace(self.meta, version=VERSION, rings="", socket="", boot_id=moment.BOOT)
        (self.target / "meta.json").write_bytes(checked.sealed("meta.json", asdict(meta)))
        moment.write(self.target, Moment(*map(cleaning.plain, self.moment)))
        crash = places.crash_file(self.source)
        with contextlib.suppress(OSError):
            stacks = checked.read_bytes(crash).decode("utf-8", "replace")
            if stacks:
                (self.target / crash.name).write_text(cleaning.lines(stacks), encoding="utf-8")
        self._write_end()
        self.found.files.extend(sorted(self.target.iterdir()))

    def _note(self, text: str) -> None:
        self.found.notes.append(f"{self.meta.job}/{self.meta.rank} (pid {self.meta.pid}): {text}")

    # Rows -------------------------------------------------------------------

    def _copy_table(self, table: Table) -> None:
        source = places.segments_folder(self.source, table.full_name, self.meta.rank)
        folder = places.segments_folder(self.target, table.full_name, self.meta.rank)
        for _ in range(_TRIES):
            listed = segments.listing(source, self.meta.pid)
            kept, damaged = segments.readable(listed)
            sealed = segments.watermark(listed)
            shutil.rmtree(folder, ignore_errors=True)
            try:
                copied = [one for one in (self._copy_segment(table, one, folder) for one in kept) if one]
            except FileNotFoundError:  # merged, or deleted to free space, since it was listed
                continue
            tail = self._seal_rest(table, folder, sealed)
            if tail is None and segments.watermark(segments.listing(source, self.meta.pid)) != sealed:
                continue  # the rest was sealed just now, and the ring removed
            break
        else:
            self._note(f"{table.full_name} is left out: its files change too fast")
            return
        self.written.setdefault(table.full_name, sealed)
        for one in damaged:
            self._note(f"rows {one.first} to {one.last} of {table.full_name} are left out: {one.path.name} "
                       "fails its checksum")
        for one in (*copied, *([tail] if tail else [])):
            piece = Piece(table.full_name, self.meta.rank, one.path, one.first, one.last, one.size_bytes)
            self.found.pieces.append(piece)

    def _copy_segment(self, table: Table, one: Segment, folder: Path) -> Segment | None:
        """One segment; None if it holds no row from `since` on. Raises `FileNotFoundError` if it is gone."""
        with open(one.path, "rb"):
            pass
        since = self.since if _has_steps(table) else None
        if since is not None:
            older, rows = cleaning.older_rows(self.connection, one.path, since)
            if older == rows:
                return None
            since = since if older else None
        texts = cleaning.changed_texts(self.connection, one.path)
        if texts or since is not None:
            query = cleaning.without(self.connection, one.path, texts, since)
            return segments.rewrite(self.connection, query, folder, one)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        target = folder / one.path.name
        try:
            os.link(one.path, target)
        except FileNotFoundError:
            raise
        except OSError:  # another file system, or links are not allowed
            shutil.copyfile(one.path, target)
        return one._replace(path=target)

    def _seal_rest(self, table: Table, folder: Path, sealed: int) -> Segment | None:
        """Seal the rows after `sealed` in the copy; None if there are none, or the ring is gone."""
        try:
            with open_ring(self.meta, table.full_name) as ring:
                highest = max(sealed, ring.highest(sealed))
                rows = ring.read(sealed, highest)
                texts: list[str | None] = [None]
                if any(kind == "VARCHAR" for _, kind in ring.columns):
                    texts = texts_of(self.meta, ring)
                if lost := ring.left_out():
                    self._note(lost)
        except FileNotFoundError:
            return None
        except (OSError, RecordingError) as error:
            self._note(f"rows of {table.full_name} that are not sealed are left out: {error}")
            return None
        self.written[table.full_name] = highest
        if self.since is not None and _has_steps(table):
            steps = rows["step"]
            rows = rows[(steps >= self.since) | (steps == layout.NULL_INTEGER)]
        if not len(rows):
            return None
        rows, columns, texts = spelled(rows, ring.columns, texts)
        rows, texts, _ = with_texts(rows, columns, texts)
        segments.set_texts(self.connection, [one and cleaning.text(one) for one in texts])
        return segments.write(self.connection, folder, self.meta.pid, rows, columns)

    # The end record -------------------------------------------------------------

    def _write_end(self) -> None:
        facts: dict[str, Any] = {"rings_found": True}
        if self.row.get("ended_ns") is not None:
            with contextlib.suppress(OSError, ValueError):
                facts = checked.read_sealed(self.source / "end.json", older=lambda one: "version" not in one)
        if "state" not in facts:
            facts.update(as_it_was(self.meta, self.moment, self.row))
        known = facts.get("rows_written")
        written = {**(known if isinstance(known, dict) else {})}
        for name, number in self.written.items():
            written[name] = max(number, int(written.get(name, 0)))
        copies = places.journals(self.target)
        sizes = {path.name: path.stat().st_size if path.exists() else 0 for path in copies}
        facts.update(version=END_VERSION, sealed=True, rows_written=written, journal_bytes=sizes)
        (self.target / "end.json").write_bytes(checked.sealed("end.json", cleaning.plain(facts)))


def as_it_was(meta: Meta, known: Moment, row: Mapping[str, Any]) -> dict[str, Any]:
    """The content of `end.json` for a process that lives."""

    def ago(name: str) -> int | None:
        seconds = row.get(name)
        return None if seconds is None else known.made_ns - int(seconds * 1e9)

    how = ": ".join(filter(None, (row.get("state"), row.get("how"))))
    return {
        "pid": meta.pid, "started_ns": meta.started_ns, "state": moment.STATE, "how": how,
        "step": row.get("step"), "last_step_ns": ago("last_step_s"), "last_seen_ns": ago("last_seen_s"),
        "ended_ns": row.get("ended_ns") or known.made_ns, "seen_ns": known.made_ns, "exit_status": None,
        "why": [],
    }


def _has_steps(table: Table) -> bool:
    return any(column.name == "step" for column in table.columns)


def _meta(process: Path) -> Meta:
    """The facts of a recording, with the current path of its rings."""
    meta = Meta.read(process)
    beside = process / "rings"
    return replace(meta, rings=str(beside)) if beside.is_dir() else meta


def _without_secrets(table: Table) -> Table:
    columns = tuple(column._replace(doc=cleaning.text(column.doc)) for column in table.columns)
    return table._replace(doc=cleaning.text(table.doc), columns=columns)


class Chosen(NamedTuple):
    """The pieces that fit, and those that do not: (table, rank, first row, last row, bytes)."""

    kept: list[Piece]
    left_out: list[dict[str, Any]]


def chosen(pieces: Sequence[Piece], budget_bytes: int) -> Chosen:
    """Choose as many rows as fit: small tables whole, of large ones the newest rows."""
    groups: dict[tuple[str, int], list[Piece]] = {}
    for piece in pieces:
        groups.setdefault((piece.table, piece.rank), []).append(piece)
    kept: list[Piece] = []
    left_out: list[dict[str, Any]] = []
    by_size = sorted(groups.values(), key=lambda group: sum(archived_bytes(one.size_bytes) for one in group))
    for group in by_size:
        newest_first = sorted(group, key=lambda one: -one.last)
        while newest_first and archived_bytes(newest_first[0].size_bytes) <= budget_bytes:
            budget_bytes -= archived_bytes(newest_first[0].size_bytes)
            kept.append(newest_first.pop(0))
        if newest_first:
            first = newest_first[-1]
            left_out.append({
                "table": first.table, "rank": first.rank, "first_row": first.first,
                "last_row": newest_first[0].last, "bytes": sum(one.size_bytes for one in newest_first),
            })
    return Chosen(kept, left_out)


def archived_bytes(size_bytes: int) -> int:
    """Bytes that a file takes in an archive, if it cannot be compressed."""
    padded = -(-size_bytes // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE
    return tarfile.BLOCKSIZE + padded + 256  # its line in the manifest

