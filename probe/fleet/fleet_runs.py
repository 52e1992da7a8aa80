"""Queries over all runs of an archive, or a selection of them.

    with Fleet(open_store(url), narrowing, limits) as fleet:
        answered = fleet.query("SELECT run, max(loss) FROM python.steps GROUP BY run")
        fleet.run("r1"), fleet.files_of(run, tables)

Each statement is planned first (`pruning`); only the files that it can read are listed, fetched unless the
archive is a folder, and opened by the worker. The command's threads; duckdb only in workers.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from probe.archive import dataset
from probe.archive.catalog import ArchivedFile, Catalog, in_parallel
from probe.archive.dataset import PROCESSES, DataFile, Group, date_of, encoded
from probe.archive.store import Store
from probe.base.errors import ArchiveInvalid, EndpointUnknown, ObjectMissing, ProbeError
from probe.fleet import unsealed
from probe.fleet.archived_tables import LIVE, mentioned
from probe.fleet.local_files import TRIES, LocalFiles
from probe.fleet.worker_process import WorkerProcess
from probe.recording import declared
from probe.recording.tables import BY_NAME

MOST_FILES = 100_000
"""Files that one statement may open; more are slow to open: compact the archive first."""
_NARROW = 64
"""Up to this many runs are listed one by one; for more, the whole table is listed."""
_MOST_DAMAGED = 8
"""Damaged files that are left out of one answer."""
_LEAST_MEMORY_BYTES = 512 << 20


class Narrowing(NamedTuple):
    """Selects processes; empty: all. `since_ns`: those that ended, or were last seen, after that."""

    jobs: Collection[str] = ()
    runs: Collection[str] = ()
    hosts: Collection[str] = ()
    since_ns: int | None = None

    def includes(self, row: Mapping[str, Any]) -> bool:
        """Whether the process of a row of archive.processes is selected."""
        if self.since_ns is not None:
            last = max((int(row[name]) for name in _LAST if row.get(name) is not None), default=None)
            if last is not None and last < self.since_ns:
                return False
        return self.names(row)

    def names(self, row: Mapping[str, Any]) -> bool:
        """Whether a process is selected by name, whenever it ran."""
        return (
            (not self.jobs or row["job"] in self.jobs) and (not self.runs or row["run"] in self.runs)
            and (not self.hosts or row["host"] in self.hosts)
        )

    def includes_group(self, group: Group) -> bool:
        """Whether a group may have files of selected processes, by its name."""
        return (
            (not self.jobs or encoded(group.job) in map(encoded, self.jobs))
            and (not self.runs or encoded(group.run) in map(encoded, self.runs))
        )

    @property
    def parts(self) -> bool:
        """Whether a file may have rows of selected and of other processes."""
        return bool(self.hosts) or self.since_ns is not None


_LAST = ("ended_ns", "last_t_ns", "started_ns")


class Limits(NamedTuple):
    """Limits of one statement, and of the rows that it returns."""

    timeout_s: float = 60.0
    memory_bytes: int = 2 << 30
    threads: int = os.cpu_count() or 1
    rows: int = 10_000


def memory_for_queries() -> int:
    """Bytes that statements may use here: half of what is available, because the host has other users."""
    for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
        if line.startswith("MemAvailable:"):
            return max(_LEAST_MEMORY_BYTES, int(line.split()[1]) * 1024 // 2)
    return _LEAST_MEMORY_BYTES


class Run(NamedTuple):
    """One attempt of a run, with its processes."""

    job: str
    run: str
    attempt: int
    date: str
    processes: tuple[Mapping[str, Any], ...]

    @property
    def key(self) -> tuple[str, ...]:
        """Job, run, attempt and date."""
        return self.job, self.run, str(self.attempt), self.date

    @property
    def name(self) -> str:
        """Its name: the run, with its attempt if that is not the first."""
        return f"{self.run}@{self.attempt}" if self.attempt else self.run

    @property
    def lowest(self) -> int | None:
        """The lowest rank."""
        return min((int(one["rank"]) for one in self.processes if one["rank"] is not None), default=None)


@dataclass
class Plan:
    """The input of a statement: the files of each table, and the columns that it uses."""

    files: dict[str, list[ArchivedFile]]
    columns: dict[str, list[str] | None]
    notes: list[str] = field(default_factory=list)
    living: dict[str, list[Mapping[str, Any]]] = field(default_factory=dict)
    """By table, the processes whose rows are read and that had not ended when they were last shipped; empty
    if the list of processes was not needed, because reading it takes a file of each run."""

    @property
    def tables(self) -> list[str]:
        """The tables to create."""
        return list(self.files)


class Answered(NamedTuple):
    """The JSON of an answer, as `Answer.parse` reads it, and its plan."""

    body: dict[str, Any]
    plan: Plan


class Fleet:
    """One archive, and a worker that runs queries over it."""

    def __init__(
        self, store: Store, narrowing: Narrowing | None = None, limits: Limits | None = None,
        source: unsealed.Source | None = None,
    ) -> None:
        """`source`: where to fetch rows of living processes that are not in the archive yet."""
        narrowing, limits = narrowing or Narrowing(), limits or Limits()
        self.catalog = Catalog(store)
        self.narrowing = narrowing
        self.limits = limits
        self._store = store
        self.local = LocalFiles(store)
        self._worker = self.new_worker()
        self._source = source
        self._processes: list[dict[str, Any]] | None = None
        self._unended: set[str] = set()
        """The processes that had not ended when they were last shipped."""
        self._live_notes: list[str] = []
        self._listings: dict[str, list[ArchivedFile]] = {}

    def __enter__(self) -> Fleet:
        return self

    def __exit__(self, *_: object) -> None:
        self._worker.close()
        self.local.close()

    def new_worker(self, threads: int | None = None) -> WorkerProcess:
        """A worker that can read this archive's files."""
        worker = WorkerProcess(self.local.folders, self.limits.memory_bytes, threads or self.limits.threads)
        if self.__dict__.get("_processes") is not None:
            worker.knows(self._processes_json())
        return worker

    # Processes and runs ---------------------------------------------------------

    def processes(self) -> list[dict[str, Any]]:
        """The rows of archive.processes of the selected processes, each with its date."""
        if self._processes is None:
            found = self.catalog.processes()
            self._unended = {str(row["process"]) for row in found if unsealed.lives(row)}
            if self._source is not None and self._unended:
                living = [row for row in found if str(row["process"]) in self._unended]
                newer, self._live_notes = self._source.states(list(filter(self.narrowing.names, living)))
                found = [{**row, **newer.get(str(row["process"]), {})} for row in found]
            self._processes = [
                {**row, "date": date_of(int(row["started_ns"] or 0))}
                for row in found if self.narrowing.includes(row)
            ]
            self._worker.knows(self._processes_json())
        return self._processes

    def _processes_json(self) -> bytes:
        return json.dumps(self._processes, default=str).encode()

    def runs(self) -> list[Run]:
        """The runs, each attempt separately, oldest first."""
        found: dict[tuple[str, str, int, str], list[Mapping[str, Any]]] = {}
        for row in self.processes():
            found.setdefault((row["job"], row["run"], row["attempt"], row["date"]), []).append(row)
        return [Run(*key, tuple(rows)) for key, rows in found.items()]

    def run(self, name: str) -> Run:
        """The run with that name, `RUN` (its last attempt) or `RUN@ATTEMPT`; raises `EndpointUnknown`."""
        runs = self.runs()
        fitting = [one for one in runs if one.run == name] or [one for one in runs if one.name == name]
        fitting = fitting or [one for one in runs if f"{one.run}@{one.attempt}" == name]
        if not fitting:
            from difflib import get_close_matches

            near = get_close_matches(name, [one.run for one in runs], n=3)
            raise EndpointUnknown(
                f"no run {name!r} is in the archive",
                hint=f"Did you mean {' or '.join(near)}?" if near else "`probe fleet URL runs` lists them.",
            )
        return max(fitting, key=lambda one: (one.attempt, one.date))

    # Files ------------------------------------------------------------------------

    def listing(self, table: str) -> list[ArchivedFile]:
        """The visible files of a table, newest first; cached from the first listing."""
        found = self._listings.get(table)
        if found is None:
            found = self._listings[table] = self.catalog.listing(table)[::-1]
        return found

    def plan(self, sql: str, content: bytes = b"", parameters: Mapping[str, Any] | None = None) -> Plan:
        """Plan a statement; raises `SqlInvalid` for one that writes."""
        self._worker.start()
        if self.narrowing.parts:
            self.processes()
        else:  # while the worker starts
            for table in mentioned(sql):
                if table.full_name not in LIVE and table is not PROCESSES:
                    self.listing(table.full_name)
        own = self._own_tables(sql)
        request = {"ask": "plan", "sql": sql, "own": own, "parameters": dict(parameters or {})}
        head, _ = self._worker.ask(request, self.limits.timeout_s, content)
        plan = Plan({}, {})
        for name, told in head["tables"].items():
            plan.files[name] = self._matching(name, told["scans"])
            plan.columns[name] = told["columns"]
            if unsealed.is_shipped(name) and self._processes is not None:
                plan.living[name] = self._living(told["scans"])
            if name in LIVE and told["columns"] is not None:
                plan.notes.append(f"{name} is read from living processes: an archive has no rows of it")
        if PROCESSES.full_name in plan.files:
            self.processes()
            plan.notes += self._live_notes
        count = sum(map(len, plan.files.values()))
        if count > MOST_FILES:
            raise ArchiveInvalid(
                f"the statement would open {count:,} files, at most {MOST_FILES:,} are opened",
                hint="Merge them (`probe archive --compact URL`), or narrow it: --since, --job, --run.",
            )
        return plan

    def _matching(self, table: str, scans: list[list[list[str]]] | None) -> list[ArchivedFile]:
        """The files whose rows a statement with these scans can read (filters by kind; None: unknown)."""
        if table == PROCESSES.full_name or table in LIVE:
            return []
        usable = _usable(scans)
        if self.narrowing.parts or any(others for *_, others in usable):
            processes = self.processes()
            places = self._places(usable, b"")
            return self.files(table, None if places is None else [processes[place] for place in places])
        files = self.files(table, None)
        if not usable:
            return files
        names = [_said(one.file) for one in files]
        distinct = {name: place for place, name in enumerate(dict.fromkeys(names))}
        places = self._places(usable, json.dumps(list(distinct)).encode())
        if places is None:
            return files
        kept = set(places)
        return [
            one for one, name in zip(files, names, strict=True)
            if distinct[name] in kept or not dataset.is_exact(one.file.group)
        ]

    def _living(self, scans: list[list[list[str]]] | None) -> list[Mapping[str, Any]]:
        """The processes that these scans can read and that had not ended when they were last shipped."""
        living = [
            place for place, row in enumerate(self.processes()) if str(row["process"]) in self._unended
        ]
        places = self._places(_usable(scans), b"") if living else []
        return [self.processes()[place] for place in living if places is None or place in places]

    def _places(self, scans: list[list[list[str]]], names: bytes) -> list[int] | None:
        """The places of the names, or processes, that scans can read; None for all."""
        if not scans:
            return None
        head, _ = self._worker.ask({"ask": "match", "scans": scans}, self.limits.timeout_s, names)
        found: list[int] | None = head["places"]
        return found

    def _own_tables(self, sql: str) -> dict[str, str]:
        """One file of each table that jobs declared and that the statement may name."""
        if f"{declared.SCHEMA}." not in sql.lower().replace('"', ""):
            return {}
        found = {}
        for name in self.catalog.tables():
            if name not in BY_NAME and name != PROCESSES.full_name:
                files = self.files(name, None)
                if files:
                    found[name] = self.local.paths(files[-1:])[0]
        return found

    def files(self, table: str, processes: Sequence[Mapping[str, Any]] | None) -> list[ArchivedFile]:
        """The visible files of a table, of these processes (None: of all selected ones), newest first."""
        if table == PROCESSES.full_name:
            return []
        if processes is None and not self.narrowing.parts:
            if not self.narrowing.jobs and not self.narrowing.runs:
                return self.listing(table)
            return [one for one in self.listing(table) if self.narrowing.includes_group(one.file.group)]
        if processes is None:
            processes = self.processes()
        ids = {str(row["process"]) for row in processes}
        groups = {_group(row, table) for row in processes}
        if table not in self._listings and len(groups) <= _NARROW:
            found = [one for group in groups for one in self.catalog.listing(table, group=group)]
        else:
            found = self.listing(table)
        folders = {group.folder for group in groups}
        kept = [
            one for one in found
            if one.file.group.folder in folders and (one.file.merged or one.file.process in ids)
        ]
        return sorted(kept)[::-1]

    def files_of(self, runs: Sequence[Run], tables: Iterable[str]) -> list[dict[str, list[ArchivedFile]]]:
        """The files of some tables, of each of these runs."""
        existing = set(self.catalog.tables())
        wanted = [table for table in tables if table in existing]
        processes = [row for run in runs for row in run.processes]
        listed = in_parallel(lambda table: self.files(table, processes), wanted)
        found: dict[tuple[str, ...], dict[str, list[ArchivedFile]]] = {run.key: {} for run in runs}
        for table, files in zip(wanted, listed, strict=True):
            for one in files:
                group = one.file.group
                key = group.job, group.run, str(group.attempt), group.date
                if key in found:
                    found[key].setdefault(table, []).append(one)
        return [found[run.key] for run in runs]

    # Statements ---------------------------------------------------------------------

    def query(self, sql: str, content: bytes = b"") -> Answered:
        """The rows of a statement. `content`: the runs' answers, for the outer statement of `--per-run`.

        If a file is gone when it is opened, it was merged: the files are listed again. A damaged file is left
        out, with a note."""
        damaged: set[str] = set()
        tries_left = TRIES
        if self._source is not None:
            self.processes()
        while True:
            files: dict[str, list[ArchivedFile]] = {}
            try:
                plan = self.plan(sql, content)
                files = {
                    table: [one for one in found if one.name not in damaged]
                    for table, found in plan.files.items()
                }
                paths = {table: self.local.paths(found) for table, found in files.items()}
                rows, missing = self._unsealed(plan)
                for table, more in rows.items():
                    paths[table] += more
                request = {
                    "ask": "query", "sql": sql, "files": paths, "tables": plan.tables,
                    "columns": plan.columns, "limit": self.limits.rows, "some": self.narrowing.parts,
                }
                _, body = self._worker.ask(request, self.limits.timeout_s, content)
            except ProbeError as error:
                named = self.local.named(error, files)
                if tries_left and self.local.is_gone(error, files):
                    tries_left -= 1
                    self._listings.clear()
                elif named is not None and len(damaged) < _MOST_DAMAGED:
                    damaged.add(named.name)
                else:
                    raise
                continue
            answer = json.loads(body)
            notes = [*plan.notes, *missing, *(f"damaged and left out: {name}" for name in sorted(damaged))]
            return Answered({**answer, "notes": list(dict.fromkeys(notes))}, plan)

    def _unsealed(self, plan: Plan) -> tuple[dict[str, list[str]], list[str]]:
        """Rows of living processes that the archive lacks: files by table; and notes on missing rows."""
        living = {str(row["process"]): row for rows in plan.living.values() for row in rows}
        if self._source is None or not living:
            return {}, [unsealed.left_out(living.values())] if living else []
        sent = self._source.rows(unsealed.tails(self.catalog, plan.files, plan.living, plan.columns))
        return self._kept(sent), sent.notes

    def newest_of(
        self, run: Run, files: Mapping[str, list[ArchivedFile]], tables: Iterable[str]
    ) -> tuple[dict[str, list[str]], list[str]]:
        """The rows of a run that the archive lacks, given its files of some tables: files by table, or none
        if not all can be fetched, so that no table is ahead of another; and notes on missing rows."""
        living = [row for row in run.processes if str(row["process"]) in self._unended]
        if self._source is None or not living:
            return {}, [unsealed.left_out(living)] if living else []
        wanted = dict.fromkeys(filter(unsealed.is_shipped, tables), living)
        found = {table: files.get(table, []) for table in wanted}
        shipped = f"{run.name} is read as it was last shipped"
        try:
            tails = unsealed.tails(self.catalog, found, wanted, dict.fromkeys(wanted))
        except ObjectMissing:
            return {}, [f"{shipped}, because its files were merged during the query"]
        sent = self._source.rows(tails)
        if sent.partly:
            return {}, [f"{shipped}, because not all newer rows could be fetched", *sent.notes]
        return self._kept(sent), sent.notes

    def _kept(self, sent: unsealed.Sent) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for tail, content in sent.files:
            path = self.local.fetched / tail.name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
            found.setdefault(tail.table, []).append(str(path))
        return found

    def rows(self, sql: str, parameters: Mapping[str, Any], limit: int) -> dict[str, Any]:
        """Columns and rows of a statement with named parameters, such as a recipe's; and notes."""
        if self._source is not None:
            self.processes()
        plan = self.plan(sql, parameters=parameters)
        newest, notes = self._unsealed(plan)
        request = {
            "ask": "batch", "tables": plan.tables, "columns": plan.columns, "some": self.narrowing.parts,
            "statements": [{"sql": sql, "parameters": dict(parameters), "limit": limit}],
        }
        head, _ = self.local.read(
            plan.files,
            lambda paths: self._worker.ask(
                {**request, "files": joined(paths, newest)}, self.limits.timeout_s
            ),
            again=not newest,
        )
        return {**head["results"][0], "notes": [*plan.notes, *notes]}


def joined(paths: Mapping[str, list[str]], more: Mapping[str, list[str]]) -> dict[str, list[str]]:
    """Paths by table, those of an archive and those of newer rows."""
    return {table: [*paths.get(table, ()), *more.get(table, ())] for table in {**paths, **more}}


def _usable(scans: list[list[list[str]]] | None) -> list[list[list[str]]]:
    """The scans if each of them has a usable filter; none otherwise."""
    return [] if scans is None or not all(map(any, scans)) else scans


def _said(file: DataFile) -> tuple[str, str, int, str, int | None, bool]:
    """The values in a file's name, in the order of `pruning.NAMED`."""
    group = file.group
    return group.job, group.run, group.attempt, group.date, file.rank, file.rank is None


def _group(row: Mapping[str, Any], table: str) -> Group:
    return Group(table, row["date"], row["job"], row["run"], row["attempt"])
