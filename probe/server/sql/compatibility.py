"""Runs queries written for probing, the nearest other tool: provides its tables and columns where possible.

If a query names a table of probing, a view of probe's tables is created under that name; if it names a column
that only probing's table of the same name has, that column is added. Both exist for that query only. Values
that are not recorded here are NULL, with a note. A value that no row can have gets a note, and a table
without a counterpart an error that names the alternative (`instead`). Everything is found in the text of the
SQL, without parsing. Pure, except for `make`: in the query worker; `reads` also on the server's event loop.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

from probe.base.errors import ProbeError, SqlInvalid
from probe.recording.tables import BY_NAME, COMMON, Table

if TYPE_CHECKING:
    import duckdb

PEER = "probing"
# Its micro_step counts from the start, probe's within the step: in tables where only probing has it, it is
# NULL.
_SAME_STEP = {"local_step": "step", "global_step": "step"}
_PLACEMENT = {"micro_batches": "BIGINT", "world_size": "BIGINT", "role": "VARCHAR"}
_BEFORE = "OVER (PARTITION BY run, attempt, rank, pid, step ORDER BY seq)"
_GROUP_SIZE = (
    "list_sum(list_transform(string_split(ranks, ','), lambda part: "
    "TRY_CAST(split_part(part, '-', -1) AS BIGINT) - TRY_CAST(split_part(part, '-', 1) AS BIGINT) + 1))"
)


class View(NamedTuple):
    """A table of probing. `source`: what it is read from. `columns`: its columns, with the SQL of each;
    `unknown`: those that are not recorded here, with their types."""

    name: str
    source: str
    columns: Mapping[str, str]
    unknown: Mapping[str, str]

    @property
    def reads(self) -> str:
        """SQL that reads its sources, without `*`, so that the text names every column."""
        return f"SELECT {', '.join(self._expressions.values())} FROM {self.source}"

    @property
    def sql(self) -> str:
        """The definition."""
        parts = [f'{expression} AS "{name}"' for name, expression in self._expressions.items()]
        parts += [f'NULL::{kind} AS "{name}"' for name, kind in self.unknown.items()]
        return f"SELECT {', '.join(parts)} FROM {self.source}"

    @property
    def _expressions(self) -> dict[str, str]:
        return {**self.columns, **{column.name: column.name for column in COMMON}}


VIEWS = (
    View(
        "python.comm_collective", "python.collectives",
        {
            **_SAME_STEP, "op": "op", "group_size": _GROUP_SIZE, "participate_ranks": "ranks",
            "tensor_shape": "shapes", "tensor_dtype": "dtype", "bytes": "bytes",
            "duration_ms": "1000 * duration_s", "async_op": "asynchronous::BIGINT",
        },
        {"micro_step": "BIGINT", "group_rank": "BIGINT", **_PLACEMENT},
    ),
    View(
        "python.torch_step_timing", "python.steps",
        {
            **_SAME_STEP, "step_duration_sec": "wall_s", "is_shadow": "shadow::BIGINT",
            "sampled": "sampled::BIGINT",
        },
        {
            "micro_step": "BIGINT", **_PLACEMENT, "shadow_normal": "BIGINT", "shadow_baseline": "BIGINT",
            "sample_rate": "DOUBLE", "sample_mode": "VARCHAR",
        },
    ),
    View(
        "python.trace_variables", "python.variables",
        {
            "variable_name": "name", "value": "coalesce(text, value::VARCHAR)", "timestamp": "t_ns",
            "local_step": "step",
        },
        {"function_name": "VARCHAR", "filename": "VARCHAR", "lineno": "BIGINT", "value_type": "VARCHAR"},
    ),
    View(
        "cpu.utilization", "process.memory",
        {
            "ts": "t_ns // 1000", "scope": "'process'", "platform": "'linux'", "rss_kb": "rss_bytes // 1024",
            "thread_count": "threads",
        },
        {
            "tid": "BIGINT", "comm": "VARCHAR", "wall_ns": "BIGINT", "delta_user_ns": "BIGINT",
            "delta_sys_ns": "BIGINT", "delta_total_ns": "BIGINT", "cpu_user_pct": "DOUBLE",
            "cpu_sys_pct": "DOUBLE", "cpu_total_pct": "DOUBLE", "cum_user_ns": "BIGINT",
            "cum_sys_ns": "BIGINT", "delta_vol_ctxt": "BIGINT", "delta_invol_ctxt": "BIGINT",
            "state": "VARCHAR", "wchan": "VARCHAR",
        },
    ),
    View(
        "gpu.utilization", "process.gpu",
        {
            "ts": "t_ns // 1000", "backend": "'cuda'", "device_id": "device", "name": "name",
            "total_bytes": "memory_total_bytes", "used_bytes": "memory_used_bytes",
            "free_bytes": "memory_total_bytes - memory_used_bytes",
            "mem_used_pct": "100.0 * memory_used_bytes / nullif(memory_total_bytes, 0)",
            "gpu_util_pct": "100 * utilization_ratio",
        },
        {
            "memory_model": "VARCHAR", "chip": "VARCHAR", "mem_controller_util_pct": "DOUBLE",
            "renderer_util_pct": "DOUBLE", "tiler_util_pct": "DOUBLE", "driver_mem_bytes": "BIGINT",
            "wall_ns": "BIGINT",
        },
    ),
    View(
        "cluster.nodes",
        "cluster.ranks LEFT JOIN (SELECT host AS of_host, url FROM cluster.hosts) ON of_host = host",
        {
            "host": "host", "addr": "url", "local_rank": "local_rank", "world_size": "world_size",
            "status": "state", "timestamp": "(epoch_us(now()) - 1e6 * last_seen_s)::BIGINT",
        },
        {
            "group_rank": "BIGINT", "group_world_size": "BIGINT", "role_name": "VARCHAR",
            "role_rank": "BIGINT", "role_world_size": "BIGINT", "role": "VARCHAR",
        },
    ),
)
"""The tables of probing that are read from probe's."""


