"""Retention: chooses runs of an archive that are too old, or too many, and deletes them.

A run is deleted completely: its tables, indexes and files, and its rows of archive.processes last, so that an
interrupted deletion is found and repeated. Runs in `probe archive`.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from probe.archive import compaction, dataset
from probe.archive.catalog import Catalog
from probe.archive.store import Store

LIVE_S = 3 * 24 * 3600.0
"""A process that had not ended at its last shipment is considered alive for this long: its run is kept."""


class Run(NamedTuple):
    """One attempt of a run: what identifies it, its last sign of life (wall time), and its size."""

    date: str
    job: str
    run: str
    attempt: int
    last_ns: int
    lives: bool
    size_bytes: int


def runs(store: Store) -> list[Run]:
    """All runs of an archive, in the order in which they ended."""
    sizes: dict[tuple[str, ...], int] = {}
    for one in store.list():
        key = _key_in(one.name)
        if key is not None:
            sizes[key] = sizes.get(key, 0) + one.size_bytes
    found: dict[tuple[str, ...], Run] = {}
    since_ns = int((time.time() - LIVE_S) * 1e9)
    for row in Catalog(store).processes():
        told = _run(row, since_ns)
        key = _key(told)
        known = found.get(key, told)
        last_ns, lives = max(told.last_ns, known.last_ns), told.lives or known.lives
        found[key] = told._replace(last_ns=last_ns, lives=lives, size_bytes=sizes.get(key, 0))
    return sorted(found.values(), key=lambda run: run.last_ns)


def chosen(found: Sequence[Run], older_than_s: float | None, keep_bytes: int | None) -> list[Run]:
    """The runs to delete: older ones, and then the oldest until the others fit. Living runs are kept."""
    before_ns = None if older_than_s is None else (time.time() - older_than_s) * 1e9
    total = sum(run.size_bytes for run in found)
    wanted = []
    for run in found:
        old = before_ns is not None and run.last_ns < before_ns
        if not run.lives and (old or (keep_bytes is not None and total > keep_bytes)):
            wanted.append(run)
            total -= run.size_bytes
    return wanted


def delete(store: Store, wanted: Sequence[Run]) -> None:
    """Delete runs. Raises `ArchiveUnavailable` or `ArchiveInvalid`."""
    found = Catalog(store)
    tables = found.tables()
    for run in wanted:
        folder = dataset.Group("", run.date, run.job, run.run, run.attempt).folder.partition("/")[2]
        for table in tables:
            group = dataset.Group(table, run.date, run.job, run.run, run.attempt)
            for prefix in (group.folder, group.index_folder):
                store.delete([one.name for one in store.list(prefix)])
        store.delete([one.name for one in store.list(dataset.FILES + folder)])
    keys = set(map(_key, wanted))
    gone: dict[dataset.Group, set[str]] = {}
    for row in found.processes():
        if _key(_run(row)) in keys:
            group = dataset.processes_of(int(row["started_ns"] or 0))
            gone.setdefault(group, set()).add(str(row["process"]))
    for group, processes in gone.items():
        compaction.forget(store, group, processes)


def _run(row: Mapping[str, Any], since_ns: int = 0) -> Run:
    """The run of one process, from its row of archive.processes."""
    return Run(
        dataset.date_of(int(row["started_ns"] or 0)), str(row["job"]), str(row["run"]), int(row["attempt"]),
        max(filter(None, (row["started_ns"], row["ended_ns"], row["last_t_ns"])), default=0),
        row["state"] == "running" and (row["updated_ns"] or 0) > since_ns, 0,
    )


def _key(run: Run) -> tuple[str, ...]:
    return run.date, dataset.encoded(run.job), dataset.encoded(run.run), str(run.attempt)


def _key_in(name: str) -> tuple[str, ...] | None:
    parts = dict(part.split("=", 1) for part in name.split("/") if "=" in part)
    try:
        return parts["date"], parts["job"], parts["run"], parts["attempt"]
    except KeyError:
        return None
