"""Two tables whose rows are put side by side. Pure; standard library only."""

from __future__ import annotations

from collections.abc import Iterator

from probe.diagnose.code.computed.computation import computation_of
from probe.diagnose.code.computed.value import Value, bare, origins
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Remark
from probe.diagnose.code.syntax import short
from probe.diagnose.code.traits.basic import losses

_MEMBERS = ("isin", "in1d")
_ORDERED = ("sort", "argsort", "sorted", "sort_values", "unique", "searchsorted", "arange", "range")


def joined_by_position(program: Program) -> Iterator[Remark]:
    """The rows of two tables that stand in both are kept, each in the order of its own table, and learned as pairs."""
    computation = computation_of(program)
    for _, loss in losses(computation):
        if len(loss.args) < 2:
            continue
        inputs, targets = (list(_kept_rows(one)) for one in loss.args[:2])
        for one in inputs:
            for other in targets:
                if one.args[0] is not other.args[0] and _names(one) is not _names(other) and not any(_is_ordered(each) for each in (one, other)):
                    yield Remark(other.node, f"{short(other.node)} keeps the rows of one table that stand in the other, and {short(one.node)} (line {one.line}) those of the other: each in its own order, and they are taken for pairs")
                    return


def _kept_rows(value: Value) -> Iterator[Value]:
    """Rows of a table that are kept where their names stand in another one: `x[np.isin(names, others)]`."""
    for one in origins(value, stop=("len", "mean", "std", "size")):
        if one.op == "part" and len(one.args) == 2 and bare(one.args[1]).op in _MEMBERS:
            yield one


def _names(kept: Value) -> Value:
    return bare(bare(kept.args[1]).args[0])


def _is_ordered(kept: Value) -> bool:
    """Whether the names of the rows were put in order before, or the rows are after it."""
    return any(one.op in _ORDERED for one in origins(_names(kept), stop=("permutation",)))
