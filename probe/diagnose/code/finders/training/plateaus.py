"""What ReduceLROnPlateau is given, and which way round. Pure; standard library only."""

from __future__ import annotations

from collections.abc import Iterator

from probe.diagnose.code.computed.computation import computation_of
from probe.diagnose.code.computed.value import Value, bare, constant, number
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Finders, Remark
from probe.diagnose.code.syntax import short
from probe.diagnose.code.traits.arithmetic import is_run_of_network, networks
from probe.diagnose.code.traits.basic import LOSSES

FINDERS = Finders()
_PLATEAU = "torch.optim.lr_scheduler.ReduceLROnPlateau"


@FINDERS.add("wrong-way-round")
def _wrong_way(program: Program) -> Iterator[Remark]:
    """A schedule that waits for a score to rise is given one that falls as the model improves, or the other way round."""
    computation = computation_of(program)
    known = networks(computation)
    said: set[Value] = set()
    for value in computation.of("step"):
        schedule = value.args[0] if value.args else value
        if schedule.op != _PLATEAU or len(value.args) < 2 or schedule in said:
            continue
        given = schedule.argument("mode", 1)
        mode = "min" if given is None else constant(given)
        better = _direction(value.args[1], known)
        if (better, mode) in (("falls", "max"), ("rises", "min")):
            said.add(schedule)
            yield Remark(value.node, f"{short(value.node)} gives a score that {better} as the model improves to a schedule in mode {mode!r}: the rate is cut while all goes well")


def _direction(value: Value, known: set[int], depth: int = 16) -> str | None:
    """Whether a score falls or rises as the model improves; None where that is unknown."""
    value = bare(value, "mean", "sum", "sqrt", "sum_of", "mul", "part" if constant(value.args[1] if len(value.args) > 1 else None) is not None else "mean")
    if depth == 0:
        return None
    if value.op in LOSSES and constant(value.named.get("reduction")) in (None, "mean", "sum"):
        return "falls"
    if value.op == "div" and len(value.args) == 2:
        return _direction(value.args[0], known, depth - 1)
    if value.op == "eq":
        return "rises" if any(bare(one).op in ("argmax", "max", "part", "gt", "ge") for one in value.args) else None
    if value.op == "add" and number(value.args[0]) == 0:
        return _direction(value.args[1], known, depth - 1)
    inner = bare(value.args[0]) if value.op in ("abs", "pow", "square") and value.args else None
    if inner is not None and inner.op == "sub" and any(is_run_of_network(bare(one), known) for one in inner.args):
        return "falls"
    return None
