"""The plan of a query: which processes the worker reads, how much of each, and rows of other hosts.

Runs in the query worker. Imports no duckdb.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from probe.base.errors import RecordingError
from probe.recording import declared
from probe.recording.tables import Table

if TYPE_CHECKING:
    from probe.server.sql.remote_rows import RemoteRows
    from probe.server.sql.ring_rows import Source

OLDEST_PART = 8
"""In addition to the newest bytes of a journal, 1/OLDEST_PART as many are read from its beginning."""


@dataclass
class Plan:
    """The worker's input in addition to the SQL. `live` holds rows of live tables as dictionaries."""

    sources: list[Source]
    live: dict[str, list[dict[str, Any]]]
    remote: RemoteRows | None = None
    """Rows of other hosts' ranks."""
    skip_files: set[str] = field(default_factory=set)
    """Damaged segments, which are left out."""
    sealed: dict[str, list[str]] = field(default_factory=dict)
    """The segments that are read, by table; set by `build`, also if it fails."""
    recent: Recent | None = None
    """If set, only about this many of the newest rows are read."""
    made: dict[Path, dict[str, Table]] = field(default_factory=dict)
    """The tables that each process made on demand, by folder and name."""
    texts: dict[Path, list[str | None]] = field(default_factory=dict)
    """The texts that rings refer to, by their folder, as far as they were read; see `RingRows`."""
    by_name: bool = False
    """Whether some segments lack columns that others have: columns are then looked up by name in each."""
    every_table: bool = False
    """Whether tables exist that the SQL does not mention: an error names those that it may have meant."""

    @property
    def own_tables(self) -> dict[str, Table]:
        """The tables that jobs declared, on this host and others, by name."""
        here = [table for tables in self.made.values() for table in tables.values()]
        there = self.remote.own.values() if self.remote is not None else ()
        return {
            name: table
            for name, table in declared.merged([*here, *itertools.chain(*there)]).items()
            if table.schema == declared.SCHEMA
        }

    def read_declared(self) -> list[str]:
        """Set `made`; returns notes on recordings whose declared tables cannot be read."""
        notes: list[str] = []
        for source in self.sources:
            try:
                found = declared.read(source.folder)
            except RecordingError as error:
                notes.append(f"pid {source.pid}: {error.message}; its own tables are left out")
                found = []
            self.made[source.folder] = {table.full_name: table for table in found}
        return notes


class Recent(NamedTuple):
    """Minimum to read of each table of each process: the newest rows of rings; the newest bytes of journals,
    and 1/OLDEST_PART as many of the oldest, so that early records are not forgotten."""

    rows: int
    journal_bytes: int
