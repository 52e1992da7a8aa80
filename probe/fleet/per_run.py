"""Runs one statement over each of many runs, in workers of this host or as Ray tasks near the data.

    asks = [Ask({"ask": "part", "sql": sql, …}, files) for …]
    for place, answer in Workers(fleet).each(asks): …            # or Over(address, …).each(asks)

Used for recipes, and for the inner statement of `--per-run`, whose rows the outer one reads as the table
`per_run`. An answer is head and body, or an error. Imports pyarrow in functions.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

from probe.archive.catalog import ArchivedFile
from probe.base.errors import PackageMissing, ProbeError, UsageError
from probe.fleet.fleet_runs import Fleet, Run, joined
from probe.fleet.worker_process import WorkerProcess, in_workers

MOST_ROWS = 1_000_000
"""Limit of the rows of one run's answer."""


class Ask(NamedTuple):
    """A request to a worker, without the paths of the files that it reads."""

    request: dict[str, Any]
    files: dict[str, list[ArchivedFile]]
    newest: Mapping[str, list[str]] = MappingProxyType({})
    """Files of this host with rows that the archive lacks, by table."""


class Answer(NamedTuple):
    """A worker's answer, or the error."""

    head: dict[str, Any]
    body: bytes
    error: ProbeError | None = None


class Answering(Protocol):
    """Runs requests in workers of this host, or of a Ray cluster."""

    def each(self, asks: Sequence[Ask]) -> Iterator[tuple[int, Answer]]:
        """The answers, in any order, each with the place of its request."""


class Workers:
    """Workers of this host, one for each core."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet

    def each(self, asks: Sequence[Ask]) -> Iterator[tuple[int, Answer]]:
        """See `Answering`."""
        fleet = self._fleet

        def answered(worker: WorkerProcess, place: int) -> Answer:
            one = asks[place]
            try:
                return Answer(*fleet.local.read(
                    one.files,
                    lambda paths: worker.ask(
                        {**one.request, "files": joined(paths, one.newest)}, fleet.limits.timeout_s
                    ),
                    again=not one.newest,
                ))
            except ProbeError as error:
                return Answer({}, b"", error)

        return in_workers(lambda: fleet.new_worker(1), os.cpu_count() or 1, answered, range(len(asks)))


def asks_about(fleet: Fleet, runs: Sequence[Run], sql: str) -> list[Ask]:
    """A statement as one request per run, which sees only the rows of that run."""
    plan = fleet.plan(sql)
    by_run = grouped(plan.files)
    found = []
    for run in runs:
        files = by_run.get(run.key, {})
        request = {
            "ask": "part", "sql": sql, "tables": plan.tables, "columns": plan.columns, "limit": MOST_ROWS,
            "processes": [{**row} for row in run.processes], "some": fleet.narrowing.parts,
        }
        found.append(Ask(request, {table: files.get(table, []) for table in plan.tables}))
    return found


def grouped(files: dict[str, list[ArchivedFile]]) -> dict[tuple[str, ...], dict[str, list[ArchivedFile]]]:
    """The files of each table by run: job, run, attempt, date."""
    found: dict[tuple[str, ...], dict[str, list[ArchivedFile]]] = {}
    for table, listed in files.items():
        for one in listed:
            group = one.file.group
            key = group.job, group.run, str(group.attempt), group.date
            found.setdefault(key, {}).setdefault(table, []).append(one)
    return found


def together(runs: Sequence[Run], streams: Iterable[bytes]) -> bytes:
    """The answers of the runs as one Arrow stream, in order, each row with job, run and attempt."""
    try:
        import pyarrow
    except ImportError:
        raise PackageMissing("--per-run needs pyarrow", hint="pip install 'torch-probe[fleet]'.") from None
    tables = []
    for run, stream in zip(runs, streams, strict=True):
        with pyarrow.ipc.open_stream(stream) as reader:
            rows = reader.read_all()
        for name, value, kind in (
            ("attempt", run.attempt, pyarrow.int64()), ("run", run.run, pyarrow.string()),
            ("job", run.job, pyarrow.string()),
        ):
            if name not in rows.column_names:
                rows = rows.add_column(0, name, pyarrow.array([value] * len(rows), kind))
        tables.append(rows)
    if not tables:
        raise UsageError("no run is in the archive, or --since, --job, --run and --host leave none")
    whole = pyarrow.concat_tables(tables, promote_options="permissive")
    sink = pyarrow.BufferOutputStream()
    with pyarrow.ipc.new_stream(sink, whole.schema) as writer:
        writer.write_table(whole)
    return bytes(sink.getvalue())