class Added(NamedTuple):
    """Columns that probing's table of the same name has; see `View`."""

    table: str
    columns: Mapping[str, str]
    unknown: Mapping[str, str]


ADDED = (
    Added(
        "python.torch_trace",
        {
            **_SAME_STEP,
            "allocated_delta": f"allocated - lag(allocated) {_BEFORE}",
            "max_allocated_delta": f"max_allocated - lag(max_allocated) {_BEFORE}",
        },
        _PLACEMENT,
    ),
    Added("python.variables", _SAME_STEP, {"micro_step": "BIGINT", "func": "VARCHAR"}),
    Added("python.backtrace", {}, {"ip": "BIGINT"}),
)
"""Columns of probing that are added to probe's tables of the same names where the SQL names them."""
TAGS = {"_rank": "t.rank", "_host": "r.host", "_addr": "h.url", "_role": "NULL::VARCHAR"}
"""Columns of probing's `global.` tables; the middle two only where the SQL names them: they need requests to
other hosts."""


class Unmatched(NamedTuple):
    """A value, as a pattern of SQL, that no row of a table here has, and what to write instead."""

    table: str
    pattern: str
    note: str


UNMATCHED = (
    Unmatched(
        "python.torch_trace", r"'pre\b",
        "python.torch_trace has no stage 'pre …': a call has one row, written when it returns, with its "
        "duration; its start is time_offset",
    ),
    Unmatched(
        "python.backtrace", r"'(?:python|native|Rust|rust)'",
        "python.backtrace has frame_type 'Python' only; `probe PID backtrace --native` reads native frames",
    ),
    Unmatched(
        "cpu.utilization", r"'thread'",
        "cpu.utilization has scope 'process' only; `probe PID backtrace --all-threads` shows the threads",
    ),
    Unmatched(
        "gpu.utilization", r"\bgpu_util_pct\s*(?:=|<=?|<>|!=)\s*-\s*1\b",
        "a utilization that is not known is NULL here, never -1",
    ),
)
_POST_STAGE, _OWN_STAGE = r"'post\b", r"'(?:forward|backward|step)'"
_STAGES = (
    "a call has one row in python.torch_trace, with stage 'forward', 'backward' or 'step'; in this answer it "
    "is 'post forward', 'post backward' or 'post step', as probing writes it"
)
_STAGES_MIXED = (
    "python.torch_trace has no stage 'post …': its stages are 'forward', 'backward' and 'step', one row "
    "per call"
)

