"""Values that are scaled back by the statistics of another column. Pure; standard library only."""

from __future__ import annotations

from collections.abc import Iterator

from probe.diagnose.code.computed.computation import computation_of
from probe.diagnose.code.computed.value import Many, Value, bare, constant, is_none
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Remark
from probe.diagnose.code.syntax import short
from probe.diagnose.code.traits.basic import without_small


def another_column(program: Program) -> Iterator[Remark]:
    """A column of a scaled table is multiplied by the deviation of another column of the table."""
    computation = computation_of(program)
    for value in computation.of("mul"):
        for rows, by in (value.args, value.args[::-1]) if len(value.args) == 2 else ():
            by = bare(by)
            place = _place(by)
            found = _column(rows, bare(by.args[0])) if place is not None else None
            if place is None or found is None or found[0] == place or (found[0] < 0) is not (place < 0):
                continue
            column, scaled = found
            yield Remark(value.node, f"{short(value.node)} scales column {column} back by the deviation of column {place}: {short(scaled.node)} (line {scaled.line}) has divided it by its own")
            return


def _place(value: Value) -> int | None:
    """The number of the column that a statistic is taken of."""
    if value.op != "part" or len(value.args) != 2 or bare(value.args[0]).op not in ("std", "sub", "var", "sqrt", "add", "clamp"):
        return None
    found = constant(value.args[1])
    return found if isinstance(found, int) and not isinstance(found, bool) else None


def _column(rows: Value, deviation: Value) -> tuple[int, Value] | None:
    """The number of the column that rows are of, in a table that was divided by a deviation, and where it was."""
    column: int | None = None
    for _ in range(30):
        rows = bare(rows)
        if isinstance(rows, Many):
            if len(rows.parts) != 1:
                return None
            rows = rows.parts[0]
        elif rows.op == "part" and len(rows.args) == 2:
            index = rows.args[1]
            last = index.parts[-1] if isinstance(index, Many) and len(index.parts) > 1 else None
            given = constant(last) if last is not None else None
            if isinstance(given, int) and not isinstance(given, bool):
                if column is not None:
                    return None
                column = given
            elif not _keeps_columns(index, last):
                return None
            rows = rows.args[0]
        elif rows.op == "div" and len(rows.args) == 2:
            same_table = without_small(rows.args[1]) is without_small(deviation) or bare(rows.args[1]) is deviation
            return (column, rows) if column is not None and same_table else None
        elif rows.op in ("cat", "unfold", "sliding_window_view") and rows.args:
            rows = rows.args[0]
        else:
            return None
    return None


def _keeps_columns(index: Value, last: Value | None) -> bool:
    """Whether an index takes rows with all of their columns."""
    if last is None:
        return index.op != "@constant"
    return last.op == "slice" and all(map(is_none, last.args))
