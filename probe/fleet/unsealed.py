"""Rows that an archive does not have yet, of processes that had not ended when they were last shipped.

    missing = tails(catalog, plan.files, plan.living, plan.columns)
    sent = source.rows(missing)         # a source that knows servers: `client.live_rows`

The names of an archive's files show which rows of a process it has; all others are fetched from the process's
host, so that no row is read twice and none is missing. Pure; the command's threads.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from probe.archive.catalog import ArchivedFile, Catalog, Ranges
from probe.archive.dataset import NUMBER, Group
from probe.fleet.archived_tables import quoted_name
from probe.recording import declared
from probe.recording.tables import BY_NAME, COMMON

_MOST_RANGES = 64
"""Ranges of one process in a statement: earlier rows that the archive lacks are not on the host either."""
_MOST_NAMED = 4
_PROCESS = re.compile(r"[0-9a-f]{16}")
_OWN_NAME = re.compile(rf"{declared.SCHEMA}\.\w+")


class Tail(NamedTuple):
    """The rows of one table of one process that an archive lacks. `process`: its row of archive.processes;
    `columns`: the table's own columns that are used, None for all; `held`: the rows that the archive has."""

    table: str
    process: Mapping[str, Any]
    columns: tuple[str, ...] | None
    held: Ranges

    @property
    def group(self) -> Group:
        """The group of its rows in the archive."""
        row = self.process
        return Group(self.table, row["date"], row["job"], row["run"], row["attempt"])

    @property
    def name(self) -> str:
        """Name of a file with its rows, in the form of an archive's name, which includes the date."""
        return f"{self.group.folder}rank=none/{self.process['process']}-live.parquet"

    def sql(self, pid: int) -> str:
        """The statement for the process's server, with rows in the order in which they were written."""
        schema, _, name = self.table.partition(".")
        common = ", ".join(column.name for column in COMMON)
        if self.columns is None:
            picked = f"* EXCLUDE ({common})"
        else:
            picked = ", ".join(map(quoted_name, dict.fromkeys((*self.columns, NUMBER))))
        held = "".join(f" AND {NUMBER} NOT BETWEEN {first} AND {last}" for first, last in self._ranges)
        return (
            f"SELECT {picked} FROM {quoted_name(schema)}.{quoted_name(name)} "
            f"WHERE pid = {int(pid)}{held} ORDER BY {NUMBER}"
        )

    @property
    def _ranges(self) -> Ranges:
        if len(self.held) <= _MOST_RANGES:
            return self.held
        return [(0, self.held[-_MOST_RANGES][1]), *self.held[1 - _MOST_RANGES :]]


class Sent(NamedTuple):
    """The rows of tails that have any, each as a Parquet file with the columns of an archive's; notes on
    missing rows; and the ids of the processes that lack some."""

    files: list[tuple[Tail, bytes]]
    notes: list[str]
    partly: set[str]


class Source(Protocol):
    """Fetches rows and states of living processes from their servers."""

    def rows(self, wanted: Sequence[Tail]) -> Sent:
        """The rows of these tails."""

    def states(self, living: Sequence[Mapping[str, Any]]) -> tuple[dict[str, dict[str, Any]], list[str]]:
        """Newer values of columns of archive.processes for these processes, by id; and notes on processes
        that no server has."""


def lives(row: Mapping[str, Any]) -> bool:
    """Whether a process had not ended when it was last shipped, by its row of archive.processes. Others may
    have written that row: False for one that probe cannot have written."""
    ours = _PROCESS.fullmatch(str(row["process"])) is not None and type(row["attempt"]) is int
    return ours and row["ended_ns"] is None and row["state"] == "running"


def is_shipped(table: str) -> bool:
    """Whether rows of a table, built-in or declared by a job, are shipped to an archive."""
    known = BY_NAME.get(table)
    if known is None:
        return _OWN_NAME.fullmatch(table) is not None
    return known.source == "journal" or (known.source == "ring" and known.sealed)


def tails(
    catalog: Catalog, files: Mapping[str, Collection[ArchivedFile]],
    living: Mapping[str, Sequence[Mapping[str, Any]]], used: Mapping[str, Sequence[str] | None],
) -> list[Tail]:
    """The missing rows of each table of the living processes, given the files that are read. Raises
    `ObjectMissing` as `Catalog.rows_in` does."""
    found = []
    for table, rows in living.items():
        wanted = [Tail(table, row, _own_columns(table, used[table]), []) for row in rows]
        folders = {one.group.folder for one in wanted}
        held = catalog.rows_in(one for one in files[table] if one.file.group.folder in folders)
        found += [one._replace(held=held.get(str(one.process["process"]), [])) for one in wanted]
    return found


def _own_columns(table: str, used: Sequence[str] | None) -> tuple[str, ...] | None:
    known = BY_NAME.get(table)
    if known is None:  # only its host knows them
        return None
    return tuple(one.name for one in known.columns if used is None or one.name in used)


def left_out(rows: Collection[Mapping[str, Any]]) -> str:
    """A note on processes whose hosts were not queried."""
    return (
        f"not ended when they were last shipped, rows recorded since then are left out: {named(rows)}; "
        "`--live` queries their hosts"
    )


def named(rows: Collection[Mapping[str, Any]]) -> str:
    """The runs of some processes and their hosts, as text for a note."""
    hosts: dict[str, set[str]] = {}
    for row in rows:
        name = f"{row['run']}@{row['attempt']}" if row["attempt"] else str(row["run"])
        hosts.setdefault(name, set()).add(str(row["host"]))
    told = [
        f"{run} on {', '.join(sorted(found)[:_MOST_NAMED])}"
        + (f" and {len(found) - _MOST_NAMED} more hosts" if len(found) > _MOST_NAMED else "")
        for run, found in hosts.items()
    ]
    more = [f"{len(told) - _MOST_NAMED:,} more runs"] if len(told) > _MOST_NAMED else []
    return "; ".join([*told[:_MOST_NAMED], *more])
