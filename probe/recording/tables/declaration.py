"""Types of table declarations, and columns that many tables share. Standard library only."""

from __future__ import annotations

from typing import NamedTuple


class Column(NamedTuple):
    """One column. `type` is the SQL type; `unit` may be empty."""

    name: str
    type: str
    unit: str
    doc: str


class Table(NamedTuple):
    """One table. `rows`: the ring's capacity at the default size (0: not a ring).

    `pending`: column that is `pending` until the row is complete. `hidden`: condition on internal rows that
    are never shown. `sealed`: whether rows are kept in Parquet segments. `on_demand`: the ring is made when the
    job first uses it, and then listed in `tables.json` (`recording.declared`). Its texts are stored in the rows: a
    job may write any number of different ones, and the string table is never emptied.
    """

    schema: str
    name: str
    doc: str
    source: str
    columns: tuple[Column, ...]
    example: str
    rows: int = 0
    pending: str = ""
    hidden: str = ""
    sealed: bool = True
    on_demand: bool = False

    @property
    def full_name(self) -> str:
        """`schema.name`, as SQL writes it."""
        return f"{self.schema}.{self.name}"


STEP = Column("step", "BIGINT", "", "optimizer step, counted from 0 since recording began; NULL outside counted steps")
MICRO_STEP = Column("micro_step", "BIGINT", "", "number of backward calls that ended earlier in the same step (gradient accumulation), from 0")
T_NS = Column("t_ns", "BIGINT", "ns", "wall time in nanoseconds since 1970, derived from the monotonic clock")
