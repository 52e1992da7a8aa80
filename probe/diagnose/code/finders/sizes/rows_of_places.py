"""Places in a picture: which of their two numbers is the row, and which the column. Pure; standard library only."""

from __future__ import annotations

from collections.abc import Iterator

from probe.diagnose.code.computed.computation import Computation, computation_of
from probe.diagnose.code.computed.value import Many, Value, bare, number, origins
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Remark
from probe.diagnose.code.syntax import short
from probe.diagnose.code.traits.uses import data_of

_COMPARED = ("sub", "mse_loss", "l1_loss", "smooth_l1_loss", "cdist")


def compared_rows_first(program: Program) -> Iterator[Remark]:
    """The place of the largest value of a picture is taken apart into its row and its column, in that order, and compared with places
    whose first number is the column; or the other way round."""
    computation = computation_of(program)
    pairs = [(one, (*found, other)) for one in computation.of(*_COMPARED) if len(one.args) > 1 for made, other in (one.args[:2], one.args[1::-1]) if (found := _taken_apart(made)) is not None]
    known = list(_columns_first(computation)) if pairs else []
    for value, (decoded, is_row_first, other) in pairs:
        root = data_of(other)
        signs = {(row_first, id(at)): at for points, row_first, at in known if points is root or (points.node is root.node and points.op == root.op)}
        orders = {row_first for row_first, _ in signs}
        if len(orders) == 1 and is_row_first not in orders:
            at = next(iter(signs.values()))
            said = "the row first" if is_row_first else "the column first"
            yield Remark(value.node, f"{short(value.node)} compares {short(decoded.node)} (line {decoded.line}), which has {said}, with points that have {'the column' if is_row_first else 'the row'} first: so {short(at.node)} (line {at.line}) takes them")
            return


def _taken_apart(value: Value) -> tuple[Value, bool] | None:
    """Two numbers that the place of a largest value is taken apart into, and whether the row stands first."""
    for _ in range(20):
        if isinstance(value, Many) and len(value.parts) == 2 and not value.grown:
            kinds = [_kind(one) for one in value.parts]
            return (value, kinds[0] == "row") if set(kinds) == {"row", "column"} else None
        if isinstance(value, Many):
            value = value.parts[0] if len(value.parts) == 1 else value
            if isinstance(value, Many) and len(value.parts) != 2:
                return None
        elif value.op == "unravel_index":
            return value, True
        elif value.op in ("mul", "div", "add") and len(value.args) == 2 and number(value.args[1]) is not None:
            value = value.args[0]
        elif value.op == "stack" and number(value.argument("dim", 1)) == 0:
            return None
        elif value.args and (bare(value) is not value or value.op in ("stack", "cat", "array", "column_stack")):
            value = value.args[0]
        else:
            return None
    return None


def _kind(value: Value) -> str:
    """Whether a number is the row or the column of the place of a largest value."""
    for _ in range(8):
        value = bare(value)
        is_scaled = value.op in ("mul", "add") and len(value.args) == 2 and number(value.args[1]) is not None
        if not is_scaled and not (value.op in ("part", "div") and len(value.args) == 2 and bare(value.args[0]).op in ("floordiv", "mod", "remainder")):
            break
        value = value.args[0]
    if value.op in ("floordiv", "mod", "remainder") and _is_place(value.args[0]):
        return "row" if value.op == "floordiv" else "column"
    if value.op == "div" and "rounding_mode" in value.named and _is_place(value.args[0]):
        return "row"
    if value.op == "part" and len(value.args) == 2 and value.args[0].op in ("unravel_index", "divmod") and _is_place(value.args[0].args[0]):
        return {0: "row", 1: "column"}.get(int(number(value.args[1]) or 0), "")
    return ""


def _is_place(value: Value) -> bool:
    """Whether a number is the place of the largest value of a picture whose axes were made one."""
    value = bare(value)
    return value.op in ("argmax", "argmin") or (value.op == "part" and len(value.args) == 2 and value.args[0].op in ("max", "topk") and number(value.args[1]) == 1)


def _columns_first(computation: Computation) -> Iterator[tuple[Value, bool, Value]]:
    """Points whose numbers are taken for a row and a column: the points, whether the row is their first number, and where."""
    for value in computation.of("add"):
        for product, rest in (value.args[:2], value.args[1::-1]) if len(value.args) == 2 else ():
            inner = bare(product)
            row = next((found for one in inner.args if (found := _column(one)) is not None), None) if inner.op == "mul" else None
            column = _column(rest)
            if row is not None and column is not None and row[0] is column[0] and {row[1], column[1]} == {0, 1}:
                yield row[0], row[1] == 0, value
    for value in computation.of("set_item"):
        index = value.args[1] if len(value.args) == 3 else value
        if isinstance(index, Many) and index.op == "tuple" and len(index.parts) > 1:
            row, column = (_inside(one) for one in index.parts[-2:])
            if row is not None and column is not None and row[0] is column[0] and {row[1], column[1]} == {0, 1}:
                yield row[0], row[1] == 0, value


def _inside(value: Value) -> tuple[Value, int] | None:
    """The number of points that an index, or the beginning of a slice, is made of."""
    if value.op == "slice":
        value = value.args[0]
    found = {(id(one[0]), one[1]): one for part in origins(value, ("part",)) if (one := _column(part)) is not None}
    return next(iter(found.values())) if len(found) == 1 else None


def _column(value: Value) -> tuple[Value, int] | None:
    """The points that a value is one number of each of, and which: `points[:, 0]`."""
    value = bare(value)
    if value.op != "part" or len(value.args) != 2:
        return None
    index = value.args[1]
    last = index.parts[-1] if isinstance(index, Many) and index.op == "tuple" and index.parts else index
    place = number(last)
    return (data_of(value.args[0]), int(place)) if place in (0, 1) else None
