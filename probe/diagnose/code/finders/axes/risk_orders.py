"""Scores that are sorted by time for the sums over those at risk, beside events that are not. Pure; standard library only."""

from __future__ import annotations

from collections.abc import Iterator

from probe.diagnose.code.computed.computation import computation_of
from probe.diagnose.code.computed.value import Value, bare, constant, origins
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Finders, Remark
from probe.diagnose.code.syntax import short
from probe.diagnose.code.traits.arithmetic import computed_by_none

FINDERS = Finders()


@FINDERS.add("sorted-apart")
def _events_in_the_old_order(program: Program) -> Iterator[Remark]:
    """The differences of sorted scores from the logarithms of their running sums are multiplied by what was not sorted with them."""
    for value in computation_of(program).of("mul"):
        for gap, events in (value.args, value.args[::-1]) if len(value.args) == 2 else ():
            inner = bare(gap)
            if inner.op != "sub" or not any(one.op in ("cumsum", "logcumsumexp") for one in origins(inner.args[1], ("run",))):
                continue
            taken = bare(inner.args[0])
            order = _order_of(taken)
            mask = bare(events, "bool")
            if order is None or mask.op not in ("part", "@input", "load", "element") or not computed_by_none(mask) or not any(one.op == "run" for one in origins(taken)):
                continue
            if bare(taken.args[0]).op == "run" and not any(one is order or one.op in ("sort", "argsort", "sorted", "gather", "index_select") for one in origins(mask)):
                yield Remark(taken.node, f"{short(taken.node)} takes the inputs in the order of {short(order.node)}, and {short(events.node)} (line {value.line}), their targets, stays in the old one")
                return


def _order_of(value: Value) -> Value | None:
    """The order by which a value takes rows, which a sort of its own gives."""
    index = bare(value.args[1]) if value.op == "part" and len(value.args) == 2 else value
    if index.op == "argsort":
        return index
    if index.op in ("indices", "part") and index.args and index.args[0].op == "sort" and (index.op == "indices" or constant(index.args[1]) == 1):
        return index
    return None
