"""Texts that are scored in windows which overlap. Pure; standard library only."""

from __future__ import annotations

from collections.abc import Iterator

from probe.diagnose.code.computed.computation import Computation, computation_of
from probe.diagnose.code.computed.value import (
    Many,
    Value,
    bare,
    constant,
    is_none,
    number,
    origins,
    same,
)
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Remark
from probe.diagnose.code.syntax import short
from probe.diagnose.code.traits.uses import made_from


def scored_in_several_windows(program: Program) -> Iterator[Remark]:
    """A text is gone through by steps that are shorter than the windows, and all words of each window are scored."""
    computation = computation_of(program)
    for loss, logits, target in _scored(computation):
        if not loss.where.no_grad or not loss.where.loops or (constant(loss.named.get("reduction")) == "none" and _is_cut(computation, loss)):
            continue
        asked = _whole(target)
        for read in origins(logits) if asked is not None else ():
            window = _bounds(read)
            if window is None or asked is None or not (asked.args[0] is read.args[0] or same(asked.args[0], read.args[0])):
                continue
            begin, width = window
            by = number(begin.args[2]) if len(begin.args) == 3 else None
            if by is not None and by < width and begin.number < loss.number and begin.where.loops == loss.where.loops[: len(begin.where.loops)]:
                yield Remark(loss.node, f"{short(loss.node)} scores all words of each window of {width:g} ({short(read.node)}, line {read.line}), and the windows begin {by:g} apart: most words are counted several times, and also where little of their past is in the window")
                return


def _scored(computation: Computation) -> Iterator[tuple[Value, Value, Value]]:
    """What says how likely words are, with the logits and the words."""
    for loss in computation.of("cross_entropy", "nll_loss"):
        if len(loss.args) > 1:
            yield loss, loss.args[0], loss.args[1]
    for taken in computation.of("gather"):
        if len(taken.args) > 2 and bare(taken.args[0]).op == "log_softmax" and not _is_cut(computation, taken):
            yield taken, taken.args[0], taken.args[2]
    for run in computation.of("run"):  # a model that computes the loss of the labels itself
        if "labels" in run.named and len(run.args) > 1:
            yield run, run.args[1], run.named["labels"]


def _is_cut(computation: Computation, scored: Value) -> bool:
    """Whether only some of what was scored is added up."""
    return any(
        one.op in ("mul", "masked_fill", "where", "masked_select") or (one.op == "part" and not _takes_all(one.args[1]))
        for one in made_from(computation, scored, frozenset({"view", "reshape", "squeeze", "unsqueeze", "flatten", "neg", "float", "cpu", "exp"}), 40)
    )


def _takes_all(index: Value) -> bool:
    """Whether an index takes all words of a row but the first or the last one, or the one row that there is."""
    parts = index.parts if isinstance(index, Many) else [index]
    return all(
        number(one) == 0 or constant(one) is Ellipsis or is_none(one)
        or (one.op == "slice" and (is_none(one.args[0]) or number(one.args[0]) == 1) and (is_none(one.args[1]) or number(one.args[1]) == -1))
        for one in parts
    )


def _whole(value: Value) -> Value | None:
    """The window of a text that a target is, or is one word ahead of, if it is the whole of it."""
    for _ in range(12):
        value = bare(value)
        if value.op == "set_item" and len(value.args) == 3 and _hides_nothing(value):
            value = value.args[0]
        elif value.op == "part" and len(value.args) == 2:
            if _bounds(value) is not None or _bounds(value, 1) is not None:
                return value
            if not _takes_all(value.args[1]):
                return None
            value = value.args[0]
        else:
            return None
    return None


def _hides_nothing(hidden: Value) -> bool:
    """Whether a window is overwritten up to as many words before its end as it is long: nowhere."""
    index = hidden.args[1].parts[-1] if isinstance(hidden.args[1], Many) and hidden.args[1].parts else hidden.args[1]
    end = bare(index.args[1]) if index.op == "slice" and is_none(index.args[0]) else None
    length = bare(end.args[0]) if end is not None and end.op == "neg" and end.args else None
    of = next((one for one in origins(hidden.args[0]) if _bounds(one) is not None), None)
    if length is None or of is None or length.op != "sub" or len(length.args) != 2:
        return False
    cut = of.args[1]
    return all(one is other or same(one, other) for one, other in ((length.args[0], cut.args[1]), (length.args[1], cut.args[0])))


def _bounds(value: Value, ahead: int = 0) -> tuple[Value, float] | None:
    """Where a cut of a text begins, by the count of a loop, and how long it is; `ahead`: how far it is moved."""
    cut = value.args[1] if value.op == "part" and len(value.args) == 2 else None
    if cut is None or cut.op != "slice" or any(is_none(one) for one in cut.args[:2]):
        return None
    begin, end = cut.args[0], bare(cut.args[1])
    if ahead:
        moved = [one.args[0] if one.op == "add" and len(one.args) == 2 and number(one.args[1]) == ahead else None for one in (begin, end)]
        if moved[0] is None:
            return None
        begin, end = moved[0], end if moved[1] is None else bare(moved[1])
    if begin.op != "index":
        return None
    for one in end.args if end.op in ("min", "minimum") else (end,):
        one = bare(one)
        known = [number(each) for each in one.args] if one.op == "add" and len(one.args) == 2 else []
        width = next((each for each in known if each is not None), None)
        if width is not None and any(each is begin for each in one.args):
            return begin, width
        inner = one.args[0] if known and known[1] == ahead and ahead else one
        if ahead and inner.op == "add" and len(inner.args) == 2 and inner.args[0] is begin and (more := number(inner.args[1])) is not None:
            return begin, more  # begin + width + 1
    return None
