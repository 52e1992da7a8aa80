"""Ranks of scores that have few values, so that most of them tie. Pure; standard library only."""

from __future__ import annotations

from collections.abc import Iterator

from probe.diagnose.code.computed.computation import computation_of
from probe.diagnose.code.computed.value import Many, Value, bare, constant, number, same
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Finders, Remark
from probe.diagnose.code.syntax import short

FINDERS = Finders()
_ROUNDED = frozenset({"round", "floor", "ceil", "trunc", "sign", "gt", "lt", "ge", "le", "eq", "ne", "heaviside", "bitwise_xor", "logical_xor"})
_COMBINED = frozenset({"add", "sub", "mul", "div", "matmul", "xor"})
_PASSED = ("t", "transpose", "neg", "sum", "abs", "clamp", "T", "mT", "count_nonzero")
FINE = 20.0
"""A number that is multiplied by this before it is rounded keeps its order well."""


def counted_as_better(program: Program) -> Iterator[Remark]:
    """A target's rank is one more than the number of candidates that are strictly better, and whole numbers are compared."""
    for compared in computation_of(program).of("lt", "gt"):
        if len(compared.args) != 2:
            continue
        for scores, own in (compared.args, compared.args[::-1]):
            if not _is_taken_from(own, scores) or _asks_ties(program, scores):
                continue
            rounded = _rounded(_whole(scores))
            if rounded is not None and _is_a_rank(program, compared):
                yield Remark(compared.node, f"{short(compared.node)} counts the candidates that are strictly better, and {short(rounded.node)} (line {rounded.line}) leaves few different values: all that tie with the target come after it")
                return


@FINDERS.add("ties-won-by-the-target")
def _first_of_the_order(program: Program) -> Iterator[Remark]:
    """The target is the first candidate, and a sort that keeps the order of what ties puts it before the others."""
    for asked in computation_of(program).of("eq"):
        if len(asked.args) != 2:
            continue
        for order, place in (asked.args, asked.args[::-1]):
            sort = bare(order)
            if sort.op == "indices" or (sort.op == "part" and sort.args[1:] and number(sort.args[1]) == 1):
                sort = bare(sort.args[0])
            if number(place) != 0 or sort.op not in ("argsort", "sort") or not sort.args:
                continue
            stable = constant(sort.named.get("stable"))
            rounded, clipped = _rounded(sort.args[0]), _clipped(sort.args[0])
            if rounded is not None and stable is True:
                yield Remark(sort.node, f"{short(sort.node)} keeps the order of what ties, {short(rounded.node)} (line {rounded.line}) leaves few different values, and line {asked.line} looks for the first candidate: it is put before all that tie with it")
                return
            if stable is True and clipped is not None:
                yield Remark(sort.node, f"{short(sort.node)} keeps the order of what ties, {short(clipped.node)} (line {clipped.line}) makes all beyond its bounds equal, and line {asked.line} looks for the first candidate: it is put before all that tie with it")
                return


def _clipped(scores: Value) -> Value | None:
    """Where all scores above or below fixed numbers are made equal to these."""
    scores = bare(scores, "neg")
    return scores if scores.op == "clamp" and any(number(one) is not None for one in (*scores.args[1:], *scores.named.values())) else None


def _is_taken_from(own: Value, scores: Value, depth: int = 4) -> bool:
    """Whether one number of each row of the scores is taken."""
    taken = bare(own)
    whole = _whole(scores)
    if whole is not scores and taken.op == "part" and taken.args and same(bare(taken.args[0]), whole):
        return True
    if taken.op not in ("diagonal", "diag", "gather", "part") or not taken.args or depth == 0:
        return False
    return same(bare(taken.args[0]), bare(scores)) or _is_taken_from(taken.args[0], scores, depth - 1)


def _whole(scores: Value) -> Value:
    """The scores of all, of which a row was taken, and some of its places were filled: `row = all[i]; row[known] = inf`."""
    at = bare(scores)
    while at.op in ("set_item", "masked_fill") and at.args:
        at = bare(at.args[0])
    return bare(at.args[0]) if at.op == "part" and len(at.args) == 2 and not isinstance(at.args[1], Many) and at.args[1].op in ("index", "element", "part", "@constant") else scores


def _asks_ties(program: Program, scores: Value) -> bool:
    """Whether the candidates that tie are counted too."""
    return any(
        len(one.args) == 2 and any(same(bare(side), bare(scores)) for side in one.args)
        for one in computation_of(program).of("eq", "le", "ge")
    )


def _is_a_rank(program: Program, compared: Value) -> bool:
    """Whether what is compared is counted."""
    return any(
        one.args and bare(one.args[0]) is compared for one in computation_of(program).of("sum", "count_nonzero")
    )


def _is_size(value: Value) -> bool:
    return value.op in ("size", "len") or (value.op == "part" and bool(value.args) and value.args[0].op == "shape")


def _rounded(value: Value, depth: int = 16) -> Value | None:
    """Where a value was made of numbers that are rounded or decided, with nothing else in it; None if it was not."""
    value = bare(value, *_PASSED)
    if depth == 0:
        return None
    if value.op in ("cat", "concatenate", "stack", "vstack") and value.args and isinstance(value.args[0], Many):
        parts = [_rounded(one, depth - 1) for one in value.args[0].parts]
        return parts[0] if parts and None not in parts else None
    if value.op == "where" and len(value.args) == 3 and all(number(one) is not None for one in value.args[1:]):
        return value
    if value.op in _ROUNDED:
        if value.op == "round" and (len(value.args) > 1 or value.named):
            return None
        scaled = bare(value.args[0]) if value.args else value
        fine = scaled.op == "mul" and any((by := number(part)) is not None and abs(by) >= FINE for part in scaled.args)
        return None if fine else value
    if value.op not in _COMBINED:
        return None
    found = None
    for one in value.args:
        if number(bare(one)) is None and not _is_size(one):
            inner = _rounded(one, depth - 1)
            if inner is None:
                return None
            found = found or inner
    return found
