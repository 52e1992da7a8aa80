"""Writes an archive of runs that never ran, as the archive's own writer and compaction would have left it.

    write(folder, [Simulated("gpt", "gpt-0001", hosts=("n1", "n2"), ranks=4)], steps=200)

Steps, facts, verdicts and processes, with the columns, names and indexes of the real thing, made by DuckDB so
that a thousand runs take minutes. Values vary like measured ones and follow from the run's name.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import duckdb

from probe.archive import dataset
from probe.recording.recording import Meta
from probe.recording.tables import BY_NAME, Table

DAY_NS = 86_400 * 10**9
EPOCH_NS = 1_772_323_200 * 10**9
"""2026-03-01, on which the first run starts."""
STEPS, FACTS, VERDICTS = "python.steps", "probe.facts", "probe.verdicts"
PROCESSES = dataset.PROCESSES.full_name


@dataclass
class Simulated:
    """One run: who ran it where, and how it went."""

    job: str
    run: str
    hosts: Sequence[str] = ("node1",)
    ranks: int = 2
    attempt: int = 0
    day: float = 0.0
    step_s: float = 0.1
    loss: float = 2.0
    slow_hosts: dict[str, float] = field(default_factory=dict)
    """Factor of the step's own work, by host."""
    nan_from: int | None = None
    state: str = "finished"
    verdicts: Sequence[tuple[int, str, str, str]] = ()
    """rank, state, severity, what."""
    facts: dict[str, str] = field(default_factory=dict)
    about: dict[str, Any] = field(default_factory=dict)
    """Columns of archive.processes, such as commit, image, driver."""

    def meta(self, rank: int) -> Meta:
        """Facts about one of its processes."""
        return Meta(
            version=2, run=self.run, attempt=self.attempt, job=self.job, rank=rank, world_size=self.ranks,
            local_rank=rank, host=self.host(rank), pid=1000 + rank, start_ticks=5, boot_id="b", uid=1000,
            argv=["train.py"], cwd="/", executable="python", python="3.11", torch="2.9",
            started_ns=EPOCH_NS + int(self.day * DAY_NS), rings="", socket="", settings={},
        )

    def host(self, rank: int) -> str:
        """Where a rank ran: hosts have neighbouring ranks."""
        return self.hosts[rank * len(self.hosts) // self.ranks]


def write(
    folder: Path, runs: Iterable[Simulated], steps: int, *, merged: bool = True, portions: int = 1
) -> None:
    """Write runs of so many steps; `merged`: one file of each table, else `portions` of each rank."""
    connection = duckdb.connect(":memory:", config={"threads": 1})
    bases: dict[int, str] = {}
    months: dict[dataset.Group, list[Meta]] = {}
    for one in runs:
        if one.ranks not in bases:
            bases[one.ranks] = _base(connection, one.ranks, steps)
        _write_run(connection, folder, one, steps, bases[one.ranks], merged, portions)
        metas = [one.meta(rank) for rank in range(one.ranks)]
        months.setdefault(dataset.group_of(metas[0], PROCESSES), []).extend(metas)
    for group, metas in months.items() if merged else ():
        select = f"SELECT * EXCLUDE month FROM processes WHERE month = {_text(group.date)}"
        _put_merged(connection, folder, group, select, metas, 1)
    connection.close()


def _base(connection: duckdb.DuckDBPyConnection, ranks: int, steps: int) -> str:
    """A table with what the steps of all runs have in common: it is made once."""
    name = f"base_{ranks}"
    noise = "(hash(i, r, {}) % 10000) / 1e5"
    connection.execute(
        f"CREATE TABLE {name} AS SELECT r AS rank, i AS step, 'optimizer' AS boundary, 1 AS micro_steps,"
        f" {noise.format(1)} AS n1, {noise.format(2)} AS n2, {noise.format(3)} AS n3,"
        f" 1.0 / (1 + i / 100.0) AS fall, 3e-4 AS lr, 8 AS samples, 8192 AS tokens,"
        f" (1 << 30) + (i // 100) * 4096 AS rss_bytes,"
        f" i % 100 = 99 AS sampled, false AS shadow, 20000 + hash(i, r) % 1000 AS probe_ns"
        f" FROM range({ranks}) ranks(r), range({steps}) steps(i) ORDER BY r, i"
    )
    return name


def _write_run(
    connection: duckdb.DuckDBPyConnection, folder: Path, one: Simulated, steps: int, base: str, merged: bool,
    portions: int,
) -> None:
    metas = [one.meta(rank) for rank in range(one.ranks)]
    who = ", ".join(
        f"({meta.rank}, {meta.pid}, {_text(meta.host)}, {_text(dataset.process_id(meta))}, "
        f"{one.slow_hosts.get(meta.host, 1.0)})" for meta in metas
    )
    connection.execute(
        "CREATE OR REPLACE TABLE who AS FROM (VALUES " + who + ") AS who (rank, pid, host, process, slow)"
    )
    identity = (
        f"{_text(one.job)} AS job, {_text(one.run)} AS run, {one.attempt} AS attempt, who.rank, host, pid,"
        " process"
    )
    loss = f"{one.loss} + fall + n1 / 10"
    if one.nan_from is not None:
        loss = f"CASE WHEN step >= {one.nan_from} THEN 'NaN'::DOUBLE ELSE {loss} END"
    start = metas[0].started_ns
    rows = {
        STEPS: (
            f"SELECT {identity}, step + 1 AS {dataset.NUMBER}, step, boundary, micro_steps,"
            f" {start} + ((step + n1) * {one.step_s} * 1e9)::BIGINT AS t_ns,"
            f" {one.step_s} * (slow + n1) AS wall_s, {one.step_s} * 0.05 * (1 + n2) AS data_s,"
            f" {one.step_s} * 0.3 * (slow + n2) AS forward_s, {one.step_s} * 0.5 * (slow + n3) AS backward_s,"
            f" {one.step_s} * 0.1 AS optimizer_s, {loss} AS loss, 1 + n3 AS grad_norm,"
            f" lr, samples, tokens, rss_bytes, sampled, shadow, probe_ns"
            f" FROM {base} JOIN who USING (rank)", steps,
        ),
    }
    facts = {"hardware.cpus": "8", **one.facts}
    listed = ", ".join(
        f"({place}, {_text(name.partition('.')[0])}, {_text(name.partition('.')[2])}, {_text(value)})"
        for place, (name, value) in enumerate(facts.items(), 1)
    )
    rows[FACTS] = (
        f"SELECT {identity}, number AS {dataset.NUMBER}, {start} AS t_ns, kind, name, value"
        f" FROM (VALUES {listed}) AS facts (number, kind, name, value), who", len(facts),
    )
    if one.verdicts:
        listed = ", ".join(
            f"({place}, {rank}, {_text(state)}, {_text(severity)}, {_text(what)})"
            for place, (rank, state, severity, what) in enumerate(one.verdicts, 1)
        )
        end = start + int(steps * one.step_s * 1e9)
        rows[VERDICTS] = (
            f"SELECT {identity}, number AS {dataset.NUMBER}, {end} + number AS t_ns, {steps - 1} AS step,"
            f" state, severity, what FROM (VALUES {listed}) AS said (number, rank, state, severity, what)"
            " JOIN who USING (rank)", len(one.verdicts),
        )
    told = {
        "world_size": one.ranks, "user": "alice", "started_ns": start,
        "ended_ns": None if one.state == "running" else start + int(steps * one.step_s * 1e9),
        "state": one.state, "how": {"finished": "exit status 0"}.get(one.state, one.state), "steps": steps,
        "last_t_ns": start + int(steps * one.step_s * 1e9), "rows": steps, "complete": True,
        "updated_ns": start, "version": "0.0", "python": "3.11", "torch": "2.9", "device": "H100",
        "exit_status": None, "verdict": None, "commit": None, "image": None, "driver": None,
        "script": "train.py",
        **one.about,
    }
    columns = ", ".join(f"{_value(value)} AS {name}" for name, value in told.items())
    rows[PROCESSES] = f"SELECT {identity}, 1 AS {dataset.NUMBER}, {columns} FROM who", 1
    for table, (select, last) in rows.items():
        known = dataset.PROCESSES if table == PROCESSES else BY_NAME[table]
        select = _typed(connection, known, select)
        if merged and table == PROCESSES:
            select = f"SELECT *, {_text(dataset.group_of(metas[0], table).date)} AS month FROM ({select})"
            connection.execute(f"CREATE TABLE IF NOT EXISTS processes AS {select} LIMIT 0")
            connection.execute(f"INSERT INTO processes {select}")
            continue
        if merged:
            _put_merged(connection, folder, dataset.group_of(metas[0], table), select, metas, last)
            continue
        for meta in metas:
            parts = portions if table == STEPS else 1
            for part in range(parts):
                first, end = last * part // parts + 1, last * (part + 1) // parts
                only = f"rank = {meta.rank} AND {dataset.NUMBER} BETWEEN {first} AND {end}"
                name = dataset.file_of(meta, table, first, end, 0).name
                _put(connection, folder, name, f"SELECT * FROM ({select}) WHERE {only}")


def _typed(connection: duckdb.DuckDBPyConnection, table: Table, select: str) -> str:
    """The rows with the types that their columns have."""
    types = {column.name: column.type for column in (*dataset.IDENTITY, *table.columns)}
    names = connection.sql(select).columns
    typed = ", ".join(f'"{name}"::{types.get(name, "BIGINT")} AS "{name}"' for name in names)
    return f"SELECT {typed} FROM ({select})"


def _put_merged(
    connection: duckdb.DuckDBPyConnection, folder: Path, group: dataset.Group, select: str,
    metas: Sequence[Meta], last: int,
) -> None:
    file = dataset.merger_of(group, 1, last * len(metas), 0)
    _put(connection, folder, file.name, f"SELECT * FROM ({select}) ORDER BY rank, {dataset.NUMBER}")
    holds = {dataset.process_id(meta): [[1, last]] for meta in metas}
    index = folder / group.index_name(1)
    index.parent.mkdir(parents=True, exist_ok=True)
    index.write_text(json.dumps({"files": [file.name], "holds": holds}))


def _put(connection: duckdb.DuckDBPyConnection, folder: Path, name: str, select: str) -> None:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    connection.execute(
        f"COPY ({select}) TO {_text(str(path))} (FORMAT parquet, COMPRESSION zstd, PARQUET_VERSION v2,"
        f" KV_METADATA {{{dataset.SCHEMA_KEY}: '1', {dataset.VERSION_KEY}: '0.0'}})"
    )


def _value(value: Any) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int) else _text(value)


def _text(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def fleet(count: int, ranks: int = 8, hosts: int = 64, jobs: int = 20) -> list[Simulated]:
    """Runs of a team: jobs that recur, on hosts of which one is slow and one often stalls."""
    names = [f"node{number:03d}" for number in range(hosts)]
    found = []
    for number in range(count):
        job = number % jobs
        first = zlib.crc32(f"place {number}".encode()) % hosts
        used = (names[first], names[(first + 1) % hosts])
        image = "img-2" if number > count * 0.7 else "img-1"
        found.append(
            Simulated(
                f"job{job:02d}", f"job{job:02d}-{number:05d}", used, ranks, day=number * 90 / count,
                step_s=0.05 * (1 + job) * (1.25 if job == 3 and image == "img-2" else 1.0),
                loss=1.5 + job / 10 + (3.0 if number == count // 2 else 0.0),
                slow_hosts={"node007": 1.3}, state="failed" if number % 9 == 4 else "finished",
                verdicts=[(0, "missing rank", "alarm", f"rank 0 on {used[0]} has not entered all_reduce")]
                if number % 9 == 4 else (),
                about={"image": image, "commit": f"c{number * 10 // count}", "driver": "570.1"},
            )
        )
    return found
