"""Changes that a network forecasts, and the value that they are added up on. Pure; standard library only."""

from __future__ import annotations

from collections.abc import Iterator

from probe.diagnose.code.computed.computation import computation_of
from probe.diagnose.code.computed.value import (
    Many,
    Value,
    bare,
    constant,
    is_none,
    number,
    origins,
    same,
)
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Remark
from probe.diagnose.code.syntax import short


def summed_from_the_first(program: Program) -> Iterator[Remark]:
    """A network is given the changes in a window and forecasts those after it, which are added up on the first value of the window."""
    computation = computation_of(program)
    for value in computation.of("add", "mul"):
        if len(value.args) != 2:
            continue
        for start, changes in (value.args, value.args[::-1]):
            total = bare(changes)
            while total.op in ("exp", "expm1") and total.args:
                total = bare(total.args[0])
            if total.op != "cumsum" or not total.args or not any(one.op == "run" for one in origins(total)):
                continue
            base = _begin(start)
            window = next((one for run in origins(total) if run.op == "run" and len(run.args) > 1 for one in (_window(run.args[1]),) if one is not None), None)
            if base is None or window is None or not _is_one_place(base[1], window.args[1].args[0]) or not _is_change(window.args[0]) or base[0] is window.args[0]:
                continue
            yield Remark(value.node, f"{short(value.node)} adds the forecast changes up on {short(start.node)}, the value where the window begins, and {short(window.node)} (line {window.line}) goes on from there: what has changed in the window is left out")
            return


def _is_one_place(one: Value, other: Value) -> bool:
    """Whether two indices run over the same places."""
    return one is other or (one.op == other.op == "index" and bool(one.args) and len(one.args) == len(other.args) and all(same(a, b) for a, b in zip(one.args, other.args, strict=True)))


def _rows(value: Value) -> Value:
    """A value before it was put into lists, batches and rows that were chosen."""
    for _ in range(16):
        value = bare(value)
        if isinstance(value, Many) and len(value.parts) == 1:
            value = value.parts[0]
        elif value.op in ("stack", "rows", "element") and value.args:
            value = value.args[0]
        elif value.op == "part" and len(value.args) == 2 and value.args[1].op == "slice" and not any(one.op == "index" for one in origins(value.args[1])):
            value = value.args[0]  # the rows of a split
        elif value.op == "part" and len(value.args) == 2 and (value.args[1].op == "element" or (isinstance(value.args[1], Many) and any(is_none(one) and one.op == "@constant" for one in value.args[1].parts))):
            value = value.args[0]
        else:
            break
    return value


def _window(value: Value) -> Value | None:
    """A stretch of a series that begins where a loop is: `series[i:i + n]`."""
    value = _rows(value)
    return value if value.op == "part" and len(value.args) == 2 and value.args[1].op == "slice" and value.args[1].args[0].op == "index" and not is_none(value.args[1].args[1]) else None


def _begin(value: Value) -> tuple[Value, Value] | None:
    """The series and the place of which a value is the first value of a stretch: `series[i]`, or the first of `series[i:i + n]`."""
    value = bare(value)
    if value.op == "part" and len(value.args) == 2 and isinstance(value.args[1], Many) and len(value.args[1].parts) == 2:
        rows, column = value.args[1].parts
        first = constant(column) == 0 or (column.op == "slice" and (is_none(column.args[0]) or number(column.args[0]) == 0) and number(column.args[1]) == 1)
        window = _window(value.args[0]) if first and rows.op == "slice" and all(is_none(one) for one in rows.args) else None
        return (window.args[0], window.args[1].args[0]) if window is not None else None
    value = _rows(value)
    return (value.args[0], value.args[1]) if value.op == "part" and len(value.args) == 2 and value.args[1].op == "index" else None


def _is_change(series: Value) -> bool:
    """Whether a series holds the changes of another one from place to place."""
    return any(one.op in ("diff", "pct_change") or (one.op in ("sub", "div") and len(one.args) == 2 and _are_shifted(*one.args)) for one in origins(series))


def _are_shifted(one: Value, other: Value) -> bool:
    """Whether two values are one series from the second place on, and up to the last but one."""
    one, other = bare(one, "log"), bare(other, "log")
    if one.op != "part" or other.op != "part" or bare(one.args[0], "log") is not bare(other.args[0], "log"):
        return False
    first, second = one.args[1], other.args[1]
    return first.op == second.op == "slice" and number(first.args[0]) == 1 and number(second.args[1]) == -1
