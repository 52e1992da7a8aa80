"""Connections of nodes with themselves: in the degrees as in the propagation. Pure; standard library only."""

from __future__ import annotations

from collections.abc import Iterator

from probe.diagnose.code.computed.computation import computation_of
from probe.diagnose.code.computed.value import Many, Value, bare, number
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Finders, Remark
from probe.diagnose.code.syntax import short
from probe.diagnose.code.traits.arithmetic import product

FINDERS = Finders()
_COUNTS = ("index_add", "scatter_add", "bincount", "torch_geometric.utils.degree")
_ROOTS = ("pow", "rsqrt", "sqrt", "clamp", "nan_to_num", "masked_fill", "where", "set_item", "div")


@FINDERS.add("degrees-of-another-graph")
def _without_themselves(program: Program) -> Iterator[Remark]:
    """Edges get one from each node to itself, and are weighted by degrees that were counted without these."""
    computation = computation_of(program)
    for weight in computation.of("mul"):
        made = product(weight, shapes=False)
        taken = [one for one in (*made.above, *made.below) if one.op == "part" and len(one.args) == 2]
        pairs = [(one, other) for one in taken for other in taken if one is not other and one.args[0] is other.args[0]]
        if len(pairs) != 2:
            continue
        counted = _count_of(pairs[0][0].args[0])
        ends = [_end_of(one.args[1]) for one in pairs[0]]
        plain = None if counted is None else _counted(counted)
        if counted is None or plain is None or any(one is None for one in ends):
            continue
        joined = [(end, parts) for end in ends if end is not None and (parts := _with_all_nodes(end)) is not None]
        if len(joined) == 2 and any(bare(part) is bare(plain) for _, parts in joined for part in parts):
            yield Remark(counted.node, f"{short(counted.node)} counts the neighbours without the node itself, and {short(weight.node)} (line {weight.line}) weights edges that have it ({short(joined[0][0].node)}, line {joined[0][0].line})")
            return


def _count_of(value: Value) -> Value | None:
    """The count of edges at each node that a value is a power of; None where a number is added to it."""
    for _ in range(12):
        value = bare(value)
        if value.op in _COUNTS:
            return value
        inner = [one for one in value.args if number(one) is None]
        if value.op not in _ROOTS or not inner:
            return None
        value = inner[-1] if value.op == "div" else inner[0]
    return None


def _counted(count: Value) -> Value | None:
    """The ends of edges that a count goes over, from 0 on."""
    if count.op in ("bincount", "torch_geometric.utils.degree"):
        return count.args[0] if count.args else None
    start = bare(count.args[0]) if len(count.args) > 3 else count
    return count.args[2] if start.op in ("zeros", "zeros_like", "new_zeros") else None


def _end_of(index: Value) -> Value | None:
    """One end of all edges: a row of a stack of two, or a value by itself."""
    index = bare(index)
    place = number(index.args[1]) if index.op == "part" and len(index.args) == 2 else None
    if place is None:
        return index
    whole = bare(index.args[0], "stack") if index.args[0].op != "stack" else index.args[0].args[0]
    return whole.parts[int(place)] if isinstance(whole, Many) and not whole.grown and len(whole.parts) == 2 and place in (0, 1) else None


def _with_all_nodes(end: Value) -> list[Value] | None:
    """The parts of an end of edges to which all nodes were added: `cat([src, arange(n)])`."""
    end = bare(end)
    joined = end.args[0] if end.op == "cat" and end.args else None
    if not isinstance(joined, Many) or joined.grown or len(joined.parts) != 2:
        return None
    return [one for one in joined.parts if bare(one).op != "arange"] if any(bare(one).op == "arange" for one in joined.parts) else None
