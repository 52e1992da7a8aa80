"""Files of an archive, made without a job."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from probe.archive import dataset
from probe.archive.store import Store
from probe.recording.recording import Meta
from probe.recording.segments import engine

META = Meta(
    version=2, run="r1", attempt=0, job="train", rank=0, world_size=2, local_rank=0, host="node1", pid=7,
    start_ticks=5, boot_id="b", uid=1000, argv=["train.py"], cwd="/", executable="python", python="3.11",
    torch="2.9", started_ns=1_772_323_200 * 10**9, rings="", socket="", settings={},
)


def parquet(path: Path, select: str) -> bytes:
    """The rows of a query as a Parquet file."""
    connection = engine()
    try:
        connection.execute(f"COPY ({select}) TO '{path}' (FORMAT parquet)")
    finally:
        connection.close()
    data = path.read_bytes()
    path.unlink()
    return data


def put_rows(store: Store, scratch: Path, meta: Meta, table: str, first: int, last: int) -> str:
    """A file with the numbers from `first` to `last`; returns its name."""
    process = dataset.process_id(meta)
    select = (
        f"SELECT i AS step, '{meta.job}' AS job, '{meta.run}' AS run, {meta.rank}::BIGINT AS rank,"
        f" '{meta.host}' AS host, '{process}' AS process, i AS {dataset.NUMBER}"
        f" FROM range({first}, {last + 1}) AS rows(i)"
    )
    name = dataset.file_of(meta, table, first, last, first).name
    store.put(name, parquet(scratch / "rows.parquet", select))
    return name


def put_process(store: Store, scratch: Path, meta: Meta, number: int, **facts: Any) -> str:
    """A row of archive.processes; columns that are not given are missing or NULL."""
    row = {
        "job": meta.job, "run": meta.run, "attempt": meta.attempt, "rank": meta.rank, "host": meta.host,
        "process": dataset.process_id(meta), "started_ns": meta.started_ns, dataset.NUMBER: number, **facts,
    }
    kinds = {str: "VARCHAR", int: "BIGINT", bool: "BOOLEAN"}
    columns = [f"CAST('{value}' AS {kinds[type(value)]}) AS {name}" for name, value in row.items()]
    select = f"SELECT {', '.join(columns)}"
    name = dataset.file_of(meta, dataset.PROCESSES.full_name, number, number, 0).name
    store.put(name, parquet(scratch / "row.parquet", select))
    return name