_PEERS_COLLECTIVES = (
    "NCCL's own events are not recorded: python.collectives has each call, its group, sequence number, "
    "bytes, duration and state (of NCCL from PyTorch's Flight Recorder, source = 'flight')"
)
INSTEAD: Mapping[str, str] = {
    "process.kmsg": "there is no table of the kernel's log: `probe PID diagnose` and probe.verdicts report "
    "when the kernel killed the process for memory, process.gpu has ECC errors and throttling",
    "process.envs": "there is no table of the environment: probe.facts has its relevant variables (kind = "
    "'environment'), `probe PID eval \"os.environ['NAME']\"` shows any other",
    "information_schema.df_settings": "settings are in probe.settings: SELECT variable, value FROM "
    "probe.settings",
    "cpu.tasks": "threads are not sampled: `probe PID backtrace --all-threads` shows them, and "
    "process.memory.cpu_wait_ns how long the training thread waited for a CPU",
    "gpu.devices": "devices are in process.gpu: SELECT DISTINCT device, name FROM process.gpu",
    "nccl.*": _PEERS_COLLECTIVES,
    "hccl.*": _PEERS_COLLECTIVES,
    "python.torch_nccl_flight_record": _PEERS_COLLECTIVES,
    "python.torch_nccl_pg_status": _PEERS_COLLECTIVES,
    "rdma.*": "counters of network cards are not recorded: python.collectives has the duration and bytes of "
    "each collective",
    "python.trace_event": "python.spans and python.events have what the job itself marks; "
    "python.pulse has the phases of the training thread, python.intervals its evaluations and checkpoints",
    "python.profile_capture": "profiles are files: `probe PID profile` writes a trace of whole steps",
    "python.profile_hotspot": "profiles are files: `probe PID profile` writes a trace of whole steps; "
    "python.torch_trace has the time of each module",
    "probe.probing.*": "the columns are described in probe.tables: SELECT column_name, unit, meaning FROM "
    "probe.tables",
    "memory_usage": "the process's memory is in process.memory",
    "memory_allocations": "allocations are not recorded one by one: process.memory has the totals, `probe "
    "PID memory-snapshot` who holds the device's",
    "profiling_data": "the time of each module is in python.torch_trace, of each step in python.steps",
    "training_logs": "losses and durations of steps are in python.steps, logged values in python.scalars",
    "comm_metrics": "collectives are in python.collectives",
    "gpu_metrics": "samples of the devices are in process.gpu",
}
"""Tables of probing that have no counterpart, and where to find their contents; `.*`: a whole schema."""
NAMES = frozenset({*(view.name for view in VIEWS), *(name for name in INSTEAD if "." in name)})
"""The tables of probing that its documentation names."""
_SETTINGS = (
    "settings are read when a process starts (`probe config` lists them); while it runs, commands such as "
    "`probe PID watch` change what is recorded"
)
ALONE = (
    "global.* has the rows of rank {rank} only, because only that rank was queried: `probe JOB query` "
    "queries all ranks of a job"
)

_TEXTS = re.compile(r"'(?:[^']|'')*'")
_DOT = re.compile(r'(?:"\s*|(?<!\s)\s*)\.\s*"?')
"""With what may surround it. It begins once in each run of spaces: a match tried at each of 60,000 spaces
took ten seconds."""
_GLOBAL = re.compile(r"(?<![\w.])global\.(\w+)\.(\w+)")
_STAR = re.compile(r"(?:\bselect|\bdistinct|[,.])\s*\*")


