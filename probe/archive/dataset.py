"""Dataset: the names of an archive's objects, and their meaning. Pure functions.

    table=SCHEMA.NAME/date=D/job=J/run=R/attempt=A/rank=K/PROCESS-FIRST-LAST-CHECKSUM.parquet
    table=SCHEMA.NAME/date=D/job=J/run=R/attempt=A/rank=all/GENERATION-1-ROWS-CHECKSUM.parquet
    table=archive.processes/date=MONTH-01/job=%/run=%/attempt=0/rank=K/PROCESS-NUMBER-NUMBER-CHECKSUM.parquet
    index/table=SCHEMA.NAME/date=D/job=J/run=R/attempt=A/GENERATION.json
    files/date=D/job=J/run=R/attempt=A/rank=K/PROCESS/journal.bin …

A file of one process holds all rows of a table from number FIRST to number LAST, so names alone show which
rows are there. Rows of archive.processes are grouped by month, not by run, so that many runs can be merged
into one file. A file with `rank=all` is a merger (`compaction`) and counts only if an index names it. Values
are percent-encoded, so any run's name is one part of an object's name. Names are read from stores that others
can write, so reading returns None for names that do not match. Standard library only; any thread.
"""

from __future__ import annotations

import functools
import hashlib
import re
from datetime import datetime, timezone
from typing import NamedTuple
from urllib.parse import quote, unquote

from probe.recording.recording import Meta
from probe.recording.tables.declaration import Column, Table

SCHEMA = 1
"""Version of this layout, and of the columns that files have in addition to those of their table."""
SCHEMA_KEY, VERSION_KEY = "probe_schema", "probe_version"
"""Keys of each file's Parquet metadata: `SCHEMA`, and the version of probe that wrote it."""
NUMBER = "_number"
"""Column with the number of each row within its table and process, as in segments."""
FILES, INDEX = "files/", "index/"

IDENTITY: tuple[Column, ...] = (
    Column("job", "VARCHAR", "", "name of the job"),
    Column("run", "VARCHAR", "", "name of the run the row belongs to"),
    Column("attempt", "BIGINT", "", "restart count of the run, from 0"),
    Column("rank", "BIGINT", "", "rank of the process in its job; 0 when the job has one process"),
    Column("host", "VARCHAR", "", "name of the host it ran on"),
    Column("pid", "BIGINT", "", "process id of the training process"),
    Column("process", "VARCHAR", "", "id of the process in the archive, as in archive.processes"),
)
"""Columns of every file, so that it can be read without its name and hold several ranks of a run."""

PROCESSES = Table(
    "archive", "processes", "recorded process, as it was when its recording was last shipped", "archive",
    (
        *IDENTITY,
        Column("world_size", "BIGINT", "", "number of ranks in the job; NULL when unknown"),
        Column("user", "VARCHAR", "", "name of the user, or the user id if it has no name"),
        Column("started_ns", "BIGINT", "ns", "wall time at which recording began, since 1970"),
        Column("ended_ns", "BIGINT", "ns", "wall time at which the process ended; NULL while it lives, or when its end was not observed"),
        Column("state", "VARCHAR", "", "`running` (it had not ended when it was last shipped, at updated_ns), `finished`, `failed` (an exception, or a nonzero exit status) or `dead` (killed)"),
        Column("how", "VARCHAR", "", "how it ended, in a few words; NULL while it lives"),
        Column("exit_status", "BIGINT", "", "0 to 255, or the negative number of the signal; NULL when it was not observed"),
        Column("verdict", "VARCHAR", "", "its last verdict in probe.verdicts; NULL without one"),
        Column("steps", "BIGINT", "", "optimizer steps that it has finished; NULL before the first"),
        Column("last_t_ns", "BIGINT", "ns", "wall time of its last shipped row; NULL without rows"),
        Column("rows", "BIGINT", "", "number of its shipped rows, of all tables"),
        Column("complete", "BOOLEAN", "", "whether its whole recording is in the archive"),
        Column("updated_ns", "BIGINT", "ns", "wall time at which this row was written"),
        Column("version", "VARCHAR", "", "version of probe that shipped it"),
        Column("python", "VARCHAR", "", "version of Python"),
        Column("torch", "VARCHAR", "", "version of torch"),
        Column("commit", "VARCHAR", "", "git commit of the code; NULL when not gathered"),
        Column("image", "VARCHAR", "", "container image, if the job's environment names it; else NULL"),
        Column("driver", "VARCHAR", "", "version of the device's driver; NULL when not gathered"),
        Column("device", "VARCHAR", "", "name of the device; NULL when not gathered"),
        Column("script", "VARCHAR", "", "script that ran; NULL for `python -c` and the like"),
    ),
    "SELECT host, job, run, rank, state, how FROM archive.processes ORDER BY started_ns DESC LIMIT 10",
)
"""One row for each process; if there are several files, the one with the highest LAST counts."""

