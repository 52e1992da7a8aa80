"""Rows that an archive does not have yet: those of processes that had not ended when they were last shipped.

    missing = tails(catalog, plan.files, plan.living, plan.columns)
    sent = source.rows(missing)         # whoever knows servers: `client.live_rows`

The names of an archive's files say which rows of a process it has; its host is asked for all others, so that
none is there twice and none between is missing. Pure; the command's threads.
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
"""Of one process; what the archive lacks before them, its host lacked, too."""
_MOST_NAMED = 4
_PROCESS = re.compile(r"[0-9a-f]{16}")
_OWN_NAME = re.compile(rf"{declared.SCHEMA}\.\w+")


class Tail(NamedTuple):
    """What an archive lacks of one table of one process. `process`: its row of archive.processes; `columns`:
    those of the table's own that are used, None for all; `held`: the rows that the archive has."""

    table: str
    process: Mapping[str, Any]
    columns: tuple[str, ...] | None
    held: Ranges

    @property
    def group(self) -> Group:
        """Where its rows belong in the archive."""
        row = self.process
        return Group(self.table, row["date"], row["job"], row["run"], row["attempt"])

    @property
    def name(self) -> str:
        """Name of a file of its rows, in the form of an archive's, which tells the date."""
        return f"{self.group.folder}rank=none/{self.process['process']}-live.parquet"

    def sql(self, pid: int) -> str:
        """The statement for the server beside the process, in the order in which the rows were written."""
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
    """The rows of tails that have any, each as a Parquet file with the columns of an archive's; notes on what
    is missing; and the ids of the processes of which something is."""

    files: list[tuple[Tail, bytes]]
    notes: list[str]
    partly: set[str]


class Source(Protocol):
    """Knows servers beside processes that live."""

    def rows(self, wanted: Sequence[Tail]) -> Sent:
        """What the archive lacks of some processes."""

    def states(self, living: Sequence[Mapping[str, Any]]) -> tuple[dict[str, dict[str, Any]], list[str]]:
        """Of processes by their rows of archive.processes, the columns that their servers know better, by id;
        and notes on those of which no server knows."""


def lives(row: Mapping[str, Any]) -> bool:
    """Whether a process had not ended when it was last shipped, by its row of archive.processes. Whoever can
    write to an archive wrote that row: one that could not be ours is left alone."""
    ours = _PROCESS.fullmatch(str(row["process"])) is not None and type(row["attempt"]) is int
    return ours and row["ended_ns"] is None and row["state"] == "running"


def is_shipped(table: str) -> bool:
    """Whether an archive gets rows of a table, of ours or a job's own."""
    known = BY_NAME.get(table)
    if known is None:
        return _OWN_NAME.fullmatch(table) is not None
    return known.source == "journal" or (known.source == "ring" and known.sealed)


def tails(
    catalog: Catalog, files: Mapping[str, Collection[ArchivedFile]],
    living: Mapping[str, Sequence[Mapping[str, Any]]], used: Mapping[str, Sequence[str] | None],
) -> list[Tail]:
    """What is missing of each table of the processes that live, given the files of it that are read. Raises
    `ObjectMissing` as `Catalog.rows_in`."""
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
    """A note on processes whose hosts were not asked."""
    return (
        f"not ended when they were last shipped, what they recorded since is left out: {named(rows)}; "
        "`--live` asks their hosts"
    )


def named(rows: Collection[Mapping[str, Any]]) -> str:
    """The runs of some processes and their hosts, as a note names them."""
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
