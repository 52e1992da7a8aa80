"""Texts that are scored in windows which overlap. Pure; standard library only."""

from __future__ import annotations

from collections.abc import Iterator

from probe.diagnose.code.computed.computation import computation_of
from probe.diagnose.code.computed.value import Value, bare, is_none, number, origins
from probe.diagnose.code.finders.sequences.same_words import ahead_of
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Remark
from probe.diagnose.code.syntax import short

_HIDDEN = ("set_item", "masked_fill", "where", "index_fill")


def scored_in_several_windows(program: Program) -> Iterator[Remark]:
    """A text is gone through by steps that are shorter than the windows, and all words of each window are scored."""
    computation = computation_of(program)
    for loss in computation.of("cross_entropy", "nll_loss"):
        if len(loss.args) < 2 or not loss.where.no_grad or any(one.op in _HIDDEN for one in _near(loss.args[1])):
            continue
        for read, ahead in ahead_of(loss.args[0], loss.args[1]):
            window = _window(read.args[1])
            if ahead != 1 or window is None:
                continue
            cut, begin, width = window
            by = number(begin.args[2]) if len(begin.args) == 3 else None
            if by is not None and by < width and begin.number < loss.number and loss.where.loops and begin.where.loops == loss.where.loops[: len(begin.where.loops)]:
                yield Remark(loss.node, f"{short(loss.node)} scores all words of each window of {width:g} ({short(cut.node)}, line {cut.line}), and the windows begin {by:g} apart: most words are counted several times, and also where little of their past is in the window")
                return


def _near(value: Value) -> Iterator[Value]:
    """What a target is, up to the text that it is cut from."""
    for _ in range(12):
        value = bare(value)
        yield value
        if value.op not in ("part", *_HIDDEN) or not value.args or _bounds(value) is not None:
            return
        value = value.args[0]


def _bounds(value: Value) -> tuple[Value, float] | None:
    """Where a cut of a text begins, by the count of a loop, and how long it is."""
    cut = value.args[1] if value.op == "part" and len(value.args) == 2 else None
    if cut is None or cut.op != "slice" or any(is_none(one) for one in cut.args[:2]):
        return None
    begin, end = cut.args[0], bare(cut.args[1])
    if begin.op != "index":
        return None
    for one in end.args if end.op in ("min", "minimum") else (end,):
        one = bare(one)
        width = number(one.args[1]) if one.op == "add" and len(one.args) == 2 and one.args[0] is begin else None
        if width is not None:
            return begin, width
    return None


def _window(value: Value) -> tuple[Value, Value, float] | None:
    for one in origins(value, stop=("run",)):
        found = _bounds(one)
        if found is not None:
            return one, *found
    return None