_LONGEST_VALUE, _KEPT_VALUE = 160, 140
_EMPTY = "%"
"""Stands for an empty value: a name with nothing after `=` means something else to Hive."""
_VALUE = r"(?:[A-Za-z0-9_.~-]|%[0-9A-F]{2})+|%"
_GROUP = (
    rf"table=(?P<table>{_VALUE})/date=(?P<date>\d{{4}}-\d\d-\d\d)/job=(?P<job>{_VALUE})/run=(?P<run>{_VALUE})"
    r"/attempt=(?P<attempt>\d{1,10})"
)
_FOLDER = re.compile(rf"{_GROUP}/rank=(?P<rank>\d{{1,7}}|none|all)")
_NUMBERED = r"([0-9]{12}|[1-9][0-9]{12,18})"
_ROWS = re.compile(rf"([0-9a-f]{{16}})-{_NUMBERED}-{_NUMBERED}-([0-9a-f]{{8}})\.parquet")
_INDEX = re.compile(rf"{INDEX}{_GROUP}/(?P<generation>\d{{8}})\.json")
_ALL, _NONE = "all", "none"


class Group(NamedTuple):
    """One table of one attempt of a run, the unit of compaction. `date` is UTC, as YYYY-MM-DD."""

    table: str
    date: str
    job: str
    run: str
    attempt: int

    @property
    def folder(self) -> str:
        """The folder of its files, with a slash at the end."""
        return (
            f"table={encoded(self.table)}/date={self.date}/job={encoded(self.job)}/run={encoded(self.run)}"
            f"/attempt={self.attempt}/"
        )

    @property
    def index_folder(self) -> str:
        """The folder of its indexes."""
        return INDEX + self.folder

    def index_name(self, generation: int) -> str:
        """Name of its index of that generation, from 1; the highest counts."""
        return f"{self.index_folder}{generation:08d}.json"


class DataFile(NamedTuple):
    """A file of rows. `rank`: None when unknown, and for a merger; `process`: for a merger its generation."""

    group: Group
    rank: int | None
    merged: bool
    process: str
    first: int
    last: int
    checksum: str

    @property
    def name(self) -> str:
        """Its name in the archive."""
        rank = _ALL if self.merged else _NONE if self.rank is None else str(self.rank)
        numbers = f"{self.first:012d}-{self.last:012d}"
        return f"{self.group.folder}rank={rank}/{self.process}-{numbers}-{self.checksum}.parquet"

    @property
    def generation(self) -> int:
        """The generation of a merger; 0 for any other file."""
        return int(self.process, 16) if self.merged else 0


@functools.lru_cache(maxsize=1 << 14)
def encoded(value: str) -> str:
    """A value as part of a name; a long one is cut and ends in a digest."""
    found = quote(value, safe="", errors="backslashreplace") or _EMPTY
    if len(found) <= _LONGEST_VALUE:
        return found
    digest = hashlib.sha256(value.encode("utf-8", "backslashreplace")).hexdigest()[:16]
    return f"{re.sub('%.?$', '', found[:_KEPT_VALUE])}~{digest}"


@functools.lru_cache(maxsize=1 << 14)
def decoded(value: str) -> str:
    """The value that `encoded` encoded."""
    return "" if value == _EMPTY else unquote(value, errors="backslashreplace")


