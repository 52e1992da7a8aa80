"""Scores of the step from one tag to the next. Pure; standard library only."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from probe.diagnose.code.computed.computation import Computation, computation_of
from probe.diagnose.code.computed.value import KEPT, Many, Value, bare, constant, is_none, number, takes_all
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Remark
from probe.diagnose.code.syntax import short
from probe.diagnose.code.traits.arithmetic import TURNED


class _Table(NamedTuple):
    """A table of parameters, whether its axes are exchanged, and whether an axis is put before them."""

    of: Value
    turned: bool
    behind_rows: bool


def transitions_turned(program: Program) -> Iterator[Remark]:
    """One part of a program reads a table of steps between tags by rows where another one reads it by columns."""
    computation = computation_of(program)
    summed: dict[int, set[bool]] = {}
    first: dict[int, Value] = {}
    for value, table, by_rows in _reduced(computation, "logsumexp"):
        summed.setdefault(id(table), set()).add(by_rows)
        first.setdefault(id(table), value)
    paths: dict[int, list[tuple[Value, bool]]] = {}
    for value in computation.of("part"):
        if (found := _step(value)) is not None and id(found[0]) in summed:
            paths.setdefault(id(found[0]), []).append((value, found[1]))
    for value, table, by_rows in _reduced(computation, "max", "amax", "argmax"):
        if id(table) in summed:
            paths.setdefault(-id(table), []).append((value, by_rows))
    for key, uses in paths.items():
        mine, theirs = {way for _, way in uses}, summed[abs(key)]
        if len(mine) == len(theirs) == 1 and mine != theirs:
            value, total = uses[0][0], first[abs(key)]
            ways = ("the tag before", "the tag that follows")
            has = ways if next(iter(mine)) else ways[::-1]
            yield Remark(value.node, f"{short(value.node)} has {has[0]} along the rows of the table and {has[1]} along its columns, and {short(total.node)} (line {total.line}) has it the other way round")
            return


def _table(value: Value) -> _Table | None:
    """The table of parameters that a value is."""
    turned = behind = False
    for _ in range(10):
        if value.op in TURNED and value.args:
            given = [number(one) for one in value.args[1:]]
            if given and sorted(one for one in given if one is not None) not in ([0, 1], [-2, -1], [1, 2]):
                return None
            turned, value = not turned, value.args[0]
        elif len(value.args) == 2 and ((value.op == "unsqueeze" and number(value.args[1]) == 0) or (value.op == "part" and _puts_before(value.args[1]))):
            behind, value = True, value.args[0]
        elif value.op == "log_softmax" and value.args:
            value = value.args[0]
        elif (inner := bare(value, shapes=False)) is not value:
            value = inner
        else:
            break
    return _Table(value, turned, behind) if value.op == "torch.nn.Parameter" else None


def _puts_before(index: Value) -> bool:
    """Whether an index only puts an axis before the others: `[None]`, `[None, :, :]`."""
    parts = index.parts if isinstance(index, Many) else [index]
    return bool(parts) and parts[0].op == "@constant" and parts[0].data is None and all(takes_all(one) or constant(one) is Ellipsis for one in parts[1:])


def _reduced(computation: Computation, *names: str) -> Iterator[tuple[Value, Value, bool]]:
    """Where a table is added to scores of tags, and the best or the sum over one of its axes is taken: the value, the table, and
    whether the rows are what is gone over."""
    for value in computation.of(*names):
        axis = value.argument("dim", 1)
        axis = axis.parts[0] if isinstance(axis, Many) and len(axis.parts) == 1 else axis
        place = number(axis)
        added = list(_added(value.args[0])) if value.args and place is not None else []
        tables = [found for one in added if (found := _table(one)) is not None]
        if len(added) < 2 or len(tables) != 1 or place is None:
            continue
        table = tables[0]
        three = table.behind_rows or any(_has_three_axes(one) for one in added)
        two = not three and any((one.op == "unsqueeze" and number(one.args[-1]) == 0) or (one.op == "part" and _puts_before(one.args[1])) for one in added)
        rows = {-2: True, -1: False, 0: True if not three else None, 1: True if three else False if two else None, 2: False}.get(int(place))
        if rows is not None:
            yield value, table.of, rows != table.turned


def _added(value: Value) -> Iterator[Value]:
    """What a value is the sum of, each in its own shape."""
    while value.op in KEPT and value.args and not isinstance(value, Many):
        value = value.args[0]
    if value.op == "add" and len(value.args) == 2:
        yield from _added(value.args[0])
        yield from _added(value.args[1])
    else:
        yield value


def _has_three_axes(value: Value) -> bool:
    """Whether a value is indexed, or given an axis, so that it has three: `alpha[:, :, None]`, `alpha.unsqueeze(2)`."""
    if value.op == "unsqueeze" and len(value.args) == 2:
        return number(value.args[1]) == 2
    if value.op == "part" and isinstance(value.args[1], Many):
        kept = [one for one in value.args[1].parts if takes_all(one) or is_none(one)]
        return len(kept) > 2
    return False


def _step(value: Value) -> tuple[Value, bool] | None:
    """The table that the step from one tag to the next is looked up in, and whether the earlier tag is the row."""
    index = value.args[1] if len(value.args) == 2 else None
    table = _table(value.args[0]) if index is not None else None
    pair = index.parts if isinstance(index, Many) else []
    if table is None and value.args[0].op == "part" and len(value.args[0].args) == 2 and index is not None:  # table[a][b]
        table, pair = _table(value.args[0].args[0]), [value.args[0].args[1], index]
    if table is None or len(pair) != 2 or table.behind_rows:
        return None
    places = [_place(one) for one in pair]
    if places[0] is None or places[1] is None or places[0][0] is not places[1][0] or abs(places[0][1] - places[1][1]) != 1:
        return None
    return table.of, (places[0][1] < places[1][1]) != table.turned


def _place(value: Value) -> tuple[Value, float] | None:
    """The row of tags that a value is taken from, and its place in it, counted from one and the same start."""
    value = bare(value, "element")
    if value.op != "part" or len(value.args) != 2:
        return None
    index = value.args[1]
    moving = [one for one in (index.parts if isinstance(index, Many) else [index]) if not takes_all(one)]
    if len(moving) != 1:
        return None
    at = moving[0]
    if at.op == "slice":
        if is_none(at.args[1]) and number(at.args[0]) is not None:
            return value.args[0], number(at.args[0]) or 0.0
        return (value.args[0], 0.0) if is_none(at.args[0]) and number(at.args[1]) == -1 else None
    if at.op == "index":
        return value.args[0], 0.0
    if at.op in ("add", "sub") and len(at.args) == 2 and at.args[0].op == "index" and (by := number(at.args[1])) is not None:
        return value.args[0], by if at.op == "add" else -by
    return None
