"""Orders that are taken for ranks: an argsort names the sample at each place, and not the place of each sample. Pure; standard
library only."""

from __future__ import annotations

from collections.abc import Iterator

from probe.diagnose.code.computed.computation import computation_of
from probe.diagnose.code.computed.value import KEPT, Many, Value, number, same
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Remark
from probe.diagnose.code.syntax import short


def order_for_ranks(program: Program) -> Iterator[Remark]:
    """The orders of two scores are added up, subtracted or correlated, number by number."""
    for value in computation_of(program).of("add", "sub", "mul", "corrcoef", "sum_of", "mean", "scipy.stats.pearsonr", "mse_loss"):
        given = list(value.args[:2]) if value.op in ("add", "sub", "mul", "corrcoef", "scipy.stats.pearsonr", "mse_loss") else _listed(value)
        orders = [order for one in given if (order := _order(one, 8)) is not None]
        if len(orders) != len(given) or len(orders) < 2 or (value.op != "sum_of" and same(orders[0].args[0], orders[1].args[0])):
            continue
        yield Remark(value.node, f"{short(value.node)} takes {short(orders[0].node)} (line {orders[0].line}) for ranks: it names the sample at each place, and not the place of each sample")
        return


def _listed(value: Value) -> list[Value]:
    """What is summed up or averaged over several scores."""
    at = value.args[0] if value.args else value
    while at.op in ("stack", "array", "tensor") and at.args:
        at = at.args[0]
    if not isinstance(at, Many):
        return [value.args[0]] * 2 if value.op == "sum_of" and at is not value else []
    return at.parts * 2 if at.grown and len(at.parts) == 1 else at.parts


def _order(value: Value, depth: int) -> Value | None:
    """The argsort, of no order, that a value is, whatever it is scaled by."""
    if depth == 0:
        return None
    if value.op == "argsort" and value.args:
        inner = value.args[0]
        while inner.op in KEPT and inner.args and not isinstance(inner, Many):
            inner = inner.args[0]
        return value if inner.op != "argsort" else None
    if value.op in ("div", "sub", "add", "mul") and len(value.args) == 2:
        own, other = value.args
        scale = number(other) is not None or other.op in ("len", "mean", "std", "sub", "norm", "size", "sqrt", "max")
        return _order(own, depth - 1) if scale else None
    return _order(value.args[0], depth - 1) if value.op in KEPT and value.args and not isinstance(value, Many) else None