def is_exact(group: Group) -> bool:
    """Whether the group's name has job and run exactly as in its rows: no part was cut or replaced."""
    return all(
        value.isprintable() and "\\" not in value and len(encoded(value)) <= _KEPT_VALUE
        for value in (group.job, group.run)
    )


def process_id(meta: Meta) -> str:
    """Identifies a recorded process on any host."""
    return process_id_of(meta.host, meta.pid, meta.started_ns)


def process_id_of(host: str, pid: int, started_ns: int) -> str:
    """As `process_id`; `host` is without secrets (`bundle.cleaning`), as in an archive."""
    return hashlib.sha256(f"{host}\0{pid}\0{started_ns}".encode()).hexdigest()[:16]


def date_of(t_ns: int) -> str:
    """The UTC date of a wall time."""
    return datetime.fromtimestamp(t_ns // 10**9, timezone.utc).strftime("%Y-%m-%d")


def group_of(meta: Meta, table: str) -> Group:
    """The group of the rows of one table of a recorded process."""
    if table == PROCESSES.full_name:
        return processes_of(meta.started_ns)
    return Group(table, date_of(meta.started_ns), meta.job, meta.run, meta.attempt)


def processes_of(started_ns: int) -> Group:
    """The group of archive.processes for processes that started in that month, of all runs."""
    return Group(PROCESSES.full_name, f"{date_of(started_ns)[:-2]}01", "", "", 0)


def file_of(meta: Meta, table: str, first: int, last: int, checksum: int) -> DataFile:
    """The file for the rows from `first` to `last` of a recorded process."""
    return DataFile(
        group_of(meta, table), meta.rank, False, process_id(meta), first, last, f"{checksum:08x}"
    )


def merger_of(group: Group, generation: int, rows: int, checksum: int) -> DataFile:
    """The file for the merged rows of a group. A file without rows counts too: it replaces others."""
    return DataFile(group, None, True, f"{generation:016x}", 1, max(1, rows), f"{checksum:08x}")


def files_folder(meta: Meta) -> str:
    """The folder for those files of a recorded process that are not tables."""
    group = group_of(meta, "")
    return (
        f"{FILES}date={group.date}/job={encoded(group.job)}/run={encoded(group.run)}/attempt={group.attempt}"
        f"/rank={meta.rank}/{process_id(meta)}/"
    )


def read_file(name: str) -> DataFile | None:
    """The file of rows with this name; None for any other name."""
    folder, _, own = name.rpartition("/")
    match = _ROWS.fullmatch(own)
    said = None if match is None else _read_folder(folder)
    if match is None or said is None:
        return None
    process, told, upto, checksum = match.groups()
    first, last = int(told), int(upto)
    if first > last or last >= 1 << 63:
        return None
    return DataFile(*said, process, first, last, checksum)


@functools.lru_cache(maxsize=1 << 12)
def _read_folder(folder: str) -> tuple[Group, int | None, bool] | None:
    """Group, rank and whether the files in a folder are mergers; cached, because a folder has many files."""
    match = _FOLDER.fullmatch(folder)
    if match is None:
        return None
    group, told = _group(match), match["rank"]
    rank = None if told in (_ALL, _NONE) else int(told)
    if folder != f"{group.folder}rank={told if rank is None else rank}":
        return None
    return group, rank, told == _ALL


def read_index(name: str) -> tuple[Group, int] | None:
    """The group and generation of the index with this name; None for any other name."""
    match = _INDEX.fullmatch(name)
    if match is None:
        return None
    group, generation = _group(match), int(match["generation"])
    return (group, generation) if group.index_name(generation) == name else None


def table_in(folder: str) -> str | None:
    """The table of a folder `table=…/`; None for any other folder."""
    match = re.fullmatch(rf"table=({_VALUE})/", folder)
    return None if match is None else decoded(match[1])


def _group(match: re.Match[str]) -> Group:
    job, run = decoded(match["job"]), decoded(match["run"])
    return Group(decoded(match["table"]), match["date"], job, run, int(match["attempt"]))
