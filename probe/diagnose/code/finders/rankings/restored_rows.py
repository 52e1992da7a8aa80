"""Rows that were sorted and put back, beside what is sorted still. Pure; standard library only."""

from __future__ import annotations

from collections.abc import Iterator

from probe.diagnose.code.computed.computation import Computation, computation_of
from probe.diagnose.code.computed.value import Many, Value, bare, constant, is_none
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Remark
from probe.diagnose.code.syntax import short
from probe.diagnose.code.traits.basic import LOSSES

_COMBINED = frozenset({"add", "sub", "mul", "div", "lt", "le", "gt", "ge", "eq", "where", "masked_fill", "part", "gather", "matmul", "cat", "stack", "maximum", "minimum"})
_NO_ROWS = frozenset({"len", "shape", "size", "arange", "item", "ones_like", "zeros_like", "empty_like", "dtype", "device", "randn_like", "rand_like", "numel", *LOSSES})
_REDUCED = frozenset({"max", "min", "sum", "mean", "amax", "amin", "builtins.max"})
Tags = frozenset[tuple[str, int]]
_NONE: Tags = frozenset()


def put_back_beside_sorted(program: Program) -> Iterator[Remark]:
    """Rows that were sorted, and have been put back into the order in which they came, meet something that is sorted still."""
    computation = computation_of(program)
    if not any(True for _ in computation.of("sort", "argsort")):
        return
    orders = _Orders()
    for value in _combined(computation):
        given = [one for arg in value.args for one in (arg.parts if isinstance(arg, Many) and (value.op != "part" or arg.op == "tuple") else [arg])]
        tags = [orders.of(one) for one in given]
        for one, mine in zip(given, tags, strict=True):
            for kind, key in mine:
                other = next((each for each, theirs in zip(given, tags, strict=True) if ("sorted", key) in theirs and ("back", key) not in theirs), None)
                if kind == "back" and ("sorted", key) not in mine and other is not None:
                    yield Remark(value.node, f"{short(value.node)} takes {short(one.node)}, whose rows are back in the order in which they came, together with {short(other.node)}, whose rows are still sorted")
                    return


def _combined(computation: Computation) -> Iterator[Value]:
    yield from (one for one in computation.values if one.op in _COMBINED and len(one.args) > (0 if one.op in ("cat", "stack") else 1))


def _key(order: Value) -> int | None:
    """What tells one order of rows from another: the sort that gave it."""
    order = bare(order)
    if order.op == "argsort" and order.args:
        return id(order)
    return id(order.args[0]) if order.op == "part" and constant(order.args[1]) == 1 and order.args[0].op == "sort" else None


def _undone(index: Value) -> int | None:
    """The order that an index undoes: its argsort, or a row of numbers that was written in that order."""
    index = bare(index)
    if index.op == "argsort" and index.args:
        return _key(index.args[0])
    if index.op == "part" and constant(index.args[1]) == 1 and index.args[0].op == "sort":
        return _key(index.args[0].args[0])
    if index.op == "set_item" and len(index.args) == 3 and bare(index.args[2]).op == "arange":
        return _key(index.args[1])
    return None


class _Orders:
    """Whose order the rows of values are in: ("sorted", order) and ("back", order)."""

    def __init__(self) -> None:
        self.known: dict[int, Tags] = {}

    def of(self, value: Value, depth: int = 80) -> Tags:
        """The orders of a value's rows."""
        if id(value) not in self.known:
            self.known[id(value)] = _NONE
            self.known[id(value)] = self._found(value, depth) if depth else _NONE
        return self.known[id(value)]

    def _found(self, value: Value, depth: int) -> Tags:
        if value.op in _NO_ROWS or (value.op in _REDUCED and len(value.args) < 2 and not value.named.keys() - {"keepdim"}):
            return _NONE
        if value.op == "part" and len(value.args) == 2:
            on, index = value.args
            if on.op == "sort":
                return frozenset({("sorted", id(on))}) if constant(index) == 0 else _NONE
            rows = index.parts[0] if isinstance(index, Many) and index.op == "tuple" and index.parts else index
            return self._taken(on, rows, depth) if not isinstance(index, Many) else self._taken(on, rows, depth) | self._all(index.parts[1:], depth)
        if value.op in ("index_select", "take_along_axis") and value.args:
            return self._taken(value.args[0], value.args[-1], depth)
        if value.op in ("set_item", "index_copy_", "index_copy") and len(value.args) >= 3:
            key, inner = _key(value.args[-2]), self.of(value.args[-1], depth - 1)
            if key is not None:
                return frozenset({("back", key)}) if ("sorted", key) in inner else _NONE
            return self.of(value.args[0], depth - 1) | inner
        if _key(value) is not None or _undone(value) is not None:
            return _NONE
        return self._all(list(value.made_of()), depth)

    def _all(self, values: list[Value], depth: int) -> Tags:
        return frozenset(tag for one in values for tag in self.of(one, depth - 1))

    def _taken(self, on: Value, rows: Value, depth: int) -> Tags:
        """The order of what is taken of rows by an index."""
        inner = self.of(on, depth - 1)
        key, undone = _key(rows), _undone(rows)
        if undone is not None and ("sorted", undone) in inner:
            return frozenset(tag for tag in inner if tag[1] != undone) | {("back", undone)}
        if key is not None:
            return inner | {("sorted", key)}
        if rows.op == "slice" or is_none(rows) or constant(rows) is not None or rows.op == "arange":
            return inner
        return inner if rows.op == "index" else _NONE
