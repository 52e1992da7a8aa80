"""Likelihoods of times of which some were cut off before the event. Pure; standard library only."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from probe.diagnose.code.computed.computation import computation_of
from probe.diagnose.code.computed.value import Value, bare, number, origins, same
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Remark
from probe.diagnose.code.syntax import short
from probe.diagnose.code.traits.arithmetic import addends, complement_of, computed_by_none, linear
from probe.diagnose.code.traits.basic import losses, without_small


class _Piece(NamedTuple):
    """A term of a likelihood: of which rows (None: of all; `kept` False: of those where `mask` is not true)."""

    of: Value
    mask: Value | None
    kept: bool


def survival_of_the_wrong_rows(program: Program) -> Iterator[Remark]:
    """The density of the rows with an event stands beside the survival of the same rows, or of all rows, which the density of
    those holds already."""
    for _, loss in losses(computation_of(program)):
        for whole in linear(loss):
            pieces = [_piece(one) for one, _ in addends(whole)] if whole.op in ("add", "sub") else []
            for density in pieces:
                if density.mask is None:
                    continue
                for survival in pieces:
                    if survival is density or not _holds(density.of, survival.of):
                        continue
                    alike = survival.mask is not None and same(survival.mask, density.mask) and survival.kept is density.kept
                    if alike:
                        yield Remark(survival.of.node, f"{short(whole.node)} takes the survival {short(survival.of.node)} for the rows that {short(density.mask.node)} chooses, as it does the density {short(density.of.node)}: the rows whose time was cut off are in neither")
                        return
                    if survival.mask is None:
                        yield Remark(survival.of.node, f"{short(whole.node)} adds the survival {short(survival.of.node)} of all rows, and the density {short(density.of.node)} of those that {short(density.mask.node)} chooses holds theirs already: it counts twice")
                        return


def _piece(term: Value) -> _Piece:
    """A term of a likelihood, and which rows it is of."""
    term = bare(term)
    if term.op == "part" and len(term.args) == 2 and computed_by_none(term.args[1]) and bare(term.args[1]).op not in ("slice", "@constant", "tuple"):
        return _Piece(bare(term.args[0]), *_mask(term.args[1]))
    if term.op == "mul" and len(term.args) == 2:
        for mask, of in (term.args, term.args[::-1]):
            if number(mask) is None and computed_by_none(mask) and not computed_by_none(of):
                return _Piece(bare(of), *_mask(mask))
    return _Piece(term, None, True)


def _mask(value: Value) -> tuple[Value, bool]:
    """What chooses rows, and whether where it is true."""
    value, kept = bare(value), True
    for _ in range(4):
        inner = complement_of(value)
        inner = value.args[0] if inner is None and value.op in ("invert", "not") else inner
        if inner is None and value.op == "eq" and number(value.args[1]) in (0, 1):
            inner, kept = value.args[0], kept if number(value.args[1]) == 1 else not kept
            value = bare(inner)
            continue
        if inner is None:
            break
        value, kept = bare(inner), not kept
    return value, kept


def _holds(density: Value, survival: Value) -> bool:
    """Whether a log density is a sum of the log survival and the log hazard, or that of the distribution whose survival the
    other is."""
    cores = list(addends(survival))
    if density.op in ("add", "sub") and len(cores) == 1 and any(sign == cores[0][1] and same(bare(one), bare(cores[0][0])) for one, sign in addends(density)):
        return True
    inner = without_small(survival.args[0]) if survival.op == "log" and survival.args else survival
    below = complement_of(inner)
    below = bare(below) if below is not None else None
    of = bare(density)
    return below is not None and below.op == "cdf" and of.op == "log_prob" and same(bare(below.args[0]), bare(of.args[0])) and any(one.op == "run" for one in origins(of))
