"""Columns that are means of the target: of rows that are held out later. Pure; standard library only."""

from __future__ import annotations

from collections.abc import Iterator

from probe.diagnose.code.computed.computation import computation_of
from probe.diagnose.code.computed.value import KEPT, SHAPED, Value, origins
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Finders, Remark
from probe.diagnose.code.syntax import short
from probe.diagnose.code.traits.basic import LOSSES

FINDERS = Finders()
_SCALED = ("sub", "div", "part", "rows", "either", "log", "log1p", "column_stack")
_ORDERS = ("permutation", "randperm", "shuffle")


@FINDERS.add("target-in-a-feature")
def _encoded(program: Program) -> Iterator[Remark]:
    """A table of means of the target by category is made of all rows, a network is given its entries, and the rows are
    divided after that."""
    computation = computation_of(program)
    for loss in computation.of(*LOSSES):
        if len(loss.args) < 2 or loss.where.no_grad:
            continue
        targets = list(_before(loss.args[1]))
        known = {id(one) for one in targets}
        drawn = {id(one) for one in origins(loss.args[1]) if one.op in _ORDERS}
        for one in origins(loss.args[0]) if drawn else ():
            of = _mean_by_category(one)
            if of is None or not any(id(each) in known for each in _before(of)) or any(id(each) in drawn for each in origins(one)):
                continue
            cut = next(each for each in origins(loss.args[1]) if each.op in _ORDERS)
            yield Remark(one.node, f"{short(one.node)} takes means of {short(of.node)}, the target, over all rows, and line {cut.line} divides them into parts after it")
            return


def _before(value: Value) -> Iterator[Value]:
    """A value and what it was before its rows were taken, and its numbers shifted and scaled."""
    for _ in range(60):
        yield value
        if not value.args or (value.op not in _SCALED and value.op not in KEPT and value.op not in SHAPED):
            return
        value = value.args[0]


def _mean_by_category(value: Value) -> Value | None:
    """What a value adds up by category."""
    if value.op == "bincount":
        return value.named.get("weights")
    if value.op in ("sum", "mean") and value.args and value.args[0].op == "part" and len(value.args[0].args) > 1 and value.args[0].args[1].op == "eq":
        return value.args[0].args[0]
    return None

