"""What a table is declared with: columns, and those that many tables share.

Standard library only; any thread may import it.
"""

from __future__ import annotations

from typing import NamedTuple


class Column(NamedTuple):
    """One column. `type` is the SQL type; `unit` is empty for plain values."""

    name: str
    type: str
    unit: str
    doc: str


class Table(NamedTuple):
    """One table. `rows` is the ring's capacity at the default size (0: not a ring).

    `pending` names the column that says `pending` until the row is complete.
    `hidden` is a condition on rows that are bookkeeping and never shown.
    `sealed` says whether the rows are kept in Parquet segments.
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

    @property
    def full_name(self) -> str:
        """`schema.name`, as SQL writes it."""
        return f"{self.schema}.{self.name}"


STEP = Column("step", "BIGINT", "", "optimizer step the row belongs to, counted from 0 since recording began; NULL when no step is counted")
MICRO_STEP = Column("micro_step", "BIGINT", "", "backward calls finished before it within the step (gradient accumulation), from 0")
T_NS = Column("t_ns", "BIGINT", "ns", "wall time, nanoseconds since 1970, from the monotonic clock")
