"""Windows that are scaled by statistics of what they are to forecast, and numbers of which the mean alone is divided. Pure;
standard library only."""

from __future__ import annotations

from collections.abc import Iterator

from probe.diagnose.code.computed.computation import Computation, computation_of
from probe.diagnose.code.computed.value import Many, Value, bare, constant, is_none, number, origins, same
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Remark
from probe.diagnose.code.syntax import short
from probe.diagnose.code.traits.basic import LOSSES, is_mean_of, losses, without_small

_STATISTICS = ("mean", "std", "min", "max", "amin", "amax", "median", "var")


def mean_alone_divided(program: Program) -> Iterator[Remark]:
    """x - mean(x) / std(x): the deviation divides the mean, and not the difference."""
    computation = computation_of(program)
    said: set[int] = set()
    for value in computation.of("sub"):
        if len(value.args) != 2 or id(value.node) in said:
            continue
        quotient = bare(value.args[1])
        if quotient.op != "div" or len(quotient.args) != 2 or not is_mean_of(quotient.args[0], value.args[0]):
            continue
        below = without_small(quotient.args[1])
        if below.op == "sqrt" and below.args:
            below = without_small(below.args[0])
        if below.op in ("std", "var") and below.args and same(bare(below.args[0]), bare(value.args[0])):
            said.add(id(value.node))
            yield Remark(value.node, f"{short(value.node)} divides the mean by the deviation and takes that away: the numbers have neither the mean 0 nor the deviation 1")


def scaled_with_the_horizon(program: Program) -> Iterator[Remark]:
    """A window is scaled by statistics of all its values, and its first part is the input where the rest is the target."""
    computation = computation_of(program)
    for loss in {id(one): one for _, one in losses(computation)}.values():
        for value in origins(loss, stop=("run",)):
            pair = _compared(value)
            if pair is None:
                continue
            inputs, rest = pair
            whole = rest.args[0]
            found = _scaled_by_all(whole, rest)
            begin = next((one for one in origins(inputs) if one.op == "part" and len(one.args) == 2 and one.args[0] is whole and _are_complements(one.args[1], rest.args[1])), None)
            if found is not None and begin is not None and _is_inside(computation, begin):
                yield Remark(found.node, f"{short(found.node)} is also that of {short(rest.node)} (line {rest.line}), which is to be forecast from {short(begin.node)}: how high and how wide the rest is, is told by the scale of the input")
                return


def _compared(value: Value) -> tuple[Value, Value] | None:
    """What a network is run on, and the part of a window that it is compared with."""
    if value.op not in (*LOSSES, "sub") or len(value.args) < 2:
        return None
    for given, target in (value.args[:2], value.args[1::-1]):
        target = bare(target)
        while target.op in ("rows", "part") and target.args and not (target.op == "part" and _is_end(target.args[1])):
            target = bare(target.args[0])
        run = any(one.op == "run" for one in origins(given))
        if run and target.op == "part" and not any(one.op == "run" for one in origins(target)):
            return given, target
    return None


def _last(index: Value) -> Value:
    """The index of the last axis, where it is told for all axes."""
    return index.parts[-1] if isinstance(index, Many) and index.op == "tuple" and index.parts and all(one.op == "slice" for one in index.parts) else index


def _is_end(index: Value) -> bool:
    """Whether an index takes what follows a place."""
    index = _last(index)
    return index.op == "slice" and len(index.args) > 1 and not is_none(index.args[0]) and is_none(index.args[1])


def _are_complements(head: Value, tail: Value) -> bool:
    """Whether one index takes what comes before the place that the other one begins at."""
    head, tail = _last(head), _last(tail)
    ends = head.op == "slice" and len(head.args) > 1 and (is_none(head.args[0]) or number(head.args[0]) == 0)
    return ends and tail.op == "slice" and not is_none(head.args[1]) and same(head.args[1], tail.args[0])


def _scaled_by_all(value: Value, rest: Value) -> Value | None:
    """The statistic by which a window is scaled, over the axis that is cut."""
    if value.op == "div" and len(value.args) == 2:
        parts = [value.args[1], *(bare(value.args[0]).args[1:] if bare(value.args[0]).op == "sub" else ())]
        of = bare(value.args[0]).args[0] if bare(value.args[0]).op == "sub" else value.args[0]
    elif value.op == "sub" and len(value.args) == 2:
        parts, of = [value.args[1]], value.args[0]
    else:
        return None
    statistics = [one for part in parts for one in origins(part) if one.op in _STATISTICS and one.args and bare(one.args[0]) is bare(of)]
    along = {number(one.argument("dim", 1)) if not is_none(one.argument("dim", 1)) else None for one in statistics}
    columns = isinstance(rest.args[1], Many) and len(rest.args[1].parts) > 1
    fits = along <= ({-1, float(len(rest.args[1].parts) - 1)} if columns and isinstance(rest.args[1], Many) else {None, 0})
    return statistics[0] if statistics and fits else None


def _is_inside(computation: Computation, begin: Value) -> bool:
    """Whether a window is one of many: it is cut for each sample, or holds one in each row."""
    return isinstance(begin.args[1], Many) or bool(begin.where.loops) or any(getattr(one, "name", "") in ("__getitem__", "collate", "collate_fn") for one in begin.where.functions) or any(
        one.op == "slice" and any(each.op == "index" for each in origins(one)) for one in origins(begin.args[0])
    )


_MADE_OF_BEFORE = ("ffill", "rolling", "shift", "diff", "pct_change", "ewm", "expanding", "groupby", "resample", "interpolate")


def filled_from_the_future(program: Program) -> Iterator[Remark]:
    """Missing values of a series are filled with the next one that is known, and windows are cut of it whose target comes next."""
    computation = computation_of(program)
    parts = [one for one in computation.of("part") if len(one.args) > 1]
    for window in parts:
        begin = window.args[1].args[0] if window.args[1].op == "slice" and window.args[1].args else None
        if begin is None or begin.op != "index":
            continue
        filled = _filled(window.args[0])
        later = next((one for one in parts if one.args[1].op in ("add", "sub", "slice") and one is not window and any(each is begin or same(each, begin) for each in origins(one.args[1])) and one.where.functions == window.where.functions), None) if filled is not None else None
        later = later or next((one for one in parts if filled is not None and one.args[1].op in ("add", "sub") and one.where.functions == window.where.functions and any(each.op == "index" for each in origins(one.args[1]))), None)
        if filled is not None and later is not None:
            yield Remark(filled.node, f"{short(filled.node)} puts into each gap the value that comes after it, and {short(later.node)} (line {later.line}) is to be forecast from {short(window.node)}: a gap at its end holds what comes next")
            return


def _filled(series: Value) -> Value | None:
    """Where the gaps of a series are filled from behind, and not from before first."""
    for _ in range(30):
        if series.op in ("bfill", "backfill") or (series.op == "fillna" and constant(series.named.get("method")) in ("bfill", "backfill")):
            early = any(one.op in _MADE_OF_BEFORE or (one.op == "fillna" and "method" in one.named) for one in origins(series.args[0])) if series.args else True
            return None if early or "limit" in series.named else series
        if not series.args or series.op in ("run", "element", "add"):
            return None
        series = series.args[2] if series.op == "set_item" and len(series.args) > 2 else series.args[0]
    return None
