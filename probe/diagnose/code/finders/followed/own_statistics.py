"""Running statistics that are made of what they have scaled. Pure; standard library only."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from probe.diagnose.code.computed.computation import Computation, computation_of
from probe.diagnose.code.computed.value import Value, bare, origins
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Remark
from probe.diagnose.code.syntax import short


def statistics_of_the_scaled(program: Program) -> Iterator[Remark]:
    """A running mean, by which data are scaled, goes on with the mean of the scaled data."""
    computation = computation_of(program)
    means = {id(one): found for one in computation.of("mean") if (found := _of_the_scaled(one)) is not None}
    for new, node in _kept_on(computation) if means else ():
        inside = list(origins(new, stop=("mean",)))
        for mean in (one for one in inside if id(one) in means):
            scaled, old = means[id(mean)]
            if any(one is old for one in inside):
                yield Remark(mean.node, f"{short(mean.node)} is the mean of what {short(scaled.node)} (line {scaled.line}) has scaled by the running mean so far, and {short(node)} (line {getattr(node, 'lineno', 0)}) makes the next running mean of it: it is no mean of the data")
                return


def _of_the_scaled(mean: Value) -> tuple[Value, Value] | None:
    """What a mean is taken of, where that is data that were scaled by a mean and a deviation, and the mean that they were scaled by."""
    scaled = bare(mean.args[0]) if mean.args else mean
    moved = bare(scaled.args[0]) if scaled.op == "div" and len(scaled.args) == 2 else scaled
    if moved is scaled or moved.op != "sub" or len(moved.args) != 2:
        return None
    old = bare(moved.args[1])
    return (scaled, old) if old.op not in ("@constant", "mean") and old is not mean and _is_spread(scaled.args[1]) else None


def _kept_on(computation: Computation) -> Iterator[tuple[Value, ast.AST]]:
    """What attributes and names are given anew."""
    for one in computation.of("set_attribute"):
        if len(one.args) > 1:
            yield one.args[1], one.args[1].node
    for values in computation.stored.values():
        for value in values:
            if value.op in ("add", "lerp"):
                yield value, value.node


def _is_spread(value: Value) -> bool:
    """Whether a value is a deviation: a root, or a std."""
    return any(one.op in ("sqrt", "std", "rsqrt") or (one.op == "pow" and len(one.args) == 2 and one.args[1].data == 0.5) for one in origins(value))
