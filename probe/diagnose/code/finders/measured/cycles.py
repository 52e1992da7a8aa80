"""Cycles that do not close, and targets that depend on their batch or stand among the inputs. Pure; standard library only."""

from __future__ import annotations

from collections.abc import Iterator

from probe.diagnose.code.computed.computation import computation_of
from probe.diagnose.code.computed.value import KEPT, SHAPED, Many, Value, bare, is_none, number, origins
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Finders, Remark
from probe.diagnose.code.syntax import short
from probe.diagnose.code.traits.basic import losses, without_small

FINDERS = Finders()
_COMPARED = ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss")
_CYCLES = {"hour": 24, "minute": 60, "second": 60, "dayofweek": 7, "day_of_week": 7, "weekday": 7}
"""Parts of a time that count from 0, and how many there are."""


def circle_not_closed(program: Program) -> Iterator[Remark]:
    """A sine or cosine of a number that counts from 0 to k - 1 has the period k - 1."""
    for value in computation_of(program).of("sin", "cos"):
        for one in origins(value.args[0], stop=("div", "run", "part")) if value.args else ():
            steps = number(one.args[1]) if one.op == "div" and len(one.args) == 2 else None
            count = _count_of(one.args[0]) if steps is not None else None
            if count is not None and steps == count - 1 and any(_is_turn(part) for part in origins(value.args[0], stop=("run",))):
                yield Remark(value.node, f"{short(value.node)} divides by {steps:g}, and there are {count:g} of them, from 0 to {steps:g}: the last falls on the first")
                return


def _count_of(value: Value) -> float | None:
    """How many whole numbers a value goes through, from 0 on."""
    for _ in range(20):
        value = bare(value)
        if value.op == "mod" and len(value.args) == 2:
            return number(value.args[1])
        if value.op in _CYCLES:
            return _CYCLES[value.op]
        factors = [one for one in value.args if number(one) is None and not _is_turn(one)] if value.op == "mul" else []
        if len(factors) != 1:
            return None
        value = factors[0]
    return None


def _is_turn(value: Value) -> bool:
    """Whether a value is pi, or a multiple of it."""
    known = number(value)
    return (value.op == "@library" and str(value.data).endswith((".pi", ".tau"))) or (known is not None and (abs(known - 6.2832) < 0.001 or abs(known - 3.1416) < 0.001)) or (
        value.op == "mul" and all(number(one) is not None or _is_turn(one) for one in value.args)
    )


def targets_scaled_by_the_batch(program: Program) -> Iterator[Remark]:
    """The targets of each batch are scaled by the mean and the deviation of that batch."""
    for _, loss in losses(computation_of(program)):
        for one in origins(loss):
            if one.op not in _COMPARED or len(one.args) < 2:
                continue
            target = bare(one.args[1])
            centred = bare(target.args[0]) if target.op == "div" and len(target.args) == 2 else target
            if centred.op != "sub" or len(centred.args) != 2 or centred is target:
                continue
            rows, level, spread = bare(centred.args[0]), bare(centred.args[1]), without_small(target.args[1])
            if _is_batch(centred.args[0]) and level.op == "mean" and spread.op == "std" and all(_is_over_the_batch(part, rows) for part in (level, spread)):
                yield Remark(target.node, f"{short(target.node)} scales the targets by the mean and the deviation of their batch: one and the same value is asked for as another number in each")
                return


def _is_batch(value: Value) -> bool:
    """Whether a value is the rows of a loader's batch, or rows of a drawn order, as they are."""
    while value.op != "rows" and value.args and (value.op in KEPT or value.op in SHAPED):
        value = value.args[0]
    drawn = value.op == "part" and len(value.args) == 2 and bool(value.where.loops) and any(one.op in ("randperm", "permutation") for one in origins(value.args[1]))
    return value.op == "rows" or drawn


def _is_over_the_batch(statistic: Value, rows: Value) -> bool:
    """Whether a mean or deviation is one of the samples of a batch."""
    axis = statistic.argument("dim", 1)
    return bool(statistic.args) and bare(statistic.args[0]) is rows and (is_none(axis) or number(axis) == 0)


@FINDERS.add("target-among-inputs")
def _given_its_target(program: Program) -> Iterator[Remark]:
    """A network is given the labels of all rows, one-hot, and asked for them."""
    computation = computation_of(program)
    hot = list(computation.of("one_hot"))
    for loss in computation.of("cross_entropy", "nll_loss") if hot else ():
        if len(loss.args) < 2 or loss.where.no_grad:
            continue
        aims = {id(one) for one in _rows_before(loss.args[1]) if one.op not in ("@constant", "unknown", "element", "rows", "part")}
        for one in hot:
            if one.args and any(id(each) in aims for each in _rows_before(one.args[0])) and _is_given(loss.args[0], one):
                yield Remark(one.node, f"{short(one.node)} is among what the network is given, and {short(loss.node)} (line {loss.line}) asks for {short(loss.args[1].node)}: the input holds the answer")
                return


def _is_given(output: Value, hot: Value) -> bool:
    """Whether one-hot labels are part of what a network is given, as they are."""
    waiting, seen = [part for run in origins(output) if run.op == "run" for part in run.args[1:]], set[int]()
    while waiting:
        at = waiting.pop()
        if at is hot:
            return True
        if id(at) in seen:
            continue
        seen.add(id(at))
        if isinstance(at, Many):
            waiting += at.parts
        elif at.args and at.op != "either" and (at.op in ("cat", "column_stack", "rows", "part", "matmul") or at.op in KEPT or at.op in SHAPED):
            waiting += at.args if at.op == "matmul" else at.args[:1]
    return False


def _rows_before(value: Value) -> Iterator[Value]:
    """Targets, and what they were before some rows were taken of them."""
    for _ in range(40):
        yield value
        if not value.args or not (value.op in KEPT or value.op in SHAPED or value.op in ("part", "rows")):
            return
        if value.op == "part" and isinstance(value.args[1], Many):
            return
        value = value.args[0]
