"""Sums over edges that are divided by the number of edges at their other ends. Pure; standard library only."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from probe.diagnose.code.computed.computation import computation_of
from probe.diagnose.code.computed.value import Many, Value, bare, constant, number, origins
from probe.diagnose.code.finders.graphs.messages import index_of, is_same_index, summed_by_index
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Remark
from probe.diagnose.code.syntax import short
from probe.diagnose.code.traits.basic import without_small

_SUMS = ("index_add", "scatter_add")
_ONES = ("ones", "ones_like", "new_ones", "full")


def degree_of_the_other_end(program: Program) -> Iterator[Remark]:
    """What is added up at the nodes that edges lead to is divided by how many edges lead away from each."""
    for value in computation_of(program).of("div"):
        if len(value.args) != 2:
            continue
        total = bare(value.args[0])
        found = summed_by_index(total) if total.op in _SUMS else None
        counted = _counted(value.args[1])
        if found is None or counted is None or number(found[1]) is not None:
            continue
        _, to, message = found
        taken = [index_of(one.args[1]) for one in origins(message, ("run", *_SUMS)) if one.op == "part" and len(one.args) == 2 and one.args[1].op not in ("@constant", "slice", "tuple")]
        if is_same_index(counted, to) or not any(is_same_index(counted, one) for one in taken) or any(is_same_index(to, one) for one in taken) or _is_both_ways(counted, to):
            continue
        yield Remark(value.node, f"{short(value.node)} divides what {short(total.node)} (line {total.line}) adds up at {_name(to)} by how often each node is in {_name(counted)}, the other ends of the edges")
        return


def _name(index: Value) -> str:
    """What a list of ends is called, also where it is unpacked of a pair."""
    place = constant(index.args[1]) if index.op == "part" and len(index.args) == 2 else None
    if isinstance(index.node, ast.Tuple) and isinstance(place, int) and 0 <= place < len(index.node.elts):
        return short(index.node.elts[place])
    return short(index.node)


def _counted(value: Value) -> Value | None:
    """The index of which a value says how often each number is in it."""
    for _ in range(8):
        value = without_small(value)
        cut = value.op == "part" and len(value.args) == 2 and any(one.op == "@constant" and one.data is None for one in value.args[1].made_of())
        if value.args and (cut or value.op in ("clamp", "maximum") or (value.op == "add" and number(value.args[-1]) is not None)):
            value = value.args[0]
    if value.op == "bincount" and value.args:
        return index_of(value.args[0])
    found = summed_by_index(value) if value.op in _SUMS else None
    if found is None:
        return None
    start, index, ones = found
    return index if bare(start).op in ("zeros", "new_zeros", "zeros_like") and bare(ones, "expand").op in _ONES else None


def _is_both_ways(one: Value, other: Value) -> bool:
    """Whether two lists of ends may be each other's: edges that are there in both directions, or that come from elsewhere."""
    sides = [bare(one), bare(other)]
    if all(side.op == "cat" and side.args and isinstance(side.args[0], Many) and len(side.args[0].parts) > 1 for side in sides):
        return True
    pairs = [side.args[0] for side in sides if side.op == "part" and len(side.args) == 2 and constant(side.args[1]) in (0, 1)]
    if any(isinstance(each, Many) and each.grown and len(each.parts) > 1 for side in sides for each in origins(side)):
        return True
    if len(pairs) == 2 and pairs[0] is pairs[1]:
        return any(each.op in ("cat", "flip", "torch_geometric.utils.to_undirected", "concatenate", "@input", "nonzero", "load", "add", "argwhere") for each in origins(pairs[0]))
    return any(each.op in ("cat", "concatenate", "@input", "nonzero", "load", "where") for side in sides for each in origins(side))
