"""Partition pruning: finds the files whose rows a statement can read, from the engine's own plan.

    found = scans(connection, statement)          # on empty tables: {"python.steps": [Scan(...)]}
    told = [usable(connection, table, one) for one in found["python.steps"]]
    kept = matching(connection, told, rows)

The statement is planned on empty tables. The filters that the optimizer pushes down to a scan are conjuncts
that every used row must pass. Filters over values in a file's name (job, run, attempt, date, and the rank of
a file of one process) are evaluated on the names; filters over other columns that identify a process on the
rows of archive.processes, which must be read for that. Files that fail a filter are not read. Filters that
cannot be evaluated are ignored, so the result is a superset. Runs in the query worker; duckdb in functions.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from probe.archive.dataset import IDENTITY
from probe.fleet.archived_tables import DATE, quoted_name
from probe.recording.tables import Table

if TYPE_CHECKING:
    import duckdb

_OPTIONAL = "optional: "
"""Prefix of a filter that the scan may apply early; every used row passes it in any case."""
_DYNAMIC = "Dynamic Filter"
_IDENTIFYING = {column.name: column.type for column in (*IDENTITY, DATE)}
_NAMED = ("job", "run", "attempt", "date")
_RANK = "rank"
NAMED = (*_NAMED, _RANK, "probe_whole")
"""Values in a file's name. `probe_whole`: whether it also has rows of other ranks."""
_TYPES = {**_IDENTIFYING, "probe_whole": "BOOLEAN"}
_PLACE = "probe_place"


EMPTY = "SET disabled_optimizers = 'statistics_propagation'"
"""The optimizer's conclusions from an empty table would be wrong for the real one."""


class Scan(NamedTuple):
    """One reading of a table: conjuncts as SQL, and the columns that are read."""

    filters: list[str]
    columns: list[str]


class Usable(NamedTuple):
    """The conjuncts of one scan that can be evaluated without its rows, by the columns that they use."""

    names: list[str]
    ranks: list[str]
    others: list[str]


def scans(
    connection: duckdb.DuckDBPyConnection, statement: str, parameters: dict[str, Any] | None = None
) -> dict[str, list[Scan]]:
    """The scans of a statement by table name. The tables must exist and be empty, and `EMPTY` must be set."""
    if not parameters:
        connection.sql(statement)  # its errors show the statement as it was written
    found: dict[str, list[Scan]] = {}
    for _, text in connection.execute(f"EXPLAIN (FORMAT json) {statement}", parameters or None).fetchall():
        for node in _nodes(json.loads(text)):
            extra = node.get("extra_info")
            table = extra.get("Table") if isinstance(extra, dict) else None
            if isinstance(extra, dict) and isinstance(table, str):
                name = table.partition(".")[2]  # without the catalog
                found.setdefault(name, []).append(
                    Scan(_listed(extra.get("Filters")), _listed(extra.get("Projections")))
                )
    return found


def _nodes(tree: Any) -> Iterator[dict[str, Any]]:
    waiting = [tree]
    while waiting:
        one = waiting.pop()
        if isinstance(one, list):
            waiting += one
        elif isinstance(one, dict):
            yield one
            waiting += one.get("children") or []


def _listed(value: Any) -> list[str]:
    """The values of a plan's field, which is a text for one value and a list for several."""
    if isinstance(value, str):
        return [value] if value else []
    return [str(one) for one in value or ()]


def usable(connection: duckdb.DuckDBPyConnection, table: Table, scan: Scan) -> Usable:
    """The filters of a scan over columns that identify a process and are not the table's own."""
    own = {column.name for column in table.columns}
    known = [name for name in _IDENTIFYING if name not in own]
    found = Usable([], [], [])
    for text in filter(None, map(_condition, scan.filters)):
        if _evaluates(connection, text, [name for name in _NAMED if name in known]):
            found.names.append(text)
        elif _RANK in known and _evaluates(connection, text, [*_NAMED, _RANK]):
            found.ranks.append(text)
        elif _evaluates(connection, text, known):
            found.others.append(text)
    return found


def matching(
    connection: duckdb.DuckDBPyConnection, found: Sequence[Usable], columns: Collection[str],
    rows: Sequence[Sequence[Any]],
) -> list[int] | None:
    """The places of the rows, of names (`NAMED`) or processes, that any of these scans can read; None for
    all."""
    import duckdb

    typed = ", ".join(
        f"t[{place}]::{_TYPES[name]} AS {quoted_name(name)}" for place, name in enumerate(columns, 1)
    )
    texts = json.dumps([[None if value is None else str(value) for value in row] for row in rows])
    connection.execute(
        f"CREATE TEMP TABLE probe_candidates AS SELECT {typed}, place - 1 AS {_PLACE} FROM (SELECT"
        " unnest(list) AS t, generate_subscripts(list, 1) AS place"
        " FROM (SELECT from_json(?, '[[\"VARCHAR\"]]') AS list))", [texts]
    )
    whole = "probe_whole OR " if "probe_whole" in columns else ""
    places: set[int] = set()
    for one in found:
        conditions = [f"({text}) IS NOT FALSE" for text in (*one.names, *one.others)]
        conditions += [f"({whole}({text}) IS NOT FALSE)" for text in one.ranks]
        if not conditions:
            return None
        query = f"SELECT {_PLACE} FROM probe_candidates WHERE {' AND '.join(conditions)}"
        try:
            places.update(int(row[0]) for row in connection.execute(query).fetchall())
        except duckdb.Error:  # such as a cast that fails: the statement itself will report it
            return None
    return sorted(places)


def identifying(rows: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[Any]]]:
    """Rows of archive.processes as input of `matching`: the names of the columns, and their values."""
    return list(_IDENTIFYING), [[row[name] for name in _IDENTIFYING] for row in rows]


def _condition(text: str) -> str | None:
    text = text.removeprefix(_OPTIONAL)
    return None if _DYNAMIC in text or _PLACE in text else text


def _evaluates(connection: duckdb.DuckDBPyConnection, text: str, names: Sequence[str]) -> bool:
    """Whether a filter uses only these columns."""
    import duckdb

    listed = ", ".join(f"NULL::{_TYPES[name]} AS {quoted_name(name)}" for name in names)
    query = f"SELECT ({text})::BOOLEAN FROM (SELECT {listed}) AS probe LIMIT 0"
    try:
        return len(connection.extract_statements(query)) == 1 and connection.sql(query) is not None
    except duckdb.Error:
        return False
