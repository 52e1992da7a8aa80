"""The hardest pairs of a batch that a loss looks for. Pure; standard library only."""

from __future__ import annotations

from collections.abc import Iterator

from probe.diagnose.code.computed.computation import computation_of
from probe.diagnose.code.computed.value import Value, bare, origins
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Remark
from probe.diagnose.code.syntax import short

_ENDS = {"max": "min", "min": "max"}


def negatives_of_the_same_class(program: Program) -> Iterator[Remark]:
    """The hardest partner is looked for in the same class, and the hardest opponent among all other samples."""
    for value in computation_of(program).of("sub"):
        found = [_hardest(one) for one in value.args] if len(value.args) == 2 else []
        for partner, opponent in (found, found[::-1]) if len(found) == 2 else ():
            if partner is None or opponent is None or _ENDS[partner.op] != opponent.op:
                continue
            if _asks_labels(partner) and not _asks_labels(opponent) and any(one.op in ("eye", "fill_diagonal_") for one in origins(opponent, stop=("run",))):
                yield Remark(opponent.node, f"{short(opponent.node)} leaves out each sample itself only, and the labels that {short(partner.node)} (line {partner.line}) asks are not asked: the hardest opponent is mostly of the same class")
                return


def _hardest(value: Value) -> Value | None:
    """The largest or smallest number of each row that a value is, or some rows of it."""
    for one in origins(value, stop=("run", "matmul", "max", "min")):
        if one.op in _ENDS and one.args and any(part.op in ("masked_fill", "where") for part in origins(one.args[0], stop=("run", "matmul"))):
            return one
        if one is not value and bare(value).op not in ("part", "max", "min", "mul", "neg", "clamp", "add"):
            return None
    return None


def _asks_labels(hardest: Value) -> bool:
    """Whether samples are chosen by whether their labels are equal."""
    return any(one.op in ("eq", "ne") for one in origins(hardest, stop=("run",)))