class Words(NamedTuple):
    """The names of probing in a query: views, columns added to tables, tables behind `global.`, tags."""

    views: tuple[View, ...]
    added: Mapping[str, tuple[str, ...]]
    stages: bool
    """Whether the query uses probing's names of stages."""
    everywhere: tuple[tuple[str, str], ...]
    tags: tuple[str, ...]

    def __bool__(self) -> bool:
        return bool(self.views or self.added or self.stages or self.everywhere)


def reads(sql: str) -> str:
    """The SQL, followed by the SQL of the views that it names: the text names all tables and columns read."""
    named = words(sql)
    more = [view.reads for view in named.views]
    for one in ADDED:
        more += [one.columns[name] for name in named.added.get(one.table, ()) if name in one.columns]
    if {"_host", "_addr"} & set(named.tags):
        more.append("cluster.ranks cluster.hosts")
    return "\n;\n".join([sql, *more])


def make(connection: duckdb.DuckDBPyConnection, sql: str, ranks: Collection[int]) -> list[str]:
    """Make the views that a query names, over tables that are filled; returns notes for the user.

    `ranks`: those whose rows the tables have."""
    named = words(sql)
    if not named:
        return list(_unmatched(sql))
    notes: list[str] = []
    for view in named.views:
        schema, _, name = view.name.partition(".")
        connection.execute(f'CREATE SCHEMA IF NOT EXISTS "{schema}"')
        connection.execute(f'CREATE VIEW "{schema}"."{name}" AS {view.sql}')
        of, null = view.source.partition(" ")[0], _null_of(sql, view.unknown)
        notes.append(f"{view.name} is a view of {of}, for queries written for {PEER}{null}")
    for one in ADDED:
        chosen = named.added.get(one.table, ())
        stages = named.stages and one.table == "python.torch_trace"
        if chosen or stages:
            _extend(connection, BY_NAME[one.table], one, chosen, stages)
            empty = ", ".join(name for name in chosen if name in one.unknown)
            notes += [f"not recorded in {one.table}, so NULL: {empty}"] if empty else []
    if named.everywhere:
        connection.execute("ATTACH ':memory:' AS \"global\"")
        for schema, name in named.everywhere:
            _make_global(connection, schema, name, named.tags)
        notes += [ALONE.format(rank=next(iter(ranks)))] if len(ranks) == 1 else []
        notes += ["not recorded in global.*, so NULL: _role"] if "_role" in named.tags else []
    return [*notes, *_unmatched(sql)]


def instead(sql: str, error: ProbeError) -> ProbeError:
    """The error of a query, or a more helpful one if the SQL names something that only probing has."""
    if not isinstance(error, SqlInvalid):
        return error
    text = _plain(sql)
    if re.match(r"\s*set\s+probing\.", text):
        return SqlInvalid(_SETTINGS)
    for name, sentence in INSTEAD.items():
        if re.search(_pattern_of(name), text):
            return SqlInvalid(f"{name} is a name of {PEER}: {sentence}")
    return error


def _pattern_of(name: str) -> str:
    """A pattern for SQL that uses that table; a name without a schema counts only after FROM or JOIN."""
    if "." not in name:
        return rf"\b(?:from|join)\s+{name}\b"
    schema = name.endswith(".*")
    end = r"\." if schema else r"(?!\w)"
    return rf"(?<![\w.])(?:global\.)?{re.escape(name.removesuffix('.*'))}{end}"


@cache
def _view_names() -> re.Pattern[str]:
    names = "|".join(re.escape(view.name) for view in VIEWS)
    return re.compile(rf"(?<![\w.])(?:global\.)?({names})(?!\w)")


