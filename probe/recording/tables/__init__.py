"""All tables of probe: columns, types, units, meaning and an example query.

Ring layouts, Parquet schemas, views, `docs/tables.md` and `probe tables` derive from `TABLES`. A table's
`source`:

- ``ring``: fixed-width rows that the training process writes into a ring, with the columns in this order.
- ``journal``: rare rows, written as JSON records.
- ``live``: read from the process, or computed, when a query names the table.

`COMMON` columns are added to every table when it is read. NULL means not measured. Standard library only.
"""

from __future__ import annotations

from probe.recording.tables.declaration import Column, Table
from probe.recording.tables.learning import LEARNING
from probe.recording.tables.surroundings import SURROUNDINGS
from probe.recording.tables.training import TRAINING

__all__ = ["BY_NAME", "COMMON", "RINGS", "TABLES", "Column", "Table", "columns_of"]

COMMON: tuple[Column, ...] = (
    Column("rank", "BIGINT", "", "rank of the process in its job; 0 if the job has one process"),
    Column("run", "VARCHAR", "", "name of the run"),
    Column("attempt", "BIGINT", "", "restart count of the run, from 0"),
    Column("pid", "BIGINT", "", "process id of the training process"),
)

TABLES: tuple[Table, ...] = (*TRAINING, *LEARNING, *SURROUNDINGS)

BY_NAME: dict[str, Table] = {table.full_name: table for table in TABLES}
RINGS: tuple[Table, ...] = tuple(table for table in TABLES if table.source == "ring" and not table.on_demand)
"""The tables whose rings every recording has."""


def columns_of(table: Table) -> tuple[Column, ...]:
    """All columns a query sees: the common ones first."""
    own = {column.name for column in table.columns}
    return (*(column for column in COMMON if column.name not in own), *table.columns)
