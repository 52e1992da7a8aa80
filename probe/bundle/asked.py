"""Copies recordings on other hosts into a bundle, by querying those hosts.

Their files are not reachable, so the rows come from ordinary queries, the newest first and a limited number;
they are numbered anew, and become segments and a journal like those of a local recording. Facts that no query
returns are empty. Runs in the client's process; duckdb in functions.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from probe.base.errors import ProbeError, RecordingError
from probe.bundle import cleaning, moment
from probe.bundle.collecting import END_VERSION, Collected, Piece, Subject, as_it_was
from probe.recording import checked, places, segments
from probe.recording.journal import Journal
from probe.recording.recording import VERSION, Meta
from probe.recording.segments import Segment
from probe.recording.tables import COMMON, RINGS, TABLES, Table

if TYPE_CHECKING:
    import duckdb

MOST_ROWS = 100_000
"""Rows of one table, of all ranks on other hosts together: an answer of about 10 MB."""
_AT_ONCE = 100
"""Rows in a record of a journal."""
_ORDERS = ("t_ns", "node", "step")
"""The first of these columns that a table has orders its rows by age."""
_FLOATS = ("NaN", "Infinity", "-Infinity")


class Answered(Protocol):
    """The answer to a query, as `probe.client` has it."""

    truncated: bool
    notes: list[str]

    def __len__(self) -> int:
        """How many rows there are."""

    def records(self) -> list[dict[str, Any]]:
        """Each row by column."""

    def parquet(self) -> bytes:
        """A Parquet file of the rows."""


class Elsewhere(NamedTuple):
    """Processes on other hosts, as their rows of `GET /v1/ranks`, and a function that queries them with SQL
    and a limit of rows."""

    subjects: Sequence[Subject]
    ask: Callable[[str, int], Answered]


def collect(elsewhere: Elsewhere, folder: Path, since: int | None, found: Collected) -> None:
    """Add copies of these processes to `found`, rows from step `since` on. Raises `RecordingError`,
    `OSError`; a table whose query fails is left out, with a note."""
    if not elsewhere.subjects:
        return
    import duckdb

    connection = segments.engine()
    try:
        _Copies(elsewhere, folder, since, connection, found).make()
    except duckdb.Error as error:
        raise RecordingError(f"rows of other hosts could not be copied: {error}".partition("\n")[0]) from None
    finally:
        connection.close()


class _Copies:
    """The copies of all of them: each table is queried once."""

    def __init__(
        self, elsewhere: Elsewhere, folder: Path, since: int | None, connection: duckdb.DuckDBPyConnection,
        found: Collected,
    ) -> None:
        self.ask, self.folder, self.since = elsewhere.ask, folder, since
        self.connection, self.found = connection, found
        self.subjects = [(one, _meta(one.row)) for one in elsewhere.subjects]
        self.targets = {
            (meta.rank, meta.pid): folder / f"run={meta.run}" / f"attempt={meta.attempt}"
            / f"process={meta.rank}-{meta.pid}"
            for _, meta in self.subjects
        }
        self.written: dict[tuple[int, int], dict[str, int]] = {key: {} for key in self.targets}
        self.newest: dict[tuple[int, int], tuple[int | None, int | None]] = {}
        """The last step of each and its time, from the rows, which are newer than the list of ranks."""

    def make(self) -> None:
        """Copy rows and journals, and write the facts of each process."""
        for target in self.targets.values():
            target.mkdir(mode=0o700, parents=True)
        for table in RINGS:
            if table.sealed:
                self._copy_rows(table)
        journals = {key: Journal(target / "journal.bin") for key, target in self.targets.items()}
        try:
            for table in TABLES:
                if table.source == "journal":
                    self._copy_records(table, journals)
        finally:
            for journal in journals.values():
                journal.close()
        for subject, meta in self.subjects:
            target = self.targets[meta.rank, meta.pid]
            (target / "meta.json").write_bytes(checked.sealed("meta.json", asdict(meta)))
            moment.write(target, moment.Moment(*map(cleaning.plain, subject.moment)))
            self._write_end(target, subject, meta)
            self.found.files.extend(sorted(target.iterdir()))

    def _newest_rows(self, table: Table) -> Answered | None:
        """The newest rows of a table, of all these processes; None when there are none or the query fails."""
        names = {column.name for column in table.columns}
        pids = ", ".join(str(meta.pid) for _, meta in self.subjects)
        ranks = ", ".join(str(meta.rank) for _, meta in self.subjects)
        where = f"rank IN ({ranks}) AND pid IN ({pids}) AND attempt = {self.subjects[0][1].attempt}"
        if self.since is not None and "step" in names:
            where += f" AND (step IS NULL OR step >= {self.since})"
        newest = next((f" ORDER BY {name} DESC" for name in _ORDERS if name in names), "")
        try:
            answer = self.ask(f"SELECT * FROM {table.full_name} WHERE {where}{newest}", MOST_ROWS)
        except ProbeError as error:
            self.found.notes.append(f"{table.full_name} of other hosts is left out: {error.message}")
            return None
        self.found.notes.extend(note for note in answer.notes if note not in self.found.notes)
        if answer.truncated:
            self.found.notes.append(
                f"{table.full_name} of other hosts: the newest {len(answer):,} rows, there are more"
            )
        return answer if len(answer) else None

    def _copy_rows(self, table: Table) -> None:
        answer = self._newest_rows(table)
        if answer is None:
            return
        with tempfile.TemporaryDirectory(prefix="probe-", dir=self.folder) as work:
            rows = Path(work, "rows.parquet")
            rows.write_bytes(answer.parquet())
            order = next((one for one in _ORDERS if one in _names(table)), "pid")
            columns = ", ".join(f'"{name}"' for name in _names(table))
            for key in self.targets:
                source = f"read_parquet('{rows}') WHERE rank = {key[0]} AND pid = {key[1]}"
                [[count]] = self.connection.execute(f"SELECT count(*) FROM {source}").fetchall()
                if count:
                    number = f'row_number() OVER (ORDER BY "{order}") AS _number'
                    self._seal(table, key, f"SELECT {columns}, pid, {number} FROM {source}", int(count))
                if count and table.full_name == "python.steps":
                    newest = f"SELECT max(step), max(t_ns) FROM {source}"
                    [self.newest[key]] = self.connection.execute(newest).fetchall()

    def _seal(self, table: Table, key: tuple[int, int], query: str, count: int) -> None:
        """Write the rows of a query as a segment, without secrets."""
        rank, pid = key
        folder = places.segments_folder(self.targets[key], table.full_name, rank)
        made = segments.rewrite(self.connection, query, folder, Segment(Path(), pid, 1, count, 0))
        texts = cleaning.changed_texts(self.connection, made.path)
        if texts:
            clean = cleaning.without(self.connection, made.path, texts, None)
            before, made = made, segments.rewrite(self.connection, clean, folder, made)
            if before.path != made.path:
                os.unlink(before.path)
        self.written[key][table.full_name] = count
        self.found.pieces.append(Piece(table.full_name, rank, made.path, 1, count, made.size_bytes))

    def _copy_records(self, table: Table, journals: Mapping[tuple[int, int], Journal]) -> None:
        answer = self._newest_rows(table)
        common = {column.name for column in COMMON} - _names(table).keys()
        kinds = _names(table)
        rows: dict[tuple[int, int], list[dict[str, Any]]] = {}
        for record in reversed(answer.records() if answer is not None else []):
            own = {
                name: float(value) if kinds.get(name) == "DOUBLE" and value in _FLOATS else value
                for name, value in record.items() if name not in common
            }
            rows.setdefault((record["rank"], record["pid"]), []).append(cleaning.plain(own))
        for key, journal in journals.items():
            ours = rows.get(key, [])
            for place in range(0, len(ours), _AT_ONCE):
                part = {"table": table.full_name, "rows": ours[place : place + _AT_ONCE]}
                if not journal.append(part):
                    note = f"rank {key[0]}: rows of {table.full_name} do not fit into its copy"
                    self.found.notes.append(note)

    def _write_end(self, target: Path, subject: Subject, meta: Meta) -> None:
        facts = {"rings_found": True, **as_it_was(meta, subject.moment, subject.row)}
        if subject.row.get("ended_ns") is not None:
            facts.update(
                state=subject.row["state"], how=subject.row.get("how") or "",
                exit_status=subject.row.get("exit_status"),
            )
        sizes = {path.name: path.stat().st_size if path.exists() else 0 for path in places.journals(target)}
        step, last_step_ns = self.newest.get((meta.rank, meta.pid), (None, None))
        if step is not None:
            facts.update(step=step, last_step_ns=last_step_ns)
        written = self.written[meta.rank, meta.pid]
        facts.update(version=END_VERSION, sealed=True, rows_written=written, journal_bytes=sizes)
        (target / "end.json").write_bytes(checked.sealed("end.json", cleaning.plain(facts)))


def _names(table: Table) -> dict[str, str]:
    """Type of each of a table's own columns."""
    return {column.name: column.type for column in table.columns}


def _meta(row: Mapping[str, Any]) -> Meta:
    """The facts of a process on another host, as far as they are known here."""
    return Meta(
        version=VERSION, run=row["run"], attempt=row["attempt"], job=row["job"], rank=row["rank"],
        world_size=row.get("world_size"), local_rank=row.get("local_rank"), host=str(row.get("host") or ""),
        pid=row["pid"], start_ticks=0, boot_id=moment.BOOT, uid=os.getuid(), argv=[], cwd="", executable="",
        python="", torch="", started_ns=row["started_ns"], rings="", socket="", settings={},
    ).without_secrets()