def words(sql: str) -> Words:
    """The names of probing in a query."""
    text = _plain(sql)
    views = set(_view_names().findall(text))
    found = set(re.findall(r"\w+", text))
    added: dict[str, tuple[str, ...]] = {}
    for one in ADDED:
        if re.search(rf"(?<!\w){re.escape(one.table)}(?!\w)", text):
            others = {
                column.name for table in BY_NAME.values()
                if table.full_name != one.table and table.full_name in text for column in table.columns
            }
            names = tuple(name for name in (*one.columns, *one.unknown) if name in found - others)
            added.update({one.table: names} if names else {})
    stages = (
        "python.torch_trace" in text and re.search(_POST_STAGE, sql) is not None
        and not re.search(_OWN_STAGE, sql)
    )
    known = {*BY_NAME, *(view.name for view in VIEWS)}
    everywhere = tuple(
        (schema, name) for schema, name in dict.fromkeys(_GLOBAL.findall(text)) if f"{schema}.{name}" in known
    )
    tags = tuple(
        name for name in TAGS if name in found or (name in ("_rank", "_role") and _STAR.search(text))
    )
    return Words(
        tuple(view for view in VIEWS if view.name in views), added, stages, everywhere,
        tags if everywhere else (),
    )


def _plain(sql: str) -> str:
    """The SQL in lower case, without its texts, and names without quotes."""
    return _DOT.sub(".", _TEXTS.sub("''", sql)).lower()


def _null_of(sql: str, unknown: Mapping[str, str]) -> str:
    """The end of a note: the columns that the SQL names and that are not recorded."""
    text = _plain(sql)
    found = set(re.findall(r"\w+", text))
    null = [name for name in unknown if name in found or _STAR.search(text)]
    return f"; not recorded, so NULL: {', '.join(null)}" if null else ""


def _unmatched(sql: str) -> Iterator[str]:
    """Notes about values in the SQL that no row has."""
    text = _plain(sql)
    for one in UNMATCHED:
        if one.table in text and re.search(one.pattern, sql):
            yield one.note
    if "python.torch_trace" in text and re.search(_POST_STAGE, sql):
        yield _STAGES_MIXED if re.search(_OWN_STAGE, sql) else _STAGES


def _extend(
    connection: duckdb.DuckDBPyConnection, table: Table, added: Added, chosen: tuple[str, ...], stages: bool
) -> None:
    """Add columns to a table, which is a view when its rows come from rings."""
    recorded = f"{table.name} as recorded"
    kind = "VIEW" if table.source == "ring" else "TABLE"
    name = f'"{table.schema}"."{table.name}"'
    replaced = " REPLACE ('post ' || stage AS stage)" if stages else ""
    parts = [f"*{replaced}"]
    parts += [
        f'{added.columns.get(one) or f"NULL::{added.unknown[one]}"} AS "{one}"' for one in chosen
    ]
    connection.execute(f'ALTER {kind} {name} RENAME TO "{recorded}"')
    connection.execute(f'CREATE VIEW {name} AS SELECT {", ".join(parts)} FROM "{table.schema}"."{recorded}"')


def _make_global(
    connection: duckdb.DuckDBPyConnection, schema: str, name: str, tags: tuple[str, ...]
) -> None:
    """A table of all ranks under the name that probing gives it."""
    named = "".join(f', {TAGS[tag]} AS "{tag}"' for tag in tags)
    hosts = (
        " LEFT JOIN memory.cluster.ranks AS r ON r.run = t.run AND r.attempt = t.attempt AND r.rank = t.rank "
        "AND r.pid = t.pid LEFT JOIN memory.cluster.hosts AS h ON h.host = r.host"
    )
    source = f'memory."{schema}"."{name}" AS t{hosts if {"_host", "_addr"} & set(tags) else ""}'
    connection.execute(f'CREATE SCHEMA IF NOT EXISTS "global"."{schema}"')
    connection.execute(f'CREATE VIEW "global"."{schema}"."{name}" AS SELECT t.*{named} FROM {source}')
